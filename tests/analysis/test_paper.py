"""The paper's tables from a results file: ours equal the store's numbers, the paper's stand beside
the same model's only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.analysis import paper as tables
from sdgbias.analysis.paper import numbers as paper
from sdgbias.analysis.paper import results
from sdgbias.analysis.paper.results import NOT_ANALYSED, NOT_RUN
from sdgbias.analysis.paper.tables import MADE, Cell
from sdgbias.analysis.rows import row, table
from sdgbias.benchmark.release.authors import AUTHORS_REPO
from sdgbias.errors import UsageError
from sdgbias.suites.rows import HEADLINE
from sdgbias.types import NEEDS_SCORES, PILLARS
from tests.builders.paper_tables import (
    LLAVA,
    QWEN,
    TESTS,
    TINY,
    build,
    cell,
    stored,
)
from tests.builders.results import copied

REVERSED = "Reverse order C/B/A"

# -- what stands beside what
# ----------------------------------------------------------------------


def test_a_table_says_whose_questions_were_asked(bare: Path, tmp_path: Path) -> None:
    ours = tables.load(bare)
    path = copied(bare, tmp_path / "r.duckdb")
    hub = {"repo": AUTHORS_REPO, "commit": "0123456789abcdef", "licence": "cc-by-sa-4.0"}
    with store.connect(path) as db:
        patch = json.dumps({"hub": hub, "text_view": "blank-image"})
        db.execute("UPDATE runs SET config = json_merge_patch(config, ?::JSON)", [patch])
    theirs = tables.load(path)

    (own, _), (authors, _) = (tables.build(e, ["H"]) for e in (ours, theirs))

    assert any("isn't directly comparable" in note for note in own.footnotes)
    assert not any("is directly comparable" in note for note in own.footnotes)
    assert any("same model is directly comparable" in note for note in authors.footnotes)
    assert not any("isn't directly comparable" in note for note in authors.footnotes)
    assert f"the authors' questions ({AUTHORS_REPO} at 0123456789ab)" in theirs.runs[0].says
    assert "without the picture are blank-image" in theirs.runs[0].says


def test_table_h_holds_the_stores_numbers_beside_the_papers(bare: Path) -> None:
    t, name = build(bare, "H"), "llava-1.5-7b"
    for test in TESTS:
        for method, setting in (("full", "Original"), ("cade", "Ours")):
            c, s = cell(t, test, LLAVA, setting), stored(bare, name, "accuracy", method, test)
            assert (c.value, c.n, c.low, c.high) == (s["value"], s["n"], s["ci_low"], s["ci_high"])
            where = {"model": name, "method": method, "test": test, "metric": "accuracy"}
            assert c.status == "measured" and c.paper == paper.find("table_h", **where)
        gain = stored(bare, name, "accuracy_gain", "cade", test)["value"]
        assert cell(t, test, LLAVA, "gain").value == gain
    assert cell(t, "T3", LLAVA, "Ours").paper.text == "0.55"  # type: ignore[union-attr]


def test_mean_and_relative_gain_are_of_means(bare: Path) -> None:
    t = build(bare, "H")
    before, after = (
        [stored(bare, "llava-1.5-7b", "accuracy", m, x)["value"] for x in TESTS]
        for m in ("full", "cade")
    )
    gain = cell(t, "mean", LLAVA, "gain")
    assert gain.value == pytest.approx(np.mean(after) - np.mean(before))
    assert gain.paper.text == "+0.25"  # type: ignore[union-attr]
    assert gain.low == stored(bare, "llava-1.5-7b", "accuracy_gain", "cade", "all")["ci_low"]
    relative = cell(t, "rel. gain", LLAVA, "gain")
    assert relative.value == pytest.approx((np.mean(after) - np.mean(before)) / np.mean(before))


def test_a_mean_without_equal_questions_has_no_interval(bare: Path, tmp_path: Path) -> None:
    path = copied(bare, tmp_path / "r.duckdb")
    rows = store.query(path, "FROM numbers WHERE run_id = 'llava-1.5-7b-0'").drop(
        columns=["run_id"]
    )
    pool = (rows["test"] == "all") & (rows["metric"] == "accuracy") & (rows["method"] == "full")
    rows.loc[pool, "value"] += 0.001
    store.replace(path, "llava-1.5-7b-0", {"numbers": rows})
    [made, _] = tables.build(results.load(path), ["H"])
    assert not cell(made, "mean", LLAVA, "Original").has_interval
    assert cell(made, "mean", LLAVA, "Ours").has_interval


def test_a_planted_run_never_stands_for_a_model_of_the_paper(bare: Path) -> None:
    t = build(bare, "H")
    missing = Cell(paper=paper.Printed(0.54, "0.54"), status=NOT_RUN)
    assert cell(t, "T1", "Qwen2.5-VL-7B (not run)", "Original") == missing
    statuses = [cell(t, "T1", model, "Original").status for model in (QWEN, TINY)]
    assert statuses == ["planted", "embedded"]


def test_what_was_run_comes_first_and_closed_models_have_the_full_view_alone(bare: Path) -> None:
    labels = [r.labels for r in build(bare, "H").rows]
    missing = [model.endswith("(not run)") for model, _ in labels]
    assert not missing[0] and missing[-1] and missing == sorted(missing)
    assert [setting for model, setting in labels if model.startswith("GPT-4o")] == ["Original"]


@pytest.mark.parametrize("item", tables.items())
def test_no_item_sets_a_planted_or_embedded_number_beside_the_paper(full: Path, item: str) -> None:
    t = build(full, item)
    assert t.rows or t.empty
    for r in t.rows:
        assert len(r.labels) == len(t.labels) and len(r.cells) == len(t.columns)
        for c in r.cells:
            assert not (c.status in ("planted", "embedded") and c.paper), (item, r.labels)
            known = c.status in (*MADE, NOT_RUN, NOT_ANALYSED, "") or c.status.startswith(
                "not in store: "
            )
            assert known and (c.value is not None) == c.made, (item, r.labels, c)


def test_models_can_be_chosen_also_those_that_were_not_run(bare: Path) -> None:
    e = results.load(bare, ["gpt-4o"])
    assert [r.labels[0] for r in tables.build(e, ["H"])[0].rows] == ["GPT-4o (not run)"]
    assert tables.build(e, ["A"])[0].rows[0].cells[0].status == NOT_RUN
    with pytest.raises(UsageError, match="unknown model 'gpt-9'.*tiny-llava"):
        results.load(bare, ["gpt-9"])


# -- the benchmark and the constants
# ----------------------------------------------------------------------


def test_table_a_counts_items_and_times_the_tests(bare: Path) -> None:
    t = build(bare, "A")
    for i, pillar in enumerate(PILLARS):
        mcq = sum(1 for k in range(60) if k % 3 == i)
        assert cell(t, "MCQ, distinct", "0123456789abcdef", pillar).value == mcq
        assert cell(t, "MCQ, each test", "0123456789abcdef", pillar).value == 5 * mcq
    total = cell(t, "Regression, distinct", "0123456789abcdef", "Total")
    assert total.value == 24 and total.status == "counted" and total.paper.value == 50_000  # type: ignore[union-attr]


def test_templates_beside_the_papers(bare: Path) -> None:
    c, place = build(bare, "C").rows, build(bare, "E")
    pairs = [(r.labels[0], r.cells[0].value, r.cells[0].paper) for r in c]
    same = [label for label, ours, printed in pairs if printed and ours == printed.text]
    assert same == ["line 1", "line 5", "line 6"]  # the others name what the paper leaves open
    assert len(pairs) == 6 and pairs[3][1] == "VALID OPTIONS: A, B, C"
    for test in ("T1", "T2", "T3", "T4"):
        line = cell(place, "the paper's place", test)
        assert line.value == line.paper.text  # type: ignore[union-attr]
    assert cell(place, "the paper's place", "T5").value == "(no Context line)"


# -- analyses
# ----------------------------------------------------------------------


TAU = "~0.9, threshold, then a plateau"
#: Item, column, labels, what stands there (a value, or why there is none), what the paper printed.
#: val of Figure 8: 0.50 at 0.5, 0.62 at 1.0 and 1.5, so the lower of the two best; its plateau: the
#: text names a threshold of tau, no best value.
STUDIED = [
    ("1", "Post-Hoc", (LLAVA, "T1-T5"), 0.51, "0.34"),
    ("1", "Post-Hoc", (LLAVA, "T1"), 0.51, ""),
    ("2", "retuned", (LLAVA, "+ prior penalty"), 0.57, "0.52"),
    ("2", "zeroed", (LLAVA, "+ prior penalty"), "not in store: no +beta zeroed", "0.52"),
    ("2", "step", (LLAVA, "+ prior penalty"), 0.01, "+0.06"),
    ("3", "JS Img.", (LLAVA, "T1-T5"), 0.60, "0.49"),
    ("3", "JS Img.", (LLAVA, "T1"), 0.58, ""),
    ("controls", "T2", (LLAVA, "always B"), 0.34, ""),
    ("controls", "T2", (TINY, "always B"), NOT_ANALYSED, ""),
    ("J", "optimistic", ("InstructBLIP-7B (not run)", REVERSED), NOT_RUN, "52.8"),
    ("J", "optimistic", (LLAVA, REVERSED), 0.61, ""),
    ("fig4", "the text says", (LLAVA, PILLARS[1]), "", "overwhelmingly optimistic"),
    ("fig4", "optimistic", (LLAVA, PILLARS[0]), 1.0, ""),
    ("fig5", "T1", (LLAVA, PILLARS[2]), 0.02, ""),
    ("fig5", "T2", (LLAVA, "stunting"), 0.03, ""),
    ("fig8", "best on val", (LLAVA, "T1", "alpha"), 1.0, "~0.7, peak"),
    ("fig8", "tuned", (LLAVA, "T1", "alpha"), 0.82, ""),
    ("fig8", "plateau from", (LLAVA, "T1", "alpha"), 1.0, ""),
    ("fig8", "test there", (LLAVA, "T1", "alpha"), 0.57, ""),
    ("fig8", "lowest", (LLAVA, "T1", "alpha"), 0.45, ""),
    ("fig8", "highest", (LLAVA, "T1", "alpha"), 0.60, ""),
    ("fig8", "best on val", (LLAVA, "T1", "tau"), "not in store: no sweep of tau at T1", ""),
    ("fig8", "plateau from", (LLAVA, "T1", "tau"), "not in store: no sweep of tau at T1", TAU),
    ("intervals", "T2 MAE", (LLAVA, "target under5_mort", "Ours"), 12.5, ""),
    ("intervals", "T5 MAE", (LLAVA, "macro: mean of targets", "Original"), 3.25, ""),
    ("methods", "T1", (LLAVA, "post_hoc"), 0.51, ""),
    ("methods", "T1", (LLAVA, "bcl"), "not in store: no val rows to tune on", ""),
    ("methods-regression", "T2 MAE", (LLAVA, "vdd"), 8.5, ""),
]


@pytest.mark.parametrize(("item", "column", "labels", "shown", "printed"), STUDIED)
def test_studies_fill_their_tables(
    full: Path, item: str, column: str, labels: tuple[str, ...], shown: float | str, printed: str
) -> None:
    c = cell(build(full, item), column, *labels)

    if isinstance(shown, str):
        assert (c.value, c.status) == (None, shown)
    else:
        assert c.value == pytest.approx(shown)
    assert (c.paper.text if c.paper else "") == printed


def test_a_plateau_begins_where_the_curve_stays_and_else_nowhere(
    bare: Path, tmp_path: Path
) -> None:
    path = copied(bare, tmp_path / "r.duckdb")
    curves = {
        "alpha": (0.5, 0.6, 0.6, 0.599),
        "lambda_kl": (0.6, 0.6, 0.6, 0.6),
        "beta": (0.5, 0.6, 0.6, 0.5),  # falls again
        "tau": (0.4, 0.5, 0.6, 0.7),  # its best value is its last point
    }
    points = [
        row("sweep", "accuracy", value, test="T1", method=split, parameter=name, x=float(x))
        for name, values in curves.items()
        for x, value in enumerate(values)
        for split in ("val", "test")
    ]
    store.replace(path, "llava-1.5-7b-0", {"numbers": table(points)}, kept_study=HEADLINE)

    found = results.load(path).study("sweep").query("metric == 'plateau_from'")

    begins = dict(zip(found["parameter"], found["value"], strict=True))
    known = {"alpha": 1.0, "lambda_kl": 0.0, "beta": np.nan, "tau": np.nan}
    assert begins == pytest.approx(known, nan_ok=True)


@pytest.mark.parametrize("order", [1, -1])
def test_a_sweep_shows_what_was_tuned_for_multiple_choice(
    bare: Path, tmp_path: Path, order: int
) -> None:
    path = copied(bare, tmp_path / "r.duckdb")
    at = {"test": "T2", "parameter": "alpha"}
    rows = [row("sweep", "accuracy", 0.5, method=split, x=1.0, **at) for split in ("val", "test")]
    for task, tuned in (("mcq", 0.7), ("regression", 4.5)):
        rows.append(row("sweep", "optimum", tuned, task=task, **at))
    store.replace(path, "tiny-llava-0", {"numbers": table(rows)[::order]}, kept_study=HEADLINE)

    [figure] = tables.build(results.load(path), ["fig8"])

    assert cell(figure, "tuned", TINY, "T2", "alpha").value == 0.7


def test_table_i_changes_and_its_relative_values(bare: Path) -> None:
    t = build(bare, "I")
    at = ("all", "regression")
    before, after = (stored(bare, "llava-1.5-7b", "mae", m, *at)["value"] for m in ("full", "cade"))
    labels = (LLAVA, "T2 + T5", "Ours")
    assert cell(t, "rel. change", *labels).value == pytest.approx((after - before) / before)
    assert cell(t, "rel. change", *labels).paper.text == "-5.36%"  # type: ignore[union-attr]
    assert cell(t, "MAE", LLAVA, "T2", "Ours").paper is None, "it doesn't say under which test"


def test_an_analysed_run_is_told_from_one_that_was_not(bare: Path, tmp_path: Path) -> None:
    path = copied(bare, tmp_path / "r.duckdb")
    store.replace(path, "tiny-llava-0", {"analyses": pd.DataFrame([{"settings": {"draws": 500}}])})
    e = results.load(path)
    key = {"study": "regression", "task": "regression", "method": ""}
    why = {r.model: e.why(r.run_id, key, "nothing decoded") for r in e.runs}
    assert why == {
        "tiny-llava": "not in store: nothing decoded",
        "llava-1.5-7b": NOT_ANALYSED,
        "qwen2.5-vl-7b": NOT_ANALYSED,
    }


# -- costs and letters
# ----------------------------------------------------------------------


def timing(task: str, phase: str, view: str, s: float, **more: float) -> dict[str, object]:
    counts = {"cells": 100, "prompts": 80, "cached": 0, "untimed": 0, "tokens": 9000}
    sums = dict.fromkeys(("seconds", "seconds_measured", "seconds_alone"), s)
    return {"task": task, "phase": phase, "view": view, "pass": "", **counts, **sums, **more}


@pytest.fixture(scope="module")
def timed(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LLaVA with times of everything; Qwen with a prompt that an earlier version scored."""
    path = copied(bare, tmp_path_factory.mktemp("timed") / "r.duckdb")
    rows = [
        timing("mcq", "score", "full", 12.0, seconds_alone=14.0, seconds=0.0, cached=80),
        timing("mcq", "score", "img_q", 10.0, seconds_alone=99.0),
        timing("mcq", "score", "ctx_q", 4.0),
        timing("mcq", "score", "q_only", 2.0),
        timing("mcq", "score", "noise", 500.0) | {"pass": "noise"},
        timing("mcq", "decode", "full", 600.0),
        *(timing("regression", "score", v, 1.0) for v in ("full", "img_q", "ctx_q", "q_only")),
        *(timing("regression", "decode", v, 5.0) for v in ("full", "img_q", "ctx_q", "q_only")),
        timing("regression", "force", "full", 3.0),
    ]
    store.replace(path, "llava-1.5-7b-0", {"timings": pd.DataFrame(rows)})
    late = pd.DataFrame(rows[:4]).assign(untimed=[1, 0, 0, 2])
    store.replace(path, "qwen2.5-vl-7b-0", {"timings": late})
    return path


