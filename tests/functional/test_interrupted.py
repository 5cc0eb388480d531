"""kill -9 at every moment that matters, then the same command again: the folder equals an
uninterrupted one to the byte.

A process that dies can leave no trace between two changes of the disk. So each stage is killed
(SIGKILL, by itself, from an audit hook) right before each file that it opens for writing, renames
or removes below the benchmark folder.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sdgbias.cli import _interrupted
from sdgbias.progress import Record
from tests.builders.commands import environment, ok

STAGES = ("clusters", "images", "series", "items", "prompts", "card", "check")
WATCHED = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.truncate"}


def _run(stage: str, raw: Path, out: Path) -> None:
    from sdgbias.benchmark import build, quality
    from sdgbias.raw.images.image_store import ImageSettings

    steps: dict[str, Callable[[], object]] = {
        "clusters": lambda: build.build_clusters(raw, out),
        # one process: every change of the disk is then the hook's
        "images": lambda: build.build_images(raw, out, ImageSettings(), 1),
        "series": lambda: build.build_series(raw / "indicators", out),
        "items": lambda: build.build_items(out, build.Draw(mcq=60, regression=20)),
        "prompts": lambda: build.build_prompts(out),
        "card": lambda: build.build_card(out),
        "check": lambda: quality.run_gate(out),
    }
    steps[stage]()


def _child(stage: str, raw: str, out: str, kill_at: int, counted: str) -> None:
    """The stage with a hook that counts changes of the disk below ``out`` and dies right before
    number ``kill_at``."""
    seen = 0
    inside = str(Path(out)) + os.sep

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal seen
        if event not in WATCHED or not any(
            isinstance(a, str | bytes | os.PathLike) and os.fsdecode(a).startswith(inside)
            for a in args[:2]
        ):
            return
        if event == "open" and not (
            isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        ):
            return
        seen += 1
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    _run(stage, Path(raw), Path(out))
    Path(counted).write_text(str(seen))


def _digests(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


@dataclass(frozen=True)
class Reference:
    """The raw folder; stage -> copy of the benchmark folder right before that stage ('end':
    finished); stage -> how often it changes the disk."""

    raw: Path
    before: dict[str, Path]
    changes: dict[str, int]


@pytest.fixture(scope="module")
def server() -> multiprocessing.context.ForkServerContext:
    """Processes that have imported everything already: a real process each, ready at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "sdgbias.benchmark.build",
            "sdgbias.benchmark.quality",
            "great_expectations",
            "pyarrow.compute",
        ]
    )
    return context


@pytest.fixture(scope="module")
def reference(
    server: multiprocessing.context.ForkServerContext, tmp_path_factory: pytest.TempPathFactory
) -> Reference:
    root = tmp_path_factory.mktemp("interrupted")
    ok("sample", "--out", root / "raw", "--clusters", 12, "--seed", 7, "--countries", "NM,KE,BF")
    before: dict[str, Path] = {}
    changes: dict[str, int] = {}
    (root / "now").mkdir()
    for stage in STAGES:
        before[stage] = Path(shutil.copytree(root / "now", root / f"before-{stage}"))
        code, changes[stage] = _go(server, stage, root / "raw", root / "now", 0)
        assert code == 0 and changes[stage] > 0
    before["end"] = root / "now"
    return Reference(root / "raw", before, changes)


def _go(
    server: multiprocessing.context.ForkServerContext,
    stage: str,
    raw: Path,
    out: Path,
    kill_at: int,
) -> tuple[int, int]:
    """(exit code, changes of the disk) of one process."""
    counted = out.parent / "counted"
    counted.unlink(missing_ok=True)
    process = server.Process(target=_child, args=(stage, str(raw), str(out), kill_at, str(counted)))
    process.start()
    process.join(900)
    assert process.exitcode is not None, "the stage hangs"
    return process.exitcode, int(counted.read_text()) if counted.is_file() else 0


@pytest.mark.slow
@pytest.mark.parametrize("most", [2, pytest.param(5, marks=pytest.mark.long)])
@pytest.mark.parametrize("stage", STAGES)
def test_killed_at_every_change_of_the_disk(
    server: multiprocessing.context.ForkServerContext,
    reference: Reference,
    tmp_path: Path,
    stage: str,
    most: int,
) -> None:
    """``most`` moments, spread over all of the stage; the last is among them. Before its first
    change a stage has done nothing that it could go on with."""
    raw, before, changes = reference.raw, reference.before, reference.changes[stage]
    following = dict(zip(STAGES, (*STAGES[1:], "end"), strict=True))[stage]
    whole = _digests(before[following])
    moments = sorted({round(changes * i / most) for i in range(1, most + 1)} - {0})
    for moment in moments:
        out = Path(shutil.copytree(before[stage], tmp_path / f"killed-{moment}"))
        code, _ = _go(server, stage, raw, out, moment)
        assert code == -signal.SIGKILL, f"{stage} wasn't killed at change {moment} of {changes}"
        code, _ = _go(server, stage, raw, out, 0)
        assert code == 0, f"{stage} doesn't go on after a kill at change {moment} of {changes}"
        assert _digests(out) == whole, (
            f"{stage} differs after a kill at change {moment} of {changes}"
        )
        shutil.rmtree(out)


@pytest.mark.long
def test_the_whole_command_killed_from_outside(reference: Reference, tmp_path: Path) -> None:
    """`sdgbias build`, killed with its workers after a while, again and again; at last it is left
    alone."""
    raw = reference.raw
    arguments = [
        "build",
        "--raw",
        raw,
        "--indicators",
        raw / "indicators",
        "--mcq",
        60,
        "--regression",
        20,
        "--out",
    ]
    started = time.monotonic()
    ok(*arguments, tmp_path / "whole")
    took = time.monotonic() - started
    killed = 0
    for share in (0.4, 0.6, 0.8):
        process = subprocess.Popen(
            [sys.executable, "-m", "sdgbias.cli", *map(str, arguments), str(tmp_path / "killed")],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(took * share * random.Random(share).uniform(0.8, 1.0))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed, "it was always faster than the signal"
    ok(*arguments, tmp_path / "killed")
    assert _digests(tmp_path / "killed") == _digests(tmp_path / "whole")


def test_ctrl_c_says_what_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sdgbias.cli", "sample", "--clusters", "100000"]
    child = subprocess.Popen(
        [*command, "--out", str(tmp_path / "raw")],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    while "drawing clusters" not in child.stderr.readline():
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    told = child.communicate(timeout=600)[1].splitlines()[-1]
    assert child.returncode == 130
    assert told == (
        "interrupted: what is finished is kept (drawing clusters); run the same command again to"
        " go on"
    )
    scoring = Record("", "scoring prompts", 640, 1762)
    assert _interrupted(scoring).startswith("interrupted: 640 of 1,762 prompts are kept; run")
