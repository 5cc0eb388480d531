"""The authors' prediction tables: alignment, counts, CADE on them, tables as other people's tools
write them, and every kind of bad table."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

from sdgbias import templates
from sdgbias.benchmark.release.predictions import (
    Tuning,
    read_params,
    run,
)
from sdgbias.cli import app
from sdgbias.errors import DiskFull, InputError, StoreError, UsageError
from sdgbias.methods.cade import Numerics, decide, streams
from sdgbias.methods.search import SearchSettings
from sdgbias.types import DIGITS, LETTERS, CadeParams, ContextTest, Task

Change = Callable[[pd.DataFrame], pd.DataFrame]
STEMS = {"full": "T2", "ctx": "T2_text", "img": "T5", "q": "T5_text"}
APPLY = CadeParams(0.9, 1, 1, 0.9)
TUNED: Tuning = ("random", SearchSettings(draws=10))


def tables(
    folder: Path, task: Task = Task.MCQ, n: int = 300, suffix: str = ".csv"
) -> dict[str, pd.DataFrame]:
    """Writes the four tables of one model with a shared prior, in differing row orders; returns
    them by view."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, names = np.random.default_rng(0), np.array([*(LETTERS if task is Task.MCQ else DIGITS)])
    gold, prior = rng.integers(len(names), size=n), rng.normal(0, 2, len(names))
    views, index = {}, np.arange(n)
    for (view, stem), weight in zip(STEMS.items(), (1.0, 0.0, 1.5, 0.0), strict=True):
        z = prior + weight * np.eye(len(names))[gold] * 2 + rng.normal(0, 1, (n, len(names)))
        frame = pd.DataFrame(z, columns=[f"logit_{name}" for name in names]).assign(index=index)
        if view == "full":
            frame["split"], best = np.where(index % 5 == 0, "val", "test"), names[z.argmax(1)]
            if task is Task.MCQ:
                options = {"A": "low", "B": "mid", "C": "high", "pillar": "x"}
                frame = frame.assign(prediction=best, answer=names[gold], **options)
            else:
                said = [f"{digit}.5" for digit in best]
                frame = frame.assign(prediction=said, answer=gold + 0.5, target="water_index")
        views[view] = frame
        write(frame.sample(frac=1, random_state=len(view)), folder / f"{task}_{stem}{suffix}")
    return views


def write(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)


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


def command(pred: Path, *options: str) -> Result:
    fixed = ["--pred-dir", str(pred), "--task", "mcq", "--level", "2"]
    out = ["--out", str(pred.parent / "out")]
    return CliRunner().invoke(app, ["cade", "apply", *fixed, *out, *options])


def edit(path: Path, *changes: Change) -> None:
    frame = pd.read_csv(path).sort_values("index", ignore_index=True)
    frame.attrs["path"] = str(path)
    for change in changes:
        frame = change(frame)
    frame.to_csv(path, index=False)


def without(*columns: str) -> Change:
    return lambda f: f.drop(columns=list(columns), errors="ignore")


def cell(column: str, at: int, value: object) -> Change:
    """One value of the row of index ``at``."""
    return lambda f: f.assign(**{column: f[column].astype(object).where(f["index"] != at, value)})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_search_writes_what_decide_says(tmp_path: Path, suffix: str) -> None:
    pred, out = tmp_path / "pred", tmp_path / "out"
    views = tables(pred, suffix=suffix)
    config = apply(pred, ("random", SearchSettings(draws=300)))
    written = json.loads((out / "cade_config.json").read_text())
    rows, params = answers(pred), config["params"]
    assert written["params"] == params
    columns = ["index", "split", "answer", "baseline_pred", "cade_pred", "baseline_conf", "kl"]
    assert list(rows.columns) == columns
    z = [views[view][[f"logit_{c}" for c in LETTERS]].to_numpy() for view in STEMS]
    assert list(rows["cade_pred"]) == [
        LETTERS[at] for at in decide(streams(*z), CadeParams(**params)).choice
    ]
    test, measured = rows[rows["split"] == "test"], written["metrics"]["test"]
    accuracy = measured["cade_accuracy"]
    assert accuracy["value"] == pytest.approx((test["cade_pred"] == test["answer"]).mean())
    assert accuracy["n"] == len(test) == 240
    assert accuracy["ci_low"] < accuracy["value"] < accuracy["ci_high"]
    assert accuracy["value"] > measured["baseline_accuracy"]["value"]
    first = (out / "cade_predictions.csv").read_bytes()
    apply(pred, read_params(out / "cade_config.json"))  # saved ones repeat the search
    assert (out / "cade_predictions.csv").read_bytes() == first
    apply(pred, CadeParams(1, 1, 1, 0))  # tau 0 is the Full view
    assert (answers(pred)["baseline_pred"] == answers(pred)["cade_pred"]).all()


