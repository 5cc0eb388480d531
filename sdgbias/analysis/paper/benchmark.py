"""Tables A to G: the benchmark's make-up, the prompts, the constants. Ours from the stored items
and from the code that uses them."""

from __future__ import annotations

import json

import pandas as pd

from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.cells import Cell, Column, Row, Table, cell, number, text
from sdgbias.analysis.paper.results import Evidence
from sdgbias.methods import stats
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

NO_BENCHMARK = "no run chosen, so no benchmark to count"


def _benchmarks(e: Evidence) -> list[tuple[str, str]]:
    """(benchmark_id, status of what is counted in it) of the chosen runs."""
    found = {r.benchmark_id: "synthetic" if r.synthetic else "counted" for r in e.runs}
    return sorted(found.items())


def table_a(e: Evidence) -> Table:
    counts = e.ask(
        "SELECT benchmark_id, task, pillar, count(*) AS n FROM items WHERE"
        " list_contains($benchmarks, benchmark_id) GROUP BY ALL"
    )
    rows = []
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
            rows.append(Row((benchmark or "-", label), cells))
    columns = ("MCQ, each test", "MCQ, distinct", "Regression, distinct")
    return Table(
        "A",
        "Table A: questions by pillar and task",
        "Counts of all items, val and test. 'Each test': times 5, T1 to T5.",
        ("benchmark", "pillar"),
        tuple(Column(c, "count") for c in columns),
        tuple(rows),
    )


def table_b(e: Evidence) -> Table:
    gold = e.ask(
        """SELECT benchmark_id, pillar, gold, json_array_length(options) AS n_options,
           coalesce(cluster_id, '') AS cluster_id
                    FROM items WHERE list_contains($benchmarks, benchmark_id) AND task = 'mcq'
                    ORDER BY item_id"""
    )
    rows = []
    for benchmark, status in _benchmarks(e) or [("", "not run")]:
        mine = gold[gold["benchmark_id"] == benchmark]
        for pillar in (*PILLARS, "all"):
            part = mine if pillar == "all" else mine[mine["pillar"] == pillar]
            place = pd.factorize(part["cluster_id"])[0]
            cells = [
                cell(
                    stats.share(part["gold"] == letter, place),
                    status,
                    "not in store: no such questions",
                    paper.find("table_b", pillar=pillar, column=letter),
                )
                for letter in LETTERS
            ]
            cells.append(
                cell(
                    stats.share(part["n_options"] == 2, place),
                    status,
                    "not in store: no such questions",
                )
            )
            rows.append(Row((benchmark or "-", pillar), tuple(cells)))
    columns = (*(Column(letter, "percent") for letter in LETTERS), Column("two options", "percent"))
    return Table(
        "B",
        "Table B: gold letters by pillar (%)",
        "Share of multiple-choice questions (val and test) whose right answer is the "
        "letter. A question with two options has no C.",
        ("benchmark", "pillar"),
        columns,
        tuple(rows),
    )


def _template(task: Task) -> list[str]:
    """Our prompt with placeholders, made by the code that makes the real ones."""
    from sdgbias.benchmark.prompts import prompt_texts

    item = pd.DataFrame(
        [
            {
                "question": "{QUESTION}",
                "option_a": "{A}",
                "option_b": "{B}",
                "option_c": "{C}",
                "target": "",
            }
        ]
    )
    lines = str(prompt_texts(item, task, ContextTest.T5, View.FULL).iloc[0]).split("\n")
    return [lines[0], "Context: {CONTEXT} (left out without a context)", *lines[1:]]


def _prompt(item: pd.Series, task: Task, test: str) -> str:
    """The Full prompt of a stored item: its bare prompt with the stored context line."""
    from sdgbias.benchmark.prompts import prompt_texts

    options = [*(json.loads(item["options"]) if task is Task.MCQ else []), "", "", ""]
    frame = pd.DataFrame(
        [
            {
                "question": item["question"],
                "option_a": options[0],
                "option_b": options[1],
                "option_c": options[2],
                "target": "",
            }
        ]
    )
    bare = str(prompt_texts(frame, task, ContextTest.T5, View.FULL).iloc[0])
    context = str(json.loads(item["context"] or "{}").get(test, ""))
    head = f"Question: {item['question']}\n"
    return head + (f"Context: {context}\n" if context else "") + bare[len(head) :]


def _example(e: Evidence, task: Task) -> tuple[pd.Series | None, str]:
    """The first item of the first benchmark that shows a context under T2 (both tasks have it), and
    its status."""
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


def _prompts(e: Evidence, item: str, task: Task, test: str, title: str) -> Table:
    theirs, ours = [r["printed"] for r in paper.rows(f"table_{item.lower()}")], _template(task)
    rows = [
        Row(
            (f"line {i + 1}",),
            (
                text(
                    ours[i] if i < len(ours) else "",
                    printed=paper.find(f"table_{item.lower()}", row=f"line {i + 1}"),
                ),
            ),
        )
        for i in range(max(len(ours), len(theirs)))
    ]
    found, status = _example(e, task)
    example = (
        Cell(status="not in store: no item with a context")
        if found is None
        else text(_prompt(found, task, test), status)
    )
    rows.append(Row((f"an item of ours, Full at {test}",), (example,)))
    return Table(
        item,
        title,
        "Our template as the code makes it, and one stored question. The image comes before the"
        " text, through the model's own chat template.",
        ("line",),
        (Column("prompt", "text"),),
        tuple(rows),
    )


def table_c(e: Evidence) -> Table:
    return _prompts(e, "C", Task.MCQ, "T1", "Table C: prompt of a multiple-choice question")


