"""All runs, and each with its predecessor for comparison."""

from __future__ import annotations

from typing import Any

from sdgbias.report.reader import Reader, Row, paged

PAGE = 50
#: Runs per model offered in a select.
OFFERED = 6
_COLUMNS = """run_id, suite, model, benchmark_id, provenance, started_at, finished_at,
              n_prompts_planned, n_scored, n_cached, n_failed, revision,
              epoch(finished_at - started_at) AS seconds"""


def one(reader: Reader, run_id: str) -> Row | None:
    columns = "*, config->>'$.own.cluster_by' AS cluster_by"
    return reader.one(f"SELECT {columns} FROM runs WHERE run_id = ?", [run_id])


def before(reader: Reader, run: Row) -> str | None:
    """The model's previous finished run on the same benchmark."""
    row = reader.one(
        """SELECT run_id FROM runs WHERE model = ? AND suite = ? AND benchmark_id = ? AND
           finished_at < ?
           ORDER BY finished_at DESC, run_id DESC LIMIT 1""",
        [run["model"], run["suite"], run["benchmark_id"], run["finished_at"]],
    )
    return None if row is None else str(row["run_id"])


def offered(reader: Reader, also: tuple[str, ...] = ()) -> dict[str, list[Row]]:
    """model -> its newest finished runs, for a select; ``also``: runs that are always included."""
    rows = reader.ask(
        f"""SELECT run_id, model, suite, provenance, finished_at FROM runs WHERE finished_at IS NOT
            NULL QUALIFY row_number() OVER
            (PARTITION BY model, suite ORDER BY finished_at DESC, run_id DESC) <= {OFFERED} ORDER
            BY model, finished_at DESC, run_id"""
    )
    run_ids = {r["run_id"] for r in rows}
    rows = [*rows, *(r for run in also if run and run not in run_ids and (r := one(reader, run)))]
    by_model: dict[str, list[Row]] = {}
    for r in rows:
        by_model.setdefault(r["model"], []).append(r)
    return by_model


def models(reader: Reader) -> list[str]:
    return [r["model"] for r in reader.ask("SELECT DISTINCT model FROM runs ORDER BY model")]


def listing(reader: Reader, page: int, model: str = "", suite: str = "") -> dict[str, Any]:
    """Runs, newest first, PAGE at a time; each with the previous run of the same model."""
    where, params = "true", []
    for column, value in (("model", model), ("suite", suite)):
        if value:
            where += f" AND {column} = ?"
            params.append(value)
    total = reader.ask(f"SELECT count(*) AS n FROM runs WHERE {where}", params)[0]["n"]
    rows = reader.ask(
        f"""WITH numbered AS (SELECT {_COLUMNS}, lag(run_id) OVER (PARTITION BY model, suite,
            benchmark_id ORDER BY finished_at, run_id) AS before
                              FROM runs WHERE {where})
            FROM numbered ORDER BY finished_at DESC NULLS FIRST, run_id LIMIT {PAGE} OFFSET ?""",
        [*params, (page - 1) * PAGE],
    )
    return paged(rows, total, page, PAGE)
