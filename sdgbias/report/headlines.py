"""The headline of a results file as text, for `sdgbias results`: a line a model, each number with
its 95 % interval and n. Of places the columns of the report's leaderboard; of people recall and the
differences of recall between groups, for every data set that was asked about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdgbias import store, wording
from sdgbias.methods.stats import Estimate
from sdgbias.report import matrix
from sdgbias.report.reader import Results
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.types import FACET, SDG

#: A title, and the rows of a table below it, the first one its heads.
Section = tuple[str, list[tuple[str, ...]]]
PLACES = (
    "Questions about places: value [95 % interval] n. Accuracy and estimates with picture and"
    " context, in %; CADE gain in points; optimistic and pessimistic answers to the bare question,"
    " in %"
)
MIXED = ". Different benchmarks: the runs were not made on the same questions; don't compare models"
PEOPLE = (
    "Pictures of people: value [95 % interval] n. Recall in %; difference of recall between groups,"
    " all classes pooled, in points; n is that of the smaller group"
)
_PLANTED = " (planted)"
#: Recall and disparities of the newest runs on people. p1 stands for the three prompts, which the
#: report has; faces have no classes and are asked for a group itself.
_PEOPLE = """
SELECT run_id, model, provenance, (SELECT any_value(dataset) FROM people p
WHERE p.benchmark_id = r.benchmark_id) AS people, test, metric, attribute, "value", n,
low AS ci_low, high AS ci_high, missing_reason
FROM numbers JOIN runs r USING (run_id)
WHERE study = 'headline' AND method = 'full' AND list_contains($runs, run_id)
AND ((test = 'p1' AND x = 52) OR test IN ('gender', 'age'))
AND ((metric = 'recall' AND attribute = '')
OR (metric = 'disparity' AND [attribute, "group", other] IN (SELECT unnest($pairs))))
ORDER BY provenance = 'planted', model, people, run_id, test"""


def sections(results: Path, model: str = "") -> list[Section]:
    """The tables of the suites that have a finished run, or one of this model. Raises
    StoreError."""
    tables = []
    for title, (heads, *rows) in (_places(results, model), _people(results)):
        if rows := [row for row in rows if not model or row[0].removesuffix(_PLANTED) == model]:
            tables.append((title, [heads, *rows]))
    return tables


def _places(results: Path, model: str) -> Section:
    with Results(results, wait=30.0).reading() as reader:
        table = matrix.matrix(reader)
    columns: dict[str, list[int]] = {}
    for i, c in enumerate(table["columns"]):
        columns.setdefault(c.suite, []).append(i)
    at = columns.get(SDG, [])
    rows = [("model", *(table["columns"][i].title for i in at))]
    for row in table["rows"]:
        if row["runs"].get(SDG):
            cells = [_shown(row["cells"][i]) for i in at]
            rows.append((_name(row["model"], row["provenance"]), *cells))
    several = not model and len(table["benchmarks"].get(SDG, ())) > 1
    return PLACES + several * MIXED, rows


def _people(results: Path) -> Section:
    runs = store.latest_runs(results, FACET, per_benchmark=True)
    given = {"runs": runs, "pairs": [[attribute, *pair] for attribute, pair in PAIRS.items()]}
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for r in store.query(results, _PEOPLE, given).to_dict("records"):
        who = (r["run_id"], _name(r["model"], r["provenance"]), str(r["people"] or ""), r["test"])
        lines.setdefault(who, {})[r["attribute"]] = _number(r)
    heads = ["recall", *(" - ".join(pair) for pair in PAIRS.values())]
    rows = [("model", "people", "asked", *heads)]
    rows += [
        (*who[1:], *(values.get(a, "-") for a in ("", *PAIRS))) for who, values in lines.items()
    ]
    return PEOPLE, rows


def _name(model: str, provenance: str) -> str:
    return model + (_PLANTED if provenance == "planted" else "")


def _shown(cell: Mapping[str, Any]) -> str:
    """'61.0 [48.8-72.0] 490' of a cell of the leaderboard, or why it has no value."""
    if cell["sort"] is None:
        return str(cell["why"])
    about = f" ({cell['other'] or cell['prompts']})" if cell["other"] or cell["prompts"] else ""
    return f"{cell['value']} [{cell['ci']}] {cell['n']}{about}"


def _number(row: Mapping[Any, Any]) -> str:
    """As `_shown`, of a row of the store."""
    if row["value"] is None or math.isnan(row["value"]):
        return matrix.reason(row)
    shown = wording.written(Estimate.of_row(row), row["metric"])
    return shown.cell
