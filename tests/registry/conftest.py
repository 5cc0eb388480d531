"""Fixtures of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.hub import Hub
from tests.builders.hub_repositories import REPOS, TOKENS


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    with Hub(REPOS, TOKENS) as made:
        made.into(monkeypatch, tmp_path / "hf")
        yield made
