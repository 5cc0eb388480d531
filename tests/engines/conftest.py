"""Fixtures of these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sdgbias.engines.api import Api
from tests.builders.endpoint import KEY, Server, spec


@pytest.fixture
def server() -> Iterator[Server]:
    s = Server()
    yield s
    s.close()


@pytest.fixture
def make(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[Callable[..., Api]]:
    monkeypatch.setenv("UNIT_KEY", KEY)
    made: list[Api] = []

    def api(**options: Any) -> Api:
        made.append(Api(spec(server, **options), tmp_path))
        return made[-1]

    yield api
    for one in made:
        one.close()
