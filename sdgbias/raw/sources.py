"""The table of raw sources (data/sources.yaml): description, owner, licence and how to obtain
each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sdgbias.errors import UsageError, one_of
from sdgbias.files import packaged_yaml


@dataclass(frozen=True)
class Source:
    """`files`: patterns below a raw or indicators folder; `bytes`: published sizes; `none_for`: DHS
    codes it never covers."""

    id: str
    title: str
    files: tuple[str, ...]
    origin: str
    licence: str
    citation: str
    url: str
    get: str
    redistributable: bool
    series: tuple[str, ...] = ()
    none_for: tuple[str, ...] = ()
    bytes: Mapping[str, int] = field(default_factory=dict)

    def provenance(self) -> dict[str, Any]:
        """The provenance fields for a .dvc file or a card."""
        other = ("files", "series", "none_for", "bytes")
        return {name: value for name, value in vars(self).items() if name not in other}


@cache
def sources() -> tuple[Source, ...]:
    """All sources, in the order of the file: labels, tiles, photos, series."""
    entries: list[dict[str, Any]] = packaged_yaml("sources.yaml")
    lists = ("files", "series", "none_for")
    return tuple(
        Source(**(entry | {name: tuple(entry.get(name, ())) for name in lists}))
        for entry in entries
    )


def source(name: str) -> Source:
    """One source by id. Raises UsageError for an unknown one."""
    table = {entry.id: entry for entry in sources()}
    if name not in table:
        raise UsageError(one_of("source", name, table))
    return table[name]


def source_of_series(series: str) -> Source | None:
    """The source that publishes a series of sdgbias/raw/series.py; None for an unknown name."""
    return next((entry for entry in sources() if series in entry.series), None)


def sample_note(folder: Path) -> str:
    """The README.txt of a sample that this package made, '' for any other folder."""
    path = folder / "README.txt"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return text if text.startswith("Synthetic sample") else ""
