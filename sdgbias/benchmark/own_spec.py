"""suite.yaml of a folder of custom questions: read strictly, every fault with its line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, Field

from sdgbias import files, formats
from sdgbias.errors import InputError, SuiteError, argument
from sdgbias.formats import STRICT, Text
from sdgbias.registry.entries import SUITE_NAME, suite_fault
from sdgbias.types import OPTION_LETTERS, SUITES

FILE = "suite.yaml"
#: Level of a question whose cell of a group column is empty.
UNKNOWN = "unknown"
_Line = Annotated[
    Text,
    Field(
        max_length=120,
        pattern=r"^[^\x00-\x1f\x7f]*$",
        description="One line without control characters, 120 letters at most.",
    ),
]
_Group = Annotated[
    Text, Field(pattern=r"^[^=\x00-\x1f\x7f]*$", description="A column of one line, no '='.")
]


@dataclass(frozen=True, order=True)
class Fault:
    """One problem to fix. file: path relative to the suite's folder; line: line of the text, or row
    of a Parquet table; 0 for the whole file. message: the fault and how to fix it."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        row = "row " if self.file.lower().endswith(".parquet") else ""
        return f"{self.file}{f':{row}{self.line}' if self.line else ''}: {self.message}"


class FolderFaults(SuiteError):
    """Everything that is wrong with a folder, by file and line, as far as it could be read."""

    def __init__(self, folder: Path, faults: Iterable[Fault]) -> None:
        self.faults = sorted(set(faults))
        n = len(self.faults)
        more = f"{n} faults, the first: " if n > 1 else ""
        every = f"list all: sdgbias suite check {argument(folder)}"
        super().__init__(f"{folder}: {more}{self.faults[0]}; {every}")


def _free(name: str) -> str:
    if name in (*SUITES, "all", "own") or suite_fault(name):
        raise ValueError(f"{name!r} is reserved, or close to one that is; choose another")
    return name


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
    title: _Line
    version: Annotated[_Line, Field(json_schema_extra={"type": ["string", "number"]})]
    items: Annotated[Text, Field(description="The table: a CSV, JSONL or Parquet file.")]
    columns: Columns
    cluster_by: Annotated[Text, Field(description="Column whose values are clusters.")] = ""
    groups: Annotated[
        tuple[_Group, ...],
        Field(description="Columns whose levels are compared: [a, b]."),
    ] = ()  # rows of results are named COLUMN=LEVEL
    polarity: Annotated[
        Literal["higher", "lower"],
        Field(description="higher: the last option is the optimistic one; lower: the first is."),
    ] = ""  # type: ignore[assignment]


#: A field of suite.yaml by its place, such as ("columns", "options", 0).
Place = tuple[str | int, ...]


def read_suite(folder: Path) -> tuple[SuiteFile, dict[Place, tuple[int, str]]]:
    """(suite.yaml of a folder, the line and the text of its fields). Raises FolderFaults."""
    if not (folder / FILE).is_file():
        others = [f"; rename {path.name}" for path in sorted(folder.glob("*.y*ml"))]
        where = f"not in {folder}; write it there, beside the table of items{''.join(others[:1])}"
        if not folder.is_dir():
            raise FolderFaults(folder, [Fault(FILE, 0, f"no folder {folder}; name one")])
        raise FolderFaults(folder, [Fault(FILE, 0, f"{where} (docs: own questions)")])
    try:
        text = files.read_small(files.confine(folder, FILE))
        files.load_yaml(text)  # no alias, no field twice
        given = yaml.load(text, Loader=yaml.BaseLoader)  # every scalar as it is written
        fields = dict(_fields(yaml.compose(text, Loader=yaml.BaseLoader)))
    except (yaml.YAMLError, OSError, InputError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        cause = getattr(error, "problem", None) or getattr(error, "strerror", None) or error
        message = f"can't be read as YAML: {cause}; check indents, colons and quotes"
        fault = Fault(FILE, mark.line + 1 if mark else 0, message)
        raise FolderFaults(folder, [fault]) from None
    faults = []
    for place, sentence in formats.faults(given, SuiteFile):
        while place and place not in fields:
            place = place[:-1]
        faults.append(Fault(FILE, fields[place][0] if place else 0, sentence))
    if faults:
        raise FolderFaults(folder, faults)
    return formats.parse(given, SuiteFile, FILE, SuiteError), fields


def _fields(node: yaml.Node | None, above: Place = ()) -> Iterator[tuple[Place, tuple[int, str]]]:
    """The line of every field and list entry, counted from 1, and its text, '' of no scalar."""
    children: list[tuple[str | int, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(key.value, key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(at, value, value) for at, value in enumerate(node.value)]
    for name, start, value in children:
        text = value.value if isinstance(value, yaml.ScalarNode) else ""
        yield (*above, name), (start.start_mark.line + 1, text)
        yield from _fields(value, (*above, name))
