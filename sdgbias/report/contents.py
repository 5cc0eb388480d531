"""What a results file holds, for `sdgbias results tables`: tables with their columns, and the
metrics, methods and missing reasons that its runs have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sdgbias import store
from sdgbias.files import packaged_yaml
from sdgbias.vocabulary import WORDS, metric_word, name_in

_COLUMNS = """
SELECT table_name AS "table", column_name AS name, coalesce(any_value(comment), '') AS about
FROM duckdb_columns() WHERE NOT internal AND schema_name IN ('main', 'detail')
GROUP BY ALL ORDER BY "table", min(column_index)  -- of answers, nights and night_outcomes, too"""
_KINDS = """
SELECT {kind} AS name, string_agg(DISTINCT suite, ', ' ORDER BY suite) AS suites
FROM {source} WHERE {kind} IS NOT NULL GROUP BY 1 ORDER BY 1"""


def read(results: Path) -> dict[str, list[dict[str, Any]]]:
    """Tables (name, about, columns: name -> about), metrics, methods and missing_reasons (name,
    about, suites) of a results file. Raises StoreError."""
    comments = packaged_yaml("comments.yaml")
    contents: dict[str, list[dict[str, Any]]] = {
        "tables": [{"name": n, "about": a, "columns": {}} for n, a in comments["tables"].items()]
    }
    tables = {table["name"]: table["columns"] for table in contents["tables"]}
    for table, name, about in store.query(results, _COLUMNS).itertuples(index=False):
        if table in tables:  # a temporary view has no comments in any file
            of_view = comments["columns"].get(f"{table}.{name}") or comments["columns"].get(name)
            tables[table][name] = about or of_view
    for kind, say, source in (
        ("metric", _metric, "metrics"),
        ("method", _method, "metrics"),
        ("missing_reason", _reason, "numbers JOIN runs USING (run_id)"),
    ):
        rows = store.query(results, _KINDS.format(kind=kind, source=source)).to_dict("records")
        contents[f"{kind}s"] = [
            {"name": r["name"], "about": say(r["name"]), "suites": r["suites"]} for r in rows
        ]
    return contents


def lines(contents: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """What ``read`` found, one line each."""
    yield "Tables: what a row is, and what its columns hold"
    for table in contents["tables"]:
        yield f"\n{table['name']}: {table['about']}"
        width = max(map(len, table["columns"]))
        for name, about in table["columns"].items():
            yield f"  {name:{width}}  {about}"
    for kind in ("metrics", "methods", "missing_reasons"):
        yield f"\n{kind.capitalize().replace('_', ' ')} of the runs in this file"
        for row in contents[kind]:
            yield f"  {row['name']}: {row['about']} ({row['suites']})"


def _metric(name: str) -> str:
    """'Accuracy, a share (reports print it in %); higher is better'."""
    word = metric_word(name)
    unit = f", in {word.unit}" if word.unit else ""
    if word.scale != 1:
        unit = f", a share (reports print it in {word.unit})"
    return word.name + unit + (f"; {word.direction} is better" if word.direction else "")


def _method(name: str) -> str:
    """'CADE: Contrastive Adaptive ...'; of an answer about people, what reads it."""
    if name in WORDS.methods:
        return f"{WORDS.methods[name].name}: {WORDS.methods[name].description}"
    word = WORDS.baselines.get(name)
    return word.description if word else name_in(WORDS.readings, name)


def _reason(name: str) -> str:
    word = WORDS.missing_reasons.get(name)
    return word.description if word else "in the words of the run"
