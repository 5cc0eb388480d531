"""The process that keeps a local stack running: `sdgbias stack up` starts it, `sdgbias stack
down` ends it.

    python -m flows.supervisor --home results/.prefect

It starts Prefect's server and one worker per pool, creates pools, deployments and schedule, and
then checks them every few seconds: a process that ended is restarted, a server that has not
answered for a minute is ended first, and flows/upkeep.py cleans up after dead workers or a machine
that was switched off. A restarted supervisor takes over the running processes. It keeps no state of
its own.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sdgbias.nightly.stack import processes, settings
from sdgbias.nightly.stack.settings import Stack

PAUSE = 2.0  # seconds between two checks of the processes
POLL_SECONDS = 5.0  # seconds between two queries of the server's flow runs
UNRESPONSIVE_AFTER = (
    60.0  # seconds without an answer after which a server that answered before is ended
)
# the same for a server that has not answered yet: creating its database can take minutes
STARTUP = 300.0
LONGEST = 60.0  # cap on the restart delay (seconds) of a part that keeps ending


@dataclass
class Watch:
    """Contents of state.json and the recent starts of each part."""

    stack: Stack
    said: dict[str, object] = field(default_factory=dict)
    starts: dict[str, list[float]] = field(default_factory=dict)
    answered: float = field(
        default_factory=time.monotonic
    )  # a server that is taken over gets the full timeout as well
    read: float = 0.0

    @property
    def home(self) -> Path:
        return Path(self.stack.home)

    def say(self, **what: object) -> None:
        if any(self.said.get(key) != value for key, value in what.items()):
            self.said.update(what)
            processes.write(self.home / "state.json", self.said)

    def happened(self, what: str) -> None:
        """Keep the last 20 events for `sdgbias stack status`, and write each to the log."""
        line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {what}"
        print(line, flush=True)
        before = self.said.get("happened", [])
        self.say(happened=[*(before if isinstance(before, list) else []), line][-20:])


def command(stack: Stack, part: str) -> list[str]:
    if part == "server":
        return [
            sys.executable,
            "-m",
            "prefect",
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(stack.port),
        ]
    kind = stack.workers[part]
    one = [] if kind == settings.CPU else ["--limit", "1"]
    return [
        sys.executable,
        "-m",
        "prefect",
        "worker",
        "start",
        "--pool",
        f"sdgbias-{kind}",
        "--name",
        part,
        "--type",
        "process",
        *one,
    ]


def environment(stack: Stack, part: str) -> dict[str, str]:
    """Environment of a part. A worker of an accelerator pool sees exactly one accelerator, so that
    each runs one model at a time."""
    kind = stack.workers.get(part, settings.CPU)
    one = (
        {}
        if kind == settings.CPU
        else {"CUDA_VISIBLE_DEVICES": part.removeprefix(f"worker-{kind}-")}
    )
    return {**settings.environment(stack), **one}


def ensure_running(watch: Watch, part: str) -> None:
    """Start a part that is not running; one that keeps ending is restarted with increasing
    delays."""
    if processes.alive(watch.home, part):
        return
    starts = [t for t in watch.starts.get(part, []) if time.monotonic() - t < 600]
    if starts and time.monotonic() - starts[-1] < min(LONGEST, 2.0 ** len(starts)):
        return
    left = [
        p for p in processes.marked(watch.home) if processes.variable(p, processes.PART) == part
    ]
    processes.end(
        [p for p in left if not processes.variable(p, processes.FLOW_RUN)], 5
    )  # flow runs continue without their worker
    again = (watch.home / "run" / f"{part}.json").exists()
    pid = processes.spawn(
        watch.home,
        part,
        command(watch.stack, part),
        environment(watch.stack, part),
        Path(watch.stack.project),
    )
    watch.starts[part] = [*starts, time.monotonic()]
    watch.happened(f"{part} {'had ended and was started again' if again else 'started'}, pid {pid}")


def healthy(watch: Watch) -> bool:
    """Whether the server answers; a running server without an answer for a minute (five after its
    start) is ended."""
    try:
        with urllib.request.urlopen(f"{watch.stack.api}/health", timeout=5) as answer:
            if answer.status == 200:
                watch.answered = time.monotonic()
                return True
    except OSError:
        pass
    started = max(watch.starts.get("server", [0.0]))
    patience = UNRESPONSIVE_AFTER if watch.answered > started else STARTUP
    server = processes.alive(watch.home, "server")
    if server is not None and time.monotonic() - max(watch.answered, started) > patience:
        watch.happened(f"the server gave no answer for {patience:.0f} s and is ended")
        processes.end([server], 5)
    return False


def deploy(watch: Watch) -> None:
    """Run `prefect deploy` on HOME/prefect.yaml, as a user would by hand."""
    todo = [
        sys.executable,
        "-m",
        "prefect",
        "--no-prompt",
        "deploy",
        "--prefect-file",
        str(watch.home / "prefect.yaml"),
        "--all",
    ]
    done = subprocess.run(
        todo, cwd=watch.stack.project, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"prefect deploy: exit code {done.returncode}:"
            f" {' '.join((done.stderr or done.stdout).split())[-300:]}"
        )


def reconcile(watch: Watch) -> None:
    """One pass over all parts of the stack; called repeatedly."""
    from flows import upkeep

    stack = watch.stack
    ensure_running(watch, "server")
    if not healthy(watch):
        return
    watch.say(server=f"ready: {stack.page}")
    if "pools" not in watch.said:
        upkeep.make_pools(stack)
        upkeep.drop_superseded(datetime.now(UTC))
        watch.say(
            pools="ready: "
            + ", ".join(f"sdgbias-{kind} ({n} at a time)" for kind, n in stack.pools.items())
        )
    for worker in stack.workers:  # started now: they come up while deploy runs
        ensure_running(watch, worker)
    if "deployments" not in watch.said:
        deploy(watch)
        watch.say(
            deployments="ready: nightly/nightly, "
            + ", ".join(f"score/score-{kind}" for kind in stack.pools)
        )
    if "workers" not in watch.said:
        if not upkeep.workers_online(stack):
            return
        watch.say(workers=f"ready: {', '.join(stack.workers)}")
    if "schedule" not in watch.said:
        watch.say(schedule=upkeep.next_night(stack))
    if time.monotonic() - watch.read < POLL_SECONDS:
        return
    watch.read = time.monotonic()
    for line in upkeep.mark_crashed(stack, datetime.now(UTC)):
        watch.happened(line)
    for line in upkeep.catch_up(stack, datetime.now(UTC)):
        watch.happened(line)
    watch.say(trouble="")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--home", type=Path, required=True, help="the stack's folder, as `sdgbias stack up` made it"
    )
    home = parser.parse_args().home
    stack = settings.load(home)
    if stack is None:
        sys.exit(f"error: {home}/stack.json is not there; run: sdgbias stack up --home {home}")
    os.environ.update(settings.environment(stack))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    watch = Watch(stack, {"happened": processes.read(home / "state.json").get("happened", [])})
    while True:
        try:
            reconcile(watch)
        except (
            Exception
        ) as error:  # the supervisor must survive any server, disk or network failure
            said = " ".join(str(error).split())[:500]
            if watch.said.get("trouble") != said:
                watch.happened(f"trouble: {said}")
            watch.say(trouble=said)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
