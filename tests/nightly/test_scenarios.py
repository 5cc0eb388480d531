"""Nights in real processes with a model that ends in every way: what is made of it, how often it is
tried, and that the model beside it is published. What else can happen to a night's processes:
test_supervisor.py; to its clock and its neighbours: test_schedule.py, test_records.py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sdgbias.errors import RegistryError
from sdgbias.nightly import attempt, process, records, steps
from sdgbias.nightly import run as nights
from sdgbias.nightly.plan import Job
from sdgbias.registry import entries
from tests.builders.night_stubs import NIGHT, NOW, PUBLISH, by_model, settings
from tests.builders.processes import end

ENABLED, QUARANTINED, BROKEN = "enabled", "quarantined", "broken"


@dataclass(frozen=True)
class Scenario:
    """code: of the model's process; kind, words: of its outcome; tries: attempts in all; state: of
    its registry entry afterwards; seconds: its time limit."""

    code: str
    kind: str
    words: str
    tries: int = 1
    state: str = QUARANTINED
    seconds: float = 600.0


#: A real watchdog over an engine that never answers.
HANGS = """
from sdgbias.nightly import process
from sdgbias.scoring.scorer import Watchdog
with process.report_outcome(out):
    dog = Watchdog(pathlib.Path(str(out) + ".note"), 0.2, None)
    with dog.on_duty(lambda: None), dog.watching(["a", "b"]):
        time.sleep(600)
"""
EATS_MEMORY = """
from sdgbias.nightly import process
with process.report_outcome(out):
    bytearray(1 << 62)
"""
IGNORES_ITS_END = """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)
time.sleep(600)
"""
SECRETS = (
    "tell(kind='ModelError', message='a\\n correct-horse-battery hf_0123456789abcdefghij"
    " Bearer abcdefghijk ' + 'x' * 900)"
)
SCENARIOS = {
    "killed": Scenario("os.kill(os.getpid(), 9)", "Killed", "SIGKILL (perhaps for want of", 2),
    "aborted": Scenario("os.abort()", "Killed", "SIGABRT", 2),
    "crashed in native code": Scenario(
        "import faulthandler, numpy; faulthandler.enable(); faulthandler._sigsegv()",
        "Killed",
        "ended by SIGSEGV; its last words: Fatal Python error: Segmentation fault",
        2,
    ),
    "past its time": Scenario(IGNORES_ITS_END, "TimedOut", "not done within 5 s", 1, seconds=5.0),
    "an engine that hangs": Scenario(
        HANGS, "InfrastructureError", "on 2 prompt(s), the first a", 2
    ),
    "out of memory": Scenario(EATS_MEMORY, "OutOfMemory", "out of memory", 2),
    "a gated repository": Scenario(
        "tell(kind='Gated', message='m: owner/m is gated'); sys.exit(8)",
        "Gated",
        "owner/m is gated",
    ),
    "exit code of the infrastructure": Scenario(
        "print('error: no answer for 3 s'); os._exit(8)", "InfrastructureError", "for 3 s", 2
    ),
    "exit code of a model": Scenario(
        "print('error: no token for A'); sys.exit(5)", "ModelError", "no token for A"
    ),
    "a full disk": Scenario(
        "print('error: r.duckdb: No space left on device'); sys.exit(7)",
        "StoreError",
        "No space left",
        2,
        ENABLED,
    ),
    "a results file that is busy": Scenario(
        "tell(kind='Busy', message='held by another')", "Busy", "held by another", 5, ENABLED
    ),
    "a traceback": Scenario("{}['x']", "Unexpected", "KeyError: 'x'", 2),
    "half an outcome": Scenario("out.write_text('{')", "Unexpected", "exit code 0", 2),
    "secrets in a message": Scenario(SECRETS, "ModelError", "a *** *** Bearer *** xxx"),
    "an entry that is broken meanwhile": Scenario(
        "pathlib.Path(os.environ['SDGBIAS_REGISTRY'], 'registry/models/bad.yaml')"
        ".write_text('name: ['); sys.exit(5)",
        "ModelError",
        "exit code 5",
        state=BROKEN,
    ),
    "a fault in the code around it": Scenario("", "Unexpected", "ZeroDivisionError: around it", 1),
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_given_a_bad_model_then_the_night_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: Scenario
) -> None:
    monkeypatch.setattr(steps, "run_step", lambda *step: steps.DONE)
    monkeypatch.setenv("SOME_API_KEY", "correct-horse-battery")
    monkeypatch.setattr(process, "GRACE", 0.2)
    codes = by_model(bad=scenario.code, good=PUBLISH)

    def argv(job: Job, results: Path, number: int) -> Sequence[str]:
        if job.model == "bad" and not scenario.code:
            raise ZeroDivisionError("around it")
        return codes(job, results, number)

    def score(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        limited = replace(job, timeout_s=scenario.seconds if job.model == "bad" else 600.0)
        sleep = waits.append if job.model == "bad" else [].append
        return attempt.keep_trying(limited, results, device, sleep, argv)

    waits: list[float] = []
    s = settings(tmp_path, "bad", "good", jobs=2)
    done = nights.run(s, lambda: NOW, [].append, score, steps=("gate",))
    outcomes = {outcome.model: outcome for outcome in done.outcomes}
    bad = outcomes["bad"]
    assert (bad.outcome, bad.kind, bad.attempts) == ("failed", scenario.kind, scenario.tries)
    assert waits == [10.0, 20.0, 30.0, 30.0][: scenario.tries - 1]
    assert scenario.words in bad.message and len(bad.message) <= 500 and "\n" not in bad.message
    assert outcomes["good"].outcome == "published" and done.exit_code == 0
    assert records.status(s.results, NIGHT) == records.DONE
    assert _state(tmp_path) == scenario.state
    if scenario.code == IGNORES_ITS_END:
        log = (s.results.parent / bad.log).read_text()
        [left] = re.findall(r"^\d+$", log, re.MULTILINE)
        assert end([int(left)]), "a process that it started lives on"


def _state(root: Path) -> str:
    try:
        return str(entries.load(root, "bad").state)
    except RegistryError:
        return BROKEN
