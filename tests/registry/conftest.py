"""Fixtures of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.hub import Hub
from tests.builders.hub_repositories import REPOS, TOKENS


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SDGBIAS_REGISTRY", raising=False)
    (tmp_path / "registry" / "models").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    with Hub(REPOS, TOKENS) as made:
        made.into(monkeypatch, tmp_path / "hf")
        yield made
