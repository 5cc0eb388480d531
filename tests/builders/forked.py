"""Commands run by forks of one process that has imported what they need.

Most of the time of a small command is importing: 3 s with torch, 7 s with Great Expectations. The
server here is one process per pytest worker. It runs `python -m sdgbias.cli` in a fork of itself,
with the command's own process id, working folder, environment, streams and exit code, and ends it
after the command's own clean-up. The server learns from each command which modules to have ready
for the next one.

What a fork can't show needs a process of its own (`alone` in tests.builders.commands): that a
command imports what it uses, that its output doesn't depend on the seed of Python's hashes.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

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
    subprocess.TimeoutExpired after `timeout` seconds; the command is killed then."""
    with _LOCK, tempfile.TemporaryDirectory() as folder:
        out, err, seen = (Path(folder) / name for name in ("out", "err", "seen"))
        job = (command, str(cwd), dict(environment), str(out), str(err), str(seen), timeout)
        server = _server({n: v for n, v in environment.items() if not n.startswith(OURS)})
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "the server of the tests' commands has ended"
        texts = [path.read_text("utf-8") for path in (out, err)]
    code, seconds = int(answer.split()[0]), float(answer.split()[1])
    cpu.append(seconds)
    if code == _LATE:
        raise subprocess.TimeoutExpired(command, timeout, *texts)
    return subprocess.CompletedProcess(command, code, *texts)


#: CPU seconds of each command so far, its children included.
cpu: list[float] = []
_LATE = 1000  # no exit code
_LOCK = threading.Lock()
_SERVERS: list[tuple[dict[str, str], subprocess.Popen[str]]] = []  # the last used last


def _server(environment: dict[str, str]) -> subprocess.Popen[str]:
    """The server of an environment."""
    for known in _SERVERS:
        if known[0] == environment:
            _SERVERS.remove(known)
            _SERVERS.append(known)
            return known[1]
    if len(_SERVERS) == MOST:
        _SERVERS.pop(0)[1].communicate()  # it ends when it has nothing more to read
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    _SERVERS.append((environment, process))
    return process


def _serve() -> None:
    """Run jobs until the pytest worker ends, each in a fork."""
    gc.set_threshold(50_000, 20, 100)  # it imports much and drops nothing
    noted: list[str] = []
    for line in sys.stdin:
        for name in noted:  # not at once: most environments see a single command
            with suppress(Exception):
                importlib.import_module(name)
        gc.freeze()  # a fork's collector must not walk, and so copy, what was imported here
        command, cwd, environment, out, err, seen, timeout = json.loads(line)
        sys.stdout.flush()
        child = os.fork()
        if not child:
            for number, (path, mode) in enumerate(
                ((os.devnull, os.O_RDONLY), (out, os.O_WRONLY), (err, os.O_WRONLY))
            ):
                given = os.open(path, mode | os.O_CREAT)
                os.dup2(given, number)
                os.close(given)
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["sdgbias", *command]
            _command(Path(seen))
        code, seconds = _ended(child, timeout)
        noted = Path(seen).read_text().split() if Path(seen).exists() else []
        print(code, seconds, flush=True)
    os._exit(0)


def _command(seen: Path) -> NoReturn:
    """Run the command and end as the program does (sdgbias/lifeline.py): threads are waited for,
    what was registered for the exit runs, streams are flushed."""
    code: Any = 0
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
    path.write_text("\n".join(n for n in sys.modules if n.partition(".")[0] in READY))


def _ended(child: int, timeout: float) -> tuple[int, float]:
    """The child's exit code as subprocess has it, `_LATE` if it had to be killed; its CPU
    seconds."""
    handle = os.pidfd_open(child)
    late = not select.select([handle], [], [], timeout)[0]
    os.close(handle)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return _LATE if late else code, used.ru_utime + used.ru_stime


if __name__ == "__main__":
    _serve()
