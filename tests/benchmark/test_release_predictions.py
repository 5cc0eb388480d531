"""The authors' prediction tables: alignment, counts, CADE on them, and every kind of bad table."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

from sdgbias.benchmark.release.prediction_tables import parse_level, read_tables
from sdgbias.benchmark.release.predictions import (
    Objective,
    Tuning,
    prepare,
    read_params,
    reservations,
    run,
)
from sdgbias.cli import app
from sdgbias.errors import InputError, StoreError, UsageError
from sdgbias.methods.cade import Numerics, decide, streams
from sdgbias.types import DIGITS, LETTERS, CadeParams, ContextTest, Task

Change = Callable[[pd.DataFrame], pd.DataFrame]


def tables(
    folder: Path,
    task: Task = Task.MCQ,
    n: int = 300,
    level: str = "T2",
    seed: int = 0,
    suffix: str = ".csv",
) -> dict[str, pd.DataFrame]:
    """Writes the four tables of one model with a shared prior, in differing row orders; returns
    them by view."""
    rng = np.random.default_rng(seed)
    names = LETTERS if task is Task.MCQ else DIGITS
    k = len(names)
    gold = rng.integers(k, size=n)
    prior = rng.normal(0, 2, k)
    made = {}
    for view, stem, weight in (
        ("full", level, 1.0),
        ("ctx", f"{level}_text", 0.0),
        ("img", "T5", 1.5),
        ("q", "T5_text", 0.0),
    ):
        z = prior + weight * np.eye(k)[gold] * 2 + rng.normal(0, 1, (n, k))
        frame = pd.DataFrame(
            {"index": np.arange(n), **{f"logit_{c}": z[:, j] for j, c in enumerate(names)}}
        )
        if view == "full":
            best = z.argmax(1)
            if task is Task.MCQ:
                frame = frame.assign(
                    A="low",
                    B="mid",
                    C="high",
                    prediction=[LETTERS[b] for b in best],
                    answer=[LETTERS[g] for g in gold],
                    pillar="x",
                )
            else:
                frame = frame.assign(
                    prediction=[f"{b}.5" for b in best], answer=gold + 0.5, target="water_index"
                )
            frame["split"] = np.where(np.arange(n) % 5 == 0, "val", "test")
        made[view] = frame
        frame = frame.sample(frac=1, random_state=seed + len(view))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{task.value}_{stem}{suffix}"
        frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path, index=False)
    return made


APPLY = CadeParams(0.9, 1, 1, 0.9)


@pytest.fixture
def pred(tmp_path: Path) -> Path:
    """The four tables of 300 multiple-choice questions."""
    tables(tmp_path / "pred")
    return tmp_path / "pred"


def apply(
    pred: Path, params: CadeParams | Tuning = APPLY, task: Task = Task.MCQ, **options: Any
) -> Any:
    """CADE on the tables; it writes beside them, into out."""
    return run(pred, task, ContextTest.T2, pred.parent / "out", params=params, **options)


def answers(pred: Path) -> pd.DataFrame:
    return pd.read_csv(pred.parent / "out" / "cade_predictions.csv", keep_default_na=False)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_search_writes_what_decide_says(tmp_path: Path, suffix: str) -> None:
    pred = tmp_path / "pred"
    made = tables(pred, suffix=suffix)
    config = apply(pred, Tuning(draws=300))
    written = json.loads((tmp_path / "out" / "cade_config.json").read_text())
    assert written["params"] == config["params"]
    rows = answers(pred)
    columns = ["index", "split", "answer", "baseline_pred", "cade_pred", "baseline_conf", "kl"]
    assert list(rows.columns) == columns
    z = [made[v][[f"logit_{c}" for c in LETTERS]].to_numpy() for v in ("full", "ctx", "img", "q")]
    want = decide(streams(*z), CadeParams(**config["params"])).choice
    assert list(rows["cade_pred"]) == [LETTERS[i] for i in want]
    test = rows[rows["split"] == "test"]
    got = written["metrics"]["test"]["cade_accuracy"]
    assert got["value"] == pytest.approx((test["cade_pred"] == test["answer"]).mean())
    assert got["n"] == len(test) == 240
    assert got["ci_low"] < got["value"] < got["ci_high"]
    assert got["value"] > written["metrics"]["test"]["baseline_accuracy"]["value"]
    first = (tmp_path / "out" / "cade_predictions.csv").read_bytes()
    apply(pred, read_params(tmp_path / "out" / "cade_config.json"))  # saved ones repeat the search
    assert (tmp_path / "out" / "cade_predictions.csv").read_bytes() == first


def command(pred: Path, *options: str) -> Result:
    fixed = ["--pred-dir", str(pred), "--task", "mcq", "--level", "2"]
    out = ["--out", str(pred.parent / "out")]
    return CliRunner().invoke(app, ["cade", "apply", *fixed, *out, *options])


def test_the_command_prints_one_json_value_and_names_the_rows_behind_it(tmp_path: Path) -> None:
    pred = tmp_path / "pred"
    tables(pred, n=45)
    edit(pred / "mcq_T2.csv", lambda f: f.assign(logit_A=f["logit_A"].where(f["index"] > 9)))
    done = command(pred, "--tau=1")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["params"]["tau"] == 1.0
    assert "wrote" in done.stderr and "cade_predictions.csv" in done.stderr
    assert "note: 10 of 45 rows lack the logit of an option in some view" in done.stderr


def test_regression_replaces_the_first_digit(tmp_path: Path) -> None:
    pred = tmp_path / "pred"
    tables(pred, Task.REGRESSION)
    config = apply(pred, Tuning(draws=200), Task.REGRESSION)
    rows = answers(pred)
    assert config["mode"] == "replace"
    assert ((rows["cade_pred"] - 0.5).isin(range(10))).all()
    test = rows[rows["split"] == "test"]
    error = (test["cade_pred"] - test["answer"]).abs()
    measured = config["metrics"]["test"]
    assert measured["cade_mae"]["value"] == pytest.approx(error.mean())
    assert measured["cade_interval_accuracy"]["value"] == pytest.approx((error <= 0.75).mean())


def test_regression_can_be_tuned_in_units_of_the_tolerance(tmp_path: Path) -> None:
    pred = tmp_path / "pred"
    tables(pred, Task.REGRESSION)

    def tuned(objective: Objective, tolerance: float | None = None) -> dict[str, Any]:
        settings = Tuning(draws=200, objective=objective)
        found = apply(pred, settings, Task.REGRESSION, tolerance=tolerance)
        return found["search"] | found["params"]

    mae, own, given = tuned("mae"), tuned("tolerance"), tuned("tolerance", 3.0)
    assert (mae["objective"], own["objective"]) == ("negative MAE", "negative error in tolerances")
    # one target: another unit and the same order of settings
    assert own["value"] == pytest.approx(mae["value"] / 0.75) and own["alpha"] == mae["alpha"]
    assert given["value"] == pytest.approx(mae["value"] / 3.0)
    tables(pred, Task.MCQ)
    with pytest.raises(UsageError, match="--objective tolerance is for --task regression"):
        apply(pred, Tuning(draws=9, objective="tolerance"))


def reference_number(text: str, digit: str) -> float:
    """The authors' rule, written again: the first digit of the first number; 0.0 without one."""
    match = re.search(r"-?\d+(?:\.\d+)?", text)
    if match is None:
        return 0.0
    number = match.group()
    at = 1 if number.startswith("-") else 0
    return float(number[:at] + digit + number[at + 1 :])


