"""sdgbias: measures the bias of vision-language models about sustainable development, and how much
of it can be removed.

For notebooks: load, metrics, scores, compare and figure (sdgbias.notebook), imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

NOTEBOOK = ("load", "metrics", "scores", "compare", "figure")

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> object:
        # by its name, since rooms below import this package and must not reach those above
        if name in NOTEBOOK:
            from importlib import import_module

            return getattr(import_module("sdgbias.notebook"), name)
        raise AttributeError(f"module 'sdgbias' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *NOTEBOOK})
