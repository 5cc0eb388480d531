"""Data of the model pages: registry entry, newest numbers, signature, and history over nights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdgbias import store, suites, wording
from sdgbias.analysis.nights import UNCHANGED, overall
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
from sdgbias.vocabulary import METHODS, WORDS, name_in

RUNS, NIGHTS = 30, 60
_OF_CADE = ("accuracy_gain", "fixed_rate", "broken_rate")
_SHARES = tuple(f"share_{direction}" for direction in DIRECTIONS)
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
    judged: dict[tuple[str, str], list[Row]] = {}
    sql = "SELECT night, suite, rule, verdict, required FROM verdicts WHERE model = ?"
    for r in reader.ask(sql, [name]):
        judged.setdefault((r["night"], r["suite"]), []).append(r)
    for r in rows:
        verdicts = judged.get((r["night"], r["suite"]), [])
        r["verdict"] = overall(verdicts)
        r["verdicts"] = Counter(v["verdict"] for v in verdicts if v["rule"] != UNCHANGED)
    return rows


def _suite(reader: Reader, run: Row) -> dict[str, Any]:
    """The newest run of one suite: headline tables, signature, CADE's gain or disparities, and the
    metric over nights."""
    cells = reader.ask(
        f"""SELECT task, metric, method, test, pillar, indicator, "value", n, ci_low, ci_high,
           missing_reason FROM {store.NUMBERS} WHERE study = 'headline' AND run_id = $run
           AND list_contains($methods, method) AND indicator IN ('all', 'all-52')
           AND NOT coalesce(starts_with(missing_reason, 'needs '), false) ORDER BY ALL""",
        {"run": run["run_id"], "methods": list(METHODS)},
    )
    for cell in cells:
        cell["reason"] = name_in(WORDS.missing_reasons, cell["missing_reason"] or "not defined")
    suite = suites.named(run["suite"])
    whole = _where(cells, indicator={"all"}, pillar={"all"})
    heads = []
    for task, metric in dict.fromkeys((c["task"], c["metric"]) for c in whole):
        if metric in ("accuracy", "interval_accuracy", "recall"):
            methods, rows = _grid(_where(whole, task={task}, metric={metric}), "test", "method")
            heads.append({"task": task, "metric": metric, "methods": methods, "rows": rows})
    heads.sort(key=lambda head: (head["task"] != "mcq", head["task"]))
    of_choice = _where(cells, indicator={"all"}, task={"mcq"})
    at = {"T1" if suite.signatures else "all"}
    bare = _where(of_choice, test=at, method={"q_only"}, pillar={*PILLARS, "all"})
    debiased = _where(of_choice, method={"cade"}, pillar={"all"})
    grouped = [c for c in _where(cells, test={"all"}) if c["pillar"] != "all"]
    methods, groups = _grid(_where(grouped, metric={"accuracy", "disparity"}), "pillar", "method")
    apart = _where(cells, metric={"disparity"}, method={"full"}, indicator={"all-52"})
    places = [tuple(c[name] for name in leaderboard.CHOICES) for c in cells]
    chosen, _, _ = leaderboard.choose(places, {})
    scored = leaderboard.nights_asked(reader, run["suite"], run["benchmark_id"], 90)
    scored = scored[scored["model"] == run["model"]]
    past = leaderboard.history(scored, leaderboard.numbers(reader, chosen, scored["run_id"]))
    nights = leaderboard.nights_of(reader, 90)
    return {
        "run": run,
        "heads": heads,
        "gain": _grid(debiased, "test", "metric", _OF_CADE)[1],
        "signature": _grid(bare, "pillar", "metric", _SHARES)[1],
        "disparity": _grid(apart, "pillar", "test"),
        "groups": ([], [])
        if suite.attributes
        else (methods, [(wording.group(pillar), row) for pillar, row in groups]),
        "chosen": chosen,
        # one night is no line, and its number stands in the table
        "plots": over_nights.trends(past, nights, chosen["metric"], [run["model"]])
        if len(past) > 1
        else [],
        "history": leaderboard.as_rows(past),
        "config": parsed(run["config"]),
    }


def _where(cells: list[Row], **values: set[str]) -> list[Row]:
    """The cells that have one of these values in each of these columns."""
    return [c for c in cells if all(c[name] in among for name, among in values.items())]


def _grid(
    cells: list[Row], row: str, column: str, columns: Sequence[str] = ()
) -> tuple[list[str], list[tuple[str, list[Row | None]]]]:
    """(columns, [(value of the column ``row``, its cell in each column)]) of some cells, those over
    all tests or pillars last; ``columns``: by default all."""
    cells = [c for c in cells if not columns or c[column] in columns]
    by_place = {(c[row], c[column]): c for c in cells}
    across = list(columns) or sorted({c[column] for c in cells}, key=_place)
    down = sorted({c[row] for c in cells}, key=_place)
    return across, [(r, [by_place.get((r, c)) for c in across]) for r in down]


def _place(value: str) -> tuple[bool, int, str]:
    """Sorts methods and pillars as the vocabulary has them, others by name, 'all' last."""
    order = [*METHODS, *PILLARS]
    return value == "all", order.index(value) if value in order else -1, value
