"""A whole night with stub models and stub steps: its name, its end, its exit code, its order."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

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


def run(s: NightOptions, argv, now: datetime = NOW, step: Step = ends()) -> nights.NightSummary:  # type: ignore[no-untyped-def]
    score = partial(attempt.keep_trying, sleep=lambda seconds: None, argv=argv)
    return nights.run(s, lambda: now, [].append, score, step)


def test_given_two_nights_by_hand_in_a_minute_then_each_has_a_name(tmp_path: Path) -> None:
    s = settings(tmp_path, "fine", timezone="Europe/Berlin")
    first = datetime(2026, 10, 25, 0, 30, 5, tzinfo=UTC)
    for at in (first, first + timedelta(seconds=20)):
        assert run(s, by_model(fine=PUBLISH), at).status == "done"
    names = ["2026-10-25T0230", "2026-10-25T0230-2"]
    assert [records.status(s.results, name) for name in names] == ["done", "done"]
    assert sorted(f.name for f in (s.results.parent / "nights").iterdir() if f.is_dir()) == names
    again = first + timedelta(hours=1)  # the clock was set back: 02:30 stands twice
    assert name_of(s, again) == "2026-10-25T0230-3"
    due = replace(s, scheduled_for=first.isoformat(), cron="30 2 * * *")
    for named in (due, replace(s, night=names[1])):
        finished = run(named, by_model(fine="raise SystemExit(1)"), first)
        assert "done already" in finished.note, "one that was named is that one"
        assert (finished.status, finished.exit_code, finished.outcomes) == ("", 0, ())


def test_given_no_good_model_then_the_night_failed_and_without_any_it_did_not(
    tmp_path: Path,
) -> None:
    s = settings(tmp_path, "busy")
    failed = run(s, by_model(busy="tell(kind='Busy', message='held by another')"))
    assert (failed.status, failed.exit_code) == ("failed", 8)
    (tmp_path / "registry/models/busy.yaml").unlink()
    nobody = run(replace(s, night=LATER), by_model())
    assert (nobody.status, nobody.exit_code, nobody.outcomes) == ("done", 0, ())


def test_given_a_benchmark_that_fails_its_gate_then_no_model_is_asked(tmp_path: Path) -> None:
    broken = records.StepResult("failed", "items_mcq: rule unique-ids broken")
    night = run(
        settings(tmp_path, "m"), by_model(m="raise SystemExit(1)"), step=ends(benchmark=broken)
    )
    assert (night.status, night.exit_code, night.outcomes) == ("failed", 8, ())
    assert entries.load(tmp_path, "m").state == "enabled"


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
    s = settings(tmp_path, "m", selfcheck=True)
    night = run(s, by_model(m=PUBLISH), step=ends(**results))
    assert (night.status, night.exit_code) == ("done", code)
    order = [steps.CHECK, "analyse", steps.SELFCHECK, *steps.STEPS[1:]]
    assert night.steps == {name: results.get(name, steps.DONE) for name in order}
    assert list(night.steps or {}) == order, "a failed step stops none"
    assert replace(night, steps={}, unsaved="locked").exit_code == 8


def test_given_two_suites_then_a_model_is_asked_them_one_after_the_other(tmp_path: Path) -> None:
    s = settings(tmp_path, jobs=2)
    people = tmp_path / "people"
    people.mkdir()
    (people / "benchmark.json").write_text('{"benchmark_id": "p1", "suite": "people"}')
    entry(tmp_path, "m", options={"suites": ["sdg", "people"]})
    lock = tmp_path / "one"
    code = f"p = pathlib.Path({str(lock)!r}); p.mkdir(); time.sleep(0.3); p.rmdir(); {PUBLISH}"
    night = run(replace(s, benchmark=[*s.benchmarks, people]), by_model(m=code))
    outcomes = {o.suite: o.outcome for o in night.outcomes}
    assert outcomes == dict.fromkeys(("people", "sdg"), "published")


def test_given_an_interrupted_night_then_it_is_marked_and_goes_on(tmp_path: Path) -> None:
    s = settings(tmp_path, "a", "b", night=NIGHT)

    def stop(job: Job, results: Path, number: int) -> Sequence[str]:
        if job.model == "b":
            raise KeyboardInterrupt
        return by_model(a=PUBLISH)(job, results, number)

    with pytest.raises(KeyboardInterrupt):
        run(s, stop)
    assert records.status(s.results, NIGHT) == "interrupted"
    assert records.history(s.results)[["model", "outcome"]].values.tolist() == [["a", "published"]]
    assert run(s, by_model(a="tell(run_id='a-1', outcome='unchanged')", b=PUBLISH)).status == "done"
    outcomes = records.history(s.results).set_index("model")["outcome"]
    assert outcomes.to_dict() == dict.fromkeys("ab", "published")


def test_given_ctrl_c_then_the_running_model_is_ended(tmp_path: Path) -> None:
    s, started = settings(tmp_path, "a", night=NIGHT), tmp_path / "started"

    def interrupt() -> None:
        while not started.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    # a shell's background processes inherit that Ctrl-C is ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(s, by_model(a=f"pathlib.Path({str(started)!r}).touch(); time.sleep(30)"))
    finally:
        signal.signal(signal.SIGINT, before)

    assert records.status(s.results, NIGHT) == "interrupted"
    assert records.history(s.results).empty, "its process was waited for"


@pytest.mark.parametrize(("outcome", "kind"), [("failed", "OutOfTime"), ("skipped", "Cancelled")])
def test_given_a_model_that_goes_on_then_it_is_neither_quarantined_nor_a_failed_night(
    tmp_path: Path, outcome: str, kind: str
) -> None:
    """Its time was over, or a person cancelled it."""
    s, lines = settings(tmp_path, "big"), list[str]()
    ended = {"outcome": outcome, "kind": kind, "message": "by a person"}

    def score(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        return attempt.outcome_of(job, NOW, attempts=1, **ended, scored=620, planned=1000)

    night = nights.run(s, lambda: NOW, lines.append, score, ends())
    assert (night.status, night.exit_code) == ("done", 0)
    assert "by a person" in "".join(lines)
    assert entries.load(tmp_path, "big").state == "enabled"
    [row] = records.history(s.results).to_dict("records")
    columns = ("outcome", "kind", "scored", "planned")
    assert [row[name] for name in columns] == [outcome, kind, 620, 1000]


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
            return attempt.outcome_of(job, NOW, outcome="published", run_id="a-1")
        return attempt.outcome_of(job, NOW, kind="TimedOut", message="not done within 3600 s")

    night = nights.run(s, lambda: NOW, [].append, score, ends(), steps=())
    assert limits == {"a": 7200.0, "b": 3600.0}
    assert {o.model: o.seconds for o in night.outcomes} == {"a": 3600.0, "b": 3600.0, "c": 0.0}
    outcomes = {o.model: (o.outcome, o.kind) for o in night.outcomes}
    assert outcomes == {"a": ("published", ""), "b": ("failed", "OutOfTime"), "c": ("skipped", "")}
    assert {entries.load(tmp_path, name).state for name in "abc"} == {"enabled"}


def test_given_closing_steps_then_each_knows_how_those_before_it_ended(tmp_path: Path) -> None:
    recorded: dict[str, dict[str, str]] = {}
    s, lines = settings(tmp_path), list[str]()

    def step(name: str, options: NightOptions, night: Night) -> records.StepResult:
        row = night_files.read(options.results, "nights", {"night": night.night})
        recorded[name] = row["steps"]
        return FULL if name == "report" else steps.DONE

    night = nights.run(s, lambda: NOW, lines.append, step=step)
    order = [steps.CHECK, *steps.STEPS]
    assert list(recorded) == [*order, steps.LAST_PAGE] and list(night.steps or {}) == order
    ends = dict.fromkeys(order, "done") | {"report": FULL.message}
    for at, name in enumerate(order[1:], 1):
        assert recorded[name] == {before: ends[before] for before in order[:at]}
    assert [line.split(":")[0] for line in lines] == list(steps.STEPS)


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
        ("gate", "print('error: m: accuracy'); sys.exit(6)", "breach", "m: accuracy"),
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
    ended = steps.do(name, s, tonight(s, NOW))
    assert ended.state == state and ended.message.startswith(message)


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
    s = settings(tmp_path, "a", night=NIGHT, webhook_env="TEAM_HOOK")
    run(s, by_model(a=PUBLISH))
    later = tonight(replace(s, night=LATER), NOW + timedelta(days=1))
    records.begin(s, later, NOW)
    assert not steps.not_due("gate", s, later)
    assert steps.not_due("analyse", s, later) == "nothing was published since the last analysis"
    by_hand = {"run_id": "a-2", "model": "a", "benchmark_id": "b", "suite": "sdg"}
    store.publish(s.results, by_hand | {"finished_at": NOW + timedelta(hours=5)}, {})
    assert not steps.not_due("analyse", s, later)
    monkeypatch.delenv("SDGBIAS_WEBHOOK")
    why = "no webhook address in TEAM_HOOK or SDGBIAS_WEBHOOK"
    assert steps.not_due("announce", s, later) == why
    assert "announce" not in (run(replace(s, night=LATER), by_model(a=PUBLISH)).steps or {})
    for variable in ("SDGBIAS_WEBHOOK", "TEAM_HOOK"):
        with monkeypatch.context() as environment:
            environment.setenv(variable, "http://127.0.0.1:9/hook")
            assert not steps.not_due("announce", s, later)
