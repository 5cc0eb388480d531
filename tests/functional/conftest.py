"""A benchmark small enough that a whole run of a real model takes seconds, and a browser per file
of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.once import synthetic_benchmark


@pytest.fixture(scope="session")
def tiny_benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 synthetic clusters, 24 MCQs and 6 regression questions."""
    # a night doesn't check what has passed: tests/nightly/test_run.py
    return synthetic_benchmark(tmp_path_factory, "tiny", 12, 24, 6, checked=True)


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.builders.chromium import start

    driver = start(tmp_path_factory.mktemp("chrome"))
    yield driver
    driver.quit()
