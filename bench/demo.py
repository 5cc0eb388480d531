"""How long `sdgbias demo` takes and how much memory it needs: cold in a fresh clone, then warm in
the same clone; and the longest time between two lines of its output.

    python -m bench.demo [--keep DIR]

The clone is of the commit checked out here; its packages are those of the running interpreter, its
sdgbias is the clone's own. Memory is the largest sum of resident sets over all processes of the
demo, read four times a second (pages that processes share count in each). The seconds of the
evaluation are those between the start and the end of each run, as the results file has them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import psutil

from bench import measure, summary
from sdgbias import store

REPOSITORY = Path(__file__).resolve().parents[1]
SDGBIAS = str(Path(sys.executable).with_name("sdgbias"))
RUNS = (
    "SELECT model, epoch(finished_at - started_at) AS s, n_scored FROM runs"
    " WHERE started_at >= ? ORDER BY model"
)


def resident_bytes(process: psutil.Process) -> int:
    """Sum of the resident sets of a process and all below it."""
    total = 0
    with suppress(psutil.Error):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):  # gone in the meantime
                total += one.memory_info().rss
    return total


def measured(folder: Path, log: Path) -> tuple[float, int, float, str]:
    """(wall seconds, peak bytes, seconds of the longest silence, the line before it) of one demo;
    its output goes to `log`."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    began, peak, silence = time.perf_counter(), 0, (0.0, "")

    def read(lines: IO[str]) -> None:
        nonlocal silence
        last, before = began, "the start"
        with log.open("w", encoding="utf-8") as out:
            for line in lines:
                now = time.perf_counter()
                silence = max(silence, (now - last, before))
                last, before = now, line.strip() or before
                out.write(f"{now - began:7.1f} {line}")
        silence = max(silence, (time.perf_counter() - last, before))

    with subprocess.Popen(
        [SDGBIAS, "demo"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=read, args=(process.stdout,))
        reader.start()
        while process.poll() is None:
            peak = max(peak, resident_bytes(psutil.Process(process.pid)))
            time.sleep(0.25)
        reader.join()
    if process.returncode:
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-15:])
        raise SystemExit(f"sdgbias demo ended with exit code {process.returncode}:\n{tail}")
    return time.perf_counter() - began, peak, *silence


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument(
        "--keep", type=Path, help="clone into this folder, which must not exist, and keep it"
    )
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory(prefix="sdgbias-demo-") as temporary:
        folder = keep.resolve() if keep else Path(temporary) / "clone"
        clone = ["git", "clone", "--quiet", "--no-hardlinks", str(REPOSITORY), str(folder)]
        subprocess.run(clone, check=True)
        print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start\n")
        print(
            "| `sdgbias demo` | wall s | peak GiB | evaluation alone s | prompts scored | longest"
            " silence s, after |\n|---|---|---|---|---|---|"
        )
        cold = 0.0
        for name in ("cold", "warm"):
            since = datetime.now(UTC).replace(tzinfo=None)
            wall, peak, silence, before = measured(folder, folder / f"demo-{name}.log")
            done = store.query(folder / "results" / "sdgbias.duckdb", RUNS, [since])
            alone = ", ".join(f"{row.model} {row.s:.1f}" for row in done.itertuples())
            alone, scored = alone or "none needed", int(done["n_scored"].sum())
            n, figure = f"{scored:,} prompts scored, once", f"{wall:.0f} s, {peak / 2**30:.2f} GiB"
            figure += f", silent for at most {silence:.0f} s"
            aim, beside = ("150 s", "") if name == "cold" else ("none", f"cold: {cold:.0f} s")
            cold = wall if name == "cold" else cold
            beside = beside or f"evaluations alone: {alone} s"
            summary.record("demo", [summary.Row(f"sdgbias demo, {name}", n, figure, aim, beside)])
            print(
                f"| {name} | {wall:.1f} | {peak / 2**30:.2f} | {alone} | {scored:,} |"
                f" {silence:.1f}, {before[:60]} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
