"""Cold start of `sdgbias nightly` when nothing changed: one new process, all closing steps, against
a limit of 10 s.

    python bench/nothing_to_do.py [--models 12] [--repeat 3]
    python bench/nothing_to_do.py --project . [--repeat 3]

The first night scores planted models on a tiny synthetic benchmark and is not measured. Each
further night is the whole command: who is due, whether anything changed, gate, page of the night,
W&B (offline) and announcement (no webhook). With --project: the enabled models, benchmarks and
results of a folder in which the demo was run, in copies; there the first night scores what is due,
if anything is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import summary
import yaml

LIMIT = 10.0


def planted(root: Path, models: int) -> list[str]:
    """A registry of planted models and a benchmark of some questions below ``root``; the options of
    the night."""
    from sdgbias.benchmark.build import Draw, build
    from sdgbias.raw.synthetic import write_sample

    shutil.copytree(Path(__file__).resolve().parents[1] / "expectations", root / "expectations")
    write_sample(root / "raw", 12, 5)
    build(root / "raw", root / "raw" / "indicators", root / "benchmark", Draw(mcq=24, regression=6))
    (root / "registry" / "models").mkdir(parents=True)
    for n in range(models):
        name = f"m{n:02d}"
        fields = {
            "name": name,
            "title": name,
            "backend": "planted",
            "repo": "planted",
            "revision": "1",
            "state": "enabled",
        }
        (root / "registry" / "models" / f"{name}.yaml").write_text(
            yaml.safe_dump({**fields, "options": {"optimism": n / 10}})
        )
    return [
        "--benchmark",
        str(root / "benchmark"),
        "--passes",
        "none",
        "--draws",
        "100",
    ]


def copied(root: Path, project: Path) -> list[str]:
    """Registry, data and results of a project, copied: an entry may name a benchmark only inside
    its own project."""
    for name in ("registry", "expectations", "results", "data"):
        shutil.copytree(project / name, root / name)
    return []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--project", type=Path, help="a folder in which the demo was run")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    if args.project and not (args.project / "results").is_dir():
        sys.exit(f"{args.project / 'results'}: no results; run the demo there first: make demo")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        options = copied(root, args.project) if args.project else planted(root, args.models)
        took, whole = list[float](), 0.0
        for n in range(args.repeat + 1):
            load, began = os.getloadavg()[0], time.perf_counter()
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "sdgbias.cli",
                    "nightly",
                    *options,
                    "--night",
                    f"2036-11-{n + 1:02d}T0130",
                ],
                cwd=root,
                env={**os.environ, "SDGBIAS_REGISTRY": str(root)},
                capture_output=True,
                text=True,
                check=False,
            )
            seconds = time.perf_counter() - began
            whole = whole or seconds
            outcomes = re.findall(r" (published|unchanged|failed) ", done.stdout)
            unchanged = outcomes.count("unchanged")
            steps = re.findall(
                r"(analyse|gate|report|wandb|announce): \w+.*?\((\d+) s\)", done.stderr
            )
            said = ", ".join(f"{name} {s} s" for name, s in steps)
            print(
                f"night {n + 1}: exit code {done.returncode}, {unchanged} of {len(outcomes)}"
                f" unchanged, {seconds:.1f} s ({said}), load {load:.1f}",
                flush=True,
            )
            if n and outcomes and unchanged == len(outcomes):
                took.append(seconds)
        if not took:
            sys.exit(f"no night without anything to do:\n{done.stderr[-2000:]}")
        planned = "the demo's models" if args.project else f"{args.models} planted models"
        figure = f"median {statistics.median(took):.1f} s, {max(took):.1f} s at most"
        what = f"a night with nothing to do, {planned}"
        row = summary.Row(
            what, f"{len(took)} nights", figure, f"{LIMIT:.0f} s", f"the first night: {whole:.1f} s"
        )
        summary.record("nothing_to_do", [row])
        print(
            f"nothing to do: median {statistics.median(took):.1f} s of {len(took)} nights, limit"
            f" {LIMIT:.0f}"
        )


if __name__ == "__main__":
    main()
