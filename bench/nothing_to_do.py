"""Cold start of `sdgbias nightly` when nothing changed: one new process, all closing steps, against a limit of 10 s.

    python bench/nothing_to_do.py [--models 12] [--repeat 3]

The first night scores planted models on a tiny synthetic benchmark and is not measured. Each further night is the whole command: who is due,
whether anything changed, gate, page of the night, W&B (offline) and announcement (no webhook).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    from sdgbias.build import build
    from sdgbias.sample import write_sample

    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        write_sample(root / "raw", 12, 5)
        build(root / "raw", root / "raw" / "indicators", root / "benchmark", mcq=24, regression=6)
        (root / "registry" / "models").mkdir(parents=True)
        for n in range(args.models):
            fields = {
                "name": f"m{n:02d}",
                "title": f"m{n:02d}",
                "backend": "planted",
                "repo": "planted",
                "revision": "1",
                "state": "enabled",
            }
            (root / "registry" / "models" / f"m{n:02d}.yaml").write_text(yaml.safe_dump({**fields, "options": {"optimism": n / 10}}))
        command = [sys.executable, "-m", "sdgbias.cli", "nightly", "--results", str(root / "r.duckdb"), "--report", str(root / "report")]
        command += ["--benchmark", str(root / "benchmark"), "--passes", "none", "--draws", "100"]
        for n in range(args.repeat + 1):
            began = time.perf_counter()
            done = subprocess.run(
                [*command, "--night", f"2026-11-{n + 1:02d}T0130"], env={**os.environ, "SDGBIAS_REGISTRY": str(root)},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            seconds = time.perf_counter() - began
            unchanged = done.stdout.count(" unchanged ")
            said = ", ".join(
                f"{name} {s} s" for name, s in re.findall(r"(analyse|gate|report|wandb|announce): \w+.*?\((\d+) s\)", done.stderr)
            )
            print(
                f"night {n + 1}: exit code {done.returncode}, {unchanged} of {args.models} unchanged, {seconds:.1f} s ({said})", flush=True
            )


if __name__ == "__main__":
    main()
