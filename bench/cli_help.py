"""How long `sdgbias --help` and `sdgbias models` with 1,000 entries take, beside an empty Python
process on the same machine in the same run.

    python bench/cli_help.py [--runs 21]

The commands are run in turn, so that a busy machine slows all of them. The first round warms the
file cache and is left out.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import summary
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
SDGBIAS, ENTRIES = str(Path(sys.executable).with_name("sdgbias")), 1000
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "sdgbias --help": [SDGBIAS, "--help"],
    f"sdgbias models, {ENTRIES:,} entries": [SDGBIAS, "models"],
}


def register(folder: Path) -> None:
    """A registry of planted models."""
    (folder / "registry" / "models").mkdir(parents=True)
    fixed = {"backend": "planted", "repo": "planted", "revision": "1", "state": "enabled"}
    for name in (f"model-{n:04d}" for n in range(ENTRIES)):
        text = yaml.safe_dump({"name": name, "title": name, **fixed})
        (folder / "registry" / "models" / f"{name}.yaml").write_text(text, encoding="utf-8")


def seconds(command: list[str], registry: str) -> tuple[float, float]:
    """(wall, CPU) of one process."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "SDGBIAS_REGISTRY": registry}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY, env=env)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=21)
    runs = parser.parse_args().runs
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as registry:
        register(Path(registry))
        for round_number in range(runs + 1):
            for name, command in COMMANDS.items():
                value = seconds(command, registry)
                if round_number:
                    took[name].append(value)
    load = (load + os.getloadavg()[0]) / 2
    print(f"{runs} runs each, {os.cpu_count()} CPUs, load {load:.1f}, Python {sys.version[:6]}\n")
    print("| command | median s | fastest s | slowest s | median CPU s |\n|---|---|---|---|---|")
    figures = {}
    for name, values in took.items():
        walls, cpus = zip(*values, strict=True)
        figures[name] = f"{statistics.median(walls):.2f} s, {statistics.median(cpus):.2f} CPU s"
        print(
            f"| `{name}` | {statistics.median(walls):.3f} | {min(walls):.3f} | {max(walls):.3f} |"
            f" {statistics.median(cpus):.3f} |"
        )
    empty, *ours = figures
    rows = [
        summary.Row(name, f"{runs} runs", figures[name], aim, f"{empty}: {figures[empty]}", load)
        for name, aim in zip(ours, ("none", "1 s"), strict=True)
    ]
    summary.record("cli_help", rows)


if __name__ == "__main__":
    main()
