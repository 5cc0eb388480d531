"""Results that `sdgbias serve` shows; no test writes to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from sdgbias.report.reader import Results
from sdgbias.report.web import app
from sdgbias.report.web.site import Site
from tests.builders.web_pages import publish_served


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_served(tmp_path_factory.mktemp("nights"))


@pytest.fixture(scope="session")
def client(served: Path) -> TestClient:
    return TestClient(app.create(Site(Results(served))), base_url="http://127.0.0.1:8321")
