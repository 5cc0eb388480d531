"""What the command line says of itself and prints: help, sections, versions, JSON, the contents of
a results file, the project file, and the commands that keep files in order."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

from sdgbias import __version__, notebook, settings, store
from sdgbias.cli.application import MOVED, PANELS, command_tree
from sdgbias.cli.options import print_json, query_table
from sdgbias.cli.results import compare
from sdgbias.files import packaged_yaml
from sdgbias.nightly.night_options import NightOptions
from sdgbias.report import publish
from sdgbias.report.build import write_report
from tests.builders.commands import REPOSITORY, environment, ok, refused, sdgbias
from tests.builders.numbers import numbers_of
from tests.builders.results import copied, publish_fake


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two planted models, one run each."""
    return publish_fake(tmp_path_factory.mktemp("results") / "sdgbias.duckdb")


def printed(command: str, *, code: int = 0) -> Any:
    done = sdgbias(f"{command} --json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


# -- help


def leaves(commands: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in commands.items():
        yield " ".join((*path, name)), command
        yield from leaves(getattr(command, "commands", {}), (*path, name))


COMMANDS = dict(leaves(command_tree().commands))


def test_the_help_lists_every_command_in_a_panel_and_cuts_no_line() -> None:
    page = ok("-h")
    by_itself = ok("--help", alone=True)
    assert page.splitlines()[1:] == by_itself.splitlines()[1:], "but for the program's name"
    panels = page.partition("\nStart:\n")[2]
    listed = re.findall(r"^  ([a-z-]+) {2,}\S", panels, re.MULTILINE)
    assert sorted(listed) == sorted(name for name in COMMANDS if " " not in name)
    assert "..." not in panels
    assert all(f"\n{title}:\n" in page for title in PANELS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_one_screen_and_explains_every_option(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert ok(f"{command} --help").count("\n") <= 44
    parameters = COMMANDS[command].params
    assert [p.name for p in parameters if not getattr(p, "help", None)] == []


def test_the_version() -> None:
    assert ok("--version") == f"sdgbias {__version__}\n"


@pytest.mark.parametrize(("earlier", "now"), MOVED.items())
def test_an_earlier_name_of_a_command_leads_to_todays(earlier: str, now: str) -> None:
    refusal = sdgbias(earlier)
    assert (refusal.returncode, f"run: {now}" in refusal.stderr) == (2, True), refusal.stderr
    words = now.split()[1:]
    assert " ".join(words[:1]) in COMMANDS and earlier not in COMMANDS


# -- results


def test_results_as_json_are_the_rows_of_the_table(results: Path) -> None:
    shown = printed(f"results --results {results}")
    assert shown["people"] is None and shown["own"] is None
    assert {"model", "method", "value", "n", "ci_low", "ci_high"} <= set(shown["metrics"][0])
    assert "share_optimistic" in {row["metric"] for row in shown["metrics"]}, "as the table"
    table = ok(f"results --results {results} --csv").splitlines()
    assert len(shown["metrics"]) == len(table) - 1
    sql = "SELECT run_id, CAST('nan' AS DOUBLE) AS nothing FROM runs ORDER BY run_id"
    assert printed(f'results --results {results} --sql "{sql}"') == [
        {"run_id": run, "nothing": None} for run in sorted(store.run_ids(results))
    ]


@pytest.mark.parametrize(
    ("name", "given"), [("newest", {"floor": 1}), ("evaluated", {"floor": 1}), ("accuracy", {})]
)
def test_what_commands_print_is_rounded_once(
    results: Path, name: str, given: dict[str, object]
) -> None:
    """46.25 % rounded to 0.463 first was 46.3 % in one command and 46.2 % on the page."""
    table = query_table(results, name, store.run_ids(results), **given)
    values = table["accuracy" if name == "accuracy" else "value"]
    assert len(values) and set(values) <= set(store.query(results, "FROM metrics")["value"])


def test_results_of_one_model_name_no_other(results: Path) -> None:
    shown = printed(f"results fake-optimist --results {results}")
    assert {row["model"] for row in shown["metrics"]} == {"fake-optimist"}
    text = ok(f"results fake-optimist --results {results}")
    assert "fake-optimist" in text and "fake-pessimist" not in text
    assert "sdgbias compare" not in text, "with what?"


def test_the_headline_is_a_line_a_model_with_its_intervals_and_n(results: Path) -> None:
    lines = ok(f"results --results {results}").splitlines()
    shown = {line.split(" ")[0]: line for line in lines if "[" in line and "%" not in line}
    sql = """SELECT model, value, ci_low, ci_high, n FROM metrics WHERE task = 'mcq' AND test =
             'all' AND method = 'full' AND pillar = 'all' AND indicator = 'all' AND metric =
             'accuracy' AND run_id IN (SELECT unnest(?))"""
    rows = store.query(results, sql, [store.latest_runs(results)])
    assert len(rows) > 1 and set(rows["model"]) == set(shown)
    assert any("sdgbias compare ONE OTHER" in line for line in lines)
    for model, value, low, high, n in rows.itertuples(index=False):
        numbers = f"{100 * value:.1f} [{100 * low:.1f}–{100 * high:.1f}] {n}"
        assert f"{model} (planted)  {numbers}" in re.sub(" {2,}", "  ", shown[model])


def test_a_query_is_written_as_json_and_csv_that_others_read(results: Path) -> None:
    sql = "SELECT 1 / 0 AS a, [x / 7 for x in range(1200)] AS b, {'c': ['d,e']} AS s"
    row = json.loads(
        ok("results --json --results", results, "--sql", sql), parse_constant=pytest.fail
    )[0]
    assert row["a"] is None and len(row["b"]) == 1200
    table = pd.read_csv(io.StringIO(ok("results --csv --results", results, "--sql", sql)))
    assert json.loads(table["b"][0]) == row["b"] and json.loads(table["s"][0]) == row["s"]


def test_a_query_in_text_leaves_cells_without_a_value_empty(results: Path) -> None:
    values = "('a', NULL::INT, NULL::DATE, NULL::BOOL), (NULL, 2, DATE '2026-01-02', true)"
    text = ok(
        "results --results", results, "--sql", f"SELECT * FROM (VALUES {values}) AS t(a, b, c, d)"
    )
    assert [line.split() for line in text.splitlines()] == [
        ["a", "b", "c", "d"],
        ["a"],
        ["2", "2026-01-02", "True"],
    ]
    assert ok("results --results", results, "--sql", "SELECT 1 WHERE false") == "no rows\n"


@pytest.mark.parametrize(("p", "states"), [(0.01, True), (0.094, False)])
def test_a_difference_is_stated_where_its_interval_and_its_p_agree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], p: float, states: bool
) -> None:
    """Of few places the exact p may be above 5 % though the interval excludes zero."""
    row = {"method": "Full", "test": "all tests", "value": 0.311, "n": 225, "p": p, "mde": 0.381}
    pairs = pd.DataFrame([row | {"ci_low": 0.016, "ci_high": 0.579, "clusters": 6}])
    monkeypatch.setattr(notebook, "compare", lambda *_: pairs)
    compare("a", "b")
    text = capsys.readouterr().out.replace("\u00a0", " ")
    assert ("a is more accurate than b by 31.1 points" in text) == states
    assert ("no difference can be stated" in text and "n = 225), p = 0.094; so" in text) != states


def test_models_that_give_text_alone_are_compared_in_a_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"method": "Full, generated", "value": 0.2, "n": 79, "p": 0.001, "mde": 0.1}
    tests = pd.DataFrame({"test": ["T1", "T2"], "ci_low": 0.1, "ci_high": 0.3, "clusters": 40})
    monkeypatch.setattr(notebook, "compare", lambda *_: tests.assign(**row))
    compare("a", "b")
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("With all evidence, in words, at T1, a is more accurate than b by 20.0")


def test_two_models_are_compared_in_a_table_and_in_words(results: Path) -> None:
    command = f"compare fake-pessimist fake-optimist --results {results}"
    rows = printed(command)
    pooled = next(p for p in rows if (p["method"], p["test"]) == ("Full", "all tests"))
    lines = ok(command).splitlines()
    sentence = next(line for line in lines if line.startswith("With all evidence,"))
    if pooled["ci_low"] <= 0 <= pooled["ci_high"]:
        words = f"no difference can be stated: {100 * pooled['value']:+.1f} points"
    else:
        order = ["fake-pessimist", "fake-optimist"][:: 1 if pooled["value"] > 0 else -1]
        by = f"by {abs(100 * pooled['value']):.1f} points"
        words = f"{order[0]} is more accurate than {order[1]} {by}"
    assert words in sentence.replace("\u2212", "-")
    assert f"n\u00a0=\u00a0{pooled['n']:,}" in sentence


def test_two_runs_without_answers_in_common_are_refused(results: Path, tmp_path: Path) -> None:
    """As retention leaves an old run: its metrics stay, its answers are gone."""
    copy = copied(results, tmp_path / "copy" / results.name)
    with duckdb.connect(copy) as file:
        file.execute("DELETE FROM details WHERE run_id LIKE 'fake-optimist%'")
    line = refused(2, f"compare fake-pessimist fake-optimist --results {copy}")
    assert "have no answers left of the same questions by Full, by CADE or in words" in line
    assert "their other views: sdgbias serve" in line
    with duckdb.connect(copy) as file:
        file.execute("DELETE FROM items WHERE task = 'mcq'")
    line = refused(2, f"compare fake-pessimist fake-optimist --results {copy}")
    assert "were never asked multiple-choice questions of one benchmark" in line


def test_ctrl_c_ends_a_server_without_a_word_of_unfinished_work(results: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "sdgbias.cli", "serve", "--port", "0", "--results", str(results)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell's background job, as a runner of tests may be one, ignores the signal
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stdout is not None and "Ctrl-C ends it" in child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[1] == "" and child.returncode == 130


def test_tables_metrics_and_methods_are_listed(results: Path) -> None:
    page = ok(f"results tables --results {results}")
    names = store.query(results, "SELECT DISTINCT table_name FROM information_schema.columns")
    tables = packaged_yaml("comments.yaml")["tables"]
    made_where_named = {"answers", "nights", "night_outcomes"}
    assert set(names["table_name"]) == {*tables} - made_where_named
    for name, about in tables.items():
        assert f"\n{name}: {about}\n" in page
    assert (
        "\n  accuracy: Accuracy, a share (reports print it in %); higher is better (sdg)\n" in page
    )
    assert "\n  cade: CADE: Contrastive Adaptive Debias Ensemble" in page
    shown = printed(f"results tables --results {results}")
    [about] = [row["about"] for row in shown["metrics"] if row["name"] == "accuracy"]
    assert about == "Accuracy, a share (reports print it in %); higher is better"
    assert all(row["about"] for row in shown["missing_reasons"])


def test_the_other_commands_print_json_alone(results: Path, tmp_path: Path) -> None:
    where = f"--results {results}"
    shown = printed(f"models show tiny-llava {where}")
    assert shown["name"] == "tiny-llava" and shown["nights"] == [] == shown["runs"]
    assert "tiny-llava" in {model["name"] for model in printed("models")["models"]}
    judged = printed(
        f"gate --results {copied(results, tmp_path / 'r.duckdb')}"
    )  # it keeps verdicts
    assert printed(f"store check {where}")["newest"].endswith("+00:00")
    assert {j["model"] for j in judged} == {"fake-optimist", "fake-pessimist"}
    assert all(rule["verdict"] for j in judged for rule in j["rules"])
    (tmp_path / "suite.yaml").write_text("name: dots\n")
    fault = printed(f"suite check {tmp_path}", code=9)["faults"][0]
    assert fault["file"] == "suite.yaml" and fault["message"]
    report = printed(f"raw check {tmp_path}", code=3)
    assert "sustainbench_labels" in {f["source"] for f in report["findings"]}
    assert "sustainlab-group.github.io" in sdgbias(f"raw check {tmp_path}").stdout


def test_what_json_has_no_word_for(capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.DataFrame({"a": [1, 2], "b": [0.5, float("nan")], "c": [pd.Timestamp(0), pd.NaT]})
    print_json({"table": table, "path": Path("x"), "list": [table["a"].to_numpy()]})
    assert json.loads(capsys.readouterr().out) == {
        "table": [
            {"a": 1, "b": 0.5, "c": "1970-01-01T00:00:00+00:00"},
            {"a": 2, "b": None, "c": None},
        ],
        "path": "x",
        "list": [[1, 2]],
    }


def test_the_notebook_of_the_how_to_runs(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "docs/how-to/query.md").read_text(encoding="utf-8")
    monkeypatch.setenv("SDGBIAS_RESULTS", str(results))
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    assert len(names["table"]) and ("accuracy", "full") in names["wide"].columns


# -- the project file


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in settings.KEYS.values():
        monkeypatch.delenv(variable, raising=False)


def test_a_project_file_counts_in_its_folder_and_below_after_option_and_environment(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "notes" / "deep"
    below.mkdir(parents=True)
    (tmp_path / settings.NAME).write_text(f'results = "{results}"\nregistry = "nowhere"\n')
    named = ok(f"results --results {results}")
    assert ok("results", cwd=tmp_path) == ok("results", cwd=below) == named
    line = refused(4, "models", cwd=tmp_path)
    assert f"SDGBIAS_REGISTRY={tmp_path / 'nowhere'}: no registry" in line
    assert "other.duckdb" in refused(7, "results --results other.duckdb", cwd=tmp_path)
    monkeypatch.setenv("SDGBIAS_RESULTS", "env.duckdb")
    assert "no results at env.duckdb" in refused(7, "results", cwd=tmp_path)
    assert "other.duckdb" in refused(7, "results --results other.duckdb", cwd=tmp_path)


def test_a_project_file_counts_in_a_notebook_and_in_a_night_with_prefect(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(settings.NAME).write_text(f'results = "{results}"\n', encoding="utf-8-sig")
    assert len(notebook.load())
    Path(settings.NAME).write_text('results = "taken/r.duckdb"\n')
    Path("taken").write_text("a file")
    flow = [sys.executable, "-m", "flows.nightly"]
    ended = subprocess.run(flow, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 8 and f"{tmp_path}/taken" in ended.stderr


def test_a_build_writes_where_an_evaluation_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDGBIAS_RAW", str(tmp_path / "no raw"))
    monkeypatch.setenv("SDGBIAS_BENCHMARK", str(tmp_path / "mine"))
    assert str(tmp_path / "no raw") in refused(3, "build", cwd=tmp_path)
    assert str(tmp_path / "mine") in refused(3, "evaluate tiny-llava")
    assert not (tmp_path / "data").exists()


def test_a_night_takes_the_named_benchmark_and_those_of_other_suites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    people = Path("data/people/benchmark")
    for folder, suite in (("data/benchmark", "sdg"), (people, "people"), ("real", "sdg")):
        Path(folder).mkdir(parents=True)
        card = json.dumps({"suite": suite, "benchmark_id": "b"})
        (Path(folder) / "benchmark.json").write_text(card)
    assert NightOptions().benchmarks == (Path("data/benchmark"), people)
    monkeypatch.setenv("SDGBIAS_BENCHMARK", "real")
    assert NightOptions().benchmarks == (Path("real"), people)
    assert NightOptions(benchmark=[people]).benchmarks == (people,)
    monkeypatch.setenv("SDGBIAS_BENCHMARK", "not built")
    assert NightOptions().benchmarks == (Path("not built"),)


def test_an_evaluation_shows_the_answers_in_words_of_a_model_that_names_no_letter(
    tmp_path: Path,
) -> None:
    path = tmp_path / "r.duckdb"
    row = {"task": "mcq", "test": "T1", "method": "full_generated", "pillar": "all"}
    row |= {"indicator": "all", "metric": "accuracy", "value": 0.5, "n": 8}
    for model, rows in (("words", [row]), ("letters", [row, {**row, "test": "all"}])):
        record = {"run_id": model, "model": model, "benchmark_id": "b", "suite": "sdg"}
        record |= {"finished_at": "2026-11-20T00:00:00"}
        store.publish(path, record, {"numbers": numbers_of(rows)})
    shown = query_table(path, "evaluated", ["words", "letters"], floor=0.2)
    assert shown[["model", "test"]].to_numpy().tolist() == [["letters", "all"], ["words", "T1"]]


def test_accuracy_of_improbable_letters_has_their_candidate_mass_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "r.duckdb"
    row = {"task": "mcq", "test": "all", "method": "full", "pillar": "all", "indicator": "all"}
    for model, mass in (("low", 0.01), ("high", 0.9)):
        rows = [{**row, "metric": "accuracy", "value": 0.5, "n": 8}]
        rows += [{**row, "metric": "candidate_mass", "value": mass, "n": 8}]
        record = {"run_id": model, "model": model, "benchmark_id": "b", "suite": "sdg"}
        record |= {"finished_at": "2026-11-20T00:00:00"}
        store.publish(path, record, {"numbers": numbers_of(rows)})
    for query in ("evaluated", "newest"):
        shown = query_table(path, query, ["low", "high"], floor=0.2)
        masses = shown[shown["metric"] == "candidate_mass"]
        assert masses["model"].tolist() == ["low"], query


# -- the files of the results


def test_retention_removes_details_and_says_what_is_left(results: Path, tmp_path: Path) -> None:
    path = copied(results, tmp_path / "r.duckdb")
    nights = pd.DataFrame({"night": [f"2026-11-1{day}T0130" for day in range(3)]})
    at = pd.to_datetime(nights["night"], format="%Y-%m-%dT%H%M")
    hour = pd.Timedelta(hours=1)
    nights = nights.assign(status="done", started_at=at, finished_at=at + 2 * hour)
    store.upsert(path, {"nights": nights})
    size = printed(f"store check --results {path}")
    assert (size["runs"], size["models"]) == (3, 2)
    files = list(path.with_suffix(".runs").rglob("*.parquet"))
    assert size["details_bytes"] == sum(p.stat().st_size for p in files)
    assert ok(f"store check --results {path}").splitlines()[-2].endswith("sdgbias store compact")
    kept = printed(f"store keep --results {path}")
    assert kept["applied"] is False
    assert {run["run_id"] for run in kept["runs"]} == set(store.run_ids(path))

    older = "fake-optimist-0"
    keep = f"store keep --results {path} --nights 1 --per-model 1"
    assert "Details of 1 of 3 runs would be removed" in ok(keep)
    assert len(store.query(path, "SELECT DISTINCT run_id FROM scores")) == 3
    assert "Details of 1 of 3 runs are removed" in ok(f"{keep} --apply")
    assert "  1 run keeps its metrics only" in ok(f"store check --results {path}")
    left = store.query(path, "SELECT DISTINCT run_id FROM scores")["run_id"]
    assert set(left) == set(store.run_ids(path)) - {older}
    assert len(store.query(path, "SELECT DISTINCT run_id FROM metrics")) == 3
    line = refused(7, f"analyse --results {path} --run {older}")
    assert "removed by `sdgbias store keep` on 20" in line
    assert "fake" in write_report(path, tmp_path / "report", among=[older]).read_text()


def test_the_next_command_runs_as_it_is_printed(tmp_path: Path) -> None:
    """Pasted into a shell, also where a folder's name holds spaces and quotes."""
    printed = ok("sample --suite questions --out", tmp_path / "the team's questions")
    for _ in ("suite check", "suite build"):
        following = printed.rpartition("Next: sdgbias ")[2].splitlines()[0]
        printed = ok(following.replace("BENCHMARK", f"'{tmp_path}/a benchmark'"))

    onward = f"evaluate MODEL --benchmark '{tmp_path}/a benchmark'"
    assert printed.rpartition("Next: sdgbias ")[2].startswith(onward)


def test_a_damaged_file_is_named_and_orphans_go(results: Path, tmp_path: Path) -> None:
    path = copied(results, tmp_path / "r.duckdb")
    assert printed(f"store check --results {path}")["broken"] == []
    assert "every file is as it was written" in ok(f"store check --results {path}")
    victim = sorted(path.with_suffix(".runs").rglob("scores-*.parquet"))[0]
    victim.write_bytes(b"x" * victim.stat().st_size)
    assert "1 file is missing or damaged" in refused(7, f"store check --results {path}")
    shutil.copy(victim, victim.with_name("scores-" + "0" * 16 + ".parquet"))
    assert "orphans: 1 file," in ok(f"store compact --results {path}")


@pytest.mark.long
@pytest.mark.slow
def test_the_instrument_passes_its_self_check(tmp_path: Path) -> None:
    """The small self-check with a benchmark of its own."""
    shown = json.loads(ok(f"selfcheck --json --out {tmp_path / 'page.html'}"))
    assert shown["passed"] is True and len(shown["checks"]) > 300
    assert shown["intervals_that_hold"] / shown["intervals"] > 0.93
    checks = {(c["plant"], c["what"]): c for c in shown["checks"]}
    blind = checks["image-blind", "image use, Full minus CTX+Q at T1"]
    assert (blind["truth"], blind["measured"]) == (0.0, 0.0)
    assert "PASSED" in (tmp_path / "page.html").read_text()


def test_a_night_may_write_while_files_are_published(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*given: Any) -> list[tuple[str, int]]:
        with store.connect(results, wait=0.0):
            return written(*given)

    written = publish.write
    monkeypatch.setattr(publish, "write", write)
    run = store.run_ids(results)[0]
    page = ok(f"publish model-card --run {run} --results {results} --write {tmp_path / 'out'}")
    assert "1 file in" in page