@pytest.mark.parametrize("numerics", ["exact", "reference"])
def test_an_answer_without_a_number_says_the_same_under_every_digit(
    tmp_path: Path, numerics: Numerics
) -> None:
    pred = tmp_path / "pred"
    tables(pred, Task.REGRESSION)

    def silence(f: pd.DataFrame) -> pd.DataFrame:
        said = f["prediction"].astype(str)
        return f.assign(prediction=said.where(f["index"] % 3 != 0, "no idea"))

    edit(pred / "regression_T2.csv", silence)
    t = read_tables(pred, Task.REGRESSION, ContextTest.T2)
    p = prepare(t, numerics)
    gold = t.frame["answer"].astype(float).to_numpy()
    want = np.array([[reference_number(x, d) for d in DIGITS] for x in t.frame["prediction"]])
    np.testing.assert_array_equal(p.values, want)
    np.testing.assert_array_equal(p.payoff, -np.abs(want - gold[:, None]))  # what the search sees
    config = apply(pred, CadeParams(1, 1, 1, 2), Task.REGRESSION, numerics=numerics)
    rows = answers(pred)
    silent = rows["index"] % 3 == 0
    assert (rows.loc[silent, "cade_pred"] == 0.0).all()
    assert (rows.loc[~silent, "cade_pred"] != 0.0).all()
    test = rows[rows["split"] == "test"]
    measured = config["metrics"]["test"]
    assert measured["unparsed"] == int((test["index"] % 3 == 0).sum()) == 80
    error = (test["cade_pred"] - test["answer"]).abs()
    assert measured["cade_mae"]["value"] == pytest.approx(error.mean())
    assert measured["cade_mae"]["n"] == len(test)


def test_tau_zero_is_the_full_view(pred: Path) -> None:
    apply(pred, CadeParams(1, 1, 1, 0))
    rows = answers(pred)
    assert (rows["baseline_pred"] == rows["cade_pred"]).all()


