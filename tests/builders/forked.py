"""Commands run by forks of one process that has imported what they need.

Most of the time of a small command is importing: 3 s with torch, 7 s with Great Expectations. The
server here is one process for all pytest workers. It runs `python -m sdgbias.cli` in a fork of
itself, with the command's own process id, working folder, environment, streams and exit code, and
ends it after the command's own clean-up. The server learns from each command which modules to have
ready for the next one, and ends with the last worker that is connected to it.

The commands that a command starts in its turn (the models and steps of a night, the stages of DVC)
can be forks as well: `nested`, `inside`. tests/builders/forked_client.py stands for each of them.

What a fork can't show needs a process of its own (`alone` in tests.builders.commands): that a
command imports what it uses, that its output doesn't depend on the seed of Python's hashes.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from tests.builders import once

REPOSITORY = Path(__file__).resolve().parents[2]
#: Variables that change from test to test and that only sdgbias reads, when a command runs. All
#: others may be read by third parties when they are imported: each such environment has its own
#: server.
OURS = ("SDGBIAS_", "PYTEST_")
MOST = 2  # servers at a time
#: Packages that the server imports once a command has needed them. Importing them starts no thread.
READY = frozenset(
    [
        "sdgbias",
        "numpy",
        "pandas",
        "pyarrow",
        "scipy",
        "duckdb",
        "numba",
        "llvmlite",
        "torch",
        "torchvision",
        "transformers",
        "tokenizers",
        "safetensors",
        "huggingface_hub",
        "great_expectations",
        "sqlalchemy",
        "pydantic",
        "PIL",
        "imagehash",
        "pywt",
        "yaml",
        "jinja2",
        "altair",
        "narwhals",
        "httpx",
        "typer",
        "rich",
        "tqdm",
    ]
)


def run(
    command: list[str], cwd: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Like subprocess.run of `python -m sdgbias.cli COMMAND`, output captured as text. Raises
    subprocess.TimeoutExpired after `timeout` seconds; the command is killed then. With the
    environment of `nested`, the models and steps of a night are forks, too."""
    with _LOCK, tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder) / name for name in ("out", "err"))
        job = (command, str(cwd), dict(environment), str(out), str(err), timeout)
        server = _server({n: v for n, v in environment.items() if not n.startswith(OURS)})
        server.write(json.dumps(job) + "\n")
        server.flush()
        answer = server.readline()
        assert answer, "the server of the tests' commands has ended"
        texts = [path.read_text("utf-8") for path in (out, err)]
    code, seconds = int(answer.split()[0]), float(answer.split()[1])
    cpu.append(seconds)
    if code == _LATE:
        raise subprocess.TimeoutExpired(command, timeout, *texts)
    return subprocess.CompletedProcess(command, code, *texts)


