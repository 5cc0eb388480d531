"""Decides whether the report needs to be rebuilt: a digest of the inputs of the last one is stored
beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from sdgbias import files, store
from sdgbias.report.build import PUBLISHED
from sdgbias.report.layout import NIGHT

STAMP = ".made-of"


def is_fresh(
    results: Path, out: Path, benchmarks: Sequence[Path | None], asked: tuple[object, ...]
) -> bool:
    """Whether the pages in ``out``, except the night page, were built from the same rows,
    benchmarks, options and code."""
    if not all((out / name).is_file() for name in ("index.html", NIGHT.file, STAMP)):
        return False
    return (out / STAMP).read_text(encoding="utf-8", errors="replace") == _digest(
        results, benchmarks, asked
    )


def stamp(
    results: Path, out: Path, benchmarks: Sequence[Path | None], asked: tuple[object, ...]
) -> None:
    """Store the digest of a report's inputs; if it can't be written, the next report is rebuilt."""
    with suppress(OSError):
        (out / STAMP).write_text(_digest(results, benchmarks, asked), encoding="utf-8")


def _digest(results: Path, benchmarks: Sequence[Path | None], asked: tuple[object, ...]) -> str:
    parts = [
        asked,
        [str(folder) for folder in benchmarks],
        # hash the whole package: a list of the files that each page depends on would go stale
        files.source_digest(),
        _content_digest(results),
    ]
    digest = hashlib.sha256(json.dumps(parts, default=str).encode())
    for path in _of_benchmarks(benchmarks):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _of_benchmarks(benchmarks: Sequence[Path | None]) -> Iterator[Path]:
    """The files of benchmark folders that a report copies, and the card that names the rest."""
    for folder in filter(None, benchmarks):
        for name in ("benchmark.json", *PUBLISHED):
            found = folder / name
            yield from sorted(p for p in (found, *found.rglob("*")) if p.is_file())


def _content_digest(results: Path) -> str:
    """One digest over the rows of all tables except those about nights, whatever their order;
    details enter by their catalogue, which has each file's sha256. Raises StoreError."""
    with store.connect(results, read_only=True, details=()) as con:
        names = con.execute(
            "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main' ORDER BY 1"
        ).fetchall()
        sums = {
            name: con.execute(
                f'SELECT count(*), sum(hash("row")::HUGEINT)::VARCHAR FROM "{name}" AS "row"'
            ).fetchone()
            for (name,) in names
            if name not in store.NIGHT_TABLES
        }
    return hashlib.sha256(repr(sorted(sums.items())).encode()).hexdigest()