def edit(path: Path, change: Change) -> None:
    frame = pd.read_csv(path).sort_values("index", ignore_index=True)
    change(frame).to_csv(path, index=False)


@pytest.mark.parametrize("numerics", ["exact", "reference"])
def test_missing_rows_views_and_options_are_counted_not_dropped(
    pred: Path, numerics: Numerics
) -> None:
    edit(pred / "mcq_T5.csv", lambda f: f[f["index"] >= 10])
    edit(pred / "mcq_T2.csv", lambda f: f.assign(C=f["C"].where(f["index"] != 7, "")))
    edit(pred / "mcq_T2.csv", lambda f: f.assign(answer=f["answer"].where(f["index"] != 8, "Z")))
    (pred / "mcq_T5_text.csv").unlink()
    notes = apply(pred, numerics=numerics)["notes"]
    assert notes["rows_without_img"] == 10
    assert notes["rows_without_q"] == 300
    assert notes["gold_missing_or_not_an_option"] >= 1
    rows = answers(pred)
    assert len(rows) == 300
    assert rows.loc[7, "cade_pred"] in ("A", "B")


def test_nan_in_part_of_a_row_is_masked(pred: Path) -> None:
    edit(pred / "mcq_T2_text.csv", cell("logit_A", 3, np.nan))
    t = read_tables(pred, Task.MCQ, ContextTest.T2)
    assert t.notes["rows_with_masked_candidates"] == 1
    apply(pred, CadeParams(2, 5, 1.5, 2))
    assert answers(pred).loc[3, "cade_pred"] != "A"


def test_split_by_rule_when_the_column_is_absent(pred: Path) -> None:
    edit(pred / "mcq_T2.csv", without("split"))
    t = read_tables(pred, Task.MCQ, ContextTest.T2)
    assert t.notes["rows_split_by_rule"] == 300
    assert list(t.frame["split"][:5]) == ["test", "val", "test", "test", "val"]


def without(*columns: str) -> Change:
    return lambda f: f.drop(columns=list(columns), errors="ignore")


def cell(column: str, at: int, value: object) -> Change:
    """One value of the row of index ``at``."""
    return lambda f: f.assign(**{column: f[column].astype(object).where(f["index"] != at, value)})


def with_id(text: str) -> Change:
    """Row 7 with another id."""
    return lambda f: f.assign(index=f["index"].astype(str).where(f["index"] != 7, text))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("index"), "no column 'index'"),
        (lambda f: f.assign(index=f["index"].astype(str) + "x"), "not an integer"),
        (lambda f: f.assign(index=f["index"] + 0.5), "not an integer"),
        (lambda f: f.assign(index=f["index"].replace(5, 4)), "index 4 stands in more than one row"),
        (with_id("100000000000000000000"), "too large"),
        (with_id("1e20"), "not an integer"),
        (with_id(""), "not an integer"),
        (lambda f: f.rename(columns=lambda c: c.replace("logit", "score")), "no logit columns"),
        (without("logit_C"), "mcq_T2: no logit in column logit_C"),
        (without("logit_C", "A", "B", "C"), "mcq_T2: no logit in column logit_C"),
        (cell("logit_B", 7, "n/a"), r"mcq_T2\.csv: index 7: logit_B 'n/a' is not a number"),
        (cell("logit_B", 7, np.inf), r"mcq_T2\.csv: index 7: logit_B 'inf' is not a number"),
        (lambda f: f.assign(split="train"), "split 'train'"),
    ],
)
def test_bad_tables_get_one_clear_line(pred: Path, change: Change, words: str) -> None:
    edit(pred / "mcq_T2.csv", change)
    with pytest.raises(InputError, match=words) as caught:
        apply(pred)
    assert "\n" not in str(caught.value) and not (pred.parent / "out").exists()


@pytest.mark.parametrize(
    ("table", "change", "words"),
    [
        ("mcq_T5", without("logit_C"), "mcq_T5: no logit in column logit_C"),
        ("mcq_T2_text", lambda f: f.assign(logit_B=np.nan), "column logit_B, which 300 of 300"),
        ("regression_T2", without("logit_9"), "no logit in column logit_9"),
    ],
)
def test_a_view_without_the_logits_of_an_option_is_refused(
    pred: Path, table: str, change: Change, words: str
) -> None:
    tables(pred, Task.REGRESSION)
    edit(pred / f"{table}.csv", change)
    with pytest.raises(InputError, match=words):
        apply(pred, task=Task(table.split("_")[0]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.assign(split="test"), "no validation row"),
        (lambda f: f.assign(answer="0"), r"index \d+: answer '0' is not one of A, B, C"),
    ],
)
def test_nothing_to_search_on_is_refused(pred: Path, change: Change, words: str) -> None:
    edit(pred / "mcq_T2.csv", change)
    with pytest.raises(InputError, match=words):
        apply(pred, Tuning(draws=10))


