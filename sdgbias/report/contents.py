"""What a results file holds, for `sdgbias results tables`: tables with their columns, and the
metrics and methods that its runs have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sdgbias import store
from sdgbias.report import labels
from sdgbias.report.charts.methods import title_of
from sdgbias.report.data import method_name

#: What a row of each table is, in the order in which a reader needs them.
TABLES = {
    "metrics": "one value of a run with its n and 95 % interval: the view to begin with",
    "runs": "a published run: model, engine, benchmark, settings, counts of prompts",
    "items": "a question of the SDG suite, or one of your own",
    "people": "a question about a person in a picture",
    "scores": "the logits of one question in one view and test, missing options NaN",
    "predictions": "a question's answer by method, and whether it is right",
    "decoded": "the number generated for a regression question, also after each first digit",
    "spoken": "a generated answer as text, and how it was read",
    "failures": "a prompt that got no answer, and why",
    "timings": "prompts, tokens and seconds of a run, by task, kind of work and view",
    "cade_params": "CADE's tuned parameters, by task and test",
    "study_rows": "one value of an analysis (sdgbias analyse)",
    "metric_rows": "metrics, with the number of clusters behind the interval and a note",
    "headline_rows": "those metric rows that are about all indicators or classes together",
    "quarantine": "a row that the quality rules took out of a benchmark, and the rule",
    "nights": "a night: when it was due, its steps, how it ended",
    "night_models": "a model in a night: its outcome, run and reason",
    "verdicts": "a rule of the regression check, for a model in a night",
    "flips": "an answer that changed between two compared runs",
    "accepted": "a run that a person accepted as it is",
    "announcements": "a message to a webhook about a night",
    "previews": "a small picture of a question",
    "details": "the Parquet file of a run's table",
    "schema_version": "the version of this file's schema",
}


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
