"""The tables of one benchmark of each kind, for the tests of its quality check."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from sdgbias.benchmark import build, quality
from tests.builders.quality import SUITES, Tables, copied, good_tables, save


@pytest.fixture(scope="session")
def good(small_benchmark: Path, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Not to be changed. Answers have about the shares of the paper's Table B."""
    folder = tmp_path_factory.mktemp("kinds")
    places = Path(shutil.copytree(small_benchmark, folder / "places"))
    build.build_items(places, build.Draw(mcq=60, regression=20, cuts="paper"))
    build.build_prompts(places)
    return good_tables(places, folder)


@pytest.fixture
def tables(good: Tables) -> Tables:
    return copied(good)


@pytest.fixture(scope="session")
def passed(good: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark that has passed the gate. Not to be changed."""
    folder = tmp_path_factory.mktemp("passed")
    lost = pd.DataFrame({"table": "series", "rule": ["value-in-range"] * 3})
    lost.to_parquet(folder / "quarantine.parquet")
    quality.run_gate(save(good, folder), SUITES)
    return folder
