"""The launcher keeps the processes of a local stack running, and ends them together.

`sdgbias stack up` starts it (`python -m sdgbias.nightly.stack HOME`), and `sdgbias stack down` ends
it. The server and the workers die with
it, however it ends; flow runs that are at work then go on by themselves.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from sdgbias import lifeline
from sdgbias.nightly.stack import processes, settings
from sdgbias.nightly.stack.settings import CPU, Stack

#: Prefect's command line in a process that ends with its parent.
PREFECT = (
    "import runpy; from sdgbias import lifeline; lifeline.watch();"
    " runpy.run_module('prefect', run_name='__main__', alter_sys=True)"
)
LONGEST = 60.0  # cap on the restart delay (seconds) of a part that keeps ending
_LOG_LIMIT = 10_000_000  # bytes; an older log is kept once, as NAME.log.1


def command(stack: Stack, part: str) -> list[str]:
    """The command line of a part, without the interpreter. A worker of an accelerator pool runs one
    model at a time."""
    if part == "server":
        return ["server", "start", "--host", "127.0.0.1", "--port", str(stack.port)]
    kind = stack.workers[part]
    worker = ["worker", "start", "--pool", f"sdgbias-{kind}", "--name", part, "--type", "process"]
    return worker if kind == CPU else [*worker, "--limit", "1"]


def start(stack: Stack, part: str) -> subprocess.Popen[bytes]:
    """Start a part, with its output in logs/PART.log. A worker of an accelerator pool sees exactly
    one accelerator."""
    log = processes.log_of(Path(stack.home), part)
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.replace(log.with_suffix(".log.1"))
    kind = stack.workers.get(part, CPU)
    device = part.removeprefix(f"worker-{kind}-")
    own = {} if kind == CPU else {"CUDA_VISIBLE_DEVICES": device}
    environment, passed = lifeline.given({**settings.environment(stack), **own})
    prefect = [sys.executable, "-c", PREFECT, *command(stack, part)]
    return processes.start(stack.home, part, prefect, environment, stack.project, passed)


def answers(stack: Stack) -> bool:
    """Whether the server is ready."""
    try:
        with urllib.request.urlopen(f"{stack.api}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def keep(stack: Stack, running: dict[str, subprocess.Popen[bytes]]) -> None:
    """Start every part, and start again what ends, with growing delays where it ends repeatedly.
    Workers are started when the server answers. Never returns."""
    starts: dict[str, list[float]] = {part: [] for part in stack.parts}
    while True:
        for part, at in starts.items():
            if part in running and running[part].poll() is None:
                continue
            at[:] = [t for t in at if time.monotonic() - t < 600]
            if at and time.monotonic() - at[-1] < min(LONGEST, 2.0 ** len(at)):
                continue
            if part != "server" and not answers(stack):
                continue
            if part in running:
                code = running[part].returncode
                now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
                print(f"{now}: {part} had ended ({code}) and is started again", flush=True)
            at.append(time.monotonic())
            running[part] = start(stack, part)
        time.sleep(1)


def end(stack: Stack) -> None:
    """End the workers, then the flow runs while the server can still record how they end, then
    whatever they left, the server last."""
    home = Path(stack.home)
    there = processes.marked(home)
    flows = [p for p in there if processes.runs_a_flow(p)]
    server = [p for p in there if processes.variable(p, processes.PART) == "server"]
    workers = {p for name in stack.workers if (p := processes.part(home, name))}
    # not SIGTERM: on that a worker ends its flow runs itself, and nothing is recorded of them
    processes.kill(workers)
    processes.end(flows, 15)
    processes.end([p for p in processes.marked(home) if p not in server], 10)
    processes.end(server, 20)