def nested(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` for a process whose own commands shall be forks: of a night, or of one that
    finds the program PYTEST_CLI on its PATH."""
    assert once.KEPT, "outside a run of pytest"
    folder = once.KEPT / f"forked-{os.getpid()}"
    if not folder.is_dir():
        folder.mkdir()
        client = Path(__file__).with_name("forked_client.py").read_text("utf-8")
        (folder / "sdgbias").write_text(f"#!{sys.executable} -IS\n{client}", "utf-8")
        (folder / "sdgbias").chmod(0o755)
    with _LOCK:
        _server({n: v for n, v in environment.items() if not n.startswith(OURS)})
        key = _SERVERS[-1][0]
    return {
        **environment,
        "PYTEST_CLI": str(folder / "sdgbias"),
        "PYTEST_FORKED": f"sdgbias-tests-{key}",
        "PYTEST_FORKED_CPU": str(folder / "cpu"),
    }


def inside(program: str) -> None:
    """A night of this process runs its models and steps by this program from now on."""
    from sdgbias.nightly import attempt, steps, watch

    for module in (attempt, steps, watch):
        module.CLI = (program,)  # type: ignore[attr-defined]


def spent() -> float:
    """CPU seconds of all commands that have ended, what they started included."""
    folder = once.KEPT / f"forked-{os.getpid()}" if once.KEPT else Path()
    lines = (folder / "cpu").read_text().split() if (folder / "cpu").is_file() else []
    return sum(cpu) + sum(map(float, lines))


#: CPU seconds of each command so far, its children included.
cpu: list[float] = []
_LATE = 1000  # no exit code
_APPENDING = os.O_WRONLY | os.O_APPEND  # both streams may be one file
_LOCK = threading.Lock()
_SERVERS: list[tuple[str, TextIO]] = []  # the last used last
_STARTED: list[subprocess.Popen[bytes]] = []


def _server(environment: dict[str, str]) -> TextIO:
    """A connection to the server of an environment."""
    run = once.KEPT or os.getpid()
    key = hashlib.sha256(json.dumps([str(run), sorted(environment.items())]).encode()).hexdigest()
    for known in _SERVERS:
        if known[0] == key:
            _SERVERS.remove(known)
            _SERVERS.append(known)
            return known[1]
    if len(_SERVERS) == MOST:
        _SERVERS.pop(0)[1].close()  # it ends when nobody is connected any more
    while not (server := _connected(f"\0sdgbias-tests-{key}", environment)):
        # the last worker has just left it, or one is starting it
        assert not any(started.poll() for started in _STARTED), "the tests' server has failed"
        time.sleep(0.05)
    _SERVERS.append((key, server))
    return server


def _connected(name: str, environment: dict[str, str]) -> TextIO | None:
    """A connection that the server has taken; None where it didn't."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(name)
        except ConnectionRefusedError:
            _start(name, environment)
            return None
        server = connection.makefile("rw", encoding="utf-8")
    with suppress(OSError):
        if server.readline():
            return server
    server.close()
    return None


def _start(name: str, environment: dict[str, str]) -> None:
    """Starts a server, unless another worker was quicker."""
    with socket.socket(socket.AF_UNIX) as listening:
        try:
            listening.bind(name)
        except OSError:
            return
        listening.listen(64)
        handle = listening.fileno()
        command = [sys.executable, "-m", __name__, str(handle)]
        _STARTED.append(
            subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[handle],
            )
        )


@dataclass(frozen=True)
class _Job:
    """A command at work: its process, whom to answer, until when it may take."""

    child: int
    worker: TextIO
    deadline: float


def _serve(listening: socket.socket) -> None:
    """Run jobs, each in a fork, until no worker is connected."""
    gc.set_threshold(50_000, 20, 100)  # it imports much and drops nothing
    notes = Path(tempfile.mkdtemp())
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    workers, jobs, met = 0, 0, False
    running: dict[int, _Job] = {}
    while workers or running or not met:
        soon = min((job.deadline for job in running.values()), default=None)
        ready = selector.select(None if soon is None else max(0.0, soon - time.monotonic()))
        for key, _ in ready:
            if key.fileobj is listening:
                connection = listening.accept()[0]
                worker = connection.makefile("rw", encoding="utf-8")
                selector.register(connection, selectors.EVENT_READ, worker)
                workers, met = workers + 1, True
                worker.write("taken\n")
                worker.flush()
            elif key.fd in running:
                _answer(running.pop(key.fd), late=False)
                selector.unregister(key.fd)
                os.close(key.fd)
            elif line := key.data.readline():
                jobs += 1
                _get_ready(notes)
                *given, timeout = json.loads(line)
                child = os.fork()
                if not child:
                    for other in [*selector.get_map().values()]:
                        os.close(other.fd)
                    _become(given, notes / str(jobs))
                handle = os.pidfd_open(child)
                selector.register(handle, selectors.EVENT_READ)
                running[handle] = _Job(child, key.data, time.monotonic() + timeout)
            else:
                selector.unregister(key.fileobj)
                workers -= 1
                for job in running.values():
                    if job.worker is key.data:  # whoever asked was killed
                        os.kill(job.child, signal.SIGKILL)
        for handle, job in [*running.items()]:
            if job.deadline <= time.monotonic():
                os.kill(job.child, signal.SIGKILL)
                _answer(running.pop(handle), late=True)
                selector.unregister(handle)
                os.close(handle)
    shutil.rmtree(notes, ignore_errors=True)
    os._exit(0)


def _get_ready(notes: Path) -> None:
    """Import what the commands before have noted."""
    for path in notes.glob("*.txt"):
        for name in path.read_text().split():
            with suppress(Exception):
                importlib.import_module(name)
        path.unlink()
        gc.freeze()  # a fork's collector must not walk, and so copy, what was imported here


def _become(given: list[Any], seen: Path) -> NoReturn:
    """Turn this fork into the command."""
    command, cwd, environment, out, err = given
    for number, (path, mode) in enumerate(
        ((os.devnull, os.O_RDONLY), (out, _APPENDING), (err, _APPENDING))
    ):
        handle = os.open(path, mode | os.O_CREAT)
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["sdgbias", *command]
    _command(seen)


def _answer(job: _Job, *, late: bool) -> None:
    """Tell the worker how its command ended: the exit code as subprocess has it, `_LATE` if it had
    to be killed, and CPU seconds."""
    _, status, used = os.wait4(job.child, 0)
    code = _LATE if late else os.waitstatus_to_exitcode(status)
    with suppress(OSError):  # the worker is gone
        job.worker.write(f"{code} {used.ru_utime + used.ru_stime}\n")
        job.worker.flush()


def _command(seen: Path) -> NoReturn:
    """Run the command and end as the program does (sdgbias/lifeline.py): threads are waited for,
    what was registered for the exit runs, streams are flushed."""
    code: Any = 0
    if "PYTEST_CLI" in os.environ and sys.argv[1:2] == ["nightly"]:
        inside(os.environ["PYTEST_CLI"])
    try:
        runpy.run_module("sdgbias.cli", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    _note(seen)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _note(path: Path) -> None:
    """At the end of a command: which modules the server could have had ready."""
    part = path.with_suffix(".part")
    part.write_text("\n".join(n for n in sys.modules if n.partition(".")[0] in READY))
    part.rename(path.with_suffix(".txt"))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
