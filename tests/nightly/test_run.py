"""A whole night with stub models: one bad model never spoils it, whatever it does."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from sdgbias import store
from sdgbias.analysis.nights import load
from sdgbias.nightly import attempt, notify, records
from sdgbias.nightly import run as nights
from sdgbias.nightly import steps as finish
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import Job, Night, name_of, tonight
from sdgbias.registry import entries
from sdgbias.report.build import write_night
from tests.builders.night_stubs import NIGHT, NOW, PUBLISH, by_model, entry, settings

RUN_STEP = finish.run_step
#: A self-check with one failed check; ends as the command does.
BROKEN = """
import sys
from sdgbias import errors
from sdgbias.analysis import selfcheck
from sdgbias.analysis.selfcheck.checks import Check
bad = (Check("prior", "context term alone", 0.7, 0.4, 100, 0.3, 0.5, 0.0),)
verdict = selfcheck.SelfcheckVerdict(bad, bad, (), "small", 0, "b1", True, 0, 0, 0, 0.0)
try:
    selfcheck.gate(verdict)
except errors.SelfcheckFailed as error:
    sys.exit(print(f"error: {error}") or error.exit_code)
"""


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, records.StepResult]:
    """What each closing step comes to; no command is run for them."""
    told: dict[str, records.StepResult] = {}

    def run_step(name: str, settings: NightOptions, night: Night) -> records.StepResult:
        return told.setdefault(name, finish.DONE)

    monkeypatch.setattr(finish, "run_step", run_step)
    return told


def run(
    s: NightOptions, argv, lines: list[str] | None = None, now: datetime = NOW
) -> nights.NightSummary:  # type: ignore[no-untyped-def]
    score = partial(attempt.keep_trying, sleep=lambda seconds: None, argv=argv)
    return nights.run(s, lambda: now, (lines if lines is not None else []).append, score)


def test_a_second_night_by_hand_in_the_same_minute_is_its_own(tmp_path: Path) -> None:
    s = settings(tmp_path, "fine", timezone="Europe/Berlin")
    first = datetime(2026, 10, 25, 0, 30, 5, tzinfo=UTC)
    for at in (first, first + timedelta(seconds=20)):
        assert run(s, by_model(fine=PUBLISH), now=at).status == "done"
    names = ["2026-10-25T0230", "2026-10-25T0230-2"]
    assert sorted(records.nights(s.results)["night"]) == names
    assert sorted(f.name for f in (s.results.parent / "nights").iterdir() if f.is_dir()) == names
    assert name_of(s, first + timedelta(hours=1)) == "2026-10-25T0230-3", (
        "the clock was set back: 02:30 stands twice"
    )
    due = replace(s, scheduled_for=first.isoformat(), cron="30 2 * * *")
    for named in (due, replace(s, night=names[1])):
        again = run(named, by_model(fine="raise SystemExit(1)"), now=first)
        assert "done already" in again.note, "one that was named is that one"
        assert (again.status, again.exit_code, again.outcomes) == ("", 0, ())


def test_nobody_good_is_a_failed_night(tmp_path: Path) -> None:
    done = run(
        settings(tmp_path, "busy"), by_model(busy="tell(kind='Busy', message='held by another')")
    )
    assert (done.status, done.exit_code) == ("failed", 8)
    assert done.outcomes[0].attempts == 5
    assert entries.load(tmp_path, "busy").state == "enabled"


def test_a_broken_entry_is_a_failure_of_the_night_and_nobody_is_due_is_none(tmp_path: Path) -> None:
    s = settings(tmp_path, "fine", "torn")
    (tmp_path / "registry/models/torn.yaml").write_text("name: [")
    done = run(s, by_model(fine=PUBLISH))
    assert {o.model: (o.outcome, o.kind) for o in done.outcomes} == {
        "torn": ("failed", "RegistryError"),
        "fine": ("published", ""),
    }
    for path in (tmp_path / "registry/models").iterdir():
        path.unlink()
    nobody = run(replace(s, night="2026-11-22T0130"), by_model())
    assert (nobody.status, nobody.exit_code, nobody.outcomes) == ("done", 0, ())


def failed(message: str) -> records.StepResult:
    return records.StepResult("failed", message)


def test_what_the_steps_come_to_is_the_exit_code(
    tmp_path: Path, steps: dict[str, records.StepResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDGBIAS_WEBHOOK", "http://127.0.0.1:9/hook")
    steps.update(analyse=failed("no space"), gate=records.StepResult("breach", "fine: accuracy"))
    done = run(settings(tmp_path, "fine"), by_model(fine=PUBLISH))
    assert done.exit_code == 6 and list(done.steps or {}) == [
        "benchmark",
        *finish.STEPS,
    ], "a failed step stops none"
    for said, code in (
        ({"report": failed("disk full")}, 8),
        ({"announce": failed("no answer")}, 0),
        ({"wandb": failed("done")}, 0),
        ({"gate": failed("breach: a sentence decides nothing")}, 8),
        ({"gate": records.StepResult("breach", "in other words")}, 6),
    ):
        assert replace(done, steps=said).exit_code == code
    assert replace(done, steps={}, unsaved="locked").exit_code == 8


def test_a_failed_selfcheck_is_told_and_the_results_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = finish.run_step
    monkeypatch.setattr(finish, "CLI", [sys.executable, "-c", BROKEN])
    monkeypatch.setattr(
        finish,
        "run_step",
        lambda name, *rest: (RUN_STEP if name == finish.SELFCHECK else steps)(name, *rest),
    )
    s, lines = settings(tmp_path, "fine", selfcheck=True), []  # type: ignore[var-annotated]
    done = run(s, by_model(fine=PUBLISH), lines)
    said = str((done.steps or {})[finish.SELFCHECK])
    assert re.match(
        r"self-check: \d+ of \d+ checks failed: .*context term.*; trust no figure", said
    ), said
    assert (done.status, done.exit_code) == ("done", 8) and {*done.steps} == {
        "benchmark",
        finish.SELFCHECK,
        *finish.STEPS,
    } - {"announce"}
    assert any(line.startswith(f"selfcheck: {said}") for line in lines)
    assert records.history(s.results)[["model", "outcome", "run_id"]].values.tolist() == [
        ["fine", "published", "fine-1"]
    ]
    night = load(s.results)
    assert night is not None
    message = notify.message(night)
    for told in (
        message,
        html.unescape(write_night(s.results, tmp_path / "page").read_text(encoding="utf-8")),
    ):
        assert said[:200] in told
    assert "Steps that failed:\n• selfcheck: " in message


def test_a_benchmark_that_fails_its_gate_is_asked_of_nobody(
    tmp_path: Path, steps: dict[str, records.StepResult]
) -> None:
    steps["benchmark"] = failed("items_mcq: rule unique-ids broken")
    done = run(settings(tmp_path, "fine"), by_model(fine="raise SystemExit(1)"))
    assert (done.status, done.exit_code, done.outcomes) == ("failed", 8, ())
    assert entries.load(tmp_path, "fine").state == "enabled"


def test_the_suites_of_a_model_follow_each_other_and_share_a_verdict(tmp_path: Path) -> None:
    from tests.builders.night_stubs import job

    s = settings(tmp_path, jobs=2)
    s = replace(s, benchmark=[*s.benchmarks, tmp_path / "people"])
    entry(tmp_path, "m", options={"suites": ["sdg", "people"]})
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "benchmark.json").write_text('{"benchmark_id": "p1", "suite": "people"}')
    lock = tmp_path / "one"
    code = f"p = pathlib.Path({str(lock)!r}); p.mkdir(); time.sleep(0.3); p.rmdir(); " + PUBLISH
    done = run(s, by_model(m=code))
    outcomes = {o.suite: o.outcome for o in done.outcomes}
    assert outcomes == dict.fromkeys(("people", "sdg"), "published")
    assert job(tmp_path, "m", suite="people").name == "m (people)"


def test_an_interrupted_night_is_marked_and_goes_on(tmp_path: Path) -> None:
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


def test_analysis_waits_for_something_new(tmp_path: Path) -> None:
    s = settings(tmp_path, "a", night=NIGHT)
    run(s, by_model(a=PUBLISH))
    later = tonight(replace(s, night="2026-11-22T0130"), NOW + timedelta(days=1))
    records.begin(s, later, NOW)
    assert not finish.not_due("gate", s, later)
    assert finish.not_due("analyse", s, later) == "nothing was published since the last analysis"
    by_hand = {"run_id": "a-2", "model": "a", "benchmark_id": "b", "suite": "sdg"}
    store.publish(s.results, by_hand | {"finished_at": NOW + timedelta(hours=5)}, {})
    assert not finish.not_due("analyse", s, later)


@pytest.mark.parametrize(("outcome", "kind"), [("failed", "OutOfTime"), ("skipped", "Cancelled")])
def test_a_model_that_goes_on_is_neither_quarantined_nor_a_failed_night(
    tmp_path: Path, outcome: str, kind: str
) -> None:
    """Its time was over, or a person cancelled it."""
    s = settings(tmp_path, "big")
    told: list[str] = []

    def ask(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        blank = attempt.outcome_of(job, NOW, attempts=1)
        made = replace(blank, outcome=outcome, kind=kind, message="by a person")
        return replace(made, scored=620, planned=1000)

    done = nights.run(s, lambda: NOW, told.append, ask)
    assert (done.status, done.exit_code) == ("done", 0)
    assert "by a person" in "".join(told)
    assert entries.load(tmp_path, "big").state == "enabled"
    [row] = records.history(s.results).to_dict("records")
    found = [row[name] for name in ("outcome", "kind", "scored", "planned")]
    assert found == [outcome, kind, 620, 1000]


def test_what_the_nights_hours_leave_waits_and_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours, of which the first model takes half and the second more than is left."""
    s = settings(tmp_path, "a", "b", "c", hours=2.0)
    clock = [0.0]
    limits: dict[str, float] = {}
    monkeypatch.setattr(nights, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def ask(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        limits[job.model] = job.timeout_s
        clock[0] += 3600.0
        made = attempt.outcome_of(job, NOW, attempts=1)
        if job.model == "a":
            return replace(made, outcome="published", run_id="a-1")
        return replace(made, kind="TimedOut", message="not done within 3600 s")

    done = nights.run(s, lambda: NOW, [].append, ask, steps=())
    assert limits == {"a": 7200.0, "b": 3600.0}
    assert {o.model: (o.outcome, o.kind) for o in done.outcomes} == {
        "a": ("published", ""),
        "b": ("failed", "OutOfTime"),
        "c": ("skipped", ""),
    }
    assert {entries.load(tmp_path, name).state for name in "abc"} == {"enabled"}
