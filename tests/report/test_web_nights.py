"""The page of the last night, and of one that runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree

import pandas as pd
from starlette.testclient import TestClient

from sdgbias import store
from sdgbias.report.reader import Results
from sdgbias.report.web import app, nights
from sdgbias.report.web.site import Site
from tests.builders.nights import BROKEN
from tests.builders.nights import name as night_name
from tests.builders.web_pages import RUN, text


def test_last_night_says_what_wants_a_person_first(client: TestClient) -> None:
    said = text(client.get("/").text)
    assert (
        f"Last night {night_name(3)}" in said
        and "1 failed; 1 model in breach: fake-optimist." in said
    )
    assert (
        "OutOfMemory: CUDA out of memory at batch size 1" in said
        and "3 attempts" in said
        and "quarantined until 2026-11-23" in said
    )
    assert "Planted, not measured: fake-optimist, fake-pessimist" in said
    assert (
        "3 answers differ from the last good run, 0 for the better" in said
        and "wandb no network" in said
    )
    assert (
        said.index("fake-optimist", said.index("Took Look"))
        < said.index(BROKEN, said.index("Took Look"))
        < said.index("fake-pessimist", said.index("Took Look"))
    )


def test_a_running_night_shows_how_far_it_is(served: Path, tmp_path: Path) -> None:
    copytree(served.parent, tmp_path / "r")
    path, night = tmp_path / "r" / served.name, "2026-11-30T0130"
    start = datetime(2026, 11, 30, 0, 30)
    done = {
        "night": night,
        "model": "fake-optimist",
        "suite": "sdg",
        "outcome": "published",
        "run_id": RUN,
        "seconds": 60.0,
    }
    store.upsert(
        path,
        {
            "nights": pd.DataFrame([{"night": night, "started_at": start, "status": "running"}]),
            "night_outcomes": pd.DataFrame([done]),
        },
    )
    folder = path.parent / "nights" / night
    (folder / "registry").mkdir(parents=True)
    for model in ("a", "b", "c"):
        (folder / "registry" / f"{model}.yaml").write_text("name: x")
    more = [{**done, "model": model, "run_id": None} for model in ("a", "b")]
    store.upsert(path, {"night_outcomes": pd.DataFrame(more)})
    (folder / "a.log").write_text("first\n\x1b[32mscoring 10 %\rscoring 20 % <b>\n\n")
    (folder / "out.log").symlink_to("/etc/hostname")
    with Results(path).reading() as reader:
        found = nights.running(reader, start.replace(tzinfo=UTC) + timedelta(hours=1))
        assert found and found["seconds"] == 3600 and found["planned"] == 4 and found["done"] == 3
        assert [(log["name"], log["last"]) for log in found["logs"]] == [
            ("a.log", "scoring 20 % <b>")
        ]
    client = TestClient(app.create(Site(Results(path))), base_url="http://localhost")
    html = client.get("/").text
    assert (
        f"Night {night} is running" in html
        and "3 of 4 done" in text(html)
        and "scoring 20 % &lt;b&gt;" in html
    )
    assert f"Last night {night_name(3)}" in text(html), "the last night that ended stays in sight"
    assert client.get("/api/running").json() | {"lasted": ""} == {
        "night": night,
        "done": 3,
        "planned": 4,
        "lasted": "",
    }
    store.upsert(
        path,
        {
            "nights": pd.DataFrame(
                [
                    {
                        "night": "../../escape",
                        "started_at": start + timedelta(days=1),
                        "status": "running",
                    }
                ]
            )
        },
    )
    assert client.get("/").status_code == 200, "a night whose name leads elsewhere has no folder"