def test_a_column_that_no_question_needs_may_be_absent(pred: Path) -> None:
    for path in pred.glob("*.csv"):
        edit(path, without("logit_C"))
    edit(pred / "mcq_T2.csv", lambda f: f.assign(C=""))
    config = apply(pred)
    lost = config["notes"]["gold_missing_or_not_an_option"]
    assert lost > 0
    assert f"{lost} of 300 rows have no gold answer among their options: in no metric" in (
        reservations(config)
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_ids_beyond_2_to_53_stay_as_they_are(tmp_path: Path, suffix: str) -> None:
    pred = tmp_path / "pred"
    tables(pred, n=20, suffix=suffix)
    first = 2**53 + 1
    for path in pred.iterdir():
        frame = pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
        frame["index"] += first
        if suffix == ".csv":  # one id written as a float among them
            texts = frame["index"].astype(str)
            frame["index"] = texts.where(frame["index"] != first + 3, texts + ".0")
            frame.to_csv(path, index=False)
        else:
            frame.to_parquet(path, index=False)
    apply(pred)
    rows = pd.read_csv(tmp_path / "out" / "cade_predictions.csv")
    assert rows["index"].tolist() == [first + i for i in range(20)]


def test_floats_that_skip_integers_are_refused(tmp_path: Path) -> None:
    pred = tmp_path / "pred"
    tables(pred, n=20, suffix=".parquet")
    path = pred / "mcq_T2.parquet"
    frame = pd.read_parquet(path)
    for value, words in ((2.0**53 + 2, "too large to be read exactly"), (np.inf, "not an integer")):
        frame["index"] = frame["index"].astype(float).where(np.arange(20) != 4, value)
        frame.to_parquet(path, index=False)
        with pytest.raises(InputError, match=words):
            apply(pred)


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_parameters_that_are_no_numbers_are_refused(tmp_path: Path, value: str) -> None:
    pred = tmp_path / "pred"
    tables(pred, n=20)
    for option in ("--alpha", "--lambda-kl", "--beta", "--tau", "--tolerance"):
        done = command(pred, "--alpha=1", f"{option}={value}")
        assert isinstance(done.exception, UsageError)
        assert str(done.exception).startswith(f"{option} is {value}")
    saved = {"alpha": 1.0, "lambda_kl": 1.0, "beta": 1.0, "tau": float(value)}
    (tmp_path / "p.json").write_text(json.dumps(saved))
    with pytest.raises(InputError, match="tau is"):
        read_params(tmp_path / "p.json")
    assert not (tmp_path / "out").exists()


def test_out_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    pred = tmp_path / "pred"
    tables(pred, n=20)
    file = tmp_path / "file"
    file.write_text("kept")
    for out in (file, file / "below"):
        with pytest.raises(UsageError, match="is a file; name a folder"):
            run(pred, Task.MCQ, ContextTest.T2, out, params=APPLY)
    assert file.read_text() == "kept"
    with pytest.raises(StoreError, match="/proc/sdgbias/.*: can't be written"):
        run(pred, Task.MCQ, ContextTest.T2, Path("/proc/sdgbias"), params=APPLY)


def test_a_full_disk_leaves_the_earlier_files(tmp_path: Path) -> None:
    pred, out = tmp_path / "pred", tmp_path / "out"
    tables(pred)
    run(pred, Task.MCQ, ContextTest.T2, out, params=APPLY)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    command = """
import resource, sys
from pathlib import Path
from sdgbias.benchmark.release.predictions import run
from sdgbias.errors import DiskFull
from sdgbias.types import CadeParams, ContextTest, Task
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for out in sys.argv[2:]:
    try:
        run(Path(sys.argv[1]), Task.MCQ, ContextTest.T2, Path(out), params=CadeParams(1, 0, 0, 2))
    except DiskFull as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", command, str(pred), str(out), str(tmp_path / "new")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("nothing was changed there; make room") == 2
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert not (tmp_path / "new").exists()


def test_no_full_table_names_what_is_there(tmp_path: Path) -> None:
    tables(tmp_path / "pred")
    with pytest.raises(InputError, match=r"no table mcq_T1.csv.*mcq_T2"):
        run(tmp_path / "pred", Task.MCQ, ContextTest.T1, tmp_path / "out", params=Tuning())
    with pytest.raises(InputError, match="no such folder"):
        run(tmp_path / "nowhere", Task.MCQ, ContextTest.T1, tmp_path / "out", params=Tuning())


def test_levels() -> None:
    assert parse_level("3") is parse_level("t3") is ContextTest.T3
    with pytest.raises(UsageError, match="valid: 1 to 5"):
        parse_level("6")
