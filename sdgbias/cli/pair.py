"""`sdgbias compare`: two models on the questions that both answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sdgbias.cli.options import DEFAULT_RESULTS, JsonOption, ResultsOption, print_table, say_json

NameArgument = Annotated[str, typer.Argument(help="A model, or a run id.")]


def compare(
    one: NameArgument,
    other: NameArgument,
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
) -> None:
    """The accuracy of one model minus that of another on the questions that both answered, by
    method and test: difference with its 95 % interval, p and n, and the smallest difference that
    so many questions show. Of a model, the newest run on a benchmark that both were asked.
    """
    from sdgbias import notebook
    from sdgbias.analysis.night_text import p_value
    from sdgbias.methods.stats import Estimate
    from sdgbias.report.labels import number, written
    from sdgbias.vocabulary import METHODS

    pairs = notebook.compare(one, other, results)
    if as_json:
        say_json(pairs)
        return
    rows: list[tuple[str, ...]] = [
        ("method", "test", "difference", "95 % interval", "p", "n", "smallest shown")
    ]
    for row in pairs.to_dict("records"):
        e = Estimate.of_row(row)
        shown, least = written(e, "accuracy_gain"), number(100 * row["mde"])
        cells = (row["method"], row["test"], shown.value, shown.ci, p_value(row["p"]), shown.n)
        rows.append((*cells, least))
    typer.echo(f"Accuracy of {one} minus {other}, percentage points\n")
    print_table(rows)
    typer.echo()
    for method, when in ((METHODS["full"], "With all evidence,"), (METHODS["cade"], "After CADE,")):
        pooled = pairs[pairs["method"] == method].head(1).to_dict("records")
        typer.echo("".join(f"{when} {_finding(one, other, row)}" for row in pooled))


def _finding(one: str, other: str, row: Mapping[Any, Any]) -> str:
    """'a is more accurate than b by 4.2 points (95 % CI ..., n = 325).'"""
    from sdgbias.methods.stats import Estimate
    from sdgbias.report.labels import number, sign_of, written

    e = Estimate.of_row(row)
    if sign_of(e) > 0:
        by = number(100 * e.value)
        bounds = written(e, "accuracy_gain").aside
        return f"{one} is more accurate than {other} by {by} points {bounds}."
    if sign_of(e) < 0:
        turned = {**row, "value": -e.value, "ci_low": -e.high, "ci_high": -e.low}
        return _finding(other, one, turned)
    known = row["mde"] == row["mde"]  # not where a difference has no interval
    least = f"; so many questions show one of {number(100 * row['mde'])} points or more" * known
    return f"no difference can be stated: {written(e, 'accuracy_gain')}{least}."
