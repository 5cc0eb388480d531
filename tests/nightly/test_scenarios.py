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
    """code: of the model's process, one piece for each attempt (the last from then on), none for an
    error in the code around it; kind, words: of its outcome; tries: attempts in all; state: of its
    registry entry afterwards; seconds: its time limit."""

    code: str | tuple[str, ...]
    kind: str = ""
    words: str = ""
    tries: int = 1
    state: str = QUARANTINED
    outcome: str = "failed"
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
GOOD = {"state": ENABLED, "outcome": "published"}
SCENARIOS = {
    "good": Scenario(f"print('scoring'); {PUBLISH}; sys.exit(3)", **GOOD),
    "free-again": Scenario((BUSY, BUSY, PUBLISH), tries=3, **GOOD),
    "same": Scenario("tell(run_id='s-1', outcome='unchanged')", state=ENABLED, outcome="unchanged"),
    "killed": Scenario("os.kill(os.getpid(), 9)", "Killed", "SIGKILL (perhaps for want of", 2),
    "aborted": Scenario("os.abort()", "Killed", "SIGABRT", 2),
    "native-code": Scenario(NATIVE, "Killed", "SIGSEGV; its last words: Fatal Python error: S", 2),
    "past-its-time": Scenario(IGNORES_ITS_END, "TimedOut", "not done within 5 s", seconds=5.0),
    "hangs": Scenario(HANGS, "InfrastructureError", "on 2 prompt(s), the first a", 2),
    "memory": Scenario(EATS_MEMORY, "OutOfMemory", "out of memory", 2),
    "gated": Scenario(GATED, "Gated", "owner/m is gated"),
    "silent": Scenario("", "Unexpected", "ended with exit code 0 and reported no outcome", 2),
    "exit-3": Scenario("print('error: no x'); sys.exit(3)", "InputError", "no x", 1, ENABLED),
    "exit-4": Scenario("sys.exit(4)", "RegistryError", "ended with exit code 4"),
    "exit-8": Scenario("print('error: for 3 s'); os._exit(8)", "InfrastructureError", "for 3 s", 2),
    "exit-5": Scenario("print('error: no token A'); sys.exit(5)", "ModelError", "no token A"),
    "exit-7": Scenario("print('error: full'); sys.exit(7)", "StoreError", "full", 2, ENABLED),
    "busy": Scenario(BUSY, "Busy", "held by another", 5, ENABLED),
    "traceback": Scenario("{}['x']", "Unexpected", "KeyError: 'x'", 2),
    "half-an-outcome": Scenario("out.write_text('{')", "Unexpected", "exit code 0", 2),
    "secrets": Scenario(SECRETS, "ModelError", "a *** ordinary-words *** Bearer *** xxx"),
    "edited-meanwhile": Scenario(BREAKS_ITS_ENTRY, "ModelError", "exit code 5", state=BROKEN),
    "code-around-it": Scenario((), "Unexpected", "ZeroDivisionError: around it"),
    "torn-entry": Scenario("", "RegistryError", "torn-entry.yaml", 0, BROKEN),
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

    def argv(job: Job, results: Path, number: int) -> Sequence[str]:
        code = SCENARIOS[job.model].code
        if not isinstance(code, str) and not code:
            raise ZeroDivisionError("around it")
        return stub(*([code] if isinstance(code, str) else code))(job, results, number)

    def score(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        limited = replace(job, timeout_s=SCENARIOS[job.model].seconds)
        return attempt.keep_trying(limited, results, device, waits[job.model].append, argv)

    s = settings(root, *SCENARIOS, jobs=4)
    (root / "registry/models/torn-entry.yaml").write_text("name: [")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "run_step", lambda *step: steps.DONE)
        patch.setattr(process, "GRACE", 0.2)
        patch.setenv("SOME_API_KEY", "correct-horse-battery")
        patch.setenv("SOME_NAME", "ordinary-words")
        summary = nights.run(s, lambda: NOW, [].append, score, steps=("gate",))
    return EndedNight(root, s.results, summary, waits)


@pytest.mark.parametrize(("model", "scenario"), SCENARIOS.items(), ids=SCENARIOS)
def test_given_a_model_then_its_outcome_says_why(
    night: EndedNight, model: str, scenario: Scenario
) -> None:
    [one] = [outcome for outcome in night.summary.outcomes if outcome.model == model]
    assert (one.outcome, one.kind) == (scenario.outcome, scenario.kind)
    assert one.attempts == scenario.tries
    assert night.waits[model] == [10.0, 20.0, 30.0, 30.0][: max(0, scenario.tries - 1)]
    assert scenario.words in one.message and len(one.message) <= 500 and "\n" not in one.message
    try:
        state = entries.load(night.root, model).state
    except RegistryError:
        state = BROKEN
    assert state == scenario.state
    assert bool(one.quarantined_until) == (state == QUARANTINED)


def test_given_models_that_fail_then_the_night_ends_and_the_good_ones_are_published(
    night: EndedNight,
) -> None:
    assert (night.summary.status, night.summary.exit_code) == ("done", 0)
    history = records.history(night.results).set_index("model")
    assert records.status(night.results, NIGHT) == "done" and len(history) == len(SCENARIOS)
    assert sorted(history.index[history["outcome"] == "published"]) == ["free-again", "good"]
    good = history.loc["good"]
    assert (good["run_id"], good["scored"], good["planned"], good["failed"]) == (
        "good-1",
        10,
        12,
        2,
    )
    assert good["log"] == f"r.nights/{NIGHT}/logs/good-sdg.log"
    logs = night.results.with_suffix(".nights") / NIGHT / "logs"
    assert "scoring" in (logs / "good-sdg.log").read_text()
    log = (logs / "past-its-time-sdg.log").read_text()
    [left] = re.findall(r"^\d+$", log, re.MULTILINE)
    assert end([int(left)]), "a process that it started lives on"
