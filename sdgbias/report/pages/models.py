"""Data of the model pages: registry entry, newest numbers, signature, and history over nights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdgbias import store, suites, wording
from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.errors import RegistryError
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.registry import entries as registry
from sdgbias.registry.spec import NAME, ModelSpec
from sdgbias.report import leaderboard
from sdgbias.report.charts import over_nights
from sdgbias.report.pages.findings import findings
from sdgbias.report.reader import AMONG, SQL, Reader, Row, parsed
from sdgbias.types import PILLARS
from sdgbias.vocabulary import METHODS

RUNS, NIGHTS = 30, 60
_NEWEST = """SELECT * FROM runs WHERE finished_at IS NOT NULL AND {where}
             QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY finished_at DESC, run_id DESC) =
             1 ORDER BY {order}"""


def entry(root: Path | None, name: str) -> ModelSpec | None:
    """The registry's entry of a model; None if there is no registry or no readable entry of this
    name."""
    if root is None or not NAME.fullmatch(name):
        return None
    try:
        return registry.load(root, name)
    except RegistryError:
        return None


def index(reader: Reader, root: Path | None) -> list[Row]:
    """A row per model: the newest run of each suite, its result in the newest finished night, and
    its state in the registry."""
    runs = reader.ask(_NEWEST.format(where="true", by="model, suite", order="model, suite DESC"))
    last = {
        (r["model"], r["suite"]): r
        for r in reader.ask(
            """SELECT nm.model, nm.suite, nm.outcome, nm.night, nm.quarantined_until FROM
               night_outcomes nm JOIN nights n USING (night)
               WHERE n.status IS DISTINCT FROM 'running' QUALIFY row_number() OVER (PARTITION BY
               nm.model, nm.suite
               ORDER BY n.started_at DESC NULLS LAST, night DESC) = 1 ORDER BY ALL"""
        )
    }
    rows = [run | {"last": last.pop((run["model"], run["suite"]), None)} for run in runs]
    absent = dict.fromkeys(("run_id", "provenance", "finished_at"))
    rows += [{"model": m, "suite": s, "title": m, "last": r} | absent for (m, s), r in last.items()]
    entries = {name: entry(root, name) for name in {r["model"] for r in rows}}
    order = suites.in_order(r["suite"] for r in rows)
    rows.sort(key=lambda r: (r["model"], order.index(r["suite"])))
    return [r | {"entry": entries[r["model"]]} for r in rows]


def page(
    reader: Reader, name: str, root: Path | None, among: Sequence[str] | None = None
) -> dict[str, Any] | None:
    """All data of one model; None if neither the results nor the registry contain it. ``among``:
    only these runs."""
    condition = f"model = $model AND {AMONG}"
    given = {"model": name, "among": among}
    newest = reader.ask(_NEWEST.format(where=condition, by="suite", order="suite DESC"), given)
    facts = entry(root, name)
    nights = _nights(reader, name) if among is None else []
    if not newest and facts is None and not nights:
        return None
    runs = reader.ask(
        f"""SELECT run_id, suite, benchmark_id, provenance, started_at, finished_at,
            n_prompts_planned, n_scored, n_cached, n_failed, count(*) OVER () AS total FROM runs
            WHERE {condition} ORDER BY finished_at DESC NULLS FIRST, run_id LIMIT {RUNS}""",
        given,
    )
    places = next((run["run_id"] for run in newest if suites.named(run["suite"]).signatures), None)
    return {
        "name": name,
        "entry": facts,
        "runs": runs,
        "total": runs[0]["total"] if runs else 0,
        "nights": nights,
        "suites": [_suite(reader, run) for run in newest],
        "planted": any(run["provenance"] == "planted" for run in newest),
        "quarantined": [n for n in nights if n["quarantined_until"]],
        "failures": reader.ask(SQL["failures"], {"runs": [run["run_id"] for run in newest]}),
        "use": intended_use(),
        "findings": findings(reader, places) if places else None,
    }


def _nights(reader: Reader, name: str) -> list[Row]:
    rows = reader.ask(
        f"""SELECT nm.*, n.status, n.started_at AS began FROM night_outcomes nm JOIN nights n USING
            (night) WHERE nm.model = ?
            ORDER BY n.started_at DESC NULLS LAST, night DESC, suite LIMIT {NIGHTS}""",
        [name],
    )
    counts: dict[tuple[str, str], dict[str, int]] = {}
    sql = "SELECT night, suite, verdict, count(*) AS n FROM verdicts WHERE model = ? GROUP BY ALL"
    for r in reader.ask(sql, [name]):
        counts.setdefault((r["night"], r["suite"]), {})[r["verdict"]] = r["n"]
    for r in rows:
        r["verdicts"] = counts.get((r["night"], r["suite"]), {})
        r["verdict"] = wording.worst(r["verdicts"])
    return rows


def _suite(reader: Reader, run: Row) -> dict[str, Any]:
    """The newest run of one suite: headline table, signature, CADE's gain or disparities, and the
    metric over nights."""
    cells = reader.ask(
        f"""SELECT task, metric, method, test, pillar, indicator, "value", n, ci_low, ci_high
           FROM {store.NUMBERS} WHERE study = 'headline' AND run_id = ?
           AND indicator IN ('all', 'all-52')
           AND NOT coalesce(starts_with(missing_reason, 'needs '), false) ORDER BY ALL""",
        [run["run_id"]],
    )
    whole = [c for c in cells if c["pillar"] == "all" and c["indicator"] == "all"]
    heads = []
    for task, metric in dict.fromkeys((c["task"], c["metric"]) for c in whole):
        if metric in ("accuracy", "interval_accuracy", "recall"):
            part = [c for c in whole if (c["task"], c["metric"]) == (task, metric)]
            methods = _methods(part)
            grid = _grid(part, "test", _tests(part), "method", methods)
            heads.append({"task": task, "metric": metric, "methods": methods, "rows": grid})
    heads.sort(key=lambda h: (h["task"] != "mcq", h["task"]))
    debiased = [c for c in whole if (c["task"], c["method"]) == ("mcq", "cade")]
    gained = _tests([c for c in debiased if c["metric"] == "accuracy_gain"])
    changes = ("accuracy_gain", "fixed_rate", "broken_rate")
    suite = suites.named(run["suite"])
    chosen, _, _ = leaderboard.choose(
        [tuple(c[name] for name in leaderboard.CHOICES) for c in cells], {}
    )
    scored = leaderboard.nights_asked(reader, run["suite"], run["benchmark_id"], 90)
    run_ids = scored.loc[scored["model"] == run["model"], "run_id"].tolist()
    rows = leaderboard.history(
        scored, leaderboard.numbers(reader, chosen, scored, run_ids), run["model"]
    )
    nights = leaderboard.nights_of(reader, 90)
    drawn = over_nights.trends(rows, nights, chosen["metric"], [run["model"]])
    return {
        "run": run,
        "heads": heads,
        "gain": _grid(debiased, "test", gained, "metric", changes),
        "signature": _signature(cells, "T1" if suite.signatures else "all"),
        "disparity": _disparity(cells),
        "groups": ([], []) if suite.attributes else _groups(cells),
        "chosen": chosen,
        # one night is no line, and its number stands in the table
        "plots": drawn if len(rows) > 1 else [],
        "history": leaderboard.as_rows(rows),
        "config": parsed(run["config"]),
    }


Grid = list[tuple[str, list[Row | None]]]


def _grid(
    cells: list[Row], row: str, rows: Sequence[str], column: str, columns: Sequence[str]
) -> Grid:
    """(value of the column ``row``, the cells of these ``columns``) of a table, for ``rows``."""
    by_place = {(c[row], c[column]): c for c in cells}
    return [(r, [by_place.get((r, c)) for c in columns]) for r in rows]


def _tests(cells: list[Row]) -> list[str]:
    """The tests of some cells, the pooled ones last."""
    return sorted({c["test"] for c in cells}, key=lambda t: (t == "all", t))


def _methods(cells: list[Row]) -> list[str]:
    present = {c["method"] for c in cells}
    return [m for m in METHODS if m in present]


def _signature(cells: list[Row], test: str) -> Grid:
    """The direction of answers without evidence (Q-only), by pillar: shares in the order of
    DIRECTIONS."""
    where = ("mcq", test, "q_only", "all")
    selected = [c for c in cells if (c["task"], c["test"], c["method"], c["indicator"]) == where]
    present = {c["pillar"] for c in selected if c["metric"] == "share_optimistic"}
    pillars = [p for p in (*PILLARS, "all") if p in present]
    return _grid(selected, "pillar", pillars, "metric", [f"share_{d}" for d in DIRECTIONS])


def _groups(cells: list[Row]) -> tuple[list[str], Grid]:
    """Custom questions: (methods, [(level of a group column, or 'COLUMN: best minus worst', its
    accuracy by method)])."""
    selected = [
        c
        for c in cells
        if c["test"] == "all" and c["pillar"] != "all" and c["metric"] in ("accuracy", "disparity")
    ]
    methods, pillars = _methods(selected), sorted({c["pillar"] for c in selected})
    grid = _grid(selected, "pillar", pillars, "method", methods)
    return methods, [(wording.group(pillar), row) for pillar, row in grid]


def _disparity(cells: list[Row]) -> tuple[list[str], Grid]:
    """Second suite: (prompts, [(pair of groups, difference of recalls by prompt, mean over
    classes)])."""
    where = ("disparity", "full", "all-52")
    selected = [c for c in cells if (c["metric"], c["method"], c["indicator"]) == where]
    tests, pairs = sorted({c["test"] for c in selected}), sorted({c["pillar"] for c in selected})
    return tests, _grid(selected, "pillar", pairs, "test", tests)
