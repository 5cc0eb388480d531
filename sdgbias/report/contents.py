"""What a results file holds, for `sdgbias results tables`: tables with their columns, and the
metrics and methods that its runs have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from sdgbias import store
from sdgbias.files import packaged_yaml
from sdgbias.report import labels
from sdgbias.report.charts.methods import title_of
from sdgbias.report.data import method_name

#: What a row of each table is, in the order in which a reader needs them.
TABLES: Mapping[str, str] = packaged_yaml("result_tables.yaml")


def read(results: Path) -> dict[str, list[dict[str, str]]]:
    """Tables (name, about, columns), metrics and methods (name, about, suites) of a results file.
    Raises StoreError."""
    found = store.query(
        results,
        """SELECT table_name AS name,
           string_agg(column_name, ', ' ORDER BY ordinal_position) AS columns
           FROM information_schema.columns GROUP BY 1""",
    )
    columns = dict(zip(found["name"], found["columns"], strict=True))
    made = {
        "tables": [
            {"name": name, "about": TABLES.get(name, "no description"), "columns": columns[name]}
            for name in (*TABLES, *sorted(set(columns) - set(TABLES)))
            if name in columns
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


def lines(found: dict[str, list[dict[str, str]]]) -> Iterator[str]:
    """What ``read`` found, one line each; the columns of a table on a second one."""
    yield "Tables: what a row is, and its columns"
    for table in found["tables"]:
        yield f"  {table['name']}: {table['about']}"
        yield f"      {table['columns']}"
    for kind in ("metrics", "methods"):
        yield f"\n{kind.capitalize()} of the runs in this file"
        for row in found[kind]:
            yield f"  {row['name']}: {row['about']} ({row['suites']})"


def _method(name: str) -> str:
    known = title_of(name)
    return known if known != name.replace("_", " ") else method_name(name)
