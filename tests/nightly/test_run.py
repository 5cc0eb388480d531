"""A whole night with stub models: one bad model never spoils it, whatever it does."""

from __future__ import annotations

import html
import json
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
from sdgbias.cli.night import _dry_run as dry_run
from sdgbias.nightly import attempt, budget, ledger, notify, process, quarantine
from sdgbias.nightly import run as nights
from sdgbias.nightly import steps as finish
from sdgbias.nightly.plan import Job, Night, Settings, name_of, tonight
from sdgbias.registry import entries
from sdgbias.report.build import write_night
from tests.builders.night_stubs import NIGHT, NOW, PUBLISH, by_model, entry, settings

RUN_STEP = finish.run_step
#: Part of the self-check, on an instrument that takes one view for another, as `sdgbias selfcheck
#: --break order`; ends as that does.
BROKEN = """
import sys
from sdgbias import errors, progress
from sdgbias.analysis import selfcheck
from sdgbias.analysis.selfcheck import checks, seeds
from sdgbias.analysis.selfcheck.faults import instrument
size = seeds.Size(tuned=2, plain=40, items=500, draws=50, copies=20)
found = tuple(seeds.checks(size, instrument("order"), 0, progress.silent))
failed = tuple(checks.failed(found))
verdict = selfcheck.SelfcheckVerdict(
    found, failed, (), "small", 0, "b1", True, 0, 0, 0, 2, 40, 0.0, "order"
)
try:
    selfcheck.gate(verdict)
except errors.GateError as error:
    sys.exit(print(f"error: {error}") or error.exit_code)
"""


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, ledger.StepResult]:
    """What each closing step comes to; no command is run for them."""
    told: dict[str, ledger.StepResult] = {}

    def run_step(name: str, settings: Settings, night: Night) -> ledger.StepResult:
        return told.setdefault(name, finish.DONE)

    monkeypatch.setattr(finish, "run_step", run_step)
    return told


def run(
    s: Settings, argv, lines: list[str] | None = None, now: datetime = NOW
) -> nights.NightSummary:  # type: ignore[no-untyped-def]
    hands = nights.Executor(ask=partial(attempt.keep_trying, sleep=lambda seconds: None, argv=argv))
    return nights.run(s, lambda: now, (lines if lines is not None else []).append, hands)


