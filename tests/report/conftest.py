"""Results that the pages show; no test writes to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from sdgbias.report.build import write_report
from sdgbias.report.reader import Reader, Results
from tests.builders.nights import publish_both_suites
from tests.builders.results import publish_fake
from tests.builders.studies import analyse_fake
from tests.builders.web_pages import client_of, publish_served

ANALYSED = "fake-pessimist-2"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four nights of three models."""
    return publish_served(tmp_path_factory.mktemp("nights"))


@pytest.fixture(scope="session")
def client(served: Path) -> TestClient:
    return client_of(served)


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of two planted models; one is analysed."""
    path = publish_fake(tmp_path_factory.mktemp("results") / "sdgbias.duckdb")
    analyse_fake(path, ANALYSED)
    return path


@pytest.fixture(scope="session")
def report(fake: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of the report on `fake`, and what was told while it was written."""
    told: list[str] = []
    return write_report(fake, tmp_path_factory.mktemp("report"), tell=told.append).parent, told


@pytest.fixture(scope="session")
def folder(report: tuple[Path, list[str]]) -> Path:
    return report[0]


@pytest.fixture(scope="session")
def suites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models on places, one on people."""
    return publish_both_suites(tmp_path_factory.mktemp("suites"))


@pytest.fixture
def reader(suites: Path) -> Iterator[Reader]:
    with Results(suites).reading() as reader:
        yield reader
