"""Marks of the figures: Vega-Lite from the forms of ``data/figure_forms.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from string import Template
from typing import Any

import yaml

from sdgbias.files import packaged

SHAPES = ("circle", "diamond", "square", "triangle-up", "cross", "triangle-down")
_ABSENT = object()


@cache
def _forms() -> Mapping[str, Any]:
    text = packaged("data", "figure_forms.yaml").read_text(encoding="utf-8")
    forms: Mapping[str, Any] = yaml.safe_load(text)
    return forms


def form(name: str, **given: Any) -> dict[str, Any]:
    """A form as Vega-Lite without data: ``$name`` stands for what is given under this name; what
    is neither given nor a default is left out."""
    spec = dict(_forms()[name])
    filled: dict[str, Any] = _filled(spec, spec.pop("defaults", {}) | given)
    return filled


def _filled(part: Any, given: Mapping[str, Any]) -> Any:
    if isinstance(part, str):
        if part[:1] == "$" and part[1:].isidentifier():
            return given.get(part[1:], _ABSENT)
        return Template(part).substitute(given)
    if isinstance(part, list):
        return [item for p in part if (item := _filled(p, given)) is not _ABSENT]
    if not isinstance(part, dict):
        return part
    if "if" in part and not given.get(part["if"]):
        return _ABSENT
    filled = {k: _filled(v, given) for k, v in part.items() if k != "if"}
    return {k: v for k, v in filled.items() if v is not _ABSENT}


def coloured(legend: Mapping[str, str]) -> dict[str, Any]:
    """What forms are given of a legend (name -> colour, the same in every figure that uses these
    names); without one, the colour of every mark."""
    if not legend:
        return {"plain": "#0072b2"}
    alone = {"alone": None} if len(legend) == 1 else {}
    shapes = list(SHAPES[: len(legend)])
    return {"names": list(legend), "colours": list(legend.values()), "shapes": shapes} | alone


def tips(columns: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"field": c, "type": "nominal", "title": head} for c, head in columns.items()]
