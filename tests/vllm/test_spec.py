"""The specification of every engine, on vLLM."""

from __future__ import annotations

from tests.spec.engine_spec import *  # noqa: F403
