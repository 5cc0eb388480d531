"""YAML that people write: read strictly, searched for secrets, and changed in a few fields without touching the rest of the text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import yaml

#: Names that smell of a credential; counts such as ``num_image_tokens: 1`` are let through.
_SECRET_NAME = re.compile(r"key|token|secret|passw", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"\b(sk-|hf_|ghp_|AIza)[A-Za-z0-9_-]{16,}")


class _StrictLoader(yaml.SafeLoader):
    """safe_load that refuses a key given twice (plain yaml keeps the last one without a word)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            if isinstance(key, str) and key in seen:
                twice = f"field {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, twice, key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def load(text: str) -> Any:
    """What a YAML text says; no objects, no key twice. yaml.YAMLError, or ValueError for a date that doesn't exist."""
    return yaml.load(text, Loader=_StrictLoader)  # a SafeLoader


def with_fields(text: str, fields: Mapping[str, str], old_names: Mapping[str, str]) -> str:
    """The text with top-level fields set to these values; '' removes one, a new one stands below the first. Every other character stays,
    comments among them. ``old_names``: earlier name -> the field that takes its place. The first field must stand in the text."""
    text = text if text.endswith("\n") else text + "\n"
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode)
    spans = {old_names.get(key.value, key.value): (key.start_mark.index, value.end_mark.index) for key, value in node.value}
    lines = {name: yaml.safe_dump({name: value}, allow_unicode=True, width=10_000) for name, value in fields.items() if value}
    edits: list[tuple[int, int, str]] = []
    for name in fields.keys() & spans.keys():
        start, end = spans[name]
        is_block = text[end - 1] == "\n"  # a value of several lines ends with its last newline
        line_end = end if is_block else text.index("\n", end) + 1
        if name in lines:
            edits.append((start, end, lines[name] if is_block else lines[name].rstrip("\n")))
        else:
            edits.append((start, end if text[end:line_end].strip() else line_end, ""))
        if name == next(iter(fields)):
            edits.append((line_end, line_end, "".join(line for field, line in lines.items() if field not in spans)))
    for start, end, line in sorted(edits, reverse=True):
        text = text[:start] + line + text[end:]
    return text


def secret(data: Mapping[Any, Any], allowed: Collection[str] = ()) -> str:
    """The first name in nested data whose name or value looks like a credential; '' when none does. ``allowed``: names that may stand."""
    for name, value in _walk(data):
        is_count = name.endswith("tokens") and isinstance(value, int)
        named = _SECRET_NAME.search(name) and not (name in allowed or is_count or isinstance(value, dict))
        if named or (isinstance(value, str) and _SECRET_VALUE.search(value)):
            return name
    return ""


def _walk(data: object, name: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield str(key), value
            yield from _walk(value, str(key))
    elif isinstance(data, list):
        for value in data:
            yield name, value
            yield from _walk(value, name)
