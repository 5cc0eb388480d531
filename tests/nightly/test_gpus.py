"""Which model runs on which GPUs, on simulated hosts."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from sdgbias.cli import night
from sdgbias.cli.models import models_app
from sdgbias.errors import Busy
from sdgbias.nightly import admit, attempt, gpus
from sdgbias.nightly import run as nights
from sdgbias.nightly import steps as finish
from sdgbias.nightly.gpus import GpuHost, Need, Place, starts
from sdgbias.nightly.plan import Job
from sdgbias.registry import entries, machine
from sdgbias.scoring import parity
from tests.builders.night_stubs import NOW, PUBLISH, entry, settings, stub

EIGHT = GpuHost(tuple("01234567"))


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A simulated host of eight GPUs, with its locks in a folder of this test."""
    for name in ("CUDA_VISIBLE_DEVICES", gpus.HELD):
        monkeypatch.setenv(name, "")  # restored afterwards, whatever the code under test sets
        monkeypatch.delenv(name)
    monkeypatch.setenv("SDGBIAS_GPUS", "8x80")
    monkeypatch.setenv("SDGBIAS_GPU_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setattr(gpus, "_LOCKED", {})
    monkeypatch.setattr(gpus, "_CLAIMED_OF", [])


def needs(**counts: int) -> dict[str, Need]:
    return {model: Need(count) for model, count in counts.items()}


def simulated(wanted: dict[str, Need], hours: dict[str, int], host: GpuHost = EIGHT) -> list[str]:
    """The schedule of models that take these hours: 'hour: model on GPUs' of every start; no GPU
    is used twice at a time."""
    running: dict[str, tuple[int, tuple[str, ...]]] = {}
    ended: list[str] = []
    schedule = []
    for hour in range(1000):
        for model in [m for m, (end, _) in running.items() if end == hour]:
            ended.append(model)
            del running[model]
        held = {model: on for model, (_, on) in running.items()}
        for place in starts(host, wanted, held, ended):
            running[place.model] = (hour + hours[place.model], place.gpus)
            schedule.append(f"{hour}: {place.model} on {''.join(place.gpus)}")
        used = [gpu for _, on in running.values() for gpu in on]
        assert len(used) == len(set(used))
        if not running:
            assert sorted(ended) == sorted(wanted)
            return schedule
    raise AssertionError(f"never started: {set(wanted) - set(ended)}")


def test_a_tp4_a_tp2_and_two_tp1_share_eight_gpus() -> None:
    for order in itertools.permutations([("four", 4), ("two", 2), ("one", 1), ("uno", 1)]):
        schedule = simulated(needs(**dict(order)), dict.fromkeys(dict(order), 1))
        assert all(line.startswith("0: ") for line in schedule), schedule
        assert sorted("".join(line.split(" on ")[1] for line in schedule)) == list("01234567")
    assert schedule == ["0: uno on 0", "0: one on 1", "0: two on 23", "0: four on 4567"]


def test_what_fits_starts_while_a_larger_one_waits_and_does_not_starve_it() -> None:
    wanted = needs(a=4, b=2, large=8, c=2, d=1, e=1, f=1)
    hours = {"a": 3, "b": 1, "large": 2, "c": 1, "d": 1, "e": 1, "f": 1}
    assert simulated(wanted, hours) == [
        "0: a on 0123",
        "0: b on 45",
        "3: large on 01234567",
        "5: c on 01",
        "5: d on 2",
        "5: e on 3",
        "5: f on 4",
    ]
    wanted = needs(a=4, b=2, four=4, c=2, d=1, e=1, f=1)
    assert simulated(wanted, hours | {"four": 2}) == [
        "0: a on 0123",
        "0: b on 45",
        "0: c on 67",
        "1: four on 4567",
        "3: d on 0",
        "3: e on 1",
        "3: f on 2",
    ]


def test_no_gpu_idles_while_models_of_one_gpu_wait() -> None:
    wanted = needs(**{f"m{n}": 1 for n in range(20)})
    hours = {model: 1 + n % 3 for n, model in enumerate(wanted)}
    schedule = simulated(wanted, hours)
    assert len(schedule) == 20 and schedule == simulated(wanted, hours)
    working = sum(hours.values())
    last = max(int(line.split(":")[0]) + hours[line.split()[1]] for line in schedule)
    assert last <= working / 8 + max(hours.values())


def test_nothing_that_starts_behind_the_first_that_waits_delays_it() -> None:
    """200 seeded queues: a model starts at the latest when those before it, and those that were
    running when it became the first in line, have ended."""
    for seed in range(200):
        draw = random.Random(seed)
        wanted = needs(**{f"m{n}": draw.choice((0, 1, 1, 2, 3, 4, 8)) for n in range(12)})
        hours = {model: draw.randint(1, 5) for model in wanted}
        began = {line.split()[1]: int(line.split(":")[0]) for line in simulated(wanted, hours)}
        order = [model for model in wanted if wanted[model].gpus]
        for at, model in enumerate(order):
            first = max((began[other] for other in order[:at]), default=0)
            before = [o for o in order if o in order[:at] or began[o] < first]
            latest = max((began[o] + hours[o] for o in before), default=0)
            assert began[model] <= latest, (seed, model)


def test_spare_gpus_go_to_further_engines() -> None:
    wanted = {"tp2": Need(2, True), "one": Need(1, True), "dp": Need(2), "api": Need()}
    assert starts(EIGHT, wanted, {}) == [
        Place("tp2", ("0", "1", "6", "7"), 2),
        Place("one", ("2", "3"), 2),
        Place("dp", ("4", "5")),
        Place("api"),
    ]
    assert starts(replace(EIGHT, most=2), wanted, {}) == [
        Place("tp2", ("0", "1")),
        Place("one", ("2",)),
    ]


def test_gpus_of_other_processes_and_models_too_large_for_the_host() -> None:
    wanted = needs(five=5, nine=9, one=1)
    assert starts(EIGHT, wanted, {}, taken=set("0123")) == [Place("nine"), Place("one", ("4",))]
    assert starts(GpuHost(), wanted, {}) == [Place("five")], "without GPUs one at a time"
    assert starts(GpuHost((), 2), wanted, {"five": ()}) == [Place("nine")]


def test_what_an_entry_asks_for(tmp_path: Path) -> None:
    for name, options, expected in (
        ("tp", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, Need(8, True)),
        ("dp", {"tensor_parallel_size": 2, "data_parallel_size": 3}, Need(6)),
        ("half", {"num_gpus": 0.5}, Need(1)),
        ("wrong", {"data_parallel_size": "many"}, Need(1)),
    ):
        entry(tmp_path, name, backend="vllm", repo="o/m", revision="0" * 40, options=options)
        assert gpus.need(entries.load(tmp_path, name)) == expected
    entry(tmp_path, "planted")
    assert gpus.need(entries.load(tmp_path, "planted")) == Need()


def test_what_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.here(0) == EIGHT and gpus.here(3) == replace(EIGHT, most=3)
    monkeypatch.setenv("SDGBIAS_GPUS", "1x80")
    assert gpus.here(0) == GpuHost() and gpus.here(2) == GpuHost(("0",), 2)
    for named, expected in (("4, 7", ("4", "7")), ("", ()), ("-1", ())):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert machine.visible() == expected


def test_a_gpu_is_known_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Index 0 of two Slurm jobs or containers is not the same GPU."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho '0, GPU-6ac2'\necho '1, GPU-77f0'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    monkeypatch.delenv("SDGBIAS_GPUS")
    machine.serials.cache_clear()
    try:
        assert machine.visible() == ("0", "1")
        assert gpus.take(("1",), "a test")
        assert [path.name for path in (tmp_path / "locks").iterdir()] == ["GPU-77f0.lock"]
    finally:
        gpus.release(("1",))
        machine.serials.cache_clear()


def test_locks_are_for_all_users_and_follow_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpus.take(("0",), "a test") and not gpus.unlocked()
    folder, mine = tmp_path / "locks", tmp_path / "mine"
    modes = [oct(path.stat().st_mode & 0o7777) for path in (folder, folder / "0.lock")]
    assert modes == ["0o1777", "0o666"]
    gpus.release(("0",))
    mine.write_text("of its owner\n")
    (folder / "1.lock").symlink_to(mine)
    assert gpus.take(("1",), "a test") and gpus.taken(("1",)) == set()
    gpus.release(("1",))
    assert mine.read_text() == "of its owner\n"
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "private")
    monkeypatch.setenv("SDGBIAS_GPU_LOCKS", str(tmp_path / "link"))
    assert gpus.take(("0",), "a test"), "without a lock, as where there are no other users"
    gpus.release(("0",))
    assert gpus.unlocked().startswith(f"GPUs are not locked: {tmp_path / 'link'}: not a folder")
    private = tmp_path / "private"
    assert oct(private.stat().st_mode & 0o7777) == "0o700" and not list(private.iterdir())


