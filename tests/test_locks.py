"""Locks: one holder at a time, and what the next one is told."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sdgbias import locks
from sdgbias.errors import StoreError


def test_a_lock_is_held_by_one_and_its_word_is_given_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    unwritable = lambda e: StoreError(f"unwritable: {e.strerror}")  # noqa: E731
    lock = partial(locks.only_one, path, unwritable, StoreError, "night 7")
    with lock():
        assert locks.is_held(path)
        with pytest.raises(StoreError, match=r"^night 7$"), lock():
            pytest.fail("two at once")
    assert not locks.is_held(path)
    assert locks.holder(path) == "night 7"
    with pytest.raises(StoreError, match="unwritable: Is a directory"):
        with locks.only_one(tmp_path, unwritable, StoreError, ""):
            pytest.fail("a folder is no lock")
