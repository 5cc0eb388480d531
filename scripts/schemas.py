"""Writes registry/*.schema.json, from which editors complete and check the YAML files of the
registry, out of the dataclasses that read them: python scripts/schemas.py (part of `make docs`)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from sdgbias import formats
from sdgbias.benchmark.own_spec import SuiteFile
from sdgbias.engines import options
from sdgbias.nightly.regression.policy import Policy
from sdgbias.nightly.watch import Rules
from sdgbias.registry.spec import ModelSpec

REGISTRY = Path(__file__).resolve().parents[1] / "registry"
FORMATS = {"model": ModelSpec, "policy": Policy, "suite": SuiteFile, "watch": Rules}


def _named(model: type[options.Options], schema: dict[str, Any]) -> dict[str, Any]:
    """What a backend's options add to those of every backend. None is required: an entry that is
    not complete yet may be a candidate."""
    common = options.Options.model_fields
    properties = {name: about for name, about in schema["properties"].items() if name not in common}
    strict = model.model_config["extra"] == "forbid"
    names = {"propertyNames": {"enum": [*schema["properties"]]}} if strict else {}
    return {"properties": properties, **names}


def schema_of(name: str) -> dict[str, Any]:
    """JSON Schema of a format; that of an entry with the options of each backend."""
    schema = formats.schema(FORMATS[name], name)
    if name != "model":
        return schema
    models = {model.__name__: model for model in options.MODELS.values()}
    _, written = models_json_schema([(model, "validation") for model in models.values()])
    of_each = {name: written["$defs"].pop(name) for name in models}
    schema["properties"]["options"]["properties"] = of_each["Options"]["properties"]
    schema |= written
    schema["allOf"] = [
        {
            "if": {"properties": {"backend": {"const": backend}}},
            "then": {"properties": {"options": _named(model, of_each[model.__name__])}},
        }
        for backend, model in options.MODELS.items()
    ]
    return schema


def texts() -> dict[Path, str]:
    """File -> its text, the innermost objects and lists in one line each."""
    files = {}
    for name in FORMATS:
        text = json.dumps(schema_of(name), indent=1)
        text = re.sub(r"[{[][^][{}]*[]}]", lambda part: " ".join(part[0].split()), text)
        files[REGISTRY / f"{name}.schema.json"] = text + "\n"
    return files


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