#: Takes GPU 0 as this user, then in a fork as another one, who can't read what is imported later.
TWO_USERS = """
import os, sys
from sdgbias.nightly import gpus

def as_nobody():
    child = os.fork()
    if not child:
        gpus._LOCKED.clear()
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        print(gpus.take(("0",), "nobody"), gpus.take(("1",), "nobody"), *gpus.holders(("0", "1")))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)

gpus.take(("0",), "root")
as_nobody()
print(gpus.take(("1",), "root"), flush=True)
for gpu in "01":
    gpus.release((gpu,))
as_nobody()
gpus.lock_folder().chmod(0o700)
as_nobody()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_nights_of_two_users_keep_off_each_others_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory() as open_to_all:  # tmp_path is its user's alone
        Path(open_to_all).chmod(0o755)
        monkeypatch.setenv("SDGBIAS_GPU_LOCKS", f"{open_to_all}/locks")
        done = subprocess.run(
            [sys.executable, "-c", TWO_USERS], capture_output=True, text=True, check=True
        )
    assert done.stdout.splitlines() == [
        "False True 0",
        "True",  # nobody's file of GPU 1
        "True True",
        "True True",  # a private folder: without locks
    ], done.stderr


def test_a_night_says_what_it_waits_for_and_ends_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = settings(tmp_path)
    entry(tmp_path, "m", backend="hf", repo="o/m", revision="0" * 40)
    clock = [0.0]
    monkeypatch.setattr(nights, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(finish, "run_step", lambda *step: finish.DONE)

    def pause(seconds: float) -> None:
        clock[0] += 3600.0

    monkeypatch.setattr(nights.process, "pause", pause)
    other = beside(
        "assert gpus.take(tuple('01234567'), 'a person')\nprint('held', flush=True)\n"
        "sys.stdin.read()"
    )
    assert other.stdout and other.stdout.readline() == "held\n"
    lines: list[str] = []
    done = nights.run(s, lambda: NOW, lines.append, steps=())
    other.communicate()
    waits = [line for line in lines if line.startswith("waiting")]
    held = r"GPU 0,1,2,3,4,5,6,7: held by process \d+, a person, since 20\d\d-.* UTC"
    assert len(waits) == 1 and re.fullmatch(f"waiting for {held}", waits[0])
    [outcome] = done.outcomes
    assert (outcome.outcome, done.status) == ("skipped", "failed")
    assert re.fullmatch(
        f"{held} for 6 hours; it is among the first of the next night", outcome.message
    )
    assert clock[0] == 6 * 3600.0


def beside(code: str) -> subprocess.Popen[str]:
    """Another process of this host, which ends when its input does."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys\nfrom sdgbias.nightly import gpus\n{code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_night_places_its_models_around_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes on a simulated host: each sees its GPUs and no others; another process holds
    two of them until the second model ends."""
    sizes = {"a-four": 4, "b-two": 2, "c-one": 1, "d-one": 1, "e-nine": 9}
    s = settings(tmp_path)
    for name, size in sizes.items():
        options = {"tensor_parallel_size": size, "data_parallel_size": 1}
        entry(tmp_path, name, backend="vllm", repo="o/m", revision="0" * 40, options=options)
    person = beside(
        "assert gpus.take(('0', '1'), 'a person')\nprint('held', flush=True)\nsys.stdin.read()"
    )
    assert person.stdout and person.stdout.readline() == "held\n"
    code = (
        f"seen = os.environ['CUDA_VISIBLE_DEVICES']; log = pathlib.Path({str(tmp_path)!r}, 'log')\n"
        "note = lambda what: log.open('a').write(json.dumps([what, sys.argv[2], seen]) + '\\n')\n"
        "note('start'); time.sleep(0.2); note('end')\n" + PUBLISH
    )

    def ask(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        made = attempt.keep_trying(job, results, device, argv=stub(code))
        if job.model == "b-two":
            person.communicate()
        return made

    monkeypatch.setattr(nights, "LOOK", 0.05)
    monkeypatch.setattr(finish, "run_step", lambda *step: finish.DONE)
    lines: list[str] = []
    done = nights.run(s, lambda: NOW, lines.append, nights.Executor(ask=ask), steps=())
    outcomes = {o.model: o.outcome for o in done.outcomes}
    assert outcomes == {**dict.fromkeys(sizes, "published"), "e-nine": "skipped"}
    assert done.outcomes[-1].message == "takes 9 GPUs; there are 8 here"
    held: dict[str, set[str]] = {}
    for line in (tmp_path / "log").read_text().splitlines():
        what, model, seen = json.loads(line)
        if what == "end":
            del held[model]
            continue
        assert len(seen.split(",")) == sizes[model]
        assert not set(seen.split(",")) & {gpu for mine in held.values() for gpu in mine}
        held[model] = set(seen.split(","))
    started = [line.split("; log")[0] for line in lines if "started" in line]
    assert started[:2] == ["a-four: started on GPU 4,5,6,7", "b-two: started on GPU 2,3"]
    assert not gpus.taken(EIGHT.gpus) and not gpus._LOCKED


def test_an_evaluation_takes_free_gpus_and_sees_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry(tmp_path, "m", backend="hf", repo="o/m", revision="0" * 40)
    spec = entries.load(tmp_path, "m")
    monkeypatch.setenv(gpus.HELD, "1")
    gpus.claim(spec, None)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ, "a night holds them for it"
    monkeypatch.delenv(gpus.HELD)
    gpus.claim(spec, None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    gpus.claim(replace(spec, options={"num_gpus": 2}), 3)  # the second model of one command
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    other = beside(
        f"from pathlib import Path\nfrom sdgbias.registry import entries\n"
        f"spec = entries.load(Path({str(tmp_path)!r}), 'm')\n"
        "for engines in (2, 3):\n"
        "    try:\n"
        "        gpus.claim(spec, engines)\n"
        "        print(gpus.os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    first, second = other.communicate()[0].splitlines()
    assert first == "6,7"
    assert second.startswith(
        "Busy m takes 3 of the 8 GPUs here, and 0, 1, 2, 3, 4, 5 are in use: process"
    )


def test_whoever_asks_a_model_keeps_off_the_gpus_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes on a GPU that a night fills would fail for want of memory, which is no fault of the
    model: the watch would note it as not admitted."""
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(tmp_path))
    known = {"backend": "hf", "repo": "o/m", "revision": "0" * 40, "params_b": 1}
    entry(tmp_path, "m", state="candidate", reason="new", **known)
    held = beside("assert gpus.take(tuple('01234567'), 'night'); print(1, flush=True); input()\n")
    assert held.stdout and held.stdin and held.stdout.readline() == "1\n"
    for words in (["enable", "m"], ["enable", "m", "--dry-run"], ["parity", "m"]):
        told = CliRunner().invoke(models_app, words).exception
        assert isinstance(told, Busy) and "m takes 1 of the 8 GPUs here" in str(told), words
    assert admit._ask("m", 6, False, 600.0)[0] is None, "it waits for the next look"
    held.communicate("\n")
    asked = []

    def probe(*_: object, **__: object) -> parity.Verdict:
        asked.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return parity.Verdict(True, "all agree")

    monkeypatch.setattr(parity, "probe", probe)
    assert CliRunner().invoke(models_app, ["enable", "m"]).exit_code == 0 and asked == ["0"]


