"""Two Ray nodes on this machine, in a network namespace of their own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tests.builders.commands import REPOSITORY

ADDRESS = "127.0.0.1:6399"
#: Holds a network namespace of its own whose loopback is up: Ray listens on all interfaces.
LOOPBACK = textwrap.dedent("""
    import fcntl, socket, struct, sys
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING
        fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
    print("up", flush=True)
    sys.stdin.read()
""")


class NoNamespace(Exception):
    """Why the system allows no network namespace."""


class TwoNodes:
    """Two Ray nodes of one CPU each in a network namespace; `run` starts a command in it.
    ``environment``: of the nodes and of commands. Raises NoNamespace."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.short = tempfile.mkdtemp(prefix="ray")  # its sockets' paths may not be long
        command = ["unshare", "-n", sys.executable, "-c", LOOPBACK]
        self.holder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout is not None and self.holder.stderr is not None
        if self.holder.stdout.readline() != "up\n":
            reason = self.holder.stderr.read().strip().splitlines()
            self.close()
            raise NoNamespace(reason[-1] if reason else "unshare -n failed")
        self.environment = {
            **environment,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": self.short,
        }
        ray = [
            str(Path(sys.executable).with_name("ray")),
            "start",
            "--num-cpus=1",
            "--object-store-memory=100000000",
        ]
        self.nodes: list[subprocess.Popen[str]] = []
        for number, more in enumerate(
            (["--head", "--port=6399", "--include-dashboard=false"], [f"--address={ADDRESS}"])
        ):
            node = self.run(
                *ray,
                *more,
                "--node-ip-address=127.0.0.1",
                "--disable-usage-stats",
                NODE=str(number),
            )
            out, err = node.communicate(timeout=900)
            assert node.returncode == 0, out + err

    def run(self, *command: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["nsenter", "-t", str(self.holder.pid), "-n", *command],
            cwd=REPOSITORY,
            env={**self.environment, **more, "CLUSTER": self.short},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self, mark: str) -> list[int]:
        """Processes that were started with this variable in their environment."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes().split(
                    b"\0"
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def kill(self, mark: str) -> None:
        for pid in self.processes(mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def close(self) -> None:
        self.kill(f"CLUSTER={self.short}")
        self.holder.kill()
        self.holder.wait()
        shutil.rmtree(self.short, ignore_errors=True)
