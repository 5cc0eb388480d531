"""The benchmark of nights with broken models, small, so that it doesn't rot."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.builders.commands import REPOSITORY


@pytest.mark.long
def test_given_a_model_that_crashes_then_it_alone_is_put_aside() -> None:
    sizes = ["--good", "1", "--bad", "1", "--nights", "1", "--questions", "6"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.hundred_models", *sizes],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 models asked" in done.stdout and "outcomes: failed 1, published 1" in done.stdout
    assert "wrong reason or not put aside: none" in done.stdout
    assert "lost: 0 models without a row" in done.stdout and "1 of 1" in done.stdout