def test_the_command_prints_one_json_value_and_names_the_rows_behind_it(pred: Path) -> None:
    edit(pred / "mcq_T2.csv", lambda f: f.assign(logit_A=f["logit_A"].where(f["index"] > 9)))
    done = command(pred, "--tau=1", "--level=t2")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["params"]["tau"] == 1.0
    assert "wrote" in done.stderr and "cade_predictions.csv" in done.stderr
    assert "note: 10 of 300 rows lack the logit of an option" in done.stderr
    assert "--level: unknown value 'T6'" in str(command(pred, "--tau=1", "--level=6").exception)
    tables_of = ["--pred-dir", str(pred), "--task", "mcq", "--level", "2", "--out", str(pred)]
    for seed in ("-1", str(2**70)):  # no seed of a generator, or of a column of results
        assert (
            CliRunner().invoke(app, ["cade", "search", *tables_of, "--seed", seed]).exit_code == 2
        )


# -- regression


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """The four tables of 300 regression questions."""
    tables(tmp_path / "pred", Task.REGRESSION)
    return tmp_path / "pred"


def reference_number(text: str, digit: str) -> float:
    """The authors' rule, written again: the first digit of the first number; 0.0 without one."""
    match = re.search(r"-?\d+(?:\.\d+)?", text)
    if match is None:
        return 0.0
    number = match.group()
    at = 1 if number.startswith("-") else 0
    return float(number[:at] + digit + number[at + 1 :])


@pytest.mark.parametrize("numerics", ["exact", "reference"])
def test_regression_replaces_the_first_digit(numbers: Path, numerics: Numerics) -> None:
    """An answer without a number is 0 under every digit."""
    silent = [cell("prediction", at, "no idea") for at in range(0, 300, 3)]
    edit(numbers / "regression_T2.csv", *silent)
    config = apply(numbers, CadeParams(1, 1, 1, 2), Task.REGRESSION, numerics=numerics)
    rows = answers(numbers)
    texts = pd.read_csv(numbers / "regression_T2.csv").sort_values("index")["prediction"]
    by_digit = np.array([[reference_number(x, d) for d in DIGITS] for x in texts])
    assert np.any(by_digit == rows[["cade_pred"]].to_numpy(), axis=1).all()
    is_silent = rows["index"] % 3 == 0
    assert (rows.loc[is_silent, "cade_pred"] == 0.0).all()
    assert (rows.loc[~is_silent, "cade_pred"] - 0.5).isin(range(10)).all()
    test, measured = rows[rows["split"] == "test"], config["metrics"]["test"]
    error = (test["cade_pred"] - test["answer"]).abs()
    assert config["mode"] == "replace"
    assert measured["unparsed"] == int((test["index"] % 3 == 0).sum()) == 80
    assert measured["cade_mae"]["value"] == pytest.approx(error.mean())
    assert measured["cade_mae"]["n"] == len(test)
    assert measured["cade_interval_accuracy"]["value"] == pytest.approx((error <= 0.75).mean())
    given = apply(numbers, CadeParams(1, 1, 1, 2), Task.REGRESSION, tolerance=3.0)["metrics"][
        "test"
    ]
    assert given["cade_interval_accuracy"]["value"] == pytest.approx((error <= 3).mean())
    tuned = apply(numbers, TUNED, Task.REGRESSION, numerics=numerics)["search"]
    val = answers(numbers).query("split == 'val'")
    assert tuned["objective"] == "negative MAE"
    assert tuned["value"] == pytest.approx(-(val["cade_pred"] - val["answer"]).abs().mean())


# -- irregular tables


@pytest.mark.parametrize("numerics", ["exact", "reference"])
def test_irregular_rows_are_counted_not_dropped(pred: Path, numerics: Numerics) -> None:
    edit(pred / "mcq_T5.csv", lambda f: f[f["index"] >= 10])
    edit(pred / "mcq_T2.csv", cell("C", 7, ""), cell("answer", 8, "Z"))
    edit(pred / "mcq_T2.csv", without("split", "prediction"))
    edit(pred / "mcq_T2_text.csv", cell("logit_A", 3, np.nan))
    (pred / "mcq_T5_text.csv").unlink()
    config = apply(pred, CadeParams(2, 5, 1.5, 2), numerics=numerics)
    notes, rows = config["notes"], answers(pred)
    assert notes["rows_without_img"] == 10 and notes["rows_without_q"] == 300
    assert notes["rows_with_masked_candidates"] == 1 and rows.loc[3, "cade_pred"] != "A"
    assert notes["gold_missing_or_not_an_option"] >= 1
    assert notes["rows_split_by_rule"] == len(rows) == 300
    assert "generated_accuracy" not in config["metrics"]["test"]
    assert list(rows["split"][:5]) == ["test", "val", "test", "test", "val"]
    assert rows.loc[7, "cade_pred"] in ("A", "B")
    assert templates.lines("cade_notes", c=config)[0].startswith(
        "note: no table mcq_T5_text.csv or .parquet"
    )


