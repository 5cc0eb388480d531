"""Tables whose lines are no models: the benchmark's composition, the prompts, the constants, the
people; and those that list what the results hold as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import product

import pandas as pd

from sdgbias.analysis.paper import join
from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.cells import NOT_RUN, Cell, Column, Row, cell, number, text
from sdgbias.analysis.paper.numbers import MCQ_TESTS
from sdgbias.analysis.paper.results import KEY, PaperResults, Subject
from sdgbias.benchmark.people_items import CHOICES, P1
from sdgbias.methods import stats
from sdgbias.methods.stats import Estimate
from sdgbias.raw.facet import GROUPS, UNKNOWN
from sdgbias.types import (
    CONTEXT_NAMES,
    LETTERS,
    PILLARS,
    TESTS,
    TOLERANCES,
    ContextTest,
    Task,
    View,
)

NO_CONTEXT = Cell(status="not in store: no item with a context")


def _benchmarks(e: PaperResults) -> list[tuple[str, str]]:
    """(benchmark_id, status of counts in it) of the chosen runs."""
    found = {r.benchmark_id: "synthetic" if r.synthetic else "counted" for r in e.runs}
    return sorted(found.items())


def table_a(e: PaperResults, item: str) -> Iterator[Row]:
    counts = e.ask(
        "SELECT benchmark_id, task, pillar, count(*) AS n FROM items WHERE"
        " list_contains($benchmarks, benchmark_id) GROUP BY ALL"
    )
    for benchmark, status in _benchmarks(e) or [("", "not run")]:
        mine = counts[counts["benchmark_id"] == benchmark]
        for pillar in (*PILLARS, "all"):
            part = mine if pillar == "all" else mine[mine["pillar"] == pillar]
            n = {task: int(part.loc[part["task"] == task.value, "n"].sum()) for task in Task}
            printed = {task: paper.find("table_a", pillar=pillar, task=task.value) for task in Task}
            label = "Total" if pillar == "all" else pillar
            cells = (
                number(n[Task.MCQ] * len(TESTS[Task.MCQ]), status, printed[Task.MCQ]),
                number(n[Task.MCQ], status),
                number(n[Task.REGRESSION], status, printed[Task.REGRESSION]),
            )
            yield Row((benchmark or "-", label), cells)


def table_b(e: PaperResults, item: str) -> Iterator[Row]:
    gold = e.ask(
        """SELECT benchmark_id, pillar, gold, json_array_length(options) AS n_options,
           coalesce(cluster_id, '') AS cluster_id
                    FROM items WHERE list_contains($benchmarks, benchmark_id) AND task = 'mcq'
                    ORDER BY item_id"""
    )
    for benchmark, status in _benchmarks(e) or [("", "not run")]:
        mine = gold[gold["benchmark_id"] == benchmark]
        for pillar in (*PILLARS, "all"):
            part = mine if pillar == "all" else mine[mine["pillar"] == pillar]
            place = pd.factorize(part["cluster_id"])[0]
            lacks = "not in store: no such questions"
            cells = []
            for letter in LETTERS:
                printed = paper.find("table_b", pillar=pillar, column=letter)
                found = stats.share(part["gold"] == letter, place)
                cells.append(cell(found, status, lacks, printed))
            cells.append(cell(stats.share(part["n_options"] == 2, place), status, lacks))
            yield Row((benchmark or "-", pillar), tuple(cells))


def _bare(task: Task, question: str, *options: str) -> str:
    """The Full prompt of a question without a context, by the production prompt code."""
    from sdgbias.benchmark.prompts import prompt_texts

    columns = ("option_a", "option_b", "option_c")
    item = {"question": question, "target": "", **dict(zip(columns, options, strict=True))}
    return str(prompt_texts(pd.DataFrame([item]), task, ContextTest.T5, View.FULL).iloc[0])


def _template(task: Task) -> list[str]:
    """Our prompt with placeholders."""
    first, *others = _bare(task, "{QUESTION}", "{A}", "{B}", "{C}").split("\n")
    return [first, "Context: {CONTEXT} (left out without a context)", *others]


def _prompt(item: pd.Series, task: Task, test: str) -> str:
    """The Full prompt of a stored item: its bare prompt plus the stored context line."""
    options = [*(json.loads(item["options"]) if task is Task.MCQ else []), "", "", ""]
    bare = _bare(task, item["question"], *options[:3])
    context = str(json.loads(item["context"] or "{}").get(test, ""))
    head = f"Question: {item['question']}\n"
    return head + (f"Context: {context}\n" if context else "") + bare[len(head) :]


def _example(e: PaperResults, task: Task) -> tuple[pd.Series | None, str]:
    """The task's first item with a T2 context (a test that both tasks have), from the first such
    benchmark, and its status."""
    found = e.ask(
        """SELECT benchmark_id, question, options, context FROM items WHERE
           list_contains($benchmarks, benchmark_id)
                     AND task = $task AND context->>'T2' <> '' ORDER BY benchmark_id, item_id LIMIT
                     1""",
        task=task.value,
    )
    if found.empty:
        return None, ""
    return found.iloc[0], dict(_benchmarks(e))[str(found.iloc[0]["benchmark_id"])]


def sdg_prompts(e: PaperResults, item: str) -> Iterator[Row]:
    """Table C (multiple choice) or D (regression)."""
    task, test = (Task.MCQ, "T1") if item == "C" else (Task.REGRESSION, "T2")
    item = f"table_{item.lower()}"
    theirs, ours = paper.rows(item), _template(task)
    for i in range(max(len(ours), len(theirs))):
        printed = paper.find(item, row=f"line {i + 1}")
        yield Row((f"line {i + 1}",), (text(ours[i] if i < len(ours) else "", printed=printed),))
    found, status = _example(e, task)
    example = NO_CONTEXT if found is None else text(_prompt(found, task, test), status)
    yield Row((f"an item of ours, Full at {test}",), (example,))


#: The values in Table E's example.
TABLE_E_PLACE = {
    "asset_index": 1.0,
    "water_index": 3.4,
    "sanitation_index": 2.6,
    "under5_mort": 0.0,
    "women_edu": 9.5,
    "women_bmi": 24.4,
    "urban": "U",
}


def table_e(e: PaperResults, item: str) -> Iterator[Row]:
    from sdgbias.benchmark.prompts import context_lines

    place = pd.DataFrame([{name: TABLE_E_PLACE[name] for name in CONTEXT_NAMES}])
    found, status = _example(e, Task.MCQ)
    stored = {} if found is None else json.loads(found["context"])
    for test in ContextTest:
        line = str(context_lines(place, test).iloc[0]) or "(no Context line)"
        said = str(stored.get(test.value, "")) or "(no Context line)"
        ours = text(said, status) if stored else NO_CONTEXT
        printed = paper.find("table_e", test=test.value, column="Example")
        yield Row((test.value,), (text(line, printed=printed), ours))


def table_f(e: PaperResults, item: str) -> Iterator[Row]:
    found = e.ask(
        """SELECT target, count(*) AS n, min(tolerance) AS low, max(tolerance) AS high FROM items
                     WHERE list_contains($benchmarks, benchmark_id) AND task = 'regression' GROUP
                     BY target"""
    )
    used = {str(r["target"]): r for r in found.to_dict("records")}
    for target, tolerance in TOLERANCES.items():
        if target not in used:
            stored = Cell(status="not in store: no item with this target")
        elif used[target]["low"] != used[target]["high"]:
            stored = Cell(status="not in store: several tolerances")
        else:
            stored = number(float(used[target]["low"]), "counted", n=int(used[target]["n"]))
        yield Row(
            (target,), (number(tolerance, "code", paper.find("table_f", column=target)), stored)
        )


def table_g(e: PaperResults, item: str) -> Iterator[Row]:
    from sdgbias.methods.search import RANGES

    for i, name in enumerate(("alpha", "lambda_kl", "beta", "tau")):
        cells = []
        for task, (end, metric) in product(Task, enumerate(("low", "high"))):
            printed = paper.find("table_g", row=name, task=task.value, metric=metric)
            cells.append(number(RANGES[task][i][end], "code", printed))
        yield Row((name,), tuple(cells))


def parameters(e: PaperResults, item: str) -> Iterator[Row]:
    found = e.ask(
        """SELECT model, p.* FROM cade_params p JOIN runs USING (run_id) WHERE list_contains($runs,
           run_id)
                     ORDER BY model, task, test"""
    )
    kinds = {r.run_id: r for r in e.runs}
    for r in found.to_dict("records"):
        run = kinds[r["run_id"]]
        cells = [number(float(r[name]), run.kind) for name in ("alpha", "lambda_kl", "beta", "tau")]
        cells.append(number(float(r["val_value"]), run.kind, n=int(r["n_val"])))
        yield Row((run.label, str(r["task"]), str(r["test"])), tuple(cells))


def quality(e: PaperResults, item: str) -> Iterator[Row]:
    found = e.ask(
        """SELECT benchmark_id, "table", rule, count(*) AS n FROM quarantine WHERE
           list_contains($benchmarks, benchmark_id)
                     GROUP BY ALL ORDER BY ALL"""
    )
    kinds = dict(_benchmarks(e))
    for r in found.to_dict("records"):
        benchmark = str(r["benchmark_id"])
        cells = (number(int(r["n"]), kinds[benchmark]),)
        yield Row((benchmark, str(r["table"]), str(r["rule"])), cells)


def claims(e: PaperResults, item: str) -> Iterator[Row]:
    """The claims of the abstract: the mean over the tests, and the best single test beside the best
    that Table H prints for the model."""
    for claim in paper.rows("claims"):
        accuracy = claim["metric"] == "accuracy_gain"
        key = {**KEY, "task": claim["task"], "metric": claim["metric"], "method": "cade"}
        for s in e.subjects("claims"):
            if s.model and s.model != claim["model"]:
                continue
            why = e.why(s.run, key, join.UNTUNED) if s.run else ""
            status = s.run.kind if s.run else NOT_RUN
            mean = e.number(s.run, key | ({"test": "mean"} if accuracy else {}))
            tests = (test.value for test in TESTS[Task(claim["task"])])
            each = (e.number(s.run, key | {"test": test}) for test in tests)
            values = [v for v in each if v and v.value == v.value]
            best = (max if accuracy else min)(values, key=lambda v: v.value, default=None)
            said = paper.find("claims", row=claim["row"]) if s.model else None
            largest = _largest_gain(s) if accuracy else None
            cells = (cell(mean, status, why, said), cell(best, status, why, largest))
            yield Row((claim["row"], s.label), cells)


def _largest_gain(s: Subject) -> paper.Printed | None:
    rows = [r for r in paper.rows("table_h") if s.model and r["model"] == s.model]
    gains = [r for r in rows if r["metric"] == "accuracy_gain" and r["test"] in MCQ_TESTS]
    if not gains:
        return None
    top = max(gains, key=lambda r: float(r["value"]))
    return paper.Printed(float(top["value"]), f"{top['printed']} ({top['test']})")


def plain(e: PaperResults, item: str) -> Iterator[Row]:
    """Every row of a study except those of single indicators, one line per number."""
    frame = e.study(item)
    runs = {r.run_id: r for r in e.runs}
    names = ("test", "method", "versus", "pillar", "indicator", "parameter", "x")
    of_indicator = (frame["indicator"] != "all") & frame["pillar"].isin(PILLARS)
    for r in frame[~of_indicator].to_dict("records"):
        run = runs[r["run_id"]]
        columns = (
            f"minus {r[name]}" if name == "versus" and r[name] else r[name] for name in names
        )
        known = (v for v in columns if v not in ("all", "") and v == v)
        where = " ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in known)
        p = number(float(r["p"]), run.kind) if r["p"] == r["p"] else Cell()
        why = f"not in store: {r['note'] or r['missing_reason'] or 'no value'}"
        value = cell(Estimate.of_row(r), run.kind, why)
        yield Row((run.label, str(r["task"]), str(r["metric"]), where), (value, p))


def _people(e: PaperResults) -> dict[str, tuple[str, pd.DataFrame]]:
    """benchmark_id -> its dataset, and its people by attributes; the FACET benchmark first, '' in
    its place where no run was scored on one."""
    counted = e.ask(
        """SELECT benchmark_id, dataset, gender, skin, age, count(DISTINCT person_id) AS n FROM
           people WHERE list_contains($benchmarks, benchmark_id) GROUP BY ALL ORDER BY ALL"""
    )
    parts = {
        str(b): (str(part["dataset"].iloc[0]), part)
        for b, part in counted.groupby("benchmark_id", sort=True)
    }
    first = next((b for b, (kind, _) in parts.items() if kind == "facet"), "")
    return {first: parts.get(first, ("facet", counted.iloc[:0])), **parts}


def people_columns(e: PaperResults) -> list[Column]:
    """One column for each benchmark of people."""
    return [Column(f"{kind} {b[:8]}".strip(), "count") for b, (kind, _) in _people(e).items()]


def data(e: PaperResults, item: str) -> Iterator[Row]:
    """Table 1, and the same counts for every benchmark that the runs were scored on."""
    titles = {"gender": "gender presentation", "skin": "skin tone", "age": "age group"}
    every = {"": ("all",), **{a: (*g, UNKNOWN) for a, g in GROUPS.items()}}
    pairs = [(attribute, group) for attribute, groups in every.items() for group in groups]
    for attribute, group in pairs:
        pillar = f"{attribute}={group}" if attribute else group
        printed = paper.find("fairness/table_1", pillar=pillar, metric="people")
        cells: list[Cell] = []
        for kind, part in _people(e).values():
            mine = part[part[attribute] == group] if attribute else part
            status = "synthetic" if kind == "synthetic" else "counted"
            n = int(mine["n"].sum()) if len(part) else None
            beside = None if cells else printed
            cells.append(Cell(n, paper=beside, status=status if len(part) else NOT_RUN))
        yield Row((titles.get(attribute, "people"), group), tuple(cells))


def people_prompts(e: PaperResults, item: str) -> Iterator[Row]:
    """Table 3. Needs no run."""
    ours = {"p1": P1.format(list="[FACET Classes]").replace("[[", "[").replace("]]", "]")}
    ours |= {test: sentence.format(name="[FACET class]") for test, sentence in CHOICES.items()}
    for test, sentence in ours.items():
        yield Row((test,), (text(sentence, printed=paper.find("fairness/table_3", test=test)),))


ROWS: Mapping[str, Callable[[PaperResults, str], Iterator[Row]]] = {
    rows.__name__: rows
    for rows in (
        *(table_a, table_b, sdg_prompts, table_e, table_f, table_g, quality, parameters),
        *(claims, plain, data, people_prompts),
    )
}
