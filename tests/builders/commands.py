"""The command line as a person uses it: a process, its exit code and what it printed."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pandas as pd
import yaml

from tests.builders import forked

REPOSITORY = Path(__file__).resolve().parents[2]


def environment(registry: Path | None = None) -> dict[str, str]:
    extra = {"SDGBIAS_REGISTRY": str(registry)} if registry else {}
    return {**os.environ, **extra, "PYTHONPATH": str(REPOSITORY)}


def sdgbias(
    *command: object,
    cwd: Path = REPOSITORY,
    registry: Path | None = None,
    timeout: float = 900,
    alone: bool = False,
    nested: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs `sdgbias COMMAND`; never raises on its exit code, so that a test can look at that and at
    its words. In a fork of a process that has imported sdgbias (tests/builders/forked.py), or
    `alone`: in a process that imports everything itself. ``nested``: so do the commands that it
    starts."""
    if not alone and sys.platform == "linux":
        given = forked.nested(environment(registry)) if nested else environment(registry)
        return forked.run([*map(str, command)], cwd, given, timeout)
    return subprocess.run(
        [sys.executable, "-m", "sdgbias.cli", *map(str, command)],
        cwd=cwd,
        env=environment(registry),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def ok(*command: object, **more) -> str:  # type: ignore[no-untyped-def]
    done = sdgbias(*command, **more)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def refused(code: int, *command: object, **more) -> str:  # type: ignore[no-untyped-def]
    """The one line on standard error of a command that must fail with `code` and without a
    traceback."""
    done = sdgbias(*command, **more)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens. It lies below those that the system gives away
    by itself, so that nobody else gets it in the seconds until the server that it is for has
    started."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def add_model(root: Path, name: str, **fields: object) -> Path:
    """A registry entry in a registry of the test's own; `root` is the folder that holds
    registry/models."""
    folder = root / "registry" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    if not (root / "expectations").exists():  # else no night knows a benchmark that has passed them
        (root / "expectations").symlink_to(REPOSITORY / "expectations")
    entry = {
        "name": name,
        "title": name,
        "backend": "planted",
        "repo": "planted/planted",
        "revision": "local",
        "state": "enabled",
        **fields,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(entry))
    return path


def metrics(results: Path, where: str = "true") -> pd.DataFrame:
    from sdgbias import store

    return store.query(results, f"SELECT * FROM metrics WHERE {where}")
