"""One job in a real process: its outcome, what it sees, and when its time or its night ends."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sdgbias import progress
from sdgbias.nightly import attempt, plan, process
from tests.builders.night_stubs import NOW, PUBLISH, job, settings, stub

SECRETS = ("NIGHT_CHAT", "TEAM_ROOM", plan.WEBHOOK, *attempt.NOT_FOR_MODELS)


def test_given_a_night_that_starts_again_then_what_it_published_is_published(
    tmp_path: Path,
) -> None:
    """Killed after a model's process reported its run, and before the night recorded it."""
    results, one = tmp_path / "r.duckdb", job(tmp_path)
    assert attempt.attempt(one, results, argv=stub(PUBLISH)).outcome == "published"
    unchanged = stub("tell(run_id='m-1', outcome='unchanged')")
    assert attempt.attempt(one, results, argv=unchanged).outcome == "published"
    other = replace(one, log=one.log.with_name("m-people.log"))
    assert attempt.attempt(other, results, argv=unchanged).outcome == "unchanged"
    for run, outcome in (("m-1", "published"), ("m-0", "unchanged")):
        finished = attempt.unchanged(replace(one, run_id=run), NOW)
        assert (finished.outcome, finished.run_id, finished.attempts) == (outcome, run, 0)


def test_given_want_of_memory_then_the_batch_is_halved(tmp_path: Path) -> None:
    one, results = job(tmp_path), tmp_path / "r.duckdb"
    assert "--batch-size" not in attempt.command(one, results, 1)
    ends = ("tell(kind='OutOfMemory', message='no room')", "os.kill(os.getpid(), 9)")
    for number, (code, batch) in enumerate(zip(ends, "42", strict=True), 1):
        attempt.attempt(one, results, number, argv=stub(code))
        command = attempt.command(one, results, number + 1)
        assert command[command.index("--batch-size") + 1] == batch


def test_given_secrets_and_gpus_then_a_model_sees_its_gpu_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
    for name in threads:
        monkeypatch.delenv(name, raising=False)
    for name in SECRETS:
        monkeypatch.setenv(name, "https://chat.example/secret")
    monkeypatch.setenv("HF_TOKEN", "seen")
    (tmp_path / "team.yaml").write_text("webhook: TEAM_ROOM\nrules: []\n")
    s = settings(tmp_path, "m", webhook_env="NIGHT_CHAT", policy=tmp_path / "team.yaml")
    night = plan.tonight(s, NOW)
    [one] = night.jobs
    seen = ("CUDA_VISIBLE_DEVICES", *threads, "SDGBIAS_REGISTRY", "HF_TOKEN")
    code = f"assert not set(os.environ) & {set(SECRETS)!r}, 'leak'; tell(run_id=' '.join("
    code += f"os.environ[name] for name in {seen!r}))"
    outcome = attempt.attempt(replace(one, threads=2), s.results, gpu="3", argv=stub(code))
    assert outcome.run_id == f"3 2 2 {tmp_path} seen"
    assert plan.load(s.results, one.night).jobs == (one,), "as a worker in another pool has it"
    assert one.withheld == SECRETS[:3]
    assert "chat.example" not in (night.folder / "plan.json").read_text()


def test_given_a_night_that_is_ended_then_it_is_no_failure_of_a_model(tmp_path: Path) -> None:
    threading.Timer(0.5, process.stop_all).start()
    try:
        with pytest.raises(process.Stopped):
            attempt.keep_trying(job(tmp_path), tmp_path / "r.duckdb", argv=stub("time.sleep(60)"))
        with pytest.raises(process.Stopped):
            process.pause(60)
    finally:
        process.begin()


def scoring(*steps: int) -> str:
    """Code of a model that comes so far, and stays at the last of them."""
    return (
        "from sdgbias import progress\nwith progress.shown('evaluate'):\n"
        f"    for done in {steps!r}:\n"
        "        progress.update('scoring prompts', done, 1000)\n"
        f"        time.sleep(2 * progress.PERIOD if done < {steps[-1]} else 600)"
    )


def furthest() -> int:
    return max((record.done for record in progress.records()), default=0)


@pytest.mark.parametrize(
    ("code", "seen", "kind", "words"),
    [
        (
            scoring(380, 500, 620),
            620,
            "OutOfTime",
            "62% of prompts (scoring prompts), about 1.6 nights left at 7200 s each",
        ),
        (scoring(380), 380, "TimedOut", "not done within 7200 s; finished prompts are kept"),
    ],
    ids=["it goes on the next night", "it stands still"],
)
def test_given_a_model_whose_time_ends_then_it_goes_on_if_it_came_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, seen: int, kind: str, words: str
) -> None:
    """Its time ends when the last step was seen, however fast the machine is."""
    late = SimpleNamespace(monotonic=lambda: 1e6 * (furthest() == seen))
    monkeypatch.setattr(process, "time", late)
    monkeypatch.setattr(process, "LOOK", 0.02)
    monkeypatch.setattr(process, "GRACE", 0.2)
    one = job(tmp_path, timeout_s=7200.0)
    outcome = attempt.attempt(one, tmp_path / "r.duckdb", argv=stub(code))
    assert outcome.kind == kind and outcome.message.startswith(words)
    goes_on = kind == "OutOfTime"
    assert (outcome.goes_on, outcome.planned) == (goes_on, 1000 * goes_on)
    assert not attempt.worth_another_try(outcome), "the night's other models are waiting"


def test_given_a_person_who_ends_a_model_then_what_is_finished_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOOK", 0.02)
    outcome = attempt.attempt(
        job(tmp_path, timeout_s=600.0),
        tmp_path / "r.duckdb",
        argv=stub(scoring(620)),
        look=lambda: "cancelled" if furthest() == 620 else "",
    )
    assert (outcome.outcome, outcome.kind, outcome.goes_on) == ("skipped", "Cancelled", True)
    assert outcome.message == "cancelled; 620 of 1,000 prompts are kept (scoring prompts)"
    assert outcome.seconds < 300 and not attempt.worth_another_try(outcome)