def test_table_k_is_the_cost_of_cade_over_that_of_plain_full(timed: Path) -> None:
    t = build(timed, "K")

    def k(column: str, task: str, method: str, model: str = LLAVA) -> Cell:
        return cell(t, column, model, task, method)

    plain, four = "Full inference", "CADE (four views)"
    # Full alone pays its shared prompts in full; extra passes and generated letters are left out
    assert (k("s / question", "mcq", plain).value, k("relative", "mcq", plain).value) == (0.14, 1)
    assert k("s / question", "mcq", four).value == pytest.approx(28 / 100)
    assert k("relative", "mcq", four).value == pytest.approx(28 / 14)
    assert k("s / question", "mcq", four).n == 100, "the questions stand beside the seconds"
    # a number: Full's free answer; CADE's four scores, Full's free answer and those of each digit
    assert k("s / question", "regression", plain).value == pytest.approx(5 / 100)
    assert k("relative", "regression", four).value == pytest.approx((4 + 5 + 3) / 5)
    assert k("s / question", "mcq", plain, QWEN).status == (
        "not in store: 1 of 80 prompts came from the cache of a version that kept no times"
    )
    assert k("relative", "mcq", four, QWEN).status.startswith("not in store: 3 of 320 prompts")
    assert "of a version that kept no times" in k("relative", "mcq", four, TINY).status
    printed = cell(t, "relative", "not stated", "not stated", four).paper
    assert printed is not None and printed.text == "2.25×"