def test_a_column_that_no_question_needs_may_be_absent(pred: Path) -> None:
    for path in pred.glob("*.csv"):
        edit(path, without("logit_C"))
    edit(pred / "mcq_T2.csv", lambda f: f.assign(C=""))
    config = apply(pred)
    lost = config["notes"]["gold_missing_or_not_an_option"]
    assert (
        lost > 0
        and f"{lost} of 300 rows have no gold answer" in templates.lines("cade_notes", c=config)[0]
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_ids_beyond_2_to_53_stay_as_they_are(tmp_path: Path, suffix: str) -> None:
    pred, first = tmp_path / "pred", 2**53 + 1
    tables(pred, n=20, suffix=suffix)
    for path in pred.iterdir():
        frame = pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
        write(frame.assign(index=frame["index"] + first), path)
    apply(pred)
    assert answers(pred)["index"].tolist() == [first + at for at in range(20)]
    if suffix == ".parquet":  # floats skip integers there
        path = pred / "mcq_T2.parquet"
        write(pd.read_parquet(path).astype({"index": float}), path)
        with pytest.raises(InputError, match="an integer that can be read exactly"):
            apply(pred)


WRITTEN: dict[str, dict[str, Any]] = {
    "semicolons": {"sep": ";", "decimal": ","},
    "tabs": {"sep": "\t"},
    "Windows-1252": {"encoding": "cp1252"},
    "byte order mark": {"encoding": "utf-8-sig"},
}


@pytest.mark.parametrize("task", Task)
@pytest.mark.parametrize("how", WRITTEN.values(), ids=WRITTEN)
def test_tables_as_other_tools_write_them(tmp_path: Path, how: dict[str, Any], task: Task) -> None:
    pred = tmp_path / "pred"
    tables(pred, task)
    plain = apply(pred, task=task)["metrics"], answers(pred)["cade_pred"].tolist()
    for path in pred.iterdir():
        pd.read_csv(path).assign(note="Côte").to_csv(path, index=False, **how)
    assert (apply(pred, task=task)["metrics"], answers(pred)["cade_pred"].tolist()) == plain


@pytest.mark.parametrize("named", [True, False])
def test_more_than_three_options_are_candidates_like_the_first(tmp_path: Path, named: bool) -> None:
    gold, pred = np.array(list("ABCDE" * 20)), tmp_path / "pred"
    table = pd.DataFrame({"index": range(100), "answer": gold, "prediction": gold})
    for letter in "ABCDE":
        table[f"logit_{letter}"] = np.where(gold == letter, 3.0, 0.0)
        if named:
            table[letter] = f"text of {letter}"
    pred.mkdir()
    for stem in STEMS.values():
        write(table, pred / f"mcq_{stem}.csv")
    config = apply(pred)
    assert config["notes"]["gold_missing_or_not_an_option"] == 0
    assert list(answers(pred)["baseline_pred"]) == list(gold)
    write(table.drop(columns="logit_D"), pred / "mcq_T5.csv")
    with pytest.raises(InputError, match="mcq_T5: no logit in column logit_D; write"):
        apply(pred)


# -- what is refused


def with_id(text: str) -> Change:
    """Row 7 with another id."""
    return lambda f: f.assign(index=f["index"].astype(str).where(f["index"] != 7, text))


def of_another_question(f: pd.DataFrame) -> pd.DataFrame:
    full = pd.read_csv(Path(f.attrs["path"]).with_name("mcq_T2.csv")).sort_values("index")
    return f.assign(answer=full["answer"].map({"A": "B", "B": "C", "C": "A"}).to_numpy())


#: table, change, how CADE is applied, words of the refusal
REFUSED: list[tuple[str, Change, CadeParams | Tuning, str]] = [
    ("mcq_T2", without("index"), APPLY, "no column 'index'"),
    ("mcq_T2", lambda f: f.assign(index=f["index"] + 0.5), APPLY, "'0.5' in 300 .*an integer"),
    *(
        ("mcq_T2", with_id(i), APPLY, "wants an integer")
        for i in ("7x", "1" + "0" * 20, "1e20", "")
    ),
    ("mcq_T2", with_id("4"), APPLY, "index '4' in 1 .*each item in one row"),
    (
        "mcq_T2",
        lambda f: f.rename(columns=lambda c: c.replace("logit", "score")),
        APPLY,
        "or none of logit_A, logit_B",
    ),
    ("mcq_T2", lambda f: f.rename(columns={"split": "Split"}), APPLY, "has to be spelt 'split'"),
    ("mcq_T2", lambda f: f.assign(split="train"), APPLY, "split 'train' in 300 .*wants val, test"),
    ("mcq_T2", cell("logit_B", 7, "n/a"), APPLY, "index 7: logit_B 'n/a' in 1 .*a number"),
    ("mcq_T2", cell("logit_B", 7, np.inf), APPLY, "index 7: logit_B 'inf' in 1 .*a number"),
    ("mcq_T2", without("logit_C"), APPLY, "mcq_T2: no logit in column logit_C"),
    ("mcq_T2", without("logit_C", "A", "B", "C"), APPLY, "name the options that there are"),
    (
        "mcq_T2_text",
        lambda f: f.assign(logit_B=np.nan),
        APPLY,
        "mcq_T2_text: no logit in column logit_B",
    ),
    ("regression_T2", without("prediction"), APPLY, "no text in column 'prediction'"),
    ("regression_T2", without("logit_9"), APPLY, "no logit in column logit_9"),
    ("mcq_T5", of_another_question, APPLY, "mcq_T2 and mcq_T5: answer of index 0 is '.' in one"),
    ("mcq_T2", lambda f: f.assign(split="test"), TUNED, "no validation row"),
    ("mcq_T2", lambda f: f.assign(answer="0"), TUNED, r"answer '0' is not one of A, B, C"),
]


@pytest.mark.parametrize(("table", "change", "how", "words"), REFUSED)
def test_a_bad_table_gets_one_clear_line(
    tmp_path: Path, table: str, change: Change, how: CadeParams | Tuning, words: str
) -> None:
    pred, task = tmp_path / "pred", Task(table.split("_")[0])
    tables(pred, task)
    edit(pred / f"{table}.csv", change)
    with pytest.raises(InputError, match=words) as caught:
        apply(pred, how, task)
    assert "\n" not in str(caught.value) and not (tmp_path / "out" / "cade_config.json").exists()


@pytest.mark.parametrize("values", [pd.Timestamp("2026-01-01"), pd.Timedelta(days=1), True])
def test_times_and_flags_of_a_typed_table_are_no_logits(tmp_path: Path, values: Any) -> None:
    full = tables(tmp_path / "pred", suffix=".parquet")["full"]
    write(full.assign(logit_B=values), tmp_path / "pred" / "mcq_T2.parquet")
    with pytest.raises(InputError, match="index 0: logit_B .* in 300 .*a number"):
        apply(tmp_path / "pred")


def test_no_full_table_names_what_is_there(pred: Path) -> None:
    for folder, words in ((pred, "no rows of mcq_T1.csv.*mcq_T2"), (pred / "no", "no such folder")):
        with pytest.raises(InputError, match=words):
            run(folder, Task.MCQ, ContextTest.T1, pred.parent / "out", params=TUNED)


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_parameters_that_are_no_numbers_are_refused(tmp_path: Path, value: str) -> None:
    tables(tmp_path / "pred", n=20)
    for option in ("--alpha", "--lambda-kl", "--beta", "--tau", "--tolerance"):
        done = command(tmp_path / "pred", "--alpha=1", f"{option}={value}")
        assert isinstance(done.exception, UsageError)
        assert str(done.exception).startswith(f"{option} is {value}")
    saved = {"alpha": 1.0, "lambda_kl": 1.0, "beta": 1.0, "tau": float(value)}
    (tmp_path / "p.json").write_text(json.dumps(saved))
    with pytest.raises(InputError, match="tau is"):
        read_params(tmp_path / "p.json")
    assert not (tmp_path / "out").exists()


def test_out_that_cannot_be_written_leaves_what_is_there(pred: Path) -> None:
    file = pred.parent / "file"
    file.write_text("kept")
    for out in (file, file / "below", Path("/proc/sdgbias")):
        with pytest.raises(StoreError, match=f"{out}: can't be written"):
            run(pred, Task.MCQ, ContextTest.T2, out, params=APPLY)
    assert file.read_text() == "kept"


def test_a_full_disk_leaves_the_earlier_files(pred: Path) -> None:
    apply(pred)
    out = pred.parent / "out"
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(DiskFull, match="nothing was changed there; make room"):
            apply(pred, CadeParams(1, 0, 0, 2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
