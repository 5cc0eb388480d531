"""How long `sdgbias --help` takes, beside an empty Python process on the same machine in the same
run.

    python bench/cli_help.py [--runs 21]

The two are timed in turn, so that a busy machine slows both. The first pair warms the file cache
and is left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SDGBIAS = Path(sys.executable).with_name("sdgbias")
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "sdgbias --help": [str(SDGBIAS), "--help"],
}


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=21)
    runs = parser.parse_args().runs
    took: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for round_number in range(runs + 1):
        for name, command in COMMANDS.items():
            value = seconds(command)
            if round_number:
                took[name].append(value)
    print(
        f"{runs} runs each, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python"
        f" {sys.version.split()[0]}\n"
    )
    print("| command | median s | fastest s | slowest s |\n|---|---|---|---|")
    for name, values in took.items():
        print(
            f"| `{name}` | {statistics.median(values):.3f} | {min(values):.3f} |"
            f" {max(values):.3f} |"
        )


if __name__ == "__main__":
    main()
