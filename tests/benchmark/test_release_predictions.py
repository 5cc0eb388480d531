"""The authors' prediction tables: alignment, counts, CADE on them, tables as other people's tools
write them, and every kind of bad table."""

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

from sdgbias.benchmark.release.predictions import (
    Objective,
    Tuning,
    read_params,
    read_questions,
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
    apply(pred, CadeParams(1, 1, 1, 0))  # tau 0 is the Full view
    assert (answers(pred)["baseline_pred"] == answers(pred)["cade_pred"]).all()


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
    assert "note: 10 of 45 rows lack the logit of an option" in done.stderr


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
    q = read_questions(pred, Task.REGRESSION, ContextTest.T2, numerics)
    gold = q.texts["answer"].astype(float).to_numpy()
    want = np.array([[reference_number(x, d) for d in DIGITS] for x in q.texts["prediction"]])
    np.testing.assert_array_equal(q.values, want)
    np.testing.assert_array_equal(q.payoff, -np.abs(want - gold[:, None]))  # what the search sees
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


def edit(path: Path, change: Change) -> None:
    frame = pd.read_csv(path).sort_values("index", ignore_index=True)
    frame.attrs["path"] = str(path)
    change(frame).to_csv(path, index=False)


@pytest.mark.parametrize("numerics", ["exact", "reference"])
def test_irregular_rows_are_counted_not_dropped(pred: Path, numerics: Numerics) -> None:
    edit(pred / "mcq_T5.csv", lambda f: f[f["index"] >= 10])
    edit(pred / "mcq_T2.csv", lambda f: f.assign(C=f["C"].where(f["index"] != 7, "")))
    edit(pred / "mcq_T2.csv", lambda f: f.assign(answer=f["answer"].where(f["index"] != 8, "Z")))
    edit(pred / "mcq_T2.csv", without("split"))
    edit(pred / "mcq_T2_text.csv", cell("logit_A", 3, np.nan))
    (pred / "mcq_T5_text.csv").unlink()
    config = apply(pred, CadeParams(2, 5, 1.5, 2), numerics=numerics)
    notes, rows = config["notes"], answers(pred)
    assert notes["rows_without_img"] == 10 and notes["rows_without_q"] == 300
    assert notes["rows_with_masked_candidates"] == 1 and rows.loc[3, "cade_pred"] != "A"
    assert notes["gold_missing_or_not_an_option"] >= 1
    assert notes["rows_split_by_rule"] == len(rows) == 300
    assert list(rows["split"][:5]) == ["test", "val", "test", "test", "val"]
    assert rows.loc[7, "cade_pred"] in ("A", "B")
    assert reservations(config)[0].startswith("no table mcq_T5_text.csv or .parquet")


def without(*columns: str) -> Change:
    return lambda f: f.drop(columns=list(columns), errors="ignore")


def cell(column: str, at: int, value: object) -> Change:
    """One value of the row of index ``at``."""
    return lambda f: f.assign(**{column: f[column].astype(object).where(f["index"] != at, value)})


def with_id(text: str) -> Change:
    """Row 7 with another id."""
    return lambda f: f.assign(index=f["index"].astype(str).where(f["index"] != 7, text))


def of_another_question(f: pd.DataFrame) -> pd.DataFrame:
    full = pd.read_csv(Path(f.attrs["path"]).with_name("mcq_T2.csv")).sort_values("index")
    return f.assign(answer=full["answer"].map({"A": "B", "B": "C", "C": "A"}).to_numpy())


TUNED = Tuning(draws=10)
#: table, change, how CADE is applied, words of the refusal
REFUSED: list[tuple[str, Change, CadeParams | Tuning, str]] = [
    ("mcq_T2", without("index"), APPLY, "no column 'index'"),
    ("mcq_T2", lambda f: f.assign(index=f["index"] + 0.5), APPLY, "'0.5' is not an integer"),
    ("mcq_T2", with_id("7x"), APPLY, "'7x' is not an integer"),
    ("mcq_T2", with_id("100000000000000000000"), APPLY, "not an integer item id that can be read"),
    ("mcq_T2", with_id("1e20"), APPLY, "not an integer"),
    ("mcq_T2", with_id(""), APPLY, "not an integer"),
    ("mcq_T2", with_id("4"), APPLY, "index 4 stands in more than one row"),
    (
        "mcq_T2",
        lambda f: f.rename(columns=lambda c: c.replace("logit", "score")),
        APPLY,
        "no logit columns; expected",
    ),
    ("mcq_T2", lambda f: f.rename(columns={"split": "Split"}), APPLY, "has to be spelt 'split'"),
    ("mcq_T2", lambda f: f.assign(split="train"), APPLY, "split 'train'; valid: val, test"),
    ("mcq_T2", cell("logit_B", 7, "n/a"), APPLY, r"index 7: logit_B 'n/a' is not a number"),
    ("mcq_T2", cell("logit_B", 7, np.inf), APPLY, r"index 7: logit_B 'inf' is not a number"),
    ("mcq_T2", without("logit_C"), APPLY, "mcq_T2: no logit in column logit_C"),
    ("mcq_T2", without("logit_C", "A", "B", "C"), APPLY, "name the options that there are"),
    ("mcq_T5", without("logit_C"), APPLY, "mcq_T5: no logit in column logit_C"),
    ("mcq_T2_text", lambda f: f.assign(logit_B=np.nan), APPLY, "logit_B, which 300 of 300"),
    ("regression_T2", without("logit_9"), APPLY, "no logit in column logit_9"),
    ("mcq_T5", of_another_question, APPLY, "answer is '.' in mcq_T2 and '.' in mcq_T5; write"),
    ("mcq_T2", lambda f: f.assign(split="test"), TUNED, "no validation row"),
    ("mcq_T2", lambda f: f.assign(answer="0"), TUNED, r"answer '0' is not one of A, B, C"),
]


@pytest.mark.parametrize(("table", "change", "how", "words"), REFUSED)
def test_a_bad_table_gets_one_clear_line(
    pred: Path, table: str, change: Change, how: CadeParams | Tuning, words: str
) -> None:
    if table.startswith("regression"):
        tables(pred, Task.REGRESSION)
    edit(pred / f"{table}.csv", change)
    with pytest.raises(InputError, match=words) as caught:
        apply(pred, how, task=Task(table.split("_")[0]))
    assert "\n" not in str(caught.value)
    assert not (pred.parent / "out" / "cade_config.json").exists()


def test_a_column_that_no_question_needs_may_be_absent(pred: Path) -> None:
    for path in pred.glob("*.csv"):
        edit(path, without("logit_C"))
    edit(pred / "mcq_T2.csv", lambda f: f.assign(C=""))
    config = apply(pred)
    lost = config["notes"]["gold_missing_or_not_an_option"]
    assert lost > 0
    assert f"{lost} of 300 rows have no gold answer" in reservations(config)[0]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_ids_beyond_2_to_53_stay_as_they_are(tmp_path: Path, suffix: str) -> None:
    pred = tmp_path / "pred"
    tables(pred, n=20, suffix=suffix)
    first = 2**53 + 1
    for path in pred.iterdir():
        frame = pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
        frame["index"] += first
        if suffix == ".csv":
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
    for value in (2.0**53 + 2, np.inf):
        frame["index"] = frame["index"].astype(float).where(np.arange(20) != 4, value)
        frame.to_parquet(path, index=False)
        with pytest.raises(InputError, match="not an integer item id that can be read exactly"):
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


def test_out_that_cannot_be_written_is_one_line(pred: Path) -> None:
    file = pred.parent / "file"
    file.write_text("kept")
    for out in (file, file / "below", Path("/proc/sdgbias")):
        with pytest.raises(StoreError, match=f"{out}: can't be written"):
            run(pred, Task.MCQ, ContextTest.T2, out, params=APPLY)
    assert file.read_text() == "kept"


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
    assert not list((tmp_path / "new").iterdir())


def test_no_full_table_names_what_is_there(tmp_path: Path) -> None:
    tables(tmp_path / "pred")
    with pytest.raises(InputError, match=r"no table mcq_T1.csv.*mcq_T2"):
        run(tmp_path / "pred", Task.MCQ, ContextTest.T1, tmp_path / "out", params=Tuning())
    with pytest.raises(InputError, match="no such folder"):
        run(tmp_path / "nowhere", Task.MCQ, ContextTest.T1, tmp_path / "out", params=Tuning())


WRITTEN: dict[str, dict[str, Any]] = {
    "semicolons": {"sep": ";", "decimal": ","},
    "tabs": {"sep": "\t"},
    "Windows-1252": {"encoding": "cp1252"},
    "byte order mark": {"encoding": "utf-8-sig"},
}


@pytest.mark.parametrize("how", WRITTEN.values(), ids=WRITTEN)
def test_tables_as_other_tools_write_them(pred: Path, how: dict[str, Any]) -> None:
    apply(pred)
    plain = answers(pred)
    for path in pred.iterdir():
        pd.read_csv(path).assign(note="C\u00f4te").to_csv(path, index=False, **how)
    apply(pred)
    pd.testing.assert_frame_equal(answers(pred), plain)


@pytest.mark.parametrize("named", [True, False])
def test_more_than_three_options_are_candidates_like_the_first(tmp_path: Path, named: bool) -> None:
    gold = np.array(list("ABCDE" * 20))
    table = pd.DataFrame({"index": range(100), "answer": gold, "prediction": gold})
    for letter in "ABCDE":
        table[f"logit_{letter}"] = np.where(gold == letter, 3.0, 0.0)
        if named:
            table[letter] = f"text of {letter}"
    pred = tmp_path / "pred"
    pred.mkdir()
    for name in ("mcq_T2", "mcq_T2_text", "mcq_T5", "mcq_T5_text"):
        table.to_csv(pred / f"{name}.csv", index=False)
    config = apply(pred)
    assert config["notes"]["gold_missing_or_not_an_option"] == 0
    found = {k: config["metrics"][k]["baseline_accuracy"] for k in ("val", "test")}
    assert found["val"]["n"] + found["test"]["n"] == 100 and found["test"]["value"] == 1
    assert list(answers(pred)["baseline_pred"]) == list(gold)
    table.drop(columns="logit_D").to_csv(pred / "mcq_T5.csv", index=False)
    with pytest.raises(InputError, match="mcq_T5: no logit in column logit_D, which 100 of 100"):
        apply(pred)


def test_a_level_is_a_context_test(pred: Path) -> None:
    assert command(pred, "--tau=1", "--level=t2").exit_code == 0
    assert "--level: unknown value 'T6'" in str(command(pred, "--tau=1", "--level=6").exception)
