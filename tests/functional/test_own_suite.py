"""Own questions from an empty folder to a report, driven as a person would."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from tests.builders.commands import REPOSITORY, add_model, metrics, ok, refused, sdgbias
from tests.builders.own_questions import LEAST, YAML, write

GUIDE = REPOSITORY / "docs" / "how-to" / "own-questions.md"
LETTERS = "ABCDEFGHIJ"
EVALUATE = ("evaluate", "leaning", "--draws", 100)


def guided() -> list[str]:
    """The commands of the how-to, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line]


@pytest.mark.slow
@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_how_to_runs_as_written(tmp_path: Path, real: bool) -> None:
    """Without the extra passes, of which no figure of the how-to is made; a planted model stands
    for the real one, which the README's tour evaluates."""
    for name in ("registry", "expectations"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    if not real:
        oracle = {"oracle": str(tmp_path / "build/streets/benchmark")}
        add_model(tmp_path, "tiny-llava", options={**oracle, "image_weight": 0.6, "noise": 1.0})
    commands = guided()
    said = {}
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "sdgbias", command
        more = ("--passes", "none") if words[1] == "evaluate" else ()
        said[" ".join(words[1:3])] = ok(*words[1:], *more, cwd=tmp_path, registry=tmp_path)
    for step in ("suite example", "suite check", "suite build", "evaluate tiny-llava"):
        assert step in said, commands
    assert "100 questions with 2 to 3 options" in said["suite check"]
    results = tmp_path / "build/streets/results.duckdb"
    found = metrics(results, "suite = 'streets' AND test = 'all' AND metric = 'accuracy'")
    pooled = found[found["pillar"] == "all"].set_index("method")
    assert {"q_only", "ctx_q", "img_q", "full", "cade"} <= set(pooled.index)
    assert (pooled.loc[["full", "cade"], "n"] == 80).all()
    shown = pooled.drop(index="q_only")  # its questions are fewer than five prompts: no interval
    assert (shown["ci_low"] < shown["value"]).all() and shown["ci_high"].notna().all()
    assert pooled.loc[["q_only"], "ci_high"].isna().all()
    by_group = metrics(results, "pillar = 'setting:max-min' AND method = 'full' AND test = 'all'")
    assert by_group["metric"].tolist() == ["disparity"] and by_group["ci_high"].notna().all()
    page = (tmp_path / "build/streets/report/own.html").read_text(encoding="utf-8")
    assert "Streets of the sample" in page and "setting: urban" in page


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten options, 200 questions in 50 clusters about as many pictures; a planted model that sees
    pictures and always leans to the last option."""
    at = tmp_path_factory.mktemp("planted")
    yaml = LEAST.format(items="items.jsonl", options=", ".join(LETTERS)).replace(
        "answer: answer}", "answer: answer, image: picture}"
    )
    folder = write(at / "f", yaml + "cluster_by: batch\ngroups: [colour]\npolarity: higher\n", "")
    from tests.builders.own_questions import png

    lines = []
    for i in range(200):
        name = f"pictures/p{i}.png"
        (folder / name).write_bytes(png((i % 256, i // 256, 7), 8))
        options = {c: f"about {10 * (j + 1)}" for j, c in enumerate(LETTERS)}
        options |= dict.fromkeys("FGHIJ", "") if i % 2 else {}
        gold = LETTERS[(i * 7) % (5 if i % 2 else 10)]
        lines.append(
            {
                "id": i,
                "question": f"How many, up to {10 - 5 * (i % 2)}0?",
                **options,
                "answer": gold,
                "picture": name,
            }
            | {"batch": i // 4, "colour": "red" if i % 3 else "blue"}
        )
    (folder / "items.jsonl").write_text("\n".join(map(json.dumps, lines)))
    ok("suite", "build", folder, "--out", at / "b")
    options = {"oracle": str(at / "b"), "image_weight": 3.0, "prior": {"all": [0.0, 0.0, 4.0]}}
    add_model(at, "leaning", options=options)
    ok(*EVALUATE, "--benchmark", at / "b", "--results", at / "r.duckdb", registry=at)
    return at


def test_cade_takes_a_planted_lean_out_of_ten_options(planted: Path) -> None:
    """The prior to the last option is what Q-only says; CADE subtracts it and nothing else is
    wrong."""
    found = metrics(planted / "r.duckdb", "test = 'T5' AND pillar = 'all'")
    value = found.set_index(["method", "metric"])["value"]
    assert value["q_only", "share_optimistic"] == 1.0
    assert value["full", "accuracy"] < 0.4 and value["cade", "accuracy"] == 1.0
    assert value["full", "share_J"] > 0.2 and ("cade", "share_J") not in value.index
    assert "ctx_q" not in set(found["method"])  # no question has a context
    config = store.query(planted / "r.duckdb", "SELECT config FROM runs")["config"][0]
    assert "ctx_q" in json.loads(config)["own"]["views_left_out"]


def test_the_run_is_analysed_and_evaluated_only_once(planted: Path) -> None:
    run = store.query(planted / "r.duckdb", "SELECT run_id, suite FROM runs")
    assert run["suite"].tolist() == ["least"]
    more = ("--draws", 200, "--bootstrap", 100)
    ok("analyse", "--results", planted / "r.duckdb", "--run", run["run_id"][0], *more)
    rows = metrics(planted / "r.duckdb", "method IN ('always_j', 'pmi') AND pillar = 'all'")
    assert {"always_j", "pmi"} == set(rows["method"])
    assert rows["indicator"].eq("all").all() and not rows["pillar"].eq("").any()
    said = ok(
        *(*EVALUATE, "--benchmark", planted / "b", "--results", planted / "r.duckdb"),
        registry=planted,
    )
    assert "0 scored now" in said


def test_pages_show_ten_options_and_the_report_has_a_page(planted: Path) -> None:
    from starlette.testclient import TestClient

    from sdgbias.report.build import write_report
    from sdgbias.report.source import Results
    from sdgbias.report.web import app
    from sdgbias.report.web.site import Site

    results = planted / "r.duckdb"
    asked = """SELECT r.run_id, i.item_id FROM items i, runs r
               WHERE json_array_length(i.options) = 10 AND i.split = 'test' LIMIT 1"""
    run, item = store.query(results, asked).iloc[0]
    client = TestClient(app.create(Site(Results(results))), base_url="http://127.0.0.1:8321")
    for page in ("/", "/numbers?suite=least", "/runs", f"/questions?run={run}"):
        assert client.get(page).status_code == 200, page
    shown = client.get(f"/questions/{run}/mcq/{item}?test=T5")
    assert shown.status_code == 200 and "about 100" in shown.text  # the text of J
    overview = write_report(results, planted / "report").read_text(encoding="utf-8")
    assert "only on own questions" in overview and 'href="own.html"' in overview
    page = (planted / "report" / "own.html").read_text(encoding="utf-8")
    assert "View CTX+Q is left out: no question has a context." in page
    assert "colour: red" in page and "colour: best minus worst" in page and "Share J" in page


def test_a_night_asks_the_models_whose_entry_names_the_suite(planted: Path) -> None:
    options = {"oracle": str(planted / "b"), "image_weight": 3.0, "suites": ["least"]}
    add_model(planted, "nightly-one", options=options)
    said = ok(
        *("nightly", "--dry-run", "--benchmark", planted / "b"),
        *("--results", planted / "n.duckdb"),
        registry=planted,
    )
    assert re.search(r"nightly-one +least +will be scored", said), said
    assert not re.search(r"leaning +least", said), said


def test_without_pictures_there_is_no_cade_and_it_is_said(tmp_path: Path) -> None:
    yaml = YAML.replace(", image: picture", "")
    folder = write(tmp_path / "f", yaml)
    said = ok("suite", "check", folder)
    assert "view full is left out: no question has a picture" in said
    assert "CADE is left out: CADE needs a view with a picture" in said
    assert "CADE is left out" in ok("suite", "build", folder, "--out", tmp_path / "b")
    assert "CADE is left out" in (tmp_path / "b" / "README.md").read_text(encoding="utf-8")
    add_model(tmp_path, "formula")
    ok(
        *("evaluate", "formula", "--benchmark", tmp_path / "b"),
        *("--results", tmp_path / "r.duckdb"),
        registry=tmp_path,
    )
    results = tmp_path / "r.duckdb"
    found = metrics(results, "metric = 'accuracy' AND pillar = 'all'")
    assert set(found["method"]) == {"q_only", "ctx_q"} and set(found["test"]) == {"T1", "all"}
    ok("analyse", "--results", results, "--draws", 100, "--bootstrap", 100)
    why = store.query(results, "SELECT note FROM numbers WHERE method = 'vdd'")["note"]
    assert why.tolist() == ["needs scores of the Full view, which no question has"]


def test_every_fault_is_listed_and_nothing_is_built(tmp_path: Path) -> None:
    table = "id,question,a,b,answer\n1,Which?,x,y,z\n1,,x,y,A\n"
    write(tmp_path / "f", LEAST.format(items="items.csv", options="a, b"), table)
    done = sdgbias("suite", "check", tmp_path / "f")
    assert done.returncode == 9
    assert [line.split(":")[1] for line in done.stdout.splitlines()] == ["2", "3", "3"]
    last = refused(9, "suite", "check", tmp_path / "f")
    assert "3 faults" in last
    one = refused(9, "suite", "build", tmp_path / "f", "--out", tmp_path / "b")
    assert "items.csv:2: answer 'z' is none of the options" in one and "suite check" in one
    assert not (tmp_path / "b").exists()


def test_a_build_spares_other_benchmarks_and_repeats_its_bytes(tmp_path: Path) -> None:
    folder = write(tmp_path / "f")
    for name in ("b", "c"):
        ok("suite", "build", folder, "--out", tmp_path / name)
    ok("suite", "build", folder, "--out", tmp_path / "c")  # again into the same place
    for path in sorted((tmp_path / "b").rglob("*")):
        if path.is_file():
            there = tmp_path / "c" / path.relative_to(tmp_path / "b")
            assert path.read_bytes() == there.read_bytes(), path
    (folder / "suite.yaml").write_text(YAML.replace("name: dots", "name: other"))
    said = refused(2, "suite", "build", folder, "--out", tmp_path / "b")
    assert "holds another benchmark" in said
    assert refused(2, "suite", "build", folder, "--out", folder).count("folder of questions itself")
    items = pd.read_parquet(tmp_path / "b" / "items_own.parquet")
    items.assign(answer="J").to_parquet(tmp_path / "b" / "items_own.parquet")
    from sdgbias.benchmark import quality
    from sdgbias.errors import DataValidationError

    with pytest.raises(DataValidationError, match="answer-among-options"):
        quality.run_gate(tmp_path / "b")