def test_table_l_divides_the_seconds_by_view(timed: Path) -> None:
    t = build(timed, "L")
    views = ("Full", "IMG+Q", "CTX+Q", "Q-only")
    shares = [cell(t, "runtime", LLAVA, view) for view in views]
    assert [c.value for c in shares] == pytest.approx([13 / 32, 11 / 32, 5 / 32, 3 / 32])
    assert [c.n for c in shares] == [160] * 4 and {c.status for c in shares} == {"measured"}
    assert cell(t, "s", LLAVA, "Full").value == 13
    # every fake prompt has 120 tokens
    assert [cell(t, "prompt tokens", TINY, view).value for view in views] == [0.25] * 4
    assert cell(t, "runtime", "not stated", "Full").paper.value == 0.4  # type: ignore[union-attr]


def test_seconds_have_one_sum_in_whatever_order_their_rows_are(timed: Path, tmp_path: Path) -> None:
    """0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 to the last digit."""
    seconds = dict(zip(("ctx_q", "full", "img_q", "q_only"), (0.1, 0.2, 0.3, 0.7), strict=True))
    rows = [timing("mcq", "score", view, s) for view, s in seconds.items()]
    texts = []
    for name, ordered in (("a", rows), ("b", rows[::-1]), ("c", [rows[2], rows[0], *rows[1::2]])):
        path = copied(timed, tmp_path / f"{name}.duckdb")
        store.replace(path, "llava-1.5-7b-0", {"timings": pd.DataFrame(ordered)})
        k, shares = build(path, "K"), build(path, "L")
        cells = [cell(shares, "runtime", LLAVA, view) for view in ("Full", "IMG+Q", "Q-only")]
        cells.append(cell(k, "s / question", LLAVA, "mcq", "CADE (four views)"))
        texts.append([repr(c.value) for c in cells])
    assert texts[0] == texts[1] == texts[2]


def test_times_that_a_model_cannot_have_say_why(timed: Path, tmp_path: Path) -> None:
    path = copied(timed, tmp_path / "r.duckdb")
    with store.connect(path) as db:
        db.execute(
            "UPDATE numbers SET value = NULL, missing_reason = ?"
            " WHERE run_id = 'llava-1.5-7b-0' AND method IN ('full', 'cade')",
            [NEEDS_SCORES],
        )
        db.execute("DELETE FROM timings WHERE phase <> 'decode'")
    t = build(path, "K")
    plain, four = "Full inference", "CADE (four views)"
    assert cell(t, "s / question", LLAVA, "mcq", plain).value == 6.0, "its answers are generated"
    assert cell(t, "s / question", LLAVA, "mcq", four).status == "needs log-probabilities"
    assert cell(build(path, "L"), "runtime", LLAVA, "Full").status == "needs log-probabilities"
