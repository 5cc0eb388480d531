"""A whole night with stub models and stub steps: its name, its end, its exit code, its order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from sdgbias import store
from sdgbias.cli import app
from sdgbias.nightly import attempt, records, steps
from sdgbias.nightly import run as nights
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import Job, Night, name_of, tonight
from sdgbias.registry import entries
from sdgbias.store import night_files
from tests.builders.night_stubs import NIGHT, NOW, PUBLISH, by_model, entry, settings
from tests.builders.prefect_server import wait_for

FULL = records.StepResult("failed", "the folder is full")
BREACH = records.StepResult("breach", "m: accuracy")
LATER = "2026-11-22T0130"
Step = Callable[[str, NightOptions, Night], records.StepResult]


@pytest.fixture(autouse=True)
def webhook_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDGBIAS_WEBHOOK", "http://127.0.0.1:9/hook")


def ends(**results: records.StepResult) -> Step:
    """Closing steps that end so; no command is run for them."""
    return lambda name, options, night: results.get(name, steps.DONE)


def run(
    s: NightOptions, now: datetime = NOW, step: Step = ends(), **codes: str
) -> nights.NightSummary:
    """A night whose models run this code."""
    score = partial(attempt.keep_trying, sleep=lambda seconds: None, argv=by_model(**codes))
    return nights.run(s, lambda: now, [].append, score, step)


def ended(job: Job, **facts: Any) -> attempt.JobOutcome:
    return attempt.outcome_of(job, NOW, attempts=1, **facts)


def test_given_two_nights_by_hand_in_a_minute_then_each_has_a_name(tmp_path: Path) -> None:
    s = settings(tmp_path, timezone="Europe/Berlin")
    first = datetime(2026, 10, 25, 0, 30, 5, tzinfo=UTC)
    for at in (first, first + timedelta(seconds=20)):
        night = run(s, at)
        assert (night.status, night.exit_code, night.outcomes) == ("done", 0, ()), "none was due"
    names = ["2026-10-25T0230", "2026-10-25T0230-2"]
    assert [records.status(s.results, name) for name in names] == ["done", "done"]
    assert sorted(f.name for f in s.results.with_suffix(".nights").iterdir() if f.is_dir()) == names
    again = first + timedelta(hours=1)  # the clock was set back: 02:30 stands twice
    assert name_of(s, again) == "2026-10-25T0230-3"
    due = replace(s, scheduled_for=first.isoformat(), cron="30 2 * * *")
    for named in (due, replace(s, night=names[1])):
        finished = run(named, first)
        assert "done already" in finished.note, "one that was named is that one"
        assert (finished.status, finished.exit_code) == ("", 0)


def test_given_a_clock_that_ran_ahead_then_the_night_names_what_it_left(tmp_path: Path) -> None:
    s, lines = settings(tmp_path), list[str]()
    run(s, NOW + timedelta(days=400))
    record = {"run_id": "m-1", "model": "m", "benchmark_id": "b", "suite": "sdg"}
    store.publish(s.results, record | {"finished_at": NOW + timedelta(days=401)}, {})
    nights.run(replace(s, night=LATER), lambda: NOW, lines.append, step=ends())
    assert "later than now: night 2027-12-26T0130, run m-1: a clock ran ahead" in "".join(lines)


def test_given_no_good_model_or_benchmark_then_the_night_failed(tmp_path: Path) -> None:
    s = settings(tmp_path, "m")
    failed = run(s, m="sys.exit(3)")
    assert (failed.status, failed.exit_code, len(failed.outcomes)) == ("failed", 8, 1)
    broken = records.StepResult("failed", "items_mcq: rule unique-ids broken")
    unasked = run(replace(s, night=LATER), step=ends(benchmark=broken))
    assert (unasked.status, unasked.exit_code, unasked.outcomes) == ("failed", 8, ())
    assert entries.load(tmp_path, "m").state == "enabled"


def test_given_a_model_that_is_put_aside_then_the_summary_names_it(tmp_path: Path) -> None:
    s = settings(tmp_path)
    entry(tmp_path, "away", state="quarantined", reason="hung", until="2026-11-30")
    night = run(s)
    assert [(one.model, one.outcome) for one in night.outcomes] == [("away", "skipped")]
    assert (night.status, night.exit_code) == ("done", 0) and "hung" in night.outcomes[0].message


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ({"analyse": FULL, "gate": BREACH}, 6),
        ({"report": FULL}, 8),
        ({"selfcheck": FULL}, 8),
        ({"announce": FULL, "wandb": records.StepResult("failed", "done")}, 0),
        ({"gate": records.StepResult("failed", "breach: a sentence decides nothing")}, 8),
    ],
)
def test_given_ends_of_steps_then_they_decide_the_exit_code(
    tmp_path: Path, results: dict[str, records.StepResult], code: int
) -> None:
    """Each knows how those before it ended, and a failed one stops none."""
    s, recorded, lines = settings(tmp_path, selfcheck=True), dict[str, Any](), list[str]()

    def step(name: str, options: NightOptions, night: Night) -> records.StepResult:
        row = night_files.read(options.results, "nights", {"night": night.night})
        recorded[name] = row["step_states"]
        return results.get(name, steps.DONE)

    night = nights.run(s, lambda: NOW, lines.append, step=step)
    order = [steps.CHECK, "analyse", steps.SELFCHECK, *steps.STEPS[1:]]
    assert (night.status, night.exit_code) == ("done", code)
    assert night.steps == {name: results.get(name, steps.DONE) for name in order}
    assert list(night.steps or {}) == order and list(recorded) == [*order, steps.LAST_PAGE]
    states = {name: results.get(name, steps.DONE).state for name in order}
    for at, name in enumerate(order[1:], 1):
        assert recorded[name] == {before: states[before] for before in order[:at]}
    assert [line.split(":")[0] for line in lines] == order[1:]
    assert replace(night, steps={}, unsaved="locked").exit_code == 8


def test_given_two_suites_then_a_model_is_asked_them_one_after_the_other(tmp_path: Path) -> None:
    s = settings(tmp_path, jobs=2)
    people = tmp_path / "people"
    people.mkdir()
    (people / "benchmark.json").write_text('{"benchmark_id": "p1", "suite": "people"}')
    entry(tmp_path, "m", options={"suites": ["sdg", "people"]})
    lock = tmp_path / "one"
    code = f"p = pathlib.Path({str(lock)!r}); p.mkdir(); time.sleep(0.3); p.rmdir(); {PUBLISH}"
    night = run(replace(s, benchmark=[*s.benchmarks, people]), m=code)
    outcomes = {o.suite: o.outcome for o in night.outcomes}
    assert outcomes == dict.fromkeys(("people", "sdg"), "published")


def test_given_ctrl_c_then_the_running_model_is_ended_and_the_night_goes_on_later(
    tmp_path: Path,
) -> None:
    s, started = settings(tmp_path, "a", "b", night=NIGHT), tmp_path / "started"

    def interrupt() -> None:
        wait_for("the second model", started.exists)
        os.kill(os.getpid(), signal.SIGINT)

    # a shell's background processes inherit that Ctrl-C is ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(s, a=PUBLISH, b=f"pathlib.Path({str(started)!r}).touch(); time.sleep(600)")
    finally:
        signal.signal(signal.SIGINT, before)
    assert records.status(s.results, NIGHT) == "interrupted"
    assert records.history(s.results)[["model", "outcome"]].values.tolist() == [["a", "published"]]
    assert run(s, a="tell(run_id='a-1', outcome='unchanged')", b=PUBLISH).status == "done"
    outcomes = records.history(s.results).set_index("model")["outcome"]
    assert outcomes.to_dict() == dict.fromkeys("ab", "published")


def test_given_models_that_go_on_then_they_are_neither_quarantined_nor_a_failed_night(
    tmp_path: Path,
) -> None:
    """The time of one was over, and a person cancelled the other."""
    kinds, lines = {"big": ("failed", "OutOfTime"), "cut": ("skipped", "Cancelled")}, list[str]()
    s = settings(tmp_path, *kinds)

    def score(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        outcome, kind = kinds[job.model]
        return ended(job, outcome=outcome, kind=kind, message="by a person", scored=620)

    night = nights.run(s, lambda: NOW, lines.append, score, ends())
    assert (night.status, night.exit_code) == ("done", 0)
    assert "".join(lines).count("by a person") == 2
    assert {entries.load(tmp_path, name).state for name in kinds} == {"enabled"}
    rows = records.history(s.results)[["model", "outcome", "kind", "scored"]].values.tolist()
    assert rows == [[name, *kinds[name], 620] for name in kinds]


def test_given_hours_then_the_models_that_they_leave_wait_and_fail_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours, of which the first model takes half and the second more than is left."""
    s = settings(tmp_path, "a", "b", "c", hours=2.0)
    clock, limits = [0.0], dict[str, float]()
    monkeypatch.setattr(nights, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def score(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        limits[job.model] = job.timeout_s
        clock[0] += 3600.0
        if job.model == "a":
            return ended(job, outcome="published", run_id="a-1")
        return ended(job, kind="TimedOut", message="not done within 3600 s")

    night = nights.run(s, lambda: NOW, [].append, score, ends(), steps=())
    assert limits == {"a": 7200.0, "b": 3600.0}
    assert {o.model: (o.outcome, o.kind, o.seconds) for o in night.outcomes} == {
        "a": ("published", "", 3600.0),
        "b": ("failed", "OutOfTime", 3600.0),
        "c": ("skipped", "", 0.0),
    }
    assert {entries.load(tmp_path, name).state for name in "abc"} == {"enabled"}


def test_given_a_night_that_ended_then_its_page_says_how(tmp_path: Path) -> None:
    s, pages = settings(tmp_path), list[str]()

    def step(name: str, options: NightOptions, night: Night) -> records.StepResult:
        if name in ("report", steps.LAST_PAGE):
            command = steps.command(steps.LAST_PAGE, options, night.night)
            ended = CliRunner().invoke(app, command, catch_exceptions=False)
            assert ended.exit_code == 0, ended.output
            pages.append((s.report / "night.html").read_text(encoding="utf-8"))
        return FULL if name == "wandb" else steps.DONE

    nights.run(s, lambda: NOW, [].append, step=step)
    before, after = pages
    assert "scoring ended; publishing was under way" in before and "Ended" not in before
    assert "finished" in after and "Ended" in after and "under way" not in after
    assert f"wandb: {FULL.message}" in after


@pytest.mark.parametrize(
    ("name", "code", "state", "message"),
    [
        ("gate", "print('error: in breach: m: accuracy'); sys.exit(6)", "breach", "m: accuracy"),
        ("report", "sys.exit(6)", "failed", "ended with exit code 6; see "),
        ("report", "time.sleep(600)", "failed", "not done within 2 s; see "),
        ("report", "", "done", ""),
    ],
)
def test_given_the_process_of_a_step_then_it_is_done_a_breach_or_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, state: str, message: str
) -> None:
    monkeypatch.setattr(steps, "CLI", ["python", "-c", f"import sys, time\n{code}"])
    monkeypatch.setattr(steps, "TIMEOUT", 2.0 if "sleep" in code else 600.0)
    s = settings(tmp_path)
    result = steps.do(name, s, tonight(s, NOW))
    assert result.state == state and result.message.startswith(message)


def test_given_a_benchmark_that_passed_its_gate_then_it_is_not_checked_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s, passed, ran = settings(tmp_path, "m"), set[Path](), list[str]()
    monkeypatch.setattr(steps, "has_passed", lambda folder, rules: folder in passed)
    monkeypatch.setattr(steps, "run_step", lambda name, *rest: ran.append(name) or steps.DONE)
    night = tonight(s, NOW, write=False)
    for _ in range(2):
        assert steps.do(steps.CHECK, s, night) == steps.DONE and ran == [steps.CHECK]
        passed.add(s.benchmarks[0])


def test_given_nothing_new_or_nobody_to_tell_then_a_step_is_not_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = settings(tmp_path, night=NIGHT, webhook_env="TEAM_HOOK")
    run(s)
    later = tonight(replace(s, night=LATER), NOW + timedelta(days=1))
    records.begin(s, later, NOW)
    assert not steps.not_due("gate", s, later)
    assert steps.not_due("analyse", s, later) == "nothing was published since the last analysis"
    now = {"night": LATER, "model": "m", "suite": "sdg", "outcome": "published", "attempts": 1}
    store.upsert(s.results, {"night_outcomes": pd.DataFrame([now])})
    assert not steps.not_due("analyse", s, later), "a clock that was set back hides no run"
    store.upsert(s.results, {"night_outcomes": pd.DataFrame([now | {"outcome": "unchanged"}])})
    by_hand = {"run_id": "a-2", "model": "a", "benchmark_id": "b", "suite": "sdg"}
    store.publish(s.results, by_hand | {"finished_at": NOW + timedelta(hours=5)}, {})
    assert not steps.not_due("analyse", s, later)
    monkeypatch.delenv("SDGBIAS_WEBHOOK")
    why = "no webhook address in TEAM_HOOK or SDGBIAS_WEBHOOK"
    assert steps.not_due("announce", s, later) == why
    assert "announce" not in (run(replace(s, night=LATER)).steps or {})
    for variable in ("SDGBIAS_WEBHOOK", "TEAM_HOOK"):
        with monkeypatch.context() as environment:
            environment.setenv(variable, "http://127.0.0.1:9/hook")
            assert not steps.not_due("announce", s, later)
