"""suite.yaml of a custom-question folder: parsed strictly, every fault with its line."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, model_validator

from sdgbias import files, formats
from sdgbias.benchmark.own_table import Fault, decode
from sdgbias.errors import InputError
from sdgbias.files import confine
from sdgbias.formats import STRICT, Text
from sdgbias.registry.entries import SUITE_NAME, suite_fault
from sdgbias.types import OPTION_LETTERS, SUITES

FILE = "suite.yaml"
_RESERVED = (*SUITES, "all", "own")
_LONGEST = 1 << 20  # bytes of a suite.yaml


def _free(name: str) -> str:
    if name in _RESERVED or suite_fault(name):
        raise ValueError(f"{name!r} is reserved, or close to one that is; choose another")
    return name


def _one_line(text: str) -> str:
    if "\n" in text:
        raise ValueError("has several lines; write it in one")
    return text


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"names column {name!r} twice; remove one")
    return names


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
        AfterValidator(_distinct),
    ]
    answer: Annotated[Text, Field(description="The letter or the text of the right option.")]
    image: Annotated[Text, Field(description="A picture's path inside the folder.")] = ""
    context: Text = ""
    split: Annotated[Text, Field(description="val or test; left out: drawn by a hash.")] = ""

    @model_validator(mode="after")
    def _each_once(self) -> Columns:
        seen: dict[str, str] = {}
        named = {"id", "question", "answer", "image", "context", "split"}
        for field, column in (
            *((name, getattr(self, name)) for name in vars(self) if name in named),
            *(("options", name) for name in self.options),
        ):
            if column and column in seen:
                raise ValueError(
                    f"column {column!r} is named as {seen[column]} and as {field}; name each column"
                    " once"
                )
            seen[column] = field
        return self


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
        AfterValidator(_distinct),
        AfterValidator(_groups),
    ] = ()
    polarity: Annotated[
        Literal["higher", "lower"],
        Field(description="higher: the last option is the optimistic one; lower: the first is."),
    ] = ""  # type: ignore[assignment]


def near(value: str, valid: Collection[str]) -> str:
    """'did you mean ...?' with the closest valid name, else all of them."""
    folded = {name.casefold(): name for name in valid}
    close = difflib.get_close_matches(value.casefold(), list(folded), n=1, cutoff=0.6)
    if close:
        return f"did you mean {folded[close[0]]!r}?"
    return f"there are: {', '.join(map(repr, valid))}" if valid else "there are none"


@dataclass(frozen=True)
class Spec:
    """A suite.yaml that could be read, as far as it could. ``lines``: field, 'columns.id' included
    -> its line."""

    file: SuiteFile
    lines: dict[str, int]

    def line(self, field: str) -> int:
        """The line of a field of suite.yaml, 0 where it is left out."""
        return self.lines.get(field, 0)

    def used(self) -> Iterator[tuple[str, str]]:
        """(field of suite.yaml, column of the table) of every column that is named."""
        columns = self.file.columns
        for field in ("id", "question", "answer", "image", "context", "split"):
            if getattr(columns, field):
                yield f"columns.{field}", getattr(columns, field)
        yield from (("columns.options", name) for name in columns.options)
        if self.file.cluster_by:
            yield "cluster_by", self.file.cluster_by
        yield from (("groups", name) for name in self.file.groups)


def read_spec(folder: Path) -> tuple[Spec | None, list[Fault]]:
    """(suite.yaml of a folder, its faults). The Spec is None where its faults make it unusable."""
    path = folder / FILE
    if not path.is_file():
        others = sorted(p.name for p in folder.glob("*.y*ml"))
        hint = f"; rename {others[0]}" if others else ""
        message = f"not there; write it beside the table of items{hint} (docs: own questions)"
        return None, [Fault(FILE, 0, message)]
    try:
        data = confine(folder, FILE).read_bytes()
    except (OSError, InputError) as error:
        cause = getattr(error, "strerror", None) or error
        return None, [Fault(FILE, 0, f"can't be read: {cause}")]
    if len(data) > _LONGEST:
        return None, [Fault(FILE, 0, f"has {len(data):,} bytes; at most {_LONGEST:,} are read")]
    text, damaged = decode(data)
    if damaged:
        return None, [Fault(FILE, *fault) for fault in damaged]
    try:
        files.load_yaml(text)  # no alias, no field twice
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        cause = getattr(error, "problem", None) or type(error).__name__
        line = mark.line + 1 if mark is not None else 0
        return None, [Fault(FILE, line, f"not YAML: {cause}; check indents, colons and quotes")]
    lines: dict[str, int] = {}
    given = _texts(node, "", lines)
    faults, wrong = [], set()
    for loc, sentence in formats.faults(given, SuiteFile):
        names = [str(part) for part in loc]
        wrong.add(".".join(names[:2] if names[0] == "columns" else names[:1]) if names else "")
        while names and ".".join(names) not in lines:
            names.pop()
        faults.append(Fault(FILE, lines.get(".".join(names), 0), sentence))
    suite = _usable(given, wrong)
    return Spec(suite, lines) if suite else None, faults


def _texts(node: yaml.Node | None, place: str, lines: dict[str, int]) -> Any:
    """A document with every scalar as it is written; ``lines`` receives the line of each place."""
    below = f"{place}." if place else ""
    if isinstance(node, yaml.MappingNode):
        for key, _ in node.value:
            lines[f"{below}{key.value}"] = key.start_mark.line + 1
        return {str(k.value): _texts(v, f"{below}{k.value}", lines) for k, v in node.value}
    if isinstance(node, yaml.SequenceNode):
        for at, child in enumerate(node.value):
            lines[f"{below}{at}"] = child.start_mark.line + 1
        return [_texts(child, f"{below}{at}", lines) for at, child in enumerate(node.value)]
    if node is None or node.tag == "tag:yaml.org,2002:null":
        return None
    return str(node.value).strip()


def _usable(given: Any, wrong: Collection[str]) -> SuiteFile | None:
    """The suite as far as it is readable, so that its table is checked as well; None where a
    needed field isn't. wrong: the fields that have a fault."""

    def fields_of(kind: type, values: Any, place: str) -> dict[str, Any]:
        names = (field.name for field in fields(kind))
        usable = {n: values[n] for n in names if n in values and f"{place}{n}" not in wrong}
        return {n: tuple(v) if isinstance(v, list) else v for n, v in usable.items()}

    try:
        columns = Columns(**fields_of(Columns, given["columns"], "columns."))
        about = dict.fromkeys(("name", "title", "version"), "")
        return SuiteFile(**{**about, **fields_of(SuiteFile, given, ""), "columns": columns})
    except (TypeError, KeyError):  # no mapping, or a needed field is missing
        return None
