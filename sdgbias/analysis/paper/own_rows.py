"""Tables whose lines are no models: the benchmark's composition, the prompts, the constants, the
people; and those that list what the results hold as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import product, zip_longest

import pandas as pd

from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.cells import NOT_RUN, Cell, Column, Row, cell
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
NO_LINE = "(no Context line)"
PARAMETERS = ("alpha", "lambda_kl", "beta", "tau")


def _by_pillar(e: PaperResults, sql: str) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """benchmark_id, the status of counts in it, a pillar or 'all', and their rows of a query."""
    rows, statuses = e.ask(sql), _statuses(e) or {"": NOT_RUN}
    for (benchmark, status), pillar in product(statuses.items(), (*PILLARS, "all")):
        part = rows[rows["benchmark_id"] == benchmark]
        part = part if pillar == "all" else part[part["pillar"] == pillar]
        yield benchmark or "-", status, pillar, part


def _statuses(e: PaperResults) -> dict[str, str]:
    """benchmark_id -> status of counts in it, of the chosen runs."""
    kinds = {r.benchmark_id: "synthetic" if r.synthetic else "counted" for r in e.runs}
    return dict(sorted(kinds.items()))


def table_a(e: PaperResults, item: str) -> Iterator[Row]:
    sql = """SELECT benchmark_id, task, pillar, count(*) AS n FROM items
             WHERE list_contains($benchmarks, benchmark_id) GROUP BY ALL"""
    for benchmark, status, pillar, part in _by_pillar(e, sql):
        mcq, numbers = (int(part.loc[part["task"] == task, "n"].sum()) for task in Task)
        texts = [paper.find("table_a", pillar=pillar, task=task) for task in Task]
        cells = (
            cell(mcq * len(TESTS[Task.MCQ]), status, paper=texts[0]),
            cell(mcq, status),
            cell(numbers, status, paper=texts[1]),
        )
        yield Row((benchmark, "Total" if pillar == "all" else pillar), cells)


def table_b(e: PaperResults, item: str) -> Iterator[Row]:
    sql = """SELECT benchmark_id, pillar, gold, json_array_length(options) AS n_options,
             coalesce(cluster_id, '') AS cluster_id FROM items
             WHERE list_contains($benchmarks, benchmark_id) AND task = 'mcq' ORDER BY item_id"""
    lacks = "not in store: no such questions"
    for benchmark, status, pillar, part in _by_pillar(e, sql):
        place = pd.factorize(part["cluster_id"])[0]
        cells = []
        for letter in LETTERS:
            printed = paper.find("table_b", pillar=pillar, column=letter)
            share = stats.share(part["gold"] == letter, place)
            cells.append(cell(share, status, lacks, printed))
        cells.append(cell(stats.share(part["n_options"] == 2, place), status, lacks))
        yield Row((benchmark, pillar), tuple(cells))


def _bare(task: Task, question: str, *options: str) -> str:
    """The Full prompt of a question without a context, by the production prompt code."""
    from sdgbias.benchmark.prompts import prompt_texts

    columns = ("option_a", "option_b", "option_c")
    item = {"question": question, "target": "", **dict(zip(columns, options, strict=True))}
    return str(prompt_texts(pd.DataFrame([item]), task, ContextTest.T5, View.FULL).iloc[0])


def stored_prompt(item: pd.Series, task: Task, test: str) -> str:
    """The Full prompt of a stored item: its bare prompt plus the stored context line."""
    options = [*(json.loads(item["options"]) if task is Task.MCQ else []), "", "", ""]
    bare = _bare(task, item["question"], *options[:3])
    context = str(json.loads(item["context"] or "{}").get(test, ""))
    head = f"Question: {item['question']}\n"
    return head + (f"Context: {context}\n" if context else "") + bare[len(head) :]


def _example(e: PaperResults, task: Task) -> tuple[pd.Series | None, str]:
    """The task's first item with a T2 context (a test that both tasks have), from the first such
    benchmark, and its status."""
    sql = """SELECT benchmark_id, question, options, context FROM items
             WHERE list_contains($benchmarks, benchmark_id) AND task = $task
             AND context->>'T2' <> '' ORDER BY benchmark_id, item_id LIMIT 1"""
    items = e.ask(sql, task=task.value)
    if items.empty:
        return None, ""
    return items.iloc[0], _statuses(e)[str(items["benchmark_id"].iloc[0])]


def sdg_prompts(e: PaperResults, item: str) -> Iterator[Row]:
    """Table C (multiple choice) or D (regression): our prompt with placeholders."""
    task, test = (Task.MCQ, "T1") if item == "C" else (Task.REGRESSION, "T2")
    first, *others = _bare(task, "{QUESTION}", "{A}", "{B}", "{C}").split("\n")
    ours = [first, "Context: {CONTEXT} (left out without a context)", *others]
    name = f"table_{item.lower()}"
    for i, (line, _) in enumerate(zip_longest(ours, paper.rows(name), fillvalue=""), start=1):
        printed = paper.find(name, row=f"line {i}")
        yield Row((f"line {i}",), (cell(str(line), "code", paper=printed),))
    stored, status = _example(e, task)
    example = NO_CONTEXT if stored is None else cell(stored_prompt(stored, task, test), status)
    yield Row((f"an item of ours, Full at {test}",), (example,))


#: The values in Table E's example.
TABLE_E_PLACE = {
    **{"asset_index": 1.0, "water_index": 3.4, "sanitation_index": 2.6, "under5_mort": 0.0},
    **{"women_edu": 9.5, "women_bmi": 24.4, "urban": "U"},
}


def table_e(e: PaperResults, item: str) -> Iterator[Row]:
    from sdgbias.benchmark.prompts import context_lines

    place = pd.DataFrame([{name: TABLE_E_PLACE[name] for name in CONTEXT_NAMES}])
    stored, status = _example(e, Task.MCQ)
    contexts = {} if stored is None else json.loads(stored["context"])
    for test in ContextTest:
        line = str(context_lines(place, test).iloc[0]) or NO_LINE
        printed = paper.find("table_e", test=test.value, column="Example")
        ours = cell(str(contexts.get(test.value, "")) or NO_LINE, status)
        yield Row(
            (test.value,), (cell(line, "code", paper=printed), ours if contexts else NO_CONTEXT)
        )


def table_f(e: PaperResults, item: str) -> Iterator[Row]:
    sql = """SELECT target, count(*) AS n, min(tolerance) AS low, max(tolerance) AS high FROM items
             WHERE list_contains($benchmarks, benchmark_id) AND task = 'regression'
             GROUP BY target"""
    used = {target: row for target, *row in e.ask(sql).itertuples(index=False, name=None)}
    for target, tolerance in TOLERANCES.items():
        n, low, high = used.get(target, (0, 0.0, 0.0))
        stored = cell(Estimate(float(low), int(n)), "counted")
        if not n:
            stored = Cell(status="not in store: no item with this target")
        elif low != high:
            stored = Cell(status="not in store: several tolerances")
        printed = paper.find("table_f", column=target)
        yield Row((target,), (cell(tolerance, "code", paper=printed), stored))


def table_g(e: PaperResults, item: str) -> Iterator[Row]:
    from sdgbias.methods.search import RANGES

    for i, name in enumerate(PARAMETERS):
        cells = []
        for task in Task:
            for metric, limit in zip(("low", "high"), RANGES[task][i], strict=True):
                printed = paper.find("table_g", row=name, task=task.value, metric=metric)
                cells.append(cell(limit, "code", paper=printed))
        yield Row((name,), tuple(cells))


def parameters(e: PaperResults, item: str) -> Iterator[Row]:
    sql = """SELECT model, p.* FROM cade_params p JOIN runs USING (run_id)
             WHERE list_contains($runs, run_id) ORDER BY model, task, test"""
    runs = {r.run_id: r for r in e.runs}
    for r in e.ask(sql).to_dict("records"):
        run = runs[r["run_id"]]
        cells = [cell(float(r[name]), run.kind) for name in PARAMETERS]
        cells.append(cell(Estimate(float(r["val_value"]), int(r["n_val"])), run.kind))
        yield Row((e.label(run), str(r["task"]), str(r["test"])), tuple(cells))


def quality(e: PaperResults, item: str) -> Iterator[Row]:
    sql = """SELECT benchmark_id, "table", rule, count(*) AS n FROM quarantine
             WHERE list_contains($benchmarks, benchmark_id) GROUP BY ALL ORDER BY ALL"""
    for *labels, n in e.ask(sql).itertuples(index=False, name=None):
        yield Row(tuple(map(str, labels)), (cell(int(n), _statuses(e)[str(labels[0])]),))


def claims(e: PaperResults, item: str) -> Iterator[Row]:
    """The claims of the abstract: the mean over the tests, and the best single test beside the best
    that Table H prints for the model."""
    for claim in paper.rows("claims"):
        accuracy = claim["metric"] == "accuracy_gain"
        key = {**KEY, "task": claim["task"], "metric": claim["metric"], "method": "cade"}
        for s in e.subjects("claims"):
            if s.model and s.model != claim["model"]:
                continue
            untuned = "CADE was not tuned in this run (no val rows)"
            why, status = (e.why(s.run, key, untuned), s.run.kind) if s.run else ("", NOT_RUN)
            tests = ("mean" if accuracy else "all", *TESTS[Task(claim["task"])])
            rows = [e.row(s.run, key | {"test": test}) for test in tests]
            mean, *each = [Estimate.of_row(row) if row else None for row in rows]
            values = [v for v in each if v and v.value == v.value]
            best = (max if accuracy else min)(values, key=lambda v: v.value, default=None)
            printed = paper.find("claims", row=claim["row"]) if s.model else None
            largest = _largest_gain(s) if accuracy else None
            cells = (cell(mean, status, why, printed), cell(best, status, why, largest))
            yield Row((claim["row"], s.label), cells)


def _largest_gain(s: Subject) -> paper.Printed | None:
    rows = [r for r in paper.rows("table_h") if s.model and r["model"] == s.model]
    gains = [r for r in rows if r["metric"] == "accuracy_gain" and r["test"] in TESTS[Task.MCQ]]
    if not gains:
        return None
    top = max(gains, key=lambda r: float(r["value"]))
    return paper.Printed(float(top["value"]), f"{top['printed']} ({top['test']})")


def plain(e: PaperResults, item: str) -> Iterator[Row]:
    """Every row of a study except those of single indicators, one line per number."""
    frame, runs = e.study(item), {r.run_id: r for r in e.runs}
    of_indicator = (frame["indicator"] != "all") & frame["pillar"].isin(PILLARS)
    for r in frame[~of_indicator].to_dict("records"):
        run = runs[r["run_id"]]
        versus = f"minus {r['versus']}" if r["versus"] else ""
        columns = (r["test"], r["method"], versus, r["pillar"], r["indicator"], r["parameter"])
        key = [str(value) for value in columns if value not in ("all", "")]
        where = " ".join([*key, *([f"{r['x']:g}"] if r["x"] == r["x"] else [])])
        reason = next((why for why in (r["note"], r["missing_reason"]) if why and why == why), "")
        why = f"not in store: {reason or 'no value'}"
        p = cell(float(r["p"]), run.kind) if r["p"] == r["p"] else Cell()
        labels = (e.label(run), str(r["task"]), str(r["metric"]), where)
        yield Row(labels, (cell(Estimate.of_row(r), run.kind, why), p))


def _people(e: PaperResults) -> dict[str, tuple[str, pd.DataFrame]]:
    """benchmark_id -> its dataset, and its people by attributes; the FACET benchmark first, '' in
    its place where no run was scored on one."""
    sql = """SELECT benchmark_id, dataset, gender, skin, age, count(DISTINCT person_id) AS n
             FROM people WHERE list_contains($benchmarks, benchmark_id) GROUP BY ALL ORDER BY ALL"""
    counted = e.kept("people", lambda: e.ask(sql))
    parts = {b: (e.datasets()[str(b)], part) for b, part in counted.groupby("benchmark_id")}
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
            people = part[part[attribute] == group] if attribute else part
            status = "synthetic" if kind == "synthetic" else "counted"
            beside = None if cells else printed
            cells.append(
                cell(int(people["n"].sum()), status if len(part) else NOT_RUN, paper=beside)
            )
        yield Row((titles.get(attribute, "people"), group), tuple(cells))


def people_prompts(e: PaperResults, item: str) -> Iterator[Row]:
    """Table 3. Needs no run."""
    ours = {"p1": P1.format(list="[FACET Classes]").replace("[[", "[").replace("]]", "]")}
    ours |= {test: sentence.format(name="[FACET class]") for test, sentence in CHOICES.items()}
    for test, sentence in ours.items():
        printed = paper.find("fairness/table_3", test=test)
        yield Row((test,), (cell(sentence, "code", paper=printed),))


ROWS: Mapping[str, Callable[[PaperResults, str], Iterator[Row]]] = {
    rows.__name__: rows
    for rows in (
        *(table_a, table_b, sdg_prompts, table_e, table_f, table_g, quality, parameters),
        *(claims, plain, data, people_prompts),
    )
}
