"""What a setting is worth elsewhere, and how many val rows it needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sdgbias.analysis.rows import KEY, AnalysisSettings
from sdgbias.analysis.run import TaskCell
from sdgbias.analysis.studies import transfer
from sdgbias.analysis.tuning import problems
from sdgbias.methods.search import RANGES, evaluate_draws, take
from sdgbias.types import PILLARS, CadeParams, Task
from tests.builders.analysis_run import run_of
from tests.builders.tuned_runs import letters, numbers, payoff_of, value

QUICK = AnalysisSettings(draws=400, seed=2)
T1, T4 = letters(600), letters(600, "T4", bias=0.3)
RUN = run_of(T1, T4, numbers(150))


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return transfer.rows(RUN, QUICK)


def best(*cells: TaskCell, rows: np.ndarray | None = None, draws: int = 400) -> CadeParams:
    """The best draw on the val rows of all cells together."""
    settings = np.random.default_rng(2).uniform(*np.array(RANGES[Task.MCQ]).T, size=(draws, 4))
    use = [cell.val if rows is None else cell.val & rows for cell in cells]
    sums = sum(
        evaluate_draws(take(c.streams(), u), c.payoff[u], settings) * u.sum()
        for c, u in zip(cells, use, strict=True)
    )
    return CadeParams(*settings[int(np.argmax(sums))])


def test_between_tests(table: pd.DataFrame) -> None:
    rows = table[(table["by"] == "test") & (table["task"] == "mcq")]
    cells, settings = {"T1": T1, "T4": T4}, {"T1": best(T1), "T4": best(T4), "all": best(T1, T4)}
    for target, cell in cells.items():
        own = payoff_of(cell, settings[target])
        for source, params in settings.items():
            level = f"{source}->{target}"
            got = payoff_of(cell, params)
            assert value(rows, level=level, test=target, metric="accuracy") == pytest.approx(got)
            if source != target:
                assert value(rows, level=level, test=target, metric="loss") == pytest.approx(
                    own - got
                )
    assert not ((rows["level"] == "T1->T1") & (rows["metric"] == "loss")).any()
    together = np.mean([payoff_of(c, settings["all"]) for c in cells.values()])
    assert value(rows, level="all->all", metric="accuracy") == pytest.approx(together)
    assert value(rows, level="own->all", metric="accuracy") - together == pytest.approx(
        value(rows, level="all->all", metric="loss")
    )


def test_between_pillars(table: pd.DataFrame) -> None:
    rows = table[(table["by"] == "pillar") & (table["test"] == "T1") & (table["task"] == "mcq")]
    inside = {p: (T1.items["pillar"] == p).to_numpy() for p in PILLARS}
    for source in PILLARS:
        for target in PILLARS:
            want = payoff_of(T1, best(T1, rows=inside[source]), T1.test_rows & inside[target])
            assert value(rows, level=f"{source}->{target}", metric="accuracy") == pytest.approx(
                want
            )
    assert set(rows["pillar"]) == set(PILLARS)
    whole = payoff_of(T1, best(T1), T1.test_rows & inside[PILLARS[0]])
    assert value(rows, level=f"all->{PILLARS[0]}", metric="accuracy") == pytest.approx(whole)


def test_between_countries(table: pd.DataFrame) -> None:
    rows = table[(table["by"] == "country") & (table["test"] == "T1") & (table["task"] == "mcq")]
    peru = (T1.items["country"] == "Peru").to_numpy()
    assert peru[T1.val].sum() >= 50
    there, away = best(T1, rows=peru), best(T1, rows=~peru)
    assert value(rows, level="others->Peru", metric="accuracy") == pytest.approx(
        payoff_of(T1, away, T1.test_rows & peru)
    )
    assert value(rows, level="Peru->others", metric="accuracy") == pytest.approx(
        payoff_of(T1, there, T1.test_rows & ~peru)
    )
    loss = payoff_of(T1, there, T1.test_rows & peru) - payoff_of(T1, away, T1.test_rows & peru)
    assert value(rows, level="others->Peru", metric="loss") == pytest.approx(loss)
    back = payoff_of(T1, away, T1.test_rows & ~peru) - payoff_of(T1, there, T1.test_rows & ~peru)
    assert value(rows, level="Peru->others", metric="loss") == pytest.approx(back)
    turned = replace(
        T1, payoff=np.where((peru & T1.val)[:, None], 100 - 100 * T1.payoff, T1.payoff)
    )  # what Peru earns never tunes the others' setting
    for level, same in (("others->Peru", True), ("Peru->others", False)):
        notes = [
            set(t.loc[(t["level"] == level) & (t["test"] == "T1"), "note"])
            for t in (rows, transfer.rows(run_of(turned), QUICK))
        ]
        assert (notes[0] == notes[1]) is same
    small = transfer.rows(run_of(letters(120)), QUICK)  # 16 val rows a country: too few to speak of
    assert not (small["by"] == "country").any()


def test_between_models() -> None:
    kind, harsh = (
        run_of(T1, model="kind", run_id="kind-1"),
        run_of(letters(600, seed=4, bias=4.0), numbers(150), model="harsh", run_id="harsh-1"),
    )
    made = transfer.between([kind, harsh], QUICK)
    assert set(made) == {"kind-1", "harsh-1"}
    assert set(made["kind-1"]["level"]) == {"kind->kind", "harsh->kind"}
    cell = next(c for c in harsh.mcq)
    rows = made["harsh-1"]
    foreign = payoff_of(cell, best(T1))
    assert value(rows, level="kind->harsh", task="mcq", metric="accuracy") == pytest.approx(foreign)
    assert value(rows, level="kind->harsh", task="mcq", metric="loss") == pytest.approx(
        payoff_of(cell, best(cell)) - foreign
    )
    assert set(rows.loc[rows["task"] == "regression", "level"]) == {
        "harsh->harsh"
    }  # kind has no numbers
    twin = transfer.between([kind, run_of(T1, model="twin", run_id="twin-1")], QUICK)["twin-1"]
    assert value(twin, level="kind->twin", metric="loss") == 0


def test_few_shot(table: pd.DataFrame) -> None:
    rows = table[
        (table["study"] == "few_shot") & (table["task"] == "mcq") & (table["test"] == "T1")
    ]
    assert T1.val.sum() == 240
    assert sorted(set(rows["x"])) == [50, 200, 240]  # 1,000 are not there
    whole = value(rows, level="all", metric="accuracy")
    assert whole == pytest.approx(payoff_of(T1, best(T1)))
    for size in ("50", "200"):
        some = rows[(rows["level"] == size) & (rows["metric"] == "accuracy")].iloc[0]
        assert some["ci_low"] - 1e-12 <= some["value"] <= some["ci_high"] + 1e-12
        assert value(rows, level=size, metric="loss") == pytest.approx(whole - some["value"])
    assert value(rows, level="50", metric="loss") > max(0, value(rows, level="200", metric="loss"))


def test_samples_take_whole_places() -> None:
    p = problems(run_of(T1))[0]
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(5):
        rows = transfer._sample(p, 51, rng)
        assert len(rows) == 51 and set(rows) <= set(p.val)
        counts = np.unique(p.place[rows], return_counts=True)[1]
        assert (
            sorted(counts) == [1] + [2] * 25
        )  # two questions to a place, the last place cut short
        seen.add(tuple(rows))
    assert len(seen) == 5


def test_same_settings_same_rows_and_test_rows_never_tune(table: pd.DataFrame) -> None:
    assert not table.duplicated(list(KEY)).any()
    pd.testing.assert_frame_equal(table, transfer.rows(RUN, QUICK))
    turned = replace(T1, payoff=np.where(T1.test_rows[:, None], 1 - T1.payoff, T1.payoff))
    other = transfer.rows(run_of(turned, T4), QUICK)
    keys = ["by", "level", "test", "metric"]
    a, b = (
        t[(t["task"] == "mcq") & (t["by"] != "")].set_index(keys)["note"] for t in (table, other)
    )
    assert a.to_dict() == b.to_dict()
