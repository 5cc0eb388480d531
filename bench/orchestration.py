"""What orchestration costs on top of the bare command line: per model and per 1,000 prompts.

    python bench/orchestration.py [--benchmark data/benchmark] [--models 2] [--pairs 5]

The same planted models, each time with empty results, are evaluated by `sdgbias evaluate`, one process per model (bare), and in one night by
`sdgbias nightly`, by the flow without a server, and by the flow under a server that runs already. What closes a night (analyse, gate,
report, ...) is not orchestration: the seconds until the last model was kept count, from the night's own books, plus what passes before the
first model starts. The ways take turns, so that a busy machine slows all of them; the first round warms the file cache and is left out.
Also: a night in which nothing changed, whole, from the start of the process to its end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import yaml

from sdgbias import store
from sdgbias.night import ledger
from sdgbias.stack.settings import QUIET

REPOSITORY = Path(__file__).resolve().parents[1]
SDGBIAS = [sys.executable, "-m", "sdgbias.cli"]
ENTRY = {"title": "Planted", "backend": "planted", "repo": "planted", "revision": "planted-1", "state": "enabled"}


def registry(folder: Path, models: int) -> list[str]:
    names = [f"planted-{i}" for i in range(models)]
    (folder / "registry" / "models").mkdir(parents=True)
    for name in names:
        text = yaml.safe_dump({"name": name, **ENTRY})
        (folder / "registry" / "models" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return names


def run(command: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode not in (0, 6):  # 6: the gate found something, and the night was whole
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return took


def bare(names: list[str], benchmark: Path, folder: Path, environment: dict[str, str]) -> float:
    paths = ["--benchmark", str(benchmark), "--results", str(folder / "r.duckdb")]
    return sum(run([*SDGBIAS, "evaluate", name, *paths], environment) for name in names)


def night(command: list[str], benchmark: Path, folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """(seconds from the start of the process to the last model kept, seconds of the whole process)."""
    paths = ["--benchmark", str(benchmark), "--results", str(folder / "r.duckdb"), "--report", str(folder / "report")]
    before = len(ledger.nights(folder / "r.duckdb"))
    due = datetime(2026, 1, 1 + before, 1, 30, tzinfo=UTC).isoformat()  # every night of one results file has a name of its own
    began = time.time()
    whole = run([*command, *paths, "--people", str(folder / "none"), "--scheduled-for", due], environment)
    rows = ledger.history(folder / "r.duckdb")
    rows = rows[rows["night"] == rows["night"].max()]
    return rows["finished_at"].dt.tz_localize("UTC").max().timestamp() - began, whole


@contextmanager
def server(home: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    quiet = {**QUIET, **os.environ, "PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    process = subprocess.Popen(command, env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=1)
                break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def measure(models: int, pairs: int, benchmark: Path, scratch: Path) -> None:
    names = registry(scratch, models)
    plain = {**QUIET, **os.environ, "SDGBIAS_REGISTRY": str(scratch), "PREFECT_HOME": str(scratch / "prefect")}
    flow = [sys.executable, "-m", "flows.nightly"]
    with server(scratch / "server") as url:
        served = {**plain, "PREFECT_API_URL": url}
        ways: dict[str, Callable[[Path], tuple[float, float]]] = {
            "sdgbias evaluate (bare)": lambda folder: (bare(names, benchmark, folder, plain),) * 2,
            "sdgbias nightly": lambda folder: night([*SDGBIAS, "nightly"], benchmark, folder, plain),
            "flow, no server": lambda folder: night(flow, benchmark, folder, plain),
            "flow, server": lambda folder: night(flow, benchmark, folder, served),
        }
        took: dict[str, list[float]] = {way: [] for way in ways}
        still: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(pairs + 1):
            for way, scored in ways.items():
                folder = Path(tempfile.mkdtemp(dir=scratch))
                seconds, _ = scored(folder)
                unchanged = scored(folder)[1] if number == pairs else None
                if number:
                    took[way].append(seconds)
                if unchanged is not None:
                    still[way].append(unchanged)
                prompts = int(store.query(folder / "r.duckdb", "SELECT sum(n_scored) AS n FROM runs")["n"].iloc[0])
                shutil.rmtree(folder)
    base = took["sdgbias evaluate (bare)"]
    print(
        f"{models} planted models, {prompts:,} prompts scored in all, {pairs} rounds, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n"
    )
    print(
        "| way | median s | times bare | more s per model | more s per 1,000 prompts | nothing changed, whole s |\n|---|---|---|---|---|---|"
    )
    for way, values in took.items():
        ratio = statistics.median(v / b for v, b in zip(values, base, strict=True))
        more = statistics.median(v - b for v, b in zip(values, base, strict=True))
        cells = f"{statistics.median(values):.1f} | {ratio:.2f} | {more / models:+.2f} | {1000 * more / prompts:+.2f}"
        print(f"| {way} | {cells} | {statistics.median(still[way]):.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", type=Path, default=Path("data/benchmark"))
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        measure(args.models, args.pairs, args.benchmark.resolve(), Path(scratch))


if __name__ == "__main__":
    main()
