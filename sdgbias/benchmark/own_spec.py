"""suite.yaml of a custom-question folder: parsed strictly, every fault with its line."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, Field

from sdgbias import files, formats
from sdgbias.errors import InputError, SuiteError
from sdgbias.files import confine
from sdgbias.formats import STRICT, Text
from sdgbias.registry.entries import SUITE_NAME, suite_fault
from sdgbias.types import OPTION_LETTERS, SUITES

FILE = "suite.yaml"
_RESERVED = (*SUITES, "all", "own")
#: Level of a question whose cell of a group column is empty.
UNKNOWN = "unknown"


@dataclass(frozen=True, order=True)
class Fault:
    """One problem to fix. file: path relative to the suite's folder; line: line of the text, or row
    of a Parquet table; 0 for the whole file. message: the fault and how to fix it."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        if not self.line:
            return f"{self.file}: {self.message}"
        row = "row " if self.file.lower().endswith(".parquet") else ""
        return f"{self.file}:{row}{self.line}: {self.message}"


def _free(name: str) -> str:
    if name in _RESERVED or suite_fault(name):
        raise ValueError(f"{name!r} is reserved, or close to one that is; choose another")
    return name


def _one_line(text: str) -> str:
    if "\n" in text:
        raise ValueError("has several lines; write it in one")
    return text


def _groups(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if "=" in name:  # rows of results are named COLUMN=LEVEL
            raise ValueError(f"group {name!r} holds '='; rename it")
    return names


@dataclass(frozen=True)
class Columns:
    """Which column of the table holds what."""

    __pydantic_config__ = STRICT
    id: Text
    question: Text
    options: Annotated[
        tuple[Text, ...],
        Field(
            min_length=2,
            max_length=len(OPTION_LETTERS),
            description=f"2 to {len(OPTION_LETTERS)} columns, one for each option: [a, b].",
        ),
    ]
    answer: Annotated[Text, Field(description="The letter or the text of the right option.")]
    image: Annotated[Text, Field(description="A picture's path inside the folder.")] = ""
    context: Text = ""
    split: Annotated[Text, Field(description="val or test; left out: drawn by a hash.")] = ""


@dataclass(frozen=True)
class SuiteFile:
    """A suite of custom questions (suite.yaml)."""

    __pydantic_config__ = STRICT
    name: Annotated[
        str,
        Field(
            pattern=f"^{SUITE_NAME.pattern}$",
            description="Small letters, digits, - and _, at most 40, a letter first.",
        ),
        AfterValidator(_free),
    ]
    title: Annotated[Text, Field(max_length=120), AfterValidator(_one_line)]
    version: Annotated[
        Text,
        Field(max_length=40, json_schema_extra={"type": ["string", "number"]}),
        AfterValidator(_one_line),
    ]
    items: Annotated[Text, Field(description="The table: a CSV, JSONL or Parquet file.")]
    columns: Columns
    cluster_by: Annotated[Text, Field(description="Column whose values are clusters.")] = ""
    groups: Annotated[
        tuple[Text, ...],
        Field(description="Columns whose levels are compared: [a, b]."),
        AfterValidator(_groups),
    ] = ()
    polarity: Annotated[
        Literal["higher", "lower"],
        Field(description="higher: the last option is the optimistic one; lower: the first is."),
    ] = ""  # type: ignore[assignment]


#: A field of suite.yaml: ("columns", "options", 0).
Place = tuple[str | int, ...]


def columns_of(suite: SuiteFile) -> Iterator[tuple[Place, str]]:
    """(field of suite.yaml, column of the table) of every column that is named."""
    for name in ("id", "question", "answer", "image", "context", "split"):
        if column := getattr(suite.columns, name):
            yield ("columns", name), column
    yield from ((("columns", "options", at), name) for at, name in enumerate(suite.columns.options))
    if suite.cluster_by:
        yield ("cluster_by",), suite.cluster_by
    yield from ((("groups", at), name) for at, name in enumerate(suite.groups))


def near(value: str, valid: Collection[str]) -> str:
    """'did you mean ...?' with the closest valid name, else all of them."""
    folded = {name.casefold(): name for name in valid}
    close = difflib.get_close_matches(value.casefold(), list(folded), n=1, cutoff=0.6)
    if close:
        return f"did you mean {folded[close[0]]!r}?"
    return f"there are: {', '.join(map(repr, valid))}" if valid else "there are none"


def read_suite(folder: Path) -> tuple[SuiteFile | None, dict[Place, int], list[Fault]]:
    """(suite.yaml of a folder, the line of every field, its faults); the suite is None with any
    fault."""
    if not (folder / FILE).is_file():
        others = sorted(path.name for path in folder.glob("*.y*ml"))
        hint = f"; rename {others[0]}" if others else ""
        message = f"not there; write it beside the table of items{hint} (docs: own questions)"
        return None, {}, [Fault(FILE, 0, message)]
    try:
        text = files.read_small(confine(folder, FILE))
        files.load_yaml(text)  # no alias, no field twice
        given = yaml.load(text, Loader=yaml.BaseLoader)  # every scalar as it is written
        lines = dict(_lines(yaml.compose(text, Loader=yaml.BaseLoader), ()))
    except (OSError, InputError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or error
        return None, {}, [Fault(FILE, 0, f"can't be read: {cause}")]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        cause = getattr(error, "problem", None) or type(error).__name__
        line = mark.line + 1 if mark is not None else 0
        return None, {}, [Fault(FILE, line, f"not YAML: {cause}; check indents, colons and quotes")]
    faults = []
    for place, sentence in formats.faults(given, SuiteFile):
        while place and place not in lines:
            place = place[:-1]
        faults.append(Fault(FILE, lines.get(place, 0), sentence))
    if faults:
        return None, lines, faults
    suite = formats.parse(given, SuiteFile, FILE, SuiteError)
    named: dict[tuple[str | int, str], Place] = {}
    for place, column in columns_of(suite):
        first = named.setdefault((place[0], column), place)
        if first != place:
            message = f"{shown_place(place)}: names column {column!r}, as {shown_place(first)} does"
            faults.append(Fault(FILE, lines[place], f"{message}; name each column once"))
    return None if faults else suite, lines, faults


def _lines(node: yaml.Node | None, place: Place) -> Iterator[tuple[Place, int]]:
    """The line of every field and list entry of a document, counted from 1."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*place, key.value), key.start_mark.line + 1
            yield from _lines(value, (*place, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for at, child in enumerate(node.value):
            yield (*place, at), child.start_mark.line + 1


def shown_place(place: Place) -> str:
    return ".".join(part for part in place if isinstance(part, str))
