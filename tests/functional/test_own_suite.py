"""Own questions from a folder to every page, as a person would: the how-to as it is written, and
three or ten options, a planted lean and group columns that no code was written for."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import progress, store
from sdgbias.benchmark import quality
from sdgbias.errors import DataValidationError
from sdgbias.nightly import regression
from sdgbias.nightly.regression import measured, policy
from sdgbias.nightly.regression.baseline import Target
from sdgbias.nightly.regression.measured import paired
from sdgbias.report import build
from sdgbias.report.wandb import team_report
from tests.builders.commands import REPOSITORY, add_model, metrics, ok, refused, sdgbias
from tests.builders.own_questions import LEAST, YAML, png, write
from tests.builders.web_pages import client_of
from tests.test_docs import blocks, lines


def test_the_how_to_runs_as_written(tmp_path: Path) -> None:
    """Without the extra passes, of which no figure of the how-to is made; a planted model stands
    for the real one, which the README's tour evaluates."""
    for name in ("registry", "expectations"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    oracle = {"oracle": str(tmp_path / "build/streets/benchmark")}
    add_model(tmp_path, "tiny-llava", options={**oracle, "image_weight": 0.6, "noise": 1.0})
    printed = {}
    for command in (c for block in blocks("docs/how-to/own-questions.md") for c in lines(block)):
        program, *words = shlex.split(command)
        assert program == "sdgbias", command
        more = ("--passes", "none") if words[0] == "evaluate" else ()
        printed[" ".join(words[:2])] = ok(*words, *more, cwd=tmp_path, registry=tmp_path)
    for step in ("sample --suite", "suite check", "suite build", "evaluate tiny-llava"):
        assert step in printed, list(printed)
    assert "100 questions with 2 to 3 options" in printed["suite check"]

    results = tmp_path / "build/streets/results.duckdb"
    rows = metrics(results, "suite = 'streets' AND test = 'all' AND metric = 'accuracy'")
    pooled = rows[rows["pillar"] == "all"].set_index("method")
    assert {"q_only", "ctx_q", "img_q", "full", "cade"} <= set(pooled.index)
    assert (pooled.loc[["full", "cade"], "n"] == 80).all()
    shown = pooled.drop(index="q_only")  # its questions are fewer than five prompts: no interval
    assert (shown["ci_low"] < shown["value"]).all() and shown["ci_high"].notna().all()
    assert pooled.loc[["q_only"], "ci_high"].isna().all()
    by_group = metrics(results, "pillar = 'setting:max-min' AND method = 'full' AND test = 'all'")
    assert by_group["metric"].tolist() == ["disparity"] and by_group["ci_high"].notna().all()
    page = (tmp_path / "build/streets/report/own.html").read_text(encoding="utf-8")
    assert "Streets of the sample" in page and "setting: urban" in page


# -- questions that no code was written for

FOTOS = """\
name: fotos
title: Fotos & <Regionen>
version: 2026-a
items: fragen.jsonl
columns:
  {id: nr, question: frage, options: [o1, o2, o3, o4, o5, o6, o7, o8, o9, o10], answer: lösung, image: bild}
groups: [Sprach region, gender]
polarity: higher
"""  # noqa: E501
#: Two levels without a Latin letter, one with quotes; the fourth is left out.
REGIONS = ("日本 語", "中国 語", "Rätoromanisch \"alt\" 'neu'", "")


@pytest.fixture(scope="module")
def fotos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 questions with 3 or 10 options about pictures in subfolders, without split and
    cluster_by; a planted model that sees pictures well and always leans to the last option, and one
    that sees them so-so, which nights ask."""
    at = tmp_path_factory.mktemp("own")
    (at / "f" / "bilder" / "teil 1").mkdir(parents=True)
    (at / "f" / "suite.yaml").write_text(FOTOS, encoding="utf-8")
    rows = []
    for i in range(160):
        count, picture = 10 if i % 3 == 0 else 3, f"bilder/teil 1/{i}é.png"
        (at / "f" / picture).write_bytes(png((i, 255 - i, 7), 8))
        row = {"nr": f"Q {i}/ü", "frage": f"Wie viele sind es bei {i}?", "bild": picture}
        row |= {f"o{j + 1}": f"{j + 1} von {count}" for j in range(count)}
        gold = 0 if i % 2 else 1 + i % (count - 1)
        row["lösung"] = "ABCDEFGHIJ"[gold] if i % 5 else row[f"o{gold + 1}"]
        row |= {"Sprach region": REGIONS[i % 4], "gender": "male" if i % 2 else "female"}
        rows.append(json.dumps(row, ensure_ascii=False))
    (at / "f" / "fragen.jsonl").write_text("\n".join(rows), encoding="utf-8")
    ok(f"suite build {at / 'f'} --out {at / 'b'}")
    oracle = {"oracle": str(at / "b")}
    prior = {"image_weight": 3.0, "prior": {"all": [0.0, 0.0, 4.0]}}
    add_model(at, "leaning", options=oracle | prior)
    so_so = {"image_weight": 0.6, "noise": 1.0, "suites": ["fotos"]}
    add_model(at, "so-so", options=oracle | so_so)
    where = f"--benchmark {at / 'b'} --results {at / 'r.duckdb'}"
    ok(f"evaluate leaning so-so {where} --draws 100", registry=at)
    ok(f"analyse --results {at / 'r.duckdb'} --draws 50 --bootstrap 200")
    return at


def run_of(at: Path, model: str = "so-so") -> str:
    sql = "SELECT run_id FROM runs WHERE model = ?"
    return str(store.query(at / "r.duckdb", sql, [model])["run_id"][0])


def item_of(at: Path, source: str) -> int:
    sql = "SELECT item_id FROM items WHERE source_id = ?"
    return int(store.query(at / "r.duckdb", sql, [source])["item_id"][0])


def test_cade_takes_a_planted_lean_out_of_ten_options(fotos: Path) -> None:
    """The prior to the last option is what Q-only says; CADE subtracts it and nothing else is
    wrong."""
    where = "model = 'leaning' AND test = 'T5' AND pillar = 'all'"
    rows = metrics(fotos / "r.duckdb", where)
    value = rows.set_index(["method", "metric"])["value"]
    assert value["q_only", "share_optimistic"] == 1.0
    assert value["full", "accuracy"] < 0.4 and value["cade", "accuracy"] == 1.0
    assert value["full", "share_J"] > 0.2 and ("cade", "share_J") not in value.index
    assert "ctx_q" not in set(rows["method"]), "no question has a context"
    rows = metrics(fotos / "r.duckdb", "method IN ('always_j', 'pmi') AND pillar = 'all'")
    assert set(rows["method"]) == {"always_j", "pmi"} and rows["indicator"].eq("all").all()


def test_the_study_compares_the_levels_of_every_column(fotos: Path) -> None:
    items = store.query(fotos / "r.duckdb", "SELECT source_id, groups::VARCHAR AS g FROM items")
    groups = items.set_index("source_id")["g"].map(json.loads)
    assert groups["Q 4/ü"] == {"Sprach region": "日本 語", "gender": "female"}
    assert groups["Q 3/ü"] == {"Sprach region": "unknown", "gender": "male"}
    sql = "FROM numbers WHERE study = 'groups' AND test = 'all' AND run_id = ?"
    rows = store.query(fotos / "r.duckdb", sql, [run_of(fotos)]).set_index(["attribute", "metric"])
    levels = rows.loc[("Sprach region", "accuracy")]
    assert set(levels["group"]) == set(REGIONS[:3]), "an unknown level is no group"
    for by in ("Sprach region", "gender"):
        apart = rows.loc[(by, "disparity")]
        assert set(apart["method"]) == {"full", "cade"} and apart["value"].notna().all()
        assert (apart["low"] <= apart["value"]).all() and (apart["n"] > 60).all()
        assert len(rows.loc[(by, "disparity_change")]) >= 1
    assert "Holm over 4 tests" in rows.loc[("gender", "disparity"), "note"].iloc[0]


def test_the_web_app_filters_and_shows_by_group(fotos: Path) -> None:
    client, run = client_of(fotos / "r.duckdb"), run_of(fotos)
    for address in ("/", "/numbers?suite=fotos", "/runs"):
        assert client.get(address).status_code == 200, address
    page = client.get("/questions", params={"run": run, "group:Sprach region": REGIONS[2]})
    assert page.status_code == 200 and "40 questions" in page.text
    assert "Country" not in page.text and "Q 2/ü" in page.text and "Q 1/ü" not in page.text
    both = {"run": run, "group:Sprach region": REGIONS[0], "group:gender": "male"}
    assert "No question fits these choices." in client.get("/questions", params=both).text
    wrong = client.get("/questions", params={"run": run, "group:gender": "none"})
    assert wrong.status_code == 400 and "female, male" in html.unescape(wrong.text)
    assert "Q 7/ü" in client.get("/questions", params={"run": run, "q": "q 7/ü"}).text
    shown = client.get(f"/questions/{run}/mcq/{item_of(fotos, 'Q 4/ü')}").text
    assert "<h1>Question Q 4/ü</h1>" in shown and "<dt>Sprach region</dt><dd>日本 語</dd>" in shown
    assert "satellite" not in shown and "Pillar" not in shown and "Place" not in shown
    ten = client.get(f"/questions/{run}/mcq/{item_of(fotos, 'Q 6/ü')}?test=T5").text
    assert "10 von 10" in ten, "the text of J"
    model = client.get("/models/so-so").text
    assert "Accuracy by group" in model and "gender: best minus worst" in model


def test_report_results_and_wandb_tell_the_levels_apart(fotos: Path) -> None:
    results = fotos / "r.duckdb"
    overview = build.write_report(results, fotos / "report", [fotos / "b"])
    front = overview.read_text(encoding="utf-8")
    assert "no finished run on questions about places" in front and 'href="own.html"' in front
    assert "SustainBench" not in front and "Context variables" not in front
    page = overview.with_name("own.html").read_text(encoding="utf-8")
    for words in (
        "View CTX+Q is left out: no question has a context.",
        "Share J",
        "<td>Candidate mass</td>",
        "Sprach region: 日本 語",
        "gender: best minus worst",
        "Whether CADE narrows the differences",
        'href="benchmark-fotos/quality.html"',
        "Fotos &amp; &lt;Regionen&gt;",
    ):
        assert words in page, words
    apart = re.findall(r"gender: best minus worst</td><td>([^<]*)", page)
    alone, *others = apart  # the planted model never answers the bare question rightly
    assert alone.startswith("no answer right") and others
    assert all("points" in cell and "%" not in cell for cell in others), apart
    printed = ok(f"results --results {results}")
    assert "best group minus the worst" in printed and "Sprach region" in printed
    text = dict(team_report.sections(results))["Own questions: Fotos & <Regionen>"]
    assert "Sprach region: 日本 語" in text and "gender: best minus worst" in text


def test_the_line_of_progress_names_the_model_at_work(fotos: Path) -> None:
    where = f"--benchmark {fotos / 'b'} --results {fotos / 'r.duckdb'} --draws 100"
    ok(f"evaluate leaning so-so {where}", registry=fotos)
    assert progress.current().task == "evaluate so-so"


def test_a_night_asks_the_models_whose_entry_names_the_suite(fotos: Path) -> None:
    where = f"--benchmark {fotos / 'b'} --results {fotos / 'n.duckdb'}"
    printed = ok(f"nightly --dry-run {where}", registry=fotos)
    assert re.search(r"so-so +fotos +will be scored", printed), printed
    assert not re.search(r"leaning +fotos", printed), printed


def test_a_rule_of_the_gate_takes_any_group_column(fotos: Path) -> None:
    common = {"suite": "fotos", "metric": "disparity", "worse": "higher", "at_most": 0.01}
    rules = [
        {"name": "gap", "by": ["gender", "Sprach region"], "min_n": 20, **common},
        {"name": "typo", "by": "gendre", **common},
    ]
    target = Target("n", "so-so", "fotos", run_of(fotos))
    given = policy.parse({"rules": rules}, "policy.yaml")
    [judged] = regression.judge_runs(fotos / "r.duckdb", [target], given)
    rows = pd.DataFrame(judged.rows).set_index(["rule", "level"])
    # "gender" is no attribute of the second suite here: its levels are not looked up there
    assert rows.loc[("gap", "gender"), "n"] > 60 and rows.loc[("gap", "gender"), "verdict"]
    assert rows.loc[("gap", "Sprach region"), "value"] >= 0
    assert rows.loc[("typo", "gendre"), "verdict"] == "MISSING"
    assert "there are: Sprach region, gender" in rows.loc[("typo", "gendre"), "note"]


def test_a_question_with_another_picture_is_another_question(fotos: Path, tmp_path: Path) -> None:
    """A later benchmark whose author replaced one picture and kept id and text: the question is
    neither compared nor counted as flipped."""
    first, results, run_id = fotos / "r.duckdb", tmp_path / "r.duckdb", run_of(fotos)
    text = "* REPLACE (options::VARCHAR AS options, context::VARCHAR AS context)"
    tables = {
        name: store.query(first, f"SELECT {columns} FROM {name}", runs=[run_id])
        for name, columns in {"items": text, "scores": "*", "predictions": "*"}.items()
    }
    [run] = store.query(first, "FROM runs WHERE run_id = ?", [run_id]).to_dict("records")
    store.publish(results, run, tables)
    items = tables["items"].drop(columns="benchmark_id")
    replaced = items["source_id"] == "Q 4/ü"
    items.loc[replaced, "image_id"] = "another"
    answers = tables["predictions"].assign(correct=~tables["predictions"]["correct"])
    later = {
        "items": items,
        "predictions": answers.drop(columns="run_id"),
        "scores": tables["scores"].drop(columns="run_id"),
    }
    store.publish(results, {**run, "run_id": "later", "benchmark_id": "later"}, later)

    old, new = (
        measured.load(results, name, policy.METHODS).of("mcq", ["T5"], "accuracy", "full")
        for name in (run_id, "later")
    )
    assert old is not None and new is not None
    both, left = paired(old, new)
    flips = regression.flips(results, run_id, "later", "fotos", 1000)

    assert items.loc[replaced, "split"].tolist() == ["test"]
    assert left == 2 and len(both) == (items["split"] == "test").sum() - 1
    assert len(flips) and items.loc[replaced, "item_id"].iloc[0] not in set(flips["item_id"])


def test_the_page_of_a_night_names_the_flipped_question(fotos: Path) -> None:
    results, night, run = fotos / "r.duckdb", "2026-11-21T0130", run_of(fotos)
    rule = {"name": "high", "suite": "fotos", "metric": "accuracy", "at_most": 0.01, "min_n": 20}
    given = policy.parse({"rules": [{**rule, "worse": "higher"}]}, "policy.yaml")
    [judged] = regression.judge_runs(results, [Target(night, "so-so", "fotos", run)], given)
    assert judged.breached
    who = {"night": night, "model": "so-so", "suite": "fotos", "run_id": run}
    flip = {"task": "mcq", "test": "T5", "method": "full", "item_id": item_of(fotos, "Q 4/ü")}
    flip |= {"gold": "A", "baseline": "", "was": "A", "now": "B", "better": False}
    tables = {
        "nights": pd.DataFrame([{"night": night, "status": "done"}]),
        "night_outcomes": pd.DataFrame([{**who, "outcome": "published"}]),
        "flips": pd.DataFrame([{**who, **flip}]),
    }
    store.upsert(results, tables)
    text = build.write_night(results, fotos / "night").read_text(encoding="utf-8")
    assert "Q 4/ü, 日本 語, female" in text


# -- folders with less, and with faults


def test_without_pictures_there_is_no_cade_and_every_step_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path / "f", YAML.replace(", image: picture", ""))
    printed = ok(f"suite check {folder}")
    assert "view full is left out: no question has a picture" in printed
    assert "CADE is left out: CADE needs a view with a picture" in printed
    assert "CADE is left out" in ok(f"suite build {folder} --out {tmp_path / 'b'}")
    assert "CADE is left out" in (tmp_path / "b" / "README.md").read_text(encoding="utf-8")
    add_model(tmp_path, "formula")
    results = tmp_path / "r.duckdb"
    ok(f"evaluate formula --benchmark {tmp_path / 'b'} --results {results}", registry=tmp_path)
    rows = metrics(results, "metric = 'accuracy' AND pillar = 'all'")
    assert set(rows["method"]) == {"q_only", "ctx_q"} and set(rows["test"]) == {"T1", "all"}
    ok(f"analyse --results {results} --draws 100 --bootstrap 100")
    why = store.query(results, "SELECT note FROM numbers WHERE method = 'vdd'")["note"]
    assert why.tolist() == ["needs scores of the Full view, which no question has"]
    add_model(tmp_path, "other", options={"optimism": 2.0})
    ok(f"evaluate other --benchmark {tmp_path / 'b'} --results {results}", registry=tmp_path)
    assert "sdgbias compare" not in ok(f"results --results {results}"), "which takes neither"


def test_every_fault_is_listed_and_nothing_is_built(tmp_path: Path) -> None:
    table = "id,question,a,b,answer\n1,Which?,x,y,z\n1,,x,y,A\n"
    write(tmp_path / "f", LEAST.format(items="items.csv", options="a, b"), table)
    done = sdgbias(f"suite check {tmp_path / 'f'}")
    assert [line.split(":")[1] for line in done.stdout.splitlines()] == ["2", "3", "3"]
    assert done.returncode == 9 and "3 faults" in done.stderr
    line = refused(9, f"suite build {tmp_path / 'f'} --out {tmp_path / 'b'}")
    assert "items.csv:2: unknown answer 'z'; valid: A, B, x, y" in line and "suite check" in line
    assert not (tmp_path / "b").exists()


def test_a_build_spares_other_benchmarks_and_repeats_its_bytes(tmp_path: Path) -> None:
    folder, built = write(tmp_path / "f"), tmp_path / "b"
    ok(f"suite build {folder} --out {built}")
    before = {path: path.read_bytes() for path in built.rglob("*") if path.is_file()}
    ok(f"suite build {folder} --out {built}")
    assert {path: path.read_bytes() for path in built.rglob("*") if path.is_file()} == before
    (folder / "suite.yaml").write_text(YAML.replace("name: dots", "name: other"))
    for command in ("suite build {folder}", "build --raw {folder}", "people build --raw {folder}"):
        line = refused(2, f"{command.format(folder=folder)} --out {built}")
        assert "holds another benchmark" in line, command
    line = refused(2, f"release export --benchmark {built} --out {tmp_path / 'release'}")
    assert "a benchmark of suite dots; only questions about places have a release" in line
    line = refused(2, f"suite build {folder} --out {folder}")
    assert "folder of questions itself" in line
    items = pd.read_parquet(built / "items_own.parquet")
    items.assign(answer="J").to_parquet(built / "items_own.parquet")
    with pytest.raises(DataValidationError, match="answer-among-options"):
        quality.run_gate(built)
