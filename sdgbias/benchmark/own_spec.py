"""suite.yaml of a custom-question folder: parsed strictly, every fault with its line."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sdgbias.benchmark.own_table import Fault, decode
from sdgbias.errors import InputError
from sdgbias.files import confine
from sdgbias.registry.entries import SUITE_NAME, suite_fault
from sdgbias.types import OPTION_LETTERS, SUITES

FILE = "suite.yaml"
FIELDS = ("name", "title", "version", "items", "columns", "cluster_by", "groups", "polarity")
NEEDED = ("name", "title", "version", "items", "columns")
COLUMNS = ("id", "question", "options", "answer", "image", "context", "split")
NEEDED_COLUMNS = ("id", "question", "options", "answer")
POLARITIES = ("higher", "lower")
_RESERVED = (*SUITES, "all", "own")
_LONGEST = 1 << 20  # bytes of a suite.yaml


@dataclass(frozen=True)
class Spec:
    """suite.yaml. id, question, options, answer, image, context and split are names of columns of
    the table ``items``; image, context, split and cluster_by are '' where left out. polarity:
    'higher' (options ascend and the last is the optimistic one), 'lower' (the first is), ''."""

    name: str
    title: str
    version: str
    items: str
    id: str
    question: str
    options: tuple[str, ...]
    answer: str
    image: str = ""
    context: str = ""
    split: str = ""
    cluster_by: str = ""
    groups: tuple[str, ...] = ()
    polarity: str = ""
    #: Field of suite.yaml, 'columns.id' included -> its line.
    lines: tuple[tuple[str, int], ...] = ()

    def line(self, field: str) -> int:
        """The line of a field of suite.yaml, 0 where it is left out."""
        return dict(self.lines).get(field, 0)

    def used(self) -> Iterator[tuple[str, str]]:
        """(field of suite.yaml, column of the table) of every column that is named."""
        for field in ("id", "question", "answer", "image", "context", "split"):
            if getattr(self, field):
                yield f"columns.{field}", getattr(self, field)
        yield from (("columns.options", name) for name in self.options)
        if self.cluster_by:
            yield "cluster_by", self.cluster_by
        yield from (("groups", name) for name in self.groups)


def near(value: str, valid: Collection[str]) -> str:
    """'did you mean ...?' with the closest valid name, else all of them."""
    folded = {name.casefold(): name for name in valid}
    close = difflib.get_close_matches(value.casefold(), list(folded), n=1, cutoff=0.6)
    if close:
        return f"did you mean {folded[close[0]]!r}?"
    return f"there are: {', '.join(map(repr, valid))}" if valid else "there are none"


def read_spec(folder: Path) -> tuple[Spec | None, list[Fault]]:
    """(suite.yaml of a folder, its faults). The Spec is None where its faults make it unusable."""
    path = folder / FILE
    if not path.is_file():
        others = sorted(p.name for p in folder.glob("*.y*ml")) if folder.is_dir() else []
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
    text, faults = decode(data, FILE)
    if faults:
        return None, faults
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        cause = getattr(error, "problem", None) or type(error).__name__
        line = mark.line + 1 if mark is not None else 0
        return None, [Fault(FILE, line, f"not YAML: {cause}; check indents, colons and quotes")]
    if not isinstance(node, yaml.MappingNode):
        return None, [Fault(FILE, 1, f"holds no fields; it needs {', '.join(NEEDED)}")]
    return _Reader().spec(node)


class _Reader:
    """Collects the faults of one suite.yaml while its fields are read."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.lines: dict[str, int] = {}

    def fault(self, line: int, message: str) -> None:
        self.faults.append(Fault(FILE, line, message))

    def spec(self, node: yaml.MappingNode) -> tuple[Spec | None, list[Fault]]:
        fields = self.mapping(node, "", FIELDS, NEEDED)
        values: dict[str, Any] = {
            field: self.text(field, fields[field])
            for field in ("name", "title", "items", "cluster_by")
            if field in fields
        }
        if "version" in fields:
            values["version"] = self.version(fields["version"])
        if "groups" in fields:
            values["groups"] = self.names("groups", fields["groups"])
            for column in values["groups"]:
                if "=" in column:  # rows of results are named COLUMN=LEVEL
                    self.fault(self.lines["groups"], f"group {column!r} holds '='; rename it")
        if "polarity" in fields:
            values["polarity"] = self.text("polarity", fields["polarity"])
            if values["polarity"] not in (*POLARITIES, ""):
                valid = "higher (the last option is the optimistic one) or lower (the first is)"
                self.fault(self.lines["polarity"], f"polarity is {values['polarity']!r}; {valid}")
        name = values.get("name", "")
        if name and not SUITE_NAME.fullmatch(name):
            rule = "small letters, digits, - and _, at most 40, a letter first"
            self.fault(self.lines["name"], f"name is {name!r}; use {rule}")
        elif name and (name in _RESERVED or suite_fault(name)):
            self.fault(
                self.lines["name"],
                f"name {name!r} is reserved, or close to one that is; choose another",
            )
        title = values.get("title", "")
        if len(title) > 120 or "\n" in title:
            self.fault(self.lines["title"], "title is one line of at most 120 characters")
        self.columns(fields.get("columns"), values)
        if any(values.get(field) in (None, "", ()) for field in (*NEEDED[:4], *NEEDED_COLUMNS)):
            return None, self.faults
        return Spec(**values, lines=tuple(self.lines.items())), self.faults

    def columns(self, node: yaml.Node | None, values: dict[str, Any]) -> None:
        if node is None:
            return
        if not isinstance(node, yaml.MappingNode):
            example = "{id: id, question: question, options: [a, b], answer: answer}"
            self.fault(self.lines["columns"], f"columns names the columns of the table: {example}")
            return
        fields = self.mapping(node, "columns.", COLUMNS, NEEDED_COLUMNS)
        for field, value in fields.items():
            if field == "options":
                values["options"] = self.names("columns.options", value)
            else:
                values[field] = self.text(f"columns.{field}", value)
        options = values.get("options", ())
        if options and not 2 <= len(options) <= len(OPTION_LETTERS):
            count = f"{len(options)} column{'s' if len(options) > 1 else ''}"
            message = f"options names {count}; a question has 2 to {len(OPTION_LETTERS)} options"
            self.fault(self.lines["columns.options"], message)
        named = [(field, values.get(field, "")) for field in COLUMNS if field != "options"]
        seen: dict[str, str] = {}
        for field, column in (*named, *(("options", column) for column in options)):
            if column in seen:
                message = f"column {column!r} is named as {seen[column]} and as {field}"
                self.fault(self.lines[f"columns.{field}"], f"{message}; name each column once")
            elif column:
                seen[column] = field

    def mapping(
        self, node: yaml.MappingNode, prefix: str, valid: Collection[str], needed: Collection[str]
    ) -> dict[str, yaml.Node]:
        """The known fields of a mapping; unknown, repeated and missing ones are faults."""
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if name not in valid:
                self.fault(line, f"unknown field {prefix + name!r}; {near(name, valid)}")
            elif name in found:
                self.fault(line, f"field {prefix + name!r} is given twice; remove one")
            else:
                found[name] = value
                self.lines[prefix + name] = line
        where = node.start_mark.line + 1 if prefix else 0
        for name in needed:
            if name not in found:
                self.fault(where, f"field {prefix + name!r} is missing; add it")
        return found

    def scalar(self, field: str, node: yaml.Node, line: int) -> str:
        """The text of a scalar as it is written; '' and a fault for anything else."""
        if not isinstance(node, yaml.ScalarNode):
            kind = "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
            self.fault(line, f"{field} is {kind}; write one text")
            return ""
        if node.tag == "tag:yaml.org,2002:null":
            self.fault(line, f"{field} has no value; write one, or leave the field out")
            return ""
        text = str(node.value).strip()
        if not text:
            self.fault(line, f"{field} is empty; write a value, or leave the field out")
        return text

    def text(self, field: str, node: yaml.Node) -> str:
        return self.scalar(field, node, self.lines[field])

    def version(self, node: yaml.Node) -> str:
        text = self.scalar("version", node, self.lines["version"])
        if len(text) > 40 or "\n" in text:
            self.fault(self.lines["version"], "version is a number or a short text")
        return text

    def names(self, field: str, node: yaml.Node) -> tuple[str, ...]:
        """A list of names of columns."""
        if not isinstance(node, yaml.SequenceNode):
            self.fault(self.lines[field], f"{field} is a list of columns: [a, b]")
            return ()
        found: list[str] = []
        for child in node.value:
            line = child.start_mark.line + 1
            name = self.scalar(f"an entry of {field}", child, line)
            if name in found:
                self.fault(line, f"{field} names column {name!r} twice; remove one")
            elif name:
                found.append(name)
        return tuple(found)
