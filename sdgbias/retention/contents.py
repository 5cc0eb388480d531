"""What a results file holds and how big it is, and whether every file of it is as it was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sdgbias import store
from sdgbias.details import files
from sdgbias.details.files import Detail

Progress = Callable[[str, int, int], None]


def catalogued(results: Path, where: str = "dropped_at IS NULL") -> list[Detail]:
    """The rows of the catalogue, by file."""
    sql = f'SELECT run_id, "table", file, "rows", bytes, sha256, "columns" FROM details WHERE {where} ORDER BY file'
    return [Detail(*row) for row in store.query(results, sql).itertuples(index=False, name=None)]


def orphans(results: Path) -> list[Path]:
    """Files below the folder of details that no row of the catalogue names: left by a killed or repeated publish, or by retention."""
    folder = files.local_home(results, "clearing up")
    named = {folder / d.file for d in catalogued(results)}
    return sorted(p for p in folder.glob("run_id=*/*") if p not in named and p.is_file())


def info(results: Path) -> dict[str, Any]:
    """Counts and sizes (bytes): runs, models, nights, oldest and newest run (UTC), per table rows, files and bytes, the DuckDB file, orphans,
    score caches."""
    one = store.query(
        results,
        """SELECT count(*) AS runs, count(DISTINCT model) AS models, min(finished_at) AS oldest, max(finished_at) AS newest,
           (SELECT count(*) FROM nights) AS nights, (SELECT count(DISTINCT run_id) FROM details WHERE dropped_at IS NOT NULL) AS dropped
           FROM runs""",
    ).iloc[0]
    tables = store.query(
        results,
        """SELECT "table", sum("rows")::BIGINT AS "rows", count(*) AS files, sum(bytes)::BIGINT AS bytes
           FROM details WHERE dropped_at IS NULL GROUP BY 1 ORDER BY 1""",
    )
    where = files.home(results)
    left = [] if files.is_remote(where) else orphans(results)
    caches = [p for p in (results.parent / "scores").rglob("*.parquet") if p.is_file()]
    return {
        "results": str(results),
        "details": where,
        "runs": int(one["runs"]),
        "models": int(one["models"]),
        "nights": int(one["nights"]),
        "oldest": _when(one["oldest"]),
        "newest": _when(one["newest"]),
        "runs_without_details": int(one["dropped"]),
        "tables": {r["table"]: {k: int(r[k]) for k in ("rows", "files", "bytes")} for r in tables.to_dict("records")},
        "duckdb_bytes": results.stat().st_size,
        "details_bytes": int(tables["bytes"].sum()),
        "orphans": {"files": len(left), "bytes": sum(p.stat().st_size for p in left)},
        "score_caches": {"files": len(caches), "bytes": sum(p.stat().st_size for p in caches)},
    }


def _when(value: Any) -> str:
    return "" if value is None or value != value else value.isoformat(timespec="seconds")


def lines(found: Mapping[str, Any]) -> list[str]:
    """``info`` as a person reads it."""
    period = f", {found['oldest']} to {found['newest']} UTC" if found["runs"] else ""
    said = [
        f"{found['results']}: {found['runs']:,} runs of {found['models']} models, {found['nights']:,} nights{period}",
        f"  DuckDB file      {size(found['duckdb_bytes']):>10}",
        f"  Parquet files    {size(found['details_bytes']):>10}  in {found['details']}",
    ]
    for name, t in found["tables"].items():
        said.append(f"    {name:14} {size(t['bytes']):>10}  {t['files']:,} files, {t['rows']:,} rows")
    said.append(f"  score caches     {size(found['score_caches']['bytes']):>10}  {found['score_caches']['files']:,} files")
    said.append(f"  orphans          {size(found['orphans']['bytes']):>10}  {found['orphans']['files']:,} files; sdgbias store compact")
    if found["runs_without_details"]:
        said.append(f"  {found['runs_without_details']:,} runs keep their metrics only: their details were removed by sdgbias store keep")
    return said


def size(n: int) -> str:
    """Bytes in the largest unit that fits: 1.2 GB."""
    value = float(n)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def verify(results: Path, progress: Progress | None = None) -> list[tuple[Detail, str]]:
    """Every catalogued file whose bytes are not those that were written: (file, 'missing' | 'damaged')."""
    folder = files.local_home(results, "sdgbias store verify")
    found, known = [], catalogued(results)
    for done, detail in enumerate(known, 1):
        why = files.fault(folder, detail, whole=True)
        if why:
            found.append((detail, why))
        if progress:
            progress("verifying", done, len(known))
    return found
