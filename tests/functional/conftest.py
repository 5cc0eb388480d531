"""A benchmark small enough that a whole run of a real model takes seconds, and a browser per file
of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tiny_benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 synthetic clusters, 24 MCQs and 6 regression questions."""
    from sdgbias.benchmark.build import Draw, build
    from sdgbias.raw.synthetic import write_sample

    folder = tmp_path_factory.mktemp("tiny")
    write_sample(folder / "raw", 12, 5)
    build(
        folder / "raw",
        folder / "raw" / "indicators",
        folder / "benchmark",
        Draw(mcq=24, regression=6),
    )
    return folder / "benchmark"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.builders.chromium import start

    driver = start(tmp_path_factory.mktemp("chrome"))
    yield driver
    driver.quit()