def table_d(e: Evidence) -> Table:
    return _prompts(e, "D", Task.REGRESSION, "T2", "Table D: prompt of a regression question")


#: The values behind Table E's example.
TABLE_E_PLACE = {
    "asset_index": 1.0,
    "water_index": 3.4,
    "sanitation_index": 2.6,
    "under5_mort": 0.0,
    "women_edu": 9.5,
    "women_bmi": 24.4,
    "urban": "U",
}


def table_e(e: Evidence) -> Table:
    from sdgbias.benchmark.prompts import context_lines

    place = pd.DataFrame([{name: TABLE_E_PLACE[name] for name in CONTEXT_NAMES}])
    found, status = _example(e, Task.MCQ)
    stored = {} if found is None else json.loads(found["context"])
    rows = []
    for test in ContextTest:
        line = str(context_lines(place, test).iloc[0]) or "(no Context line)"
        missing = Cell(status="not in store: no item with a context")
        ours = (
            text(str(stored.get(test.value, "")) or "(no Context line)", status)
            if stored
            else missing
        )
        printed = paper.find("table_e", test=test.value, column="Example")
        rows.append(Row((test.value,), (text(line, printed=printed), ours)))
    columns = (Column("the paper's place", "text"), Column("an item of ours", "text"))
    return Table(
        "E",
        "Table E: context variables of T1 to T5",
        "The Context line that our code makes from the values of the paper's example, and "
        "that of one stored question.",
        ("test",),
        columns,
        tuple(rows),
    )


def table_f(e: Evidence) -> Table:
    found = e.ask(
        """SELECT target, count(*) AS n, min(tolerance) AS low, max(tolerance) AS high FROM items
                     WHERE list_contains($benchmarks, benchmark_id) AND task = 'regression' GROUP
                     BY target"""
    )
    used = {str(r["target"]): r for r in found.to_dict("records")}
    rows = []
    for target, tolerance in TOLERANCES.items():
        if target not in used:
            stored = Cell(status="not in store: no item with this target")
        elif used[target]["low"] != used[target]["high"]:
            stored = Cell(status="not in store: several tolerances")
        else:
            stored = number(float(used[target]["low"]), "counted", n=int(used[target]["n"]))
        rows.append(
            Row(
                (target,), (number(tolerance, "code", paper.find("table_f", column=target)), stored)
            )
        )
    columns = (Column("tolerance", "number"), Column("in the stored items", "number"))
    return Table(
        "F",
        "Table F: tolerances of interval accuracy",
        "An estimate counts when it is at most this far from the survey's value, the "
        "limit included.",
        ("target",),
        columns,
        tuple(rows),
    )


def table_g(e: Evidence) -> Table:
    from sdgbias.methods.search import RANGES

    rows = []
    for i, name in enumerate(("alpha", "lambda_kl", "beta", "tau")):
        cells = [
            number(
                RANGES[task][i][end],
                "code",
                paper.find("table_g", row=name, task=task.value, metric=metric),
            )
            for task in Task
            for end, metric in enumerate(("low", "high"))
        ]
        rows.append(Row((name,), tuple(cells)))
    columns = tuple(
        Column(f"{task} {end}", "number")
        for task in ("MCQ", "regression")
        for end in ("from", "to")
    )
    return Table(
        "G",
        "Table G: ranges of the search",
        "Limits of the joint uniform random search, as `sdgbias.methods.search.RANGES` holds them.",
        ("parameter",),
        columns,
        tuple(rows),
    )


def parameters(e: Evidence) -> Table:
    found = e.ask(
        """SELECT model, p.* FROM cade_params p JOIN runs USING (run_id) WHERE list_contains($runs,
           run_id)
                     ORDER BY model, task, test"""
    )
    kinds = {r.run_id: r for r in e.runs}
    rows = []
    for r in found.to_dict("records"):
        run = kinds[r["run_id"]]
        cells = [number(float(r[name]), run.kind) for name in ("alpha", "lambda_kl", "beta", "tau")]
        cells.append(number(float(r["val_value"]), run.kind, n=int(r["n_val"])))
        rows.append(Row((run.label, str(r["task"]), str(r["test"])), tuple(cells)))
    columns = tuple(
        Column(c, "number") for c in ("alpha", "lambda_kl", "beta", "tau", "value on val")
    )
    return Table(
        "parameters",
        "CADE's parameters, as the run tuned them",
        "Best of the search by accuracy (mcq) or minus the mean absolute error "
        "(regression) on all val rows; the paper prints none. n: val rows.",
        ("model", "task", "test"),
        columns,
        tuple(rows),
        empty="no run with tuned parameters in the store",
    )


def quality(e: Evidence) -> Table:
    found = e.ask(
        """SELECT benchmark_id, "table", rule, count(*) AS n FROM quarantine WHERE
           list_contains($benchmarks, benchmark_id)
                     GROUP BY ALL ORDER BY ALL"""
    )
    kinds = dict(_benchmarks(e))
    rows = [
        Row(
            (str(r["benchmark_id"]), str(r["table"]), str(r["rule"])),
            (number(int(r["n"]), kinds[str(r["benchmark_id"])]),),
        )
        for r in found.to_dict("records")
    ]
    return Table(
        "quality",
        "App. B.2: what the quality gate took out",
        "Rows that left the benchmark, by the rule they broke. The paper names the "
        "checks and prints no counts.",
        ("benchmark", "table", "rule"),
        (Column("rows", "count"),),
        tuple(rows),
        empty="no row was taken out, or no benchmark is in the store",
    )
