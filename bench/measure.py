"""What the benchmarks share: wall and CPU seconds and peak memory, by stage, of this process."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cost:
    """Wall and CPU seconds (all threads), and the largest resident set meanwhile in GiB."""

    wall: float = 0.0
    cpu: float = 0.0
    peak: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall + other.wall, self.cpu + other.cpu, max(self.peak, other.peak))


class Stages:
    """Costs by stage (``took``). A stage within another one counts for itself alone. The peak is
    read from the kernel, and set back at each change of stage (Linux only)."""

    def __init__(self) -> None:
        self.took: dict[str, Cost] = {}
        self._open = ["rest"]
        self._begin()

    def _begin(self) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._since = time.perf_counter(), time.process_time()

    def _end(self) -> None:
        wall, cpu = self._since
        status = Path("/proc/self/status").read_text(encoding="ascii")
        peak = int(status.partition("VmHWM:")[2].split()[0]) / 2**20
        one = Cost(time.perf_counter() - wall, time.process_time() - cpu, peak)
        name = self._open[-1]
        self.took[name] = self.took.get(name, Cost()) + one
        self._begin()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._end()
        self._open.append(name)
        try:
            yield
        finally:
            self._end()
            self._open.pop()

    def total(self) -> Cost:
        """All stages, what lies between them included."""
        self._end()
        return sum(self.took.values(), Cost())


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Of a benchmark's options; ``doc`` is its description."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def in_a_process(module: str, *given: object) -> dict[str, Any]:
    """The JSON that a module of bench/ prints last, run in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, given)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))