def test_a_dry_run_prints_the_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    s = settings(tmp_path, "planted")
    for name, size in (("a-four", 4), ("b-two", 2), ("c-four", 4), ("d-nine", 9)):
        options = {"tensor_parallel_size": size, "gpu": "h100"}
        entry(tmp_path, name, backend="vllm", repo="o/m", revision="0" * 40, options=options)
    for name in ("new-1", "new-2"):
        reason = f"it hung: sdgbias models enable {name}"
        entry(tmp_path, name, state="quarantined", until="2099-01-01", reason=reason)
    night._dry_run(s, as_json=False)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1:6] == [
        "a-four sdg will be scored (h100; first, on GPU 0,1,2,3)",
        "b-two sdg will be scored (h100; first, on GPU 4,5)",
        "c-four sdg will be scored (h100; when 4 of 8 GPUs are free)",
        "d-nine sdg will be scored (h100; NOT RUN: takes 9 GPUs, there are 8 here)",
        "planted sdg will be scored (cpu)",
    ]
    reason = "quarantined until 2099-01-01: it hung: sdgbias models enable NAME"
    assert f"skipped: {reason}: new-1, new-2" in lines, "one line for all of them"
    night._dry_run(s, as_json=True)
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [(job["gpus"], job["starts_on"]) for job in jobs] == [
        (4, ["0", "1", "2", "3"]),
        (2, ["4", "5"]),
        (4, []),
        (9, []),
        (0, []),
    ]
