"""The command line as a person uses it: its exit code and what it printed."""

from __future__ import annotations

import gc
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:  # the environment of vLLM has no pandas
    import pandas as pd

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
) -> subprocess.CompletedProcess[str]:
    """Runs `sdgbias COMMAND`; never raises on its exit code, so that a test can look at that and at
    its words. In this process, by the program's own entry point, or ``alone``: in a process of its
    own, which imports everything itself and may be killed. The first text is split as a shell
    does it."""
    line, *more = map(str, command)
    words = [*shlex.split(line), *more]
    if not alone:
        return run_here(words, cwd, environment(registry))
    return subprocess.run(
        [sys.executable, "-m", "sdgbias.cli", *words],
        cwd=cwd,
        env=environment(registry),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_here(
    words: list[str],
    cwd: Path,
    variables: Mapping[str, str],
    main: Callable[[], int | None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """What a process would be given is set for the time of the command and put back after it:
    arguments, folder, environment, streams (down to their handles, which its children inherit)
    and what main() sets of the process. ``main``: of another program than sdgbias."""
    from sdgbias import cli

    argv, folder, before = sys.argv, os.getcwd(), dict(os.environ)
    handler, threshold = signal.getsignal(signal.SIGTERM), gc.get_threshold()
    code: Any = 0
    with _captured("stdout", 1) as out, _captured("stderr", 2) as err:
        try:
            os.chdir(cwd)
            _set_environment(variables)
            sys.argv = ["sdgbias", *words]
            code = (main or cli.main)() or 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            sys.argv = argv
            os.chdir(folder)
            _set_environment(before)
            signal.signal(signal.SIGTERM, handler)
            gc.set_threshold(*threshold)
    texts = [stream.read().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(words, code, *texts)


def _set_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


@contextmanager
def _captured(name: str, handle: int) -> Iterator[IO[bytes]]:
    """A file that holds, after the block, what was written to the standard stream ``name``."""
    stream, saved = getattr(sys, name), os.dup(handle)
    file = tempfile.TemporaryFile()  # noqa: SIM115
    stream.flush()
    os.dup2(file.fileno(), handle)
    # never closed: a logger that is set up meanwhile keeps it
    ours = open(handle, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    setattr(sys, name, ours)
    try:
        yield file
    finally:
        ours.flush()
        setattr(sys, name, stream)
        os.dup2(saved, handle)
        os.close(saved)
        file.seek(0)


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
