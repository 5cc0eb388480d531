"""The options of a registry entry, checked against data/engine_options.yaml before anything is
loaded."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from sdgbias.errors import RegistryError, one_of
from sdgbias.files import packaged_yaml
from sdgbias.types import ModelSpec


@cache
def described(engine: str) -> dict[str, dict[str, Any]]:
    """Options of 'api', 'vllm', 'hf' or 'every' backend: name -> JSON Schema of its value, with
    valid, meaning."""
    found: dict[str, dict[str, Any]] = packaged_yaml("engine_options.yaml")[engine]
    return found


def checked(spec: ModelSpec, engine: str, *without: str) -> dict[str, Any]:
    """The options of an entry but those named in ``without``. RegistryError for an unknown name
    (lists the valid ones) or a bad value."""
    known = described(engine)
    options = {name: value for name, value in spec.options.items() if name not in without}
    for name in options:
        if name not in known:
            raise RegistryError(
                f"registry/models/{spec.name}.yaml: {one_of('option', name, known)}"
            )
        option(spec, engine, name)
    return options


def option(spec: ModelSpec, engine: str, name: str, default: Any = None) -> Any:
    """One option of an entry, ``default`` where it isn't set. RegistryError for a bad value."""
    if name not in spec.options:
        return default
    value, schema = spec.options[name], described(engine)[name]
    if not _fits(value, schema):
        raise RegistryError(
            f"registry/models/{spec.name}.yaml: {name} is {value!r}; valid: {schema['valid']}"
        )
    return value


def _fits(value: object, schema: dict[str, Any]) -> bool:
    from jsonschema import Draft4Validator, Draft202012Validator
    from jsonschema.validators import extend

    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):  # a date; a number that isn't finite
        return False
    # in the fourth draft 1.0 is no integer
    strict = extend(Draft202012Validator, type_checker=Draft4Validator.TYPE_CHECKER)
    return bool(strict(schema).is_valid(value))
