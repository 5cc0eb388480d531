"""One night in real processes with models that end in every way: what each comes to, how often it
is tried, and that the model beside them is published. What else can happen to a night's processes:
test_supervisor.py; to its clock and its neighbours: test_schedule.py, test_records.py."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sdgbias.errors import RegistryError
from sdgbias.nightly import attempt, process, records, steps
from sdgbias.nightly import run as nights
from sdgbias.nightly.plan import Job
from sdgbias.registry import entries
from tests.builders.night_stubs import NIGHT, NOW, PUBLISH, settings, stub
from tests.builders.processes import end

ENABLED, QUARANTINED, BROKEN = "enabled", "quarantined", "broken"


@dataclass(frozen=True)
class Scenario:
    """code: of the model's process, '' for an error in the code around it, None for an unreadable
    registry entry; kind, words: of its outcome; tries: attempts in all; state: of its registry
    entry afterwards; seconds: its time limit."""

    code: str | None
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
NATIVE = "import faulthandler, numpy, os; faulthandler.enable(); os.kill(os.getpid(), 11)"
IGNORES_ITS_END = """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)
time.sleep(600)
"""
SECRETS = (
    "tell(kind='ModelError', message='a\\n correct-horse-battery ordinary-words"
    " hf_0123456789abcdefghij Bearer abcdefghijk ' + 'x' * 900)"
)
BREAKS_ITS_ENTRY = (
    "pathlib.Path(os.environ['SDGBIAS_REGISTRY'], 'registry/models', sys.argv[2] + '.yaml')"
    ".write_text('name: ['); sys.exit(5)"
)
GATED = "tell(kind='Gated', message='m: owner/m is gated'); sys.exit(8)"
BUSY = "tell(kind='Busy', message='held by another')"
SCENARIOS = {
    "killed": Scenario("os.kill(os.getpid(), 9)", "Killed", "SIGKILL (perhaps for want of", 2),
    "aborted": Scenario("os.abort()", "Killed", "SIGABRT", 2),
    "native-code": Scenario(NATIVE, "Killed", "SIGSEGV; its last words: Fatal Python error: S", 2),
    "past-its-time": Scenario(IGNORES_ITS_END, "TimedOut", "not done within 5 s", 1, seconds=5.0),
    "hangs": Scenario(HANGS, "InfrastructureError", "on 2 prompt(s), the first a", 2),
    "memory": Scenario(EATS_MEMORY, "OutOfMemory", "out of memory", 2),
    "gated": Scenario(GATED, "Gated", "owner/m is gated"),
    "exit-8": Scenario("print('error: for 3 s'); os._exit(8)", "InfrastructureError", "for 3 s", 2),
    "exit-5": Scenario("print('error: no token A'); sys.exit(5)", "ModelError", "no token A"),
    "exit-7": Scenario("print('error: full'); sys.exit(7)", "StoreError", "full", 2, ENABLED),
    "busy": Scenario(BUSY, "Busy", "held by another", 5, ENABLED),
    "traceback": Scenario("{}['x']", "Unexpected", "KeyError: 'x'", 2),
    "half-an-outcome": Scenario("out.write_text('{')", "Unexpected", "exit code 0", 2),
    "secrets": Scenario(SECRETS, "ModelError", "a *** ordinary-words *** Bearer *** xxx"),
    "edited-meanwhile": Scenario(BREAKS_ITS_ENTRY, "ModelError", "exit code 5", state=BROKEN),
    "code-around-it": Scenario("", "Unexpected", "ZeroDivisionError: around it"),
    "torn-entry": Scenario(None, "RegistryError", "torn-entry.yaml", 0, BROKEN),
}


@dataclass(frozen=True)
class EndedNight:
    """A night with all scenarios; waits: model -> seconds before each further attempt."""

    root: Path
    results: Path
    summary: nights.NightSummary
    waits: dict[str, list[float]]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> EndedNight:
    root, waits = tmp_path_factory.mktemp("night"), defaultdict[str, list[float]](list)
    codes = {name: one.code for name, one in SCENARIOS.items()} | {"good": PUBLISH}

    def argv(job: Job, results: Path, number: int) -> Sequence[str]:
        if not codes[job.model]:
            raise ZeroDivisionError("around it")
        return stub(codes[job.model] or "")(job, results, number)

    def score(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        seconds = SCENARIOS[job.model].seconds if job.model in SCENARIOS else 600.0
        limited = replace(job, timeout_s=seconds)
        return attempt.keep_trying(limited, results, device, waits[job.model].append, argv)

    s = settings(root, *codes, jobs=4)
    (root / "registry/models/torn-entry.yaml").write_text("name: [")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "run_step", lambda *step: steps.DONE)
        patch.setattr(process, "GRACE", 0.2)
        patch.setenv("SOME_API_KEY", "correct-horse-battery")
        patch.setenv("SOME_NAME", "ordinary-words")
        summary = nights.run(s, lambda: NOW, [].append, score, steps=("gate",))
    return EndedNight(root, s.results, summary, waits)


@pytest.mark.parametrize(("model", "scenario"), SCENARIOS.items(), ids=SCENARIOS)
def test_given_a_bad_model_then_its_outcome_says_why(
    night: EndedNight, model: str, scenario: Scenario
) -> None:
    [bad] = [outcome for outcome in night.summary.outcomes if outcome.model == model]
    assert (bad.outcome, bad.kind, bad.attempts) == ("failed", scenario.kind, scenario.tries)
    assert night.waits[model] == [10.0, 20.0, 30.0, 30.0][: max(0, scenario.tries - 1)]
    assert scenario.words in bad.message and len(bad.message) <= 500 and "\n" not in bad.message
    try:
        state = entries.load(night.root, model).state
    except RegistryError:
        state = BROKEN
    assert state == scenario.state


def test_given_bad_models_then_the_night_goes_on_without_them(night: EndedNight) -> None:
    outcomes = {outcome.model: outcome for outcome in night.summary.outcomes}
    assert outcomes["good"].outcome == "published" and night.summary.exit_code == 0
    assert records.status(night.results, NIGHT) == records.DONE
    log = (night.results.parent / outcomes["past-its-time"].log).read_text()
    [left] = re.findall(r"^\d+$", log, re.MULTILINE)
    assert end([int(left)]), "a process that it started lives on"
