"""Results that the pages of `sdgbias serve` show, what serves them, and their text."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
from starlette.testclient import TestClient

from sdgbias import store
from sdgbias.report.reader import Results
from sdgbias.report.web import app
from sdgbias.report.web.site import Site
from tests.builders.nights import publish_nights
from tests.builders.store_rows import publish_again

RUN, BEFORE = "fake-optimist-3", "fake-optimist-2"


def publish_served(folder: Path) -> Path:
    """Nights of three models in FOLDER, and one regression answer at test T2 of `RUN`."""
    path = publish_nights(folder / "sdgbias.duckdb")
    sql = "SELECT * EXCLUDE (run_id) FROM predictions WHERE run_id = ?"
    answers = store.query(path, sql, [RUN])
    estimate = {"task": "regression", "item_id": 1060, "test": "T2", "method": "full"}
    estimate |= {"split": "test", "pred": "4", "value": 41.5, "error": 1.5, "correct": True}
    every = pd.concat([answers, pd.DataFrame([estimate])], ignore_index=True)
    publish_again(path, RUN, {"predictions": every})
    return path


def client_of(results: Path, wait: float = 0, **site: Any) -> TestClient:
    """What answers as `sdgbias serve` does for these results."""
    served = Site(Results(results, wait=wait) if wait else Results(results), **site)
    return TestClient(app.create(served), base_url="http://127.0.0.1:8321")


def text(html: str) -> str:
    """What a reader reads: no tags, single spaces."""
    main = unescape(re.sub(r"<[^>]+>", " ", html.split("<main")[-1]))
    return re.sub(r"\s+", " ", main.replace("\u00a0", " "))
