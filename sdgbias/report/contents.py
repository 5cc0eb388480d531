"""What a results file holds, for `sdgbias results tables`: tables with their columns, and the
metrics and methods that its runs have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sdgbias import store
from sdgbias.files import packaged_yaml
from sdgbias.report import labels
from sdgbias.report.charts.draw import title_of
from sdgbias.vocabulary import METHODS


def read(results: Path) -> dict[str, list[dict[str, Any]]]:
    """Tables (name, about, columns: name -> about), metrics and methods (name, about, suites) of a
    results file. Raises StoreError."""
    comments = packaged_yaml("comments.yaml")
    columns = store.query(
        results,
        """SELECT table_name AS "table", column_name AS name,
           coalesce(any_value(comment), '') AS about
           FROM duckdb_columns() WHERE NOT internal AND schema_name IN ('main', 'detail')
           GROUP BY ALL ORDER BY "table", min(column_index)  -- of answers, too""",
    )
    made: dict[str, list[dict[str, Any]]] = {
        "tables": [
            {
                "name": name,
                "about": comments["tables"][name],
                "columns": {
                    r["name"]: r["about"] or _about(comments["columns"], name, r["name"])
                    for r in columns[columns["table"] == name].to_dict("records")
                },
            }
            for name in comments["tables"]
        ]
    }
    for kind, say in (("metric", labels.title), ("method", _method)):
        counted = store.query(
            results,
            f"SELECT {kind} AS name, string_agg(DISTINCT suite, ', ' ORDER BY suite) AS suites"
            f" FROM metrics GROUP BY 1 ORDER BY 1",
        )
        made[f"{kind}s"] = [
            {"name": name, "about": say(name), "suites": suites}
            for name, suites in counted.itertuples(index=False)
        ]
    return made


def _about(columns: Mapping[str, str], table: str, name: str) -> str:
    """Of a temporary view, which no file has a comment of."""
    return columns.get(f"{table}.{name}") or columns[name]


def lines(found: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """What ``read`` found, one line each."""
    yield "Tables: what a row is, and what its columns hold"
    for table in found["tables"]:
        yield f"\n{table['name']}: {table['about']}"
        width = max(map(len, table["columns"]))
        for name, about in table["columns"].items():
            yield f"  {name:{width}}  {about}"
    for kind in ("metrics", "methods"):
        yield f"\n{kind.capitalize()} of the runs in this file"
        for row in found[kind]:
            yield f"  {row['name']}: {row['about']} ({row['suites']})"


def _method(name: str) -> str:
    known = title_of(name)
    return known if known != name.replace("_", " ") else METHODS.get(name, name)
