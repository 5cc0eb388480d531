"""The page of the last night, and of one that runs."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
from starlette.testclient import TestClient

from sdgbias import store
from sdgbias.report.pages import models
from sdgbias.report.reader import Results
from sdgbias.report.web import nights
from sdgbias.store import maintenance
from tests.builders.nights import BROKEN, FIRST, LOST, SECOND, STEADY, told_night, verdict
from tests.builders.nights import name as night_name
from tests.builders.results import copied
from tests.builders.web_pages import RUN, client_of, text


def test_last_night_says_what_wants_a_person_first(client: TestClient) -> None:
    said = text(client.get("/").text)
    for words in (
        f"Last night {night_name(3)}",
        "1 failed; 1 model in breach: fake-optimist.",
        "OutOfMemory: CUDA out of memory at batch size 1",
        "3 attempts",
        "quarantined until 2026-11-23",
        "Planted, not measured: fake-optimist, fake-pessimist",
        "3 answers kept as examples, 0 for the better",
        "wandb no network",
        "unchanged 700 prompts",
    ):
        assert words in said
    places = [said.index(m, said.index("Took Look")) for m in ("fake-op", BROKEN, "fake-pess")]
    assert places == sorted(places)


def test_menus_of_runs_say_that_they_offer_the_newest(client: TestClient) -> None:
    for page in ("/compare", "/questions"):
        assert "only the newest of each model; the page Runs has all" in text(client.get(page).text)


def test_of_many_logs_the_newest_are_shown_and_counted(served: Path, tmp_path: Path) -> None:
    path, night = copied(served, tmp_path / "r.duckdb"), "2026-11-30T0130"
    start = datetime(2026, 11, 30, 0, 30)
    running = {"night": night, "started_at": start, "status": "running"}
    store.upsert(path, {"nights": pd.DataFrame([running])})
    folder = path.with_suffix(".nights") / night
    for n in range(250):
        (folder / f"{n:03d}.log").touch()
        os.utime(folder / f"{n:03d}.log", (n, n))
    (folder / "zeta.log").write_text("scoring")
    with Results(path).reading() as reader:
        shown = nights.running(reader, start.replace(tzinfo=UTC))
    assert shown and [log["name"] for log in shown["logs"][:2]] == ["zeta.log", "249.log"]
    assert "the newest 24 of 251 logs" in text(client_of(path).get("/").text)


def test_a_running_night_shows_how_far_it_is(served: Path, tmp_path: Path) -> None:
    path, night = copied(served, tmp_path / "r.duckdb"), "2026-11-30T0130"
    start = datetime(2026, 11, 30, 0, 30)
    done = {"night": night, "suite": "sdg", "outcome": "published", "seconds": 60.0}
    rows = [{**done, "model": "fake-optimist", "run_id": RUN}]
    rows += [{**done, "model": model, "run_id": None} for model in ("a", "b")]
    running = {"night": night, "started_at": start, "status": "running"}
    tables = {"nights": pd.DataFrame([running]), "night_outcomes": pd.DataFrame(rows)}
    store.upsert(path, tables)
    folder = path.with_suffix(".nights") / night
    (folder / "registry").mkdir(parents=True)
    for model in ("a", "b", "c"):
        (folder / "registry" / f"{model}.yaml").write_text("name: x")
    (folder / "a.log").write_text("first\n\x1b[32mscoring 10 %\rscoring 20 % <b>\n\n")
    (folder / "out.log").symlink_to("/etc/hostname")
    with Results(path).reading() as reader:
        found = nights.running(reader, start.replace(tzinfo=UTC) + timedelta(hours=1))
    assert found and (found["seconds"], found["planned"], found["done"]) == (3600, 4, 3)
    logs = [(log["name"], log["last"]) for log in found["logs"]]
    assert logs == [("a.log", "scoring 20 % <b>")]
    client = client_of(path)
    html = client.get("/").text
    assert f"Night {night} is running" in html and "scoring 20 % &lt;b&gt;" in html
    assert "3 of 4 done" in text(html)
    assert f"Last night {night_name(3)}" in text(html), "the last night that ended stays in sight"
    progress = {"night": night, "done": 3, "planned": 4, "lasted": ""}
    assert client.get("/api/running").json() | {"lasted": ""} == progress
    later = running | {"night": "../../escape", "started_at": start + timedelta(days=1)}
    store.upsert(path, {"nights": pd.DataFrame([later])})
    assert client.get("/").status_code == 200, "a night whose name leads elsewhere has no folder"


def test_the_list_counts_evaluations_in_breach_however_many_rules_found_it(tmp_path: Path) -> None:
    path = told_night(tmp_path / "r.duckdb")  # three rules of one model
    with Results(path).reading() as reader:
        rows = nights.listing(reader, 1)["rows"]
    assert [(r["night"], r["in_breach"]) for r in rows] == [(SECOND, 1), (FIRST, 0)]


def test_a_models_night_has_the_verdict_of_the_night_itself(tmp_path: Path) -> None:
    path = told_night(tmp_path / "r.duckdb")
    judged = [verdict(LOST, name, name, night=FIRST) for name in ("PASS", "MISSING")]
    store.upsert(path, {"verdicts": pd.DataFrame(judged)})
    with Results(path).reading() as reader:
        pages = {model: models.page(reader, model, None) or {} for model in (LOST, STEADY)}
    shown = {
        model: [(n["night"], n["verdict"], n["verdicts"].total()) for n in page["nights"]]
        for model, page in pages.items()
    }
    assert shown[LOST] == [(SECOND, "BREACH", 5), (FIRST, "PASS", 2)]
    assert shown[STEADY] == [(SECOND, "PASS", 0)], "an unchanged run, whose rules are not counted"


def test_a_night_links_no_run_that_was_removed_since(served: Path, tmp_path: Path) -> None:
    path, run = copied(served, tmp_path / "r.duckdb"), f"{LOST}-3"
    page = f"/nights/{night_name(3)}"
    maintenance.remove(path, [f"{LOST}-2"])
    without_baseline = client_of(path).get(page).text
    assert f"/questions?run={run}" in without_baseline and "/compare?a=" not in without_baseline
    maintenance.remove(path, [run])
    without_run = client_of(path).get(page).text
    assert f'run={run}"' not in without_run and "removed" in text(without_run)
