"""Results that the tables and pages of the paper are built from; no test writes to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias import store
from sdgbias.suites.rows import HEADLINE
from tests.builders.paper_tables import (
    studied,
)
from tests.builders.results import copied, publish_models


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_models(tmp_path_factory.mktemp("bare") / "r.duckdb")


@pytest.fixture(scope="session")
def full(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = copied(bare, tmp_path_factory.mktemp("full") / "r.duckdb")
    store.replace(path, "llava-1.5-7b-0", {"numbers": studied()}, kept_study=HEADLINE)
    return path
