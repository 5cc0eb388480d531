"""W&B as a person uses it: nights sent at once, a week offline that W&B's own command sends later;
servers that are not there or refuse; a Report. The server is a stand-in on loopback, the
client is the real one."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.errors import InfrastructureError
from sdgbias.report.wandb import log, team_report
from tests.builders.commands import environment, ok, refused, sdgbias
from tests.builders.nights import FIRST, SECOND, STEADY, verdict
from tests.builders.results import BENCHMARK, publish_fake
from tests.builders.wandb_server import KEY, Server, wandb_server

RUN = f"{STEADY}-2"
NIGHTS = [FIRST, SECOND]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = publish_fake(tmp_path_factory.mktemp("r") / "sdgbias.duckdb")
    rows = [
        {"night": n, "model": "fake-pessimist", "suite": "sdg", "run_id": RUN, "outcome": o}
        for n, o in zip(NIGHTS, ("published", "unchanged"), strict=True)
    ]
    change = {"before": 0.5, "value": 0.4, "change": -0.1, "ci_low": -0.15, "ci_high": -0.05}
    verdicts = [
        verdict(STEADY, "accuracy", said, method=method, n=240, mde=0.04, note="a | bar", **change)
        for method, said in (("full", "BREACH"), ("cade", "PASS"))
    ]
    tables = {
        "nights": pd.DataFrame([{"night": n, "status": "finished"} for n in NIGHTS]),
        "night_outcomes": pd.DataFrame(rows),
        "verdicts": pd.DataFrame(verdicts),
    }
    store.upsert(path, tables)
    return path


@pytest.fixture
def logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "600")  # a machine may be busy
    return monkeypatch


def assert_without_key(folder: Path) -> None:
    for path in filter(Path.is_file, folder.rglob("*")):
        assert KEY not in path.read_text(errors="replace"), path


def steps(server: Server) -> dict[str, int]:
    """Run -> the step of its history that the server received."""
    return {
        run: json.loads(line)["_step"]
        for run, sent in server.streams
        for line in sent.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
    }


STEPS = {
    f"{n}-{RUN}": (date(2026, 11, day) - date(1970, 1, 1)).days * 1440 + 90
    for n, day in zip(NIGHTS, (20, 21), strict=True)
}


def test_a_week_offline_is_sent_by_wandb_itself(
    results: Path, tmp_path: Path, logged_in: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "wandb"
    logged_in.setenv("WANDB_MODE", "offline")
    for night in NIGHTS:
        [one] = log.log_night(results, folder, night=night)
        assert one.folder, one.failed
    with wandb_server() as server:
        logged_in.setenv("WANDB_BASE_URL", server.address)
        logged_in.delenv("WANDB_MODE")
        waiting = sorted(folder.glob("wandb/offline-run-*"))
        sync = [sys.executable, "-m", "wandb", "sync", *map(str, waiting)]
        subprocess.run(sync, cwd=tmp_path, env=environment(), timeout=900, check=True)
    assert steps(server) == STEPS
    for name in ("questions.parquet", "scores.parquet"):
        assert len([path for path in server.uploads if path.endswith(name)]) == 1
    with log.service(folder):
        pass
    assert not list(folder.glob("wandb/offline-run-*"))
    assert_without_key(folder)


def test_a_key_in_the_environment_sends_at_once_and_links_the_scores(
    results: Path, tmp_path: Path, logged_in: pytest.MonkeyPatch
) -> None:
    with wandb_server() as server:
        logged_in.setenv("WANDB_BASE_URL", server.address)
        logged_in.setenv(log.REGISTRY, "team/sdgbias/scores")
        for night in NIGHTS:
            said = ok(f"wandb log --results {results} --night {night} --dir {tmp_path / 'w'}")
            assert "1 run sent, 0 wait in" in said and KEY not in said
    assert steps(server) == STEPS
    used = [v["input"]["runName"] for v in server.of("UseArtifact")]
    assert used == [f"{NIGHTS[0]}-{RUN}"] * 2, "benchmark and model, once"
    [link] = server.of("LinkArtifact")
    assert link["input"]["artifactPortfolioName"] == "scores"
    assert [a["alias"] for a in link["input"]["aliases"]] == [NIGHTS[0]]
    assert_without_key(tmp_path / "w")


@pytest.mark.parametrize("mood", ["gone", "refuse"])
def test_a_server_that_cannot_be_used_leaves_the_run_waiting(
    results: Path, tmp_path: Path, logged_in: pytest.MonkeyPatch, mood: str
) -> None:
    """A run of a night in which nothing changed: no figures to draw."""
    logged_in.setenv("WANDB_INIT_TIMEOUT", "4")
    before = {"x": {"run_id": RUN, "published": "", "small": False}}
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / log.LOGGED).write_text(json.dumps(before))
    with wandb_server(mood) as server:
        nowhere = "http://127.0.0.1:9"
        logged_in.setenv("WANDB_BASE_URL", nowhere if mood == "gone" else server.address)
        done = sdgbias(f"wandb log --results {results} --dir {tmp_path / 'w'}")
    assert done.returncode == 0, done.stderr
    assert "0 runs sent, 1 waits in" in done.stdout and "W&B can't be reached" in done.stderr
    assert KEY not in done.stdout + done.stderr
    assert len(list((tmp_path / "w").glob("wandb/offline-run-*"))) == 1
    said = ok(f"wandb log --results {results} --dir {tmp_path / 'w'}")
    assert "0 runs sent, 1 waits in" in said and "1 logged before. To send them: " in said


def test_a_login_for_other_work_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a key in the environment does; WANDB_MODE decides where it is set."""
    for mode, key, sent in (("", "", False), ("", KEY, True), ("offline", KEY, False)):
        monkeypatch.setenv("WANDB_MODE", mode)
        monkeypatch.setenv("WANDB_API_KEY", key)
        assert log.online() == sent


