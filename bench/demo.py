"""How long `sdgbias demo` takes and how much memory it needs: cold in a fresh clone, then warm in
the same clone; and the longest time between two lines of its output.

    python -m bench.demo [--keep DIR]

The clone is of the commit checked out here, with changed and new files laid over it; its packages
are those of the running interpreter, its sdgbias is the clone's own. Memory is the largest sum of
resident sets over all processes of the demo, read from /proc four times a second (Linux only; pages
that processes share count in each). The seconds of the evaluation are those between the start and
the end of each run, as the results file has them.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from bench import measure, summary

REPOSITORY = Path(__file__).resolve().parents[1]
SDGBIAS = str(Path(sys.executable).with_name("sdgbias"))
RUNS = (
    "SELECT model, epoch(finished_at - started_at) AS s, started_at, n_prompts_planned, n_scored"
    " FROM runs ORDER BY model"
)
PAGE = os.sysconf("SC_PAGE_SIZE")


def git(*command: str) -> list[str]:
    done = subprocess.run(
        ["git", *command], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    return [line for line in done.stdout.split("\0" if "-z" in command else "\n") if line]


def clone(folder: Path) -> str:
    """Clones the repository into `folder`, lays uncommitted files over it, and says what was
    cloned."""
    subprocess.run(
        ["git", "clone", "--quiet", "--no-hardlinks", str(REPOSITORY), str(folder)], check=True
    )
    changed = git("ls-files", "-z", "--modified", "--others", "--exclude-standard")
    for name in changed:
        source, target = REPOSITORY / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
        else:
            target.unlink(missing_ok=True)
    return f"commit {git('rev-parse', '--short', 'HEAD')[0]}" + (
        f" with {len(changed)} changed files" if changed else ""
    )


def resident_bytes(session: int) -> int:
    """Sum of the resident sets of all processes of a session."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getsid(int(entry.name)) == session:
                total += int((entry / "statm").read_text().split()[1]) * PAGE
        except (OSError, IndexError):
            continue  # gone in the meantime
    return total


def measured(command: list[str], folder: Path, log: Path) -> tuple[float, int, float, str]:
    """(wall seconds, peak bytes, seconds of the longest silence, the line before it) of one
    command; its output goes to `log`."""
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
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=read, args=(process.stdout,))
        reader.start()
        while process.poll() is None:
            peak = max(peak, resident_bytes(process.pid))
            time.sleep(0.25)
        reader.join()
    if process.returncode:
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-15:])
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}:\n{tail}")
    return time.perf_counter() - began, peak, *silence


def evaluations(folder: Path, since: datetime) -> list[dict[str, str]]:
    """The runs of the results file that began after `since` (UTC)."""
    command = [SDGBIAS, "results", "--csv", "--sql", RUNS]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=True,
        capture_output=True,
        text=True,
    )
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    return [
        row
        for row in rows
        if datetime.fromisoformat(row["started_at"]).replace(tzinfo=UTC) >= since
    ]


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument(
        "--keep", type=Path, help="clone into this folder, which must not exist, and keep it"
    )
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory(prefix="sdgbias-demo-") as temporary:
        folder = keep.resolve() if keep else Path(temporary) / "clone"
        what = clone(folder)
        print(f"{what}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start\n")
        print(
            "| `sdgbias demo` | wall s | peak GiB | evaluation alone s | prompts scored | longest"
            " silence s, after |\n|---|---|---|---|---|---|"
        )
        cold = 0.0
        for name in ("cold", "warm"):
            since = datetime.now(UTC)
            wall, peak, silence, before = measured(
                [SDGBIAS, "demo"], folder, folder / f"demo-{name}.log"
            )
            done = evaluations(folder, since)
            alone = (
                ", ".join(f"{row['model']} {float(row['s']):.1f}" for row in done) or "none needed"
            )
            scored = sum(int(row["n_scored"]) for row in done)
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
