"""A benchmark small enough that a whole run of a real model takes seconds, and a browser per file
of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.commands import ok
from tests.builders.once import once


@pytest.fixture(scope="session")
def tiny_benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 synthetic clusters, 24 MCQs and 6 regression questions."""

    def make(folder: Path) -> None:
        from sdgbias.benchmark.build import Draw, build
        from sdgbias.raw.synthetic import write_sample

        raw = folder / "raw"
        write_sample(raw, 12, 5)
        build(raw, raw / "indicators", folder / "benchmark", Draw(mcq=24, regression=6))
        # a night doesn't check what has passed: tests/nightly/test_steps.py
        ok("build", "--stage", "check", "--out", folder / "benchmark")

    return once(tmp_path_factory, "tiny", make) / "benchmark"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.builders.chromium import start

    driver = start(tmp_path_factory.mktemp("chrome"))
    yield driver
    driver.quit()