def test_runs_that_cannot_be_written_are_named(results: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "w"
    line = refused(8, f"wandb log --results {results} --dir {folder}")
    assert "W&B: 1 of 1 run left out" in line and "the results are as before" in line
    fault = "can't be written (Not a directory); choose another --dir"
    assert f"{folder / log.LOGGED}: {fault}" in line


# -- the Report


def cell(text: str, row: str, column: str) -> str:
    """A cell of the Markdown table in ``text``: the row that holds ``row``, the column under
    ``column``."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = [c.strip() for c in lines[0].strip("|").split(" | ")]
    [found] = [line for line in lines if row in line]
    return [c.strip() for c in found.strip("|").split(" | ")][heads.index(column)]


def test_the_reports_text_has_the_stores_figures(results: Path) -> None:
    sections = dict(team_report.sections(results))
    breaches = f"Breaches of night {NIGHTS[1]}"
    assert list(sections) == ["In short", "Questions about places", breaches, "Runs"]
    sql = """SELECT value FROM metrics WHERE run_id = ? AND task = 'mcq' AND test = 'all'
             AND pillar = 'all' AND method = ? AND metric = ?"""
    for column, method, metric in (
        ("Accuracy", "full", "accuracy"),
        ("Pessimistic", "q_only", "share_pessimistic"),
        ("CADE gain", "cade", "accuracy_gain"),
    ):
        value = store.query(results, sql, [RUN, method, metric])["value"][0]
        shown = cell(sections["Questions about places"], "| fake-pessimist (planted) |", column)
        assert float(shown.split(" ")[0].replace("\u2212", "-")) == round(100 * value, 1), column
    assert "**Which way do models lean without evidence?**" in sections["In short"]
    assert "\u221210.0 points" in sections[breaches]
    assert "\u221215.0 to \u22125.0" in sections[breaches]


def test_the_report_reaches_the_server(
    results: Path, tmp_path: Path, logged_in: pytest.MonkeyPatch
) -> None:
    with wandb_server() as server:
        logged_in.setenv("WANDB_BASE_URL", server.address)
        known = {f"{server.address} team/sdgbias": "VmlldzoxMjM0"}
        (tmp_path / team_report.REPORTS).write_text(json.dumps(known))
        address = team_report.publish(results, "team", "sdgbias", tmp_path)
        assert address.startswith(f"{server.address}/team/sdgbias/reports/") and address.endswith(
            "VmlldzoxMjM0"
        )
        [view] = server.of("upsertView")
        place = (view["entityName"], view["projectName"], view["type"])
        assert place == ("team", "sdgbias", "runs")
        assert view["id"] == "VmlldzoxMjM0", "the Report of before, not a second one"
        blocks = json.loads(view["spec"])["blocks"]
        headings = [b["children"][0]["text"] for b in blocks if b["type"] == "heading"]
        titles, texts = zip(*team_report.sections(results), strict=True)
        assert headings == [*titles, "Night by night"]
        assert [b["content"] for b in blocks if b["type"] == "markdown-block"] == list(texts)
        [grid] = [b["metadata"] for b in blocks if b["type"] == "panel-grid"]
        plots = [p["config"] for p in grid["panelBankSectionConfig"]["panels"]]
        assert [p["metrics"] for p in plots] == [[metric] for metric in team_report.PLOTS["sdg"]]
        assert plots[1]["chartTitle"] == "CADE: gain in accuracy"
        assert {p["xAxis"] for p in plots} == {"night/year"}
        with pytest.raises(
            InfrastructureError,
            match="no Report was made: .* not found.* the runs in team/unknown",
        ):
            team_report.publish(results, "team", "unknown", tmp_path)


def test_a_report_needs_a_server_that_answers(
    results: Path, tmp_path: Path, logged_in: pytest.MonkeyPatch
) -> None:
    logged_in.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    report = f"wandb report --results {results} --entity team"
    line = refused(8, report)
    assert "no Report was made" in line and KEY not in line
    ok(f"{report} --out {tmp_path / 'r.md'}")
    assert BENCHMARK in (tmp_path / "r.md").read_text(encoding="utf-8")
