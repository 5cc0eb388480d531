"""Hand-written YAML files: the dataclass of a format, annotated for pydantic, is its parser, the
source of its one-line messages and its JSON Schema (registry/*.schema.json, for editors)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, TypeAdapter
from pydantic import ConfigDict as Config
from pydantic import ValidationError as Invalid

from sdgbias import files
from sdgbias.errors import InputError, SdgbiasError, first_line, one_of

T = TypeVar("T")
#: For ``__pydantic_config__`` of a format: fields that it doesn't have are faults, and the string
#: below a field describes it.
STRICT = Config(extra="forbid", use_attribute_docstrings=True)
Flag = StrictBool
Count = Annotated[StrictInt, Field(ge=1)]
Number = Annotated[StrictFloat, Field(allow_inf_nan=False)]
Positive = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
#: A date, or '': YAML reads a bare date as one.
Day = Annotated[
    str,
    Field(pattern=r"^(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01]))?$"),
    BeforeValidator(lambda v: v.isoformat() if hasattr(v, "isoformat") else v),
]
_VALID = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping of fields",
    "string_too_short": "text, not empty",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
}


#: A field that a format doesn't have: of a dataclass, of a model.
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def read(path: Path, model: type[T], error: type[SdgbiasError], onward: str) -> T:
    """The content of a YAML file. Raises ``error`` in one line that names the file and the invalid
    value; ``onward``: what to do about a file that can't be read."""
    return parse(load(path, error, onward), model, path, error)


def load(path: Path, error: type[SdgbiasError], onward: str) -> Any:
    """The data of a YAML file, not validated yet. Raises ``error``."""
    try:
        return load_text(files.read_small(path), path, error, onward)
    except InputError as fault:
        raise error(f"{fault}; {onward}") from None
    except (OSError, UnicodeDecodeError) as fault:
        why = getattr(fault, "strerror", None) or type(fault).__name__
        raise error(f"{path}: can't be read ({why}); {onward}") from None


def load_text(text: str, where: Path | str, error: type[SdgbiasError], onward: str) -> Any:
    """The data of a YAML text. Raises ``error``."""
    try:
        return files.load_yaml(text)
    # ValueError: a date that doesn't exist, or a number of too many digits, with advice on Python
    except (yaml.YAMLError, ValueError) as fault:
        mark = getattr(fault, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        why = getattr(fault, "problem", None) or first_line(fault).partition(";")[0]
        raise error(f"{where}:{line} is not readable YAML: {why}; {onward}") from None


def parse(data: object, model: type[T], where: Path | str, error: type[SdgbiasError]) -> T:
    """A mapping as read from YAML -> ``model``. ``where`` names the file in messages. Raises
    ``error`` on the first fault; unknown fields come before missing ones."""
    try:
        parsed: T = _adapter(model).validate_python(data)
        return parsed
    except Invalid as invalid:
        faults = sorted(invalid.errors(), key=lambda f: f["type"] not in _UNKNOWN)
        raise error(f"{where}: {_sentence(faults[0], schema(model), data)}") from None


def faults(data: object, model: type[Any]) -> list[tuple[tuple[Any, ...], str]]:
    """Every fault of a mapping, as (place in the data, sentence)."""
    try:
        _adapter(model).validate_python(data)
    except Invalid as invalid:
        described = schema(model)
        return [(fault["loc"], _sentence(fault, described, data)) for fault in invalid.errors()]
    return []


def schema(model: type[Any], name: str = "") -> dict[str, Any]:
    """JSON Schema of a format. Conditions between fields are checked by the reader alone."""
    properties = _adapter(model).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"sdgbias/{name}.schema.json",
        **properties,
    }


def _sentence(fault: Any, whole: dict[str, Any], data: object) -> str:
    """One fault as a sentence: field, value and what is valid."""
    *above, field = [part for part in fault["loc"] if part != "[key]"] or [""]
    if fault["type"] == "value_error":  # a rule of the format: a sentence of its own
        return "".join((_place(fault["loc"], data), str(fault["ctx"]["error"])))
    place = _place(above, data)
    here = _at(whole, above)
    if fault["type"] in _UNKNOWN:
        return place + one_of("field", field, here["properties"])
    if fault["type"] == "missing":
        return f"{place}missing field {field!r}; required: {', '.join(here['required'])}"
    if fault["type"] == "literal_error":
        names = re.findall(r"'([^']*)'|(\d+)", fault["ctx"]["expected"])
        valid = [text or number for text, number in names if text or number]
        return place + one_of(str(field), str(fault["input"]), valid)
    about = " ".join(_at(whole, fault["loc"]).get("description", "").split())
    if fault["type"] == "dataclass_type":
        fields = ", ".join(_at(whole, fault["loc"])["properties"])
        return f"{_place(fault['loc'], data)}not a mapping of fields; valid fields: {fields}"
    if fault["type"] in _VALID:
        message = _VALID[fault["type"]].format(**fault.get("ctx", {}))
    else:
        message = fault["msg"].removeprefix("Input should be ")
    if fault["type"] in ("string_pattern_mismatch", "too_short", "too_long") and about:
        message = about
    elif fault["type"] in ("tuple_type", "dict_type") and about:
        message += f": {about}"
    message = message.removesuffix(".")
    return f"{_place(above, data)}{field} is {fault['input']!r:.200}; valid: {message}"


def _place(loc: Any, data: Any) -> str:
    """('owners', 0) -> 'owners[0]: ', with the name of what is there if it has one; '' at the
    top."""
    text = ""
    for part in (part for part in loc if part != "[key]"):  # pydantic's mark of a mapping's name
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
        try:
            data = data[part]
        except (IndexError, KeyError, TypeError):  # what is missing, or a step of pydantic's own
            data = None
        if isinstance(part, int) and isinstance(data, dict) and isinstance(data.get("name"), str):
            text += f" ({data['name']})"
    return f"{text.removeprefix('.')}: " if text else ""


def _at(whole: dict[str, Any], loc: Any) -> dict[str, Any]:
    """The part of a schema at a place of the data; {} where it has none."""
    part_schema: Any = whole
    for part in (*loc, None):
        for option in part_schema.get("anyOf", []):
            part_schema = part_schema | option
        if "$ref" in part_schema:
            part_schema = part_schema | whole["$defs"][part_schema["$ref"].rsplit("/", 1)[1]]
        if part is None:
            break
        named = part_schema.get("properties", {}).get(part, part_schema.get("additionalProperties"))
        part_schema = part_schema.get("items", {}) if isinstance(part, int) else named or {}
    return dict(part_schema)
