"""Whether a report would come out as it stands: what went into the last one, kept beside it as one
digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sdgbias import store, suites
from sdgbias.files import packaged
from sdgbias.report.pages.night import PAGE

STAMP = ".made-of"
_HOUSE = packaged()
#: Code and templates that make the pages.
_CODE = (
    "*.py",
    "report/**/*",
    "analysis/**/*.py",
    "methods/**/*.py",
    "suites/**/*.py",
    "store/**/*.py",
    "data/**/*",
)


def is_same(
    results: Path, out: Path, benchmarks: Sequence[Path | None], asked: tuple[object, ...]
) -> bool:
    """Whether the pages in ``out``, but for that of the night, were made of the same runs,
    analyses, benchmarks, options and code."""
    if not all((out / name).is_file() for name in ("index.html", PAGE.file, STAMP)):
        return False
    return (out / STAMP).read_text(encoding="utf-8", errors="replace") == _digest(
        results, benchmarks, asked
    )


def remember(
    results: Path, out: Path, benchmarks: Sequence[Path | None], asked: tuple[object, ...]
) -> None:
    """Keeps what a report was made of; where that can't be written, the next one is made anew."""
    with suppress(OSError):
        (out / STAMP).write_text(_digest(results, benchmarks, asked), encoding="utf-8")


def _digest(results: Path, benchmarks: Sequence[Path | None], asked: tuple[object, ...]) -> str:
    runs = suites.newest_runs(results, per_benchmark=True)
    marks = ", ".join("?" for _ in runs) or "''"
    known = store.query(
        results,
        "SELECT run_id, CAST(finished_at AS VARCHAR) AS at, n_failed FROM runs WHERE run_id IN"
        f" ({marks}) ORDER BY 1",
        runs,
    )
    studied = store.query(
        results,
        "SELECT run_id, count(*) AS n, round(sum(value), 9) AS total FROM study_rows WHERE run_id"
        f" IN ({marks}) GROUP BY 1 ORDER BY 1",
        runs,
    )
    total = store.query(results, "SELECT count(*) AS n FROM runs")["n"].tolist()
    digest = hashlib.sha256(
        json.dumps(
            [
                known.to_dict("records"),
                studied.to_dict("records"),
                total,
                asked,
                [str(folder) for folder in benchmarks],
            ],
            default=str,
        ).encode()
    )
    for folder in benchmarks:
        if folder is not None and (folder / "benchmark.json").is_file():
            digest.update((folder / "benchmark.json").read_bytes())
    for path in sorted(
        {p for pattern in _CODE for p in _HOUSE.glob(pattern) if p.is_file() and p.suffix != ".pyc"}
    ):
        seen = path.stat()
        digest.update(f"{path.relative_to(_HOUSE)} {seen.st_size} {seen.st_mtime_ns}".encode())
    return digest.hexdigest()