def test_one_bad_model_never_spoils_the_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = settings(tmp_path, "killed", "hung", "garbage", "bug", "fine", jobs=2)
    monkeypatch.setattr(process, "GRACE", 0.2)
    edit = (
        f"pathlib.Path({str(tmp_path)!r}, 'registry/models/garbage.yaml').write_text('name: [');"
        " sys.exit(5)"
    )
    codes = by_model(
        killed="os.kill(os.getpid(), 9)", hung="time.sleep(600)", garbage=edit, fine=PUBLISH, bug=""
    )

    def argv(job: Job, results: Path, number: int) -> Sequence[str]:
        if job.model == "bug":
            raise ZeroDivisionError("in the code around it")
        return codes(job, results, number)

    def ask(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        patient = replace(
            job, timeout_s=1.5 if job.model == "hung" else 600.0
        )  # on a busy machine good models take their time as well
        return attempt.keep_trying(patient, results, device, sleep=lambda seconds: None, argv=argv)

    lines: list[str] = []
    done = nights.run(s, lambda: NOW, lines.append, nights.Executor(ask=ask))
    assert {o.model: o.kind for o in done.outcomes} == {
        "bug": "Unexpected",
        "fine": "",
        "garbage": "ModelError",
        "hung": "TimedOut",
        "killed": "Killed",
    }
    assert (done.status, done.exit_code) == ("done", 0)
    states = {name: spec.state for name, spec in entries.load_readable(tmp_path)[0].items()}
    assert states == {
        "killed": "quarantined",
        "hung": "quarantined",
        "bug": "quarantined",
        "fine": "enabled",
    }
    assert entries.load(tmp_path, "hung").reason.startswith("TimedOut: not done within")
    assert ledger.history(s.results).set_index("model")["outcome"].to_dict()["fine"] == "published"
    assert ledger.status(s.results, NIGHT) == "done" and any(
        "fine: published" in line for line in lines
    )


def test_a_night_that_is_done_is_left_alone(tmp_path: Path) -> None:
    s = settings(tmp_path, "fine", night=NIGHT)
    assert run(s, by_model(fine=PUBLISH)).status == "done"
    again = run(s, by_model(fine="raise SystemExit(1)"))
    assert (again.status, again.exit_code, again.outcomes) == (
        "",
        0,
        (),
    ) and "done already" in again.note


def test_a_second_night_by_hand_in_the_same_minute_is_its_own(tmp_path: Path) -> None:
    s = settings(tmp_path, "fine", timezone="Europe/Berlin")
    first = datetime(2026, 10, 25, 0, 30, 5, tzinfo=UTC)
    for at in (first, first + timedelta(seconds=20)):
        assert run(s, by_model(fine=PUBLISH), now=at).status == "done"
    names = ["2026-10-25T0230", "2026-10-25T0230-2"]
    assert sorted(ledger.nights(s.results)["night"]) == names
    assert sorted(f.name for f in (s.results.parent / "nights").iterdir() if f.is_dir()) == names
    assert name_of(s, first + timedelta(hours=1)) == "2026-10-25T0230-3", (
        "the clock was set back: 02:30 stands twice"
    )
    due = replace(s, scheduled_for=first, cron="30 2 * * *")
    for named in (due, replace(s, night=names[1])):
        assert "done already" in run(named, by_model(fine="raise SystemExit(1)"), now=first).note, (
            "one that was named is that one"
        )
    store.upsert(
        s.results,
        {"nights": ledger.nights(s.results).query("night == @names[1]").assign(status="running")},
    )
    ledger.recover(s.results, "2026-10-26T0230")
    assert ledger.status(s.results, names[1]) == "done", "its folder is known as that of a night"


def test_nobody_good_is_a_failed_night(tmp_path: Path) -> None:
    done = run(
        settings(tmp_path, "busy"), by_model(busy="tell(error='Busy', message='held by another')")
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


def failed(message: str) -> ledger.StepResult:
    return ledger.StepResult("failed", message)


def test_what_the_steps_come_to_is_the_exit_code(
    tmp_path: Path, steps: dict[str, ledger.StepResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDGBIAS_WEBHOOK", "http://127.0.0.1:9/hook")
    steps.update(analyse=failed("no space"), gate=ledger.StepResult("breach", "fine: accuracy"))
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
        ({"gate": ledger.StepResult("breach", "in other words")}, 6),
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
    assert ledger.history(s.results)[["model", "outcome", "run_id"]].values.tolist() == [
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
    tmp_path: Path, steps: dict[str, ledger.StepResult]
) -> None:
    steps["benchmark"] = failed("items_mcq: rule unique-ids broken")
    done = run(settings(tmp_path, "fine"), by_model(fine="raise SystemExit(1)"))
    assert (done.status, done.exit_code, done.outcomes) == ("failed", 8, ())
    assert entries.load(tmp_path, "fine").state == "enabled"


def test_the_suites_of_a_model_follow_each_other_and_share_a_verdict(tmp_path: Path) -> None:
    from tests.builders.night_stubs import entry, job

    s = settings(tmp_path, jobs=2)
    s = replace(s, benchmarks=(*s.benchmarks, tmp_path / "people"))
    entry(tmp_path, "m", options={"suites": ["sdg", "people"]})
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "benchmark.json").write_text('{"benchmark_id": "p1", "suite": "people"}')
    lock = tmp_path / "one"
    code = f"p = pathlib.Path({str(lock)!r}); p.mkdir(); time.sleep(0.3); p.rmdir(); " + PUBLISH
    done = run(s, by_model(m=code))
    assert [(o.suite, o.outcome) for o in done.outcomes] == [
        ("people", "published"),
        ("sdg", "published"),
    ]
    assert job(tmp_path, "m", suite="people").name == "m (people)"


def test_an_interrupted_night_is_marked_and_goes_on(tmp_path: Path) -> None:
    s = settings(tmp_path, "a", "b", night=NIGHT)

    def stop(job: Job, results: Path, number: int) -> Sequence[str]:
        if job.model == "b":
            raise KeyboardInterrupt
        return by_model(a=PUBLISH)(job, results, number)

    with pytest.raises(KeyboardInterrupt):
        run(s, stop)
    assert ledger.status(s.results, NIGHT) == "interrupted"
    assert ledger.history(s.results)[["model", "outcome"]].values.tolist() == [["a", "published"]]
    assert run(s, by_model(a="tell(run_id='a-1', published=False)", b=PUBLISH)).status == "done"
    assert ledger.history(s.results)[["model", "outcome"]].values.tolist() == [
        ["a", "published"],
        ["b", "published"],
    ]


def test_analysis_waits_for_something_new(tmp_path: Path) -> None:
    s = settings(tmp_path, "a", night=NIGHT)
    run(s, by_model(a=PUBLISH))
    later = tonight(replace(s, night="2026-11-22T0130"), NOW + timedelta(days=1))
    ledger.begin(s, later, NOW)
    assert not finish.not_due("gate", s, later)
    assert finish.not_due("analyse", s, later) == "nothing was published since the last analysis"
    new = attempt.JobOutcome("a", "sdg", "published", run_id="a-2", night=later.night)
    ledger.record(later, [new])
    assert ledger.ingest(s.results, later) == ""
    assert not finish.not_due("analyse", s, later)
    assert quarantine.failures(ledger.history(s.results, "a")) == 0


@pytest.mark.parametrize(("outcome", "kind"), [("failed", "OutOfTime"), ("skipped", "Cancelled")])
def test_a_model_that_goes_on_is_neither_quarantined_nor_a_failed_night(
    tmp_path: Path, outcome: str, kind: str
) -> None:
    """Its time was over, or a person cancelled it."""
    s = settings(tmp_path, "big")
    told: list[str] = []

    def ask(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        blank = attempt._blank(job, NOW, 1)
        made = replace(blank, outcome=outcome, kind=kind, message="by a person")
        return replace(made, scored=620, planned=1000)

    done = nights.run(s, lambda: NOW, told.append, nights.Executor(ask=ask))
    assert (done.status, done.exit_code) == ("done", 0)
    assert "by a person" in "".join(told)
    assert entries.load(tmp_path, "big").state == "enabled"
    [row] = ledger.history(s.results).to_dict("records")
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
        made = attempt._blank(job, NOW, 1)
        if job.model == "a":
            return replace(made, outcome="published", run_id="a-1")
        return replace(made, kind="TimedOut", message="not done within 3600 s")

    done = nights.run(s, lambda: NOW, [].append, nights.Executor(ask=ask), steps=())
    assert limits == {"a": 7200.0, "b": 3600.0}
    assert {o.model: (o.outcome, o.kind) for o in done.outcomes} == {
        "a": ("published", ""),
        "b": ("failed", "OutOfTime"),
        "c": ("skipped", ""),
    }
    assert {
        n: spec.state for n, spec in entries.load_readable(tmp_path)[0].items()
    } == dict.fromkeys("abc", "enabled")


def test_what_the_nights_gpu_hours_leave_goes_on_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two nights of 9 GPU hours on a simulated host of eight GPUs, one model at a time: `a` takes
    one hour of 2 GPUs, `b` three hours of 4, `c` one hour of 1. The first night was killed after
    one GPU hour."""
    monkeypatch.setenv("SDGBIAS_GPUS", "8x80")
    monkeypatch.setenv("SDGBIAS_GPU_LOCKS", str(tmp_path / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    s = settings(tmp_path, gpu_hours=9.0, jobs=1)
    earlier = s.results.parent / "nights" / NIGHT / "night.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_text('{"gpu_seconds": 3600}')
    for name, size in (("a", 2), ("b", 4), ("c", 1)):
        options = {"tensor_parallel_size": size}
        entry(tmp_path, name, backend="vllm", repo="o/m", revision="0" * 40, options=options)
    clock, left = [0.0], {"a": 3600.0, "b": 3 * 3600.0, "c": 3600.0}
    monkeypatch.setattr(nights, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def ask(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        assert device and len(device.split(",")) == job.need.gpus
        took = min(left[job.model], job.timeout_s)
        clock[0] += took
        left[job.model] -= took
        made = replace(attempt._blank(job, NOW, 1), seconds=took)
        if left[job.model]:
            return replace(made, kind="TimedOut", scored=50, planned=100)
        return replace(made, outcome="published", run_id=f"{job.model}-1")

    def night(now: datetime, **more: object) -> dict[str, attempt.JobOutcome]:
        its = replace(s, **more)  # type: ignore[arg-type]
        done = nights.run(its, lambda: now, [].append, nights.Executor(ask=ask), steps=())
        assert done.status == "done"
        return {o.model: o for o in done.outcomes}

    first = night(NOW)
    assert {m: (o.outcome, o.kind, o.seconds) for m, o in first.items()} == {
        "a": ("published", "", 3600.0),
        "b": ("failed", "OutOfTime", 5400.0),  # (9 - 1 - 2) / 4 GPUs = 1.5 hours
        "c": ("skipped", "", 0.0),
    }
    over = "the night's GPU hours were over (9 of 9); it is among the first of the next night;"
    assert first["c"].message == f"{over} more: --gpu-hours"
    assert json.loads(earlier.read_text())["gpu_seconds"] == 9 * 3600

    second = NOW + timedelta(days=1)
    dry_run(replace(s, scheduled_for=second, gpu_hours=2.0), as_json=False)
    said = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert said["b"].endswith(
        "50% of its prompts are stored; may wait: those before it took 2 of 2 GPU hours"
    )
    again = night(second, models=("b", "c"))
    assert {m: (o.outcome, o.seconds) for m, o in again.items()} == {
        "b": ("published", 5400.0),
        "c": ("published", 3600.0),
    }


def test_models_at_work_share_what_is_left_of_the_gpu_hours() -> None:
    night = budget.Budget(hours=100.0, gpu_hours=80.0, used=8.0)
    night.start("tp4", 4, 0.0)
    night.start("api", 0, 0.0)
    assert night.seconds("tp4", 0.0) == 18.0 and night.seconds("api", 0.0) == 100.0
    night.start("two", 2, 10.0)
    assert night.gpu_seconds(10.0) == 48.0
    assert night.seconds("two", 10.0) == pytest.approx(32 / 6)
    night.end("tp4", 12.0)
    assert night.gpu_seconds(13.0) == 8.0 + 48.0 + 6.0 and not night.over(1, 13.0)
    assert night.over(1, 22.0) and not night.over(0, 99.0) and night.over(0, 100.0)
