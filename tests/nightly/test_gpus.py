"""A lock for each GPU, and what runs on which of them, on simulated hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from sdgbias.cli import night
from sdgbias.cli.models import models_app
from sdgbias.errors import Busy, InfrastructureError
from sdgbias.nightly import attempt, gpus, watch
from sdgbias.nightly import run as nights
from sdgbias.nightly import steps as finish
from sdgbias.nightly.gpus import GpuHost
from sdgbias.nightly.plan import Job
from sdgbias.registry import entries, machine
from sdgbias.scoring import admission
from tests.builders.night_stubs import NOW, entry, settings

EIGHT = GpuHost(tuple("01234567"))


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A simulated host of eight GPUs, with its locks in a folder of this test."""
    for name in ("CUDA_VISIBLE_DEVICES", gpus.HELD):
        monkeypatch.setenv(name, "")  # restored afterwards, whatever the code under test sets
        monkeypatch.delenv(name)
    monkeypatch.setenv("SDGBIAS_GPUS", "8x80")
    monkeypatch.setenv("SDGBIAS_GPU_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setattr(gpus, "LOCKS", {})
    monkeypatch.setattr(gpus, "CLAIMED_OF", [])


def vllm_entry(root: Path, name: str, **options: object) -> None:
    entry(root, name, backend="vllm", repo="o/m", revision="0" * 40, options=options)


@contextmanager
def held_by_another(count: int) -> Iterator[subprocess.Popen[str]]:
    """Another process of this host that holds so many GPUs until its input ends."""
    code = "import sys\nfrom sdgbias.nightly import gpus\n"
    code += (
        f"assert gpus.take({count}, '01234567', 'a person') is not None; print('held', flush=True)"
    )
    command = [sys.executable, "-c", f"{code}; sys.stdin.read()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout and other.stdout.readline() == "held\n"
        yield other
        other.communicate()


def test_given_an_entry_and_a_host_then_gpus_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, options, count in (
        ("tp", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, 8),
        ("named", {"num_gpus": 2}, 2),
        ("wrong", {"num_gpus": "many"}, 1),
    ):
        vllm_entry(tmp_path, name, **options)
        assert machine.gpus_of(entries.load(tmp_path, name)) == count
    entry(tmp_path, "planted")
    assert machine.gpus_of(entries.load(tmp_path, "planted")) == 0
    assert gpus.here(0) == EIGHT and gpus.here(3) == replace(EIGHT, most=3)
    monkeypatch.setenv("SDGBIAS_GPUS", "1x80")
    assert gpus.here(0) == GpuHost() and gpus.here(2) == GpuHost(("0",), 2)
    for named, visible in (("4, 7", ("4", "7")), ("", ()), ("-1", ())):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert machine.visible() == visible


def test_given_ids_of_gpus_then_locks_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Index 0 of two Slurm jobs or containers is not the same GPU."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho '0, GPU-6ac2'\necho '1, GPU-77f0'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    monkeypatch.delenv("SDGBIAS_GPUS")
    machine.serials.cache_clear()
    try:
        assert machine.visible() == ("0", "1") and gpus.take(1, ("1",), "a test")
        assert [path.name for path in (tmp_path / "locks").iterdir()] == ["GPU-77f0.lock"]
    finally:
        gpus.release(("1",))
        machine.serials.cache_clear()


def test_given_locks_then_they_are_for_all_users_and_follow_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpus.take(1, ("0",), "a test")
    folder, private = tmp_path / "locks", tmp_path / "private"
    modes = [oct(path.stat().st_mode & 0o7777) for path in (folder, folder / "0.lock")]
    assert modes == ["0o1777", "0o666"]
    gpus.release(("0",))
    private.write_text("of its owner\n")
    (folder / "1.lock").symlink_to(private)
    with pytest.raises(InfrastructureError, match="1.lock: .*; name a folder .*SDGBIAS_GPU_LOCKS"):
        gpus.take(1, ("1",), "a test")
    assert private.read_text() == "of its owner\n"
    monkeypatch.setenv("SDGBIAS_GPU_LOCKS", str(private))
    with pytest.raises(InfrastructureError, match="GPUs can't be locked: .*private: File exists"):
        gpus.take(1, ("0",), "a test")


#: Takes GPU 0 as this user, then in a fork as another one, who can't read what is imported later.
TWO_USERS = """
import os, sys
from sdgbias.nightly import gpus

def as_nobody():
    child = os.fork()
    if not child:
        gpus.LOCKS.clear()
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        try:
            print(*(gpus.take(1, gpu, "nobody") for gpu in "01"), *gpus.holders("01"))
        except gpus.InfrastructureError as error:
            print(str(error).split(";")[0])
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)

gpus.take(1, "0", "root")
as_nobody()
print(gpus.take(1, "1", "root"), flush=True)
gpus.release("01")
as_nobody()
gpus.lock_of("0").parent.chmod(0o700)
as_nobody()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_given_two_users_then_their_nights_keep_off_each_others_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TemporaryDirectory() as open_to_all:  # tmp_path is its user's alone
        Path(open_to_all).chmod(0o755)
        monkeypatch.setenv("SDGBIAS_GPU_LOCKS", f"{open_to_all}/locks")
        command = [sys.executable, "-c", TWO_USERS]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "None ('1',) 0",
        "('1',)",  # nobody's file of GPU 1
        "('0',) ('1',)",
        f"GPUs can't be locked: {open_to_all}/locks/0.lock: Permission denied",
    ], done.stderr


def test_given_gpus_that_others_hold_then_a_night_says_so_and_ends_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = settings(tmp_path)
    vllm_entry(tmp_path, "m")
    clock, lines = [0.0], list[str]()
    monkeypatch.setattr(nights, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(finish, "run_step", lambda *step: finish.DONE)

    def pause(seconds: float) -> None:
        clock[0] += 3600.0

    monkeypatch.setattr(nights.process, "pause", pause)
    with held_by_another(8):
        ended = nights.run(s, lambda: NOW, lines.append, steps=())
    waits = [line for line in lines if line.startswith("waiting")]
    held = r"GPU 0,1,2,3,4,5,6,7: held by process \d+, a person, since 20\d\d-.* UTC"
    assert len(waits) == 1 and re.fullmatch(f"waiting for {held}", waits[0])
    [outcome] = ended.outcomes
    assert (outcome.outcome, ended.status) == ("skipped", "failed")
    why = f"{held} for 6 hours; it is among the first of the next night"
    assert re.fullmatch(why, outcome.message) and clock[0] == 6 * 3600.0


@pytest.mark.parametrize(
    ("jobs", "held", "ends_at", "order"),
    [
        (  # as many as the GPUs hold, and one that needs none
            0,
            0,
            {"six": 3, "one": 5, "alone": 5, "four": 6, "two": 6, "last": 6},
            ["six 012345", "one 6", "alone ", "four 0123", "two 45", "last "],
        ),
        (
            2,
            0,
            {"six": 2, "one": 3, "alone": 4, "last": 5, "four": 6, "two": 6},
            ["six 012345", "one 6", "four 0123", "alone ", "last ", "two 45"],
        ),
        (  # beside another process that holds two of them, until the last model has started
            0,
            2,
            {"six": 2, "alone": 4, "last": 5, "four": 5, "one": 6, "two": 6},
            ["six 234567", "alone ", "four 2345", "one 6", "last ", "two 23"],
        ),
    ],
)
def test_given_a_model_that_waits_then_a_later_one_that_fits_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobs: int,
    held: int,
    ends_at: dict[str, int],
    order: list[str],
) -> None:
    """ends_at: model -> number of models that have started when it ends. One takes more GPUs than
    there are."""
    s, sizes = settings(tmp_path, "d-alone", "e-last"), {"a-six": 6, "b-four": 4, "c-one": 1}
    for name, size in {**sizes, "f-two": 2, "g-nine": 9}.items():
        vllm_entry(tmp_path, name, tensor_parallel_size=size)
    take, started, more = gpus.take, list[str](), threading.Condition()

    def noted(count: int, among: Sequence[str], who: str) -> tuple[str, ...] | None:
        with more:
            if (devices := take(count, among, who)) is not None:
                started.append(f"{who.split(', ')[1][2:]} {''.join(devices)}")
                more.notify_all()
            return devices

    def score(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        with more:
            assert more.wait_for(lambda: len(started) >= ends_at[job.model[2:]], 600.0)
        return attempt.outcome_of(job, NOW, outcome="published", run_id="r")

    monkeypatch.setattr(gpus, "take", noted)
    monkeypatch.setattr(nights, "LOOK", 0.05)
    monkeypatch.setattr(finish, "run_step", lambda *step: finish.DONE)
    with held_by_another(held):
        host = replace(EIGHT, most=jobs)
        ended = nights.run(s, lambda: NOW, [].append, score, steps=(), host=host)
    assert started == order and not gpus.holders(EIGHT.gpus)
    nine = ended.outcomes[-1]
    assert (nine.outcome, nine.message) == ("skipped", "takes 9 GPUs; there are 8 here")


def test_given_an_evaluation_then_it_takes_free_gpus_and_sees_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_entry(tmp_path, "m")
    spec = entries.load(tmp_path, "m")
    monkeypatch.setenv(gpus.HELD, "1")
    gpus.claim(spec)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ, "a night holds them for it"
    monkeypatch.delenv(gpus.HELD)
    with held_by_another(2):
        gpus.claim(spec)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
        gpus.claim(replace(spec, options={"num_gpus": 6}))  # the second model of one command
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3,4,5,6,7"
        with pytest.raises(Busy, match="m takes 7 of the 8 GPUs here, and 0, 1 are in use: proc"):
            gpus.claim(replace(spec, options={"num_gpus": 7}))


def test_given_gpus_that_others_hold_then_who_asks_a_model_keeps_off_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes on a GPU that a night fills would fail for want of memory, which is no fault of the
    model: the watch would note it as not admitted."""
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(tmp_path))
    fields = {"backend": "hf", "repo": "o/m", "revision": "0" * 40, "params_b": 1}
    entry(tmp_path, "m", state="candidate", reason="new", **fields)
    with held_by_another(8):
        for words in (["enable", "m"], ["enable", "m", "--dry-run"], ["parity", "m"]):
            error = CliRunner().invoke(models_app, words).exception
            assert isinstance(error, Busy) and "m takes 1 of the 8 GPUs here" in str(error), words
        rules = watch.Rules(probe=watch.Probe(questions=6, minutes=10))
        assert watch.ask("m", rules)[0] == watch.WAITING, "for the next look"
    visible: list[str] = []

    def probe(*_: object, **__: object) -> admission.Verdict:
        visible.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return admission.Verdict(True, "all agree")

    monkeypatch.setattr(admission, "probe", probe)
    assert CliRunner().invoke(models_app, ["enable", "m"]).exit_code == 0 and visible == ["0"]


def test_given_a_dry_run_then_it_says_how_many_gpus_each_model_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s = settings(tmp_path, "planted")
    for name, size in (("a-four", 4), ("d-nine", 9)):
        vllm_entry(tmp_path, name, tensor_parallel_size=size, gpu="h100")
    for name, fault in (("new-1", "hung"), ("new-2", "hung"), ("new-3", "fell")):
        reason = f"it {fault}: sdgbias models enable {name}"
        entry(tmp_path, name, state="quarantined", until="2099-01-01", reason=reason)
    night.print_plan(s, as_json=False)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1:4] == [
        "a-four sdg will be scored (h100; on 4 of 8 GPUs)",
        "d-nine sdg will be scored (h100; NOT RUN: takes 9 GPUs, there are 8 here)",
        "planted sdg will be scored (cpu)",
    ]
    reason = "quarantined until 2099-01-01: it hung: sdgbias models enable NAME"
    assert f"skipped: {reason}: new-1, new-2" in lines, "one line for all of them"
    assert [line for line in lines if "fell: sdgbias models enable new-3" in line], (
        "its own command"
    )
    night.print_plan(s, as_json=True)
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [job["gpus"] for job in jobs] == [4, 9, 0]
