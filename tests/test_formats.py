"""File formats: the published schemas are those of the readers, and a fault is one line that names
the place, the value and what is valid."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from sdgbias import formats
from sdgbias.errors import InputError
from sdgbias.formats import STRICT, Count, Day, Flag, Positive, Text


def test_the_schemas_of_the_registry_are_generated() -> None:
    from scripts import schemas

    texts = schemas.texts()
    assert {p.name for p in texts} == {p.name for p in schemas.REGISTRY.glob("*.schema.json")}
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, "run: make docs"


@dataclass(frozen=True)
class Leaf:
    __pydantic_config__ = STRICT
    word: Annotated[str, Field(pattern="^[a-z]+$", description="Small letters.")]
    many: Count = 1


@dataclass(frozen=True)
class Tree:
    __pydantic_config__ = STRICT
    title: Text
    leaves: Annotated[tuple[Leaf, ...], Field(description="one or more leaves")] = ()
    kind: Literal["oak", "beech"] = "oak"
    height: Positive | None = None
    planted: Day = ""
    ever_green: Flag = False


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "not a mapping of fields; valid fields: title, leaves, kind, height, planted"),
        ("kind: oak", "missing field 'title'; required: title"),
        (
            "titel: x",
            "unknown field 'titel'; valid: ever_green, height, kind, leaves, planted, title; did"
            " you mean 'title'?",
        ),
        ("{title: x, kind: oaks}", "unknown kind 'oaks'; valid: beech, oak; did you mean 'oak'?"),
        ("{title: ''}", "title is ''; valid: text, not empty"),
        ("{title: 5}", "title is 5; valid: text"),
        ("{title: x, leaves: a}", "leaves is 'a'; valid: a list: one or more leaves"),
        ("{title: x, leaves: [a]}", "leaves[0]: not a mapping of fields; valid fields: word, many"),
        ("{title: x, leaves: [{word: a}, {word: B}]}", "leaves[1]: word is 'B'; valid: Small"),
        ("{title: x, leaves: [{word: a, mane: 2}]}", "leaves[0]: unknown field 'mane'"),
        ("{title: x, leaves: [{word: a, many: 0}]}", "leaves[0]: many is 0; valid: 1 or more"),
        ("{title: x, leaves: [{word: a, many: true}]}", "many is True; valid: a whole number"),
        ("{title: x, height: -1}", "height is -1; valid: above 0"),
        ("{title: x, height: .nan}", "height is nan; valid: a finite number"),
        ("{title: x, ever_green: 1}", "ever_green is 1; valid: true or false"),
        ("{title: x, planted: soon}", "planted is 'soon'; valid: "),
        ("{title: x, title: y}", "line 1 is not readable YAML: field 'title' is given twice"),
        ("{title: [", "is not readable YAML"),
        ("{title: x, planted: 2026-13-45}", "is not readable YAML: month must be in 1..12; see"),
    ],
)
def test_a_fault_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "tree.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        formats.read(path, Tree, InputError, "see docs")
    assert says in str(error.value) and str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_what_is_read_is_typed(tmp_path: Path) -> None:
    path = tmp_path / "tree.yaml"
    path.write_text("{title: x, height: 3, planted: 2026-11-23, leaves: [{word: a, many: 2}]}")
    found = formats.read(path, Tree, InputError, "see docs")
    assert found == Tree("x", (Leaf("a", 2),), "oak", 3.0, "2026-11-23")
    with pytest.raises(InputError, match="can't be read .*; see docs"):
        formats.read(tmp_path / "gone.yaml", Tree, InputError, "see docs")
