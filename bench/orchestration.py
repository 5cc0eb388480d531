"""What orchestration costs on top of the bare command line: per model and per 1,000 prompts.

    python bench/orchestration.py [--benchmark data/benchmark] [--models 2] [--pairs 3] [--ways
    nightly,server]

The same planted models, each time with empty results, are evaluated by `sdgbias evaluate`, one
process per model (bare), and in one night by `sdgbias nightly`, by the flow without a server, and
by the flow under a server that runs already. What closes a night (analyse, gate, report, ...) is
not orchestration: the seconds until the last model was kept count, from the night's own books, plus
what passes before the first model starts. The ways take turns, so that a busy machine slows all of
them; the first round warms the file cache and is left out. A pair is a way and the bare command
line of the same round; printed are medians over --pairs of them and, in brackets, the least and the
most. Also: a night in which nothing changed, whole, from the start of the process to its end (once;
of the bare command line, the same evaluation again).
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
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import summary
import yaml

from sdgbias import store
from sdgbias.nightly import ledger
from sdgbias.nightly.stack.settings import QUIET

REPOSITORY = Path(__file__).resolve().parents[1]
SDGBIAS = [sys.executable, "-m", "sdgbias.cli"]
TITLES = {
    "bare": "sdgbias evaluate (bare)",
    "nightly": "sdgbias nightly",
    "server": "flow, server",
    "no-server": "flow, no server",
}
ENTRY = {
    "title": "Planted",
    "backend": "planted",
    "repo": "planted",
    "revision": "planted-1",
    "state": "enabled",
}


def registry(folder: Path, models: int) -> list[str]:
    names = [f"planted-{i}" for i in range(models)]
    (folder / "registry" / "models").mkdir(parents=True)
    for name in names:
        text = yaml.safe_dump({"name": name, **ENTRY})
        (folder / "registry" / "models" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return names


def run(command: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - began
    if done.returncode not in (0, 6):  # 6: the gate found something, and the night was whole
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return took


def bare(names: list[str], benchmark: Path, folder: Path, environment: dict[str, str]) -> float:
    paths = ["--benchmark", str(benchmark), "--results", str(folder / "r.duckdb")]
    return sum(run([*SDGBIAS, "evaluate", name, *paths], environment) for name in names)


def night(
    command: list[str], benchmark: Path, folder: Path, environment: dict[str, str]
) -> tuple[float, float]:
    """(seconds from the start of the process to the last model kept, seconds of the whole
    process)."""
    paths = [
        "--benchmark",
        str(benchmark),
        "--results",
        str(folder / "r.duckdb"),
        "--report",
        str(folder / "report"),
    ]
    before = len(ledger.nights(folder / "r.duckdb"))
    due = datetime(
        2026, 1, 1 + before, 1, 30, tzinfo=UTC
    ).isoformat()  # every night of one results file has a name of its own
    began = time.time()
    whole = run([*command, *paths, "--scheduled-for", due], environment)
    rows = ledger.history(folder / "r.duckdb")
    rows = rows[rows["night"] == rows["night"].max()]
    return rows["finished_at"].dt.tz_localize("UTC").max().timestamp() - began, whole


@contextmanager
def server(home: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    command = [
        sys.executable,
        "-m",
        "prefect",
        "server",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    quiet = {
        **QUIET,
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    process = subprocess.Popen(
        command, env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
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


def middle(values: list[float], signed: bool = False) -> str:
    """Median, and in brackets the least and the most of several."""
    sign = "+" if signed else ""
    spread = f" ({min(values):{sign}.2f} to {max(values):{sign}.2f})" if len(values) > 1 else ""
    return f"{statistics.median(values):{sign}.2f}{spread}"


def measure(models: int, pairs: int, chosen: list[str], benchmark: Path, scratch: Path) -> None:
    names = registry(scratch, models)
    plain = {
        **QUIET,
        **os.environ,
        "SDGBIAS_REGISTRY": str(scratch),
        "PREFECT_HOME": str(scratch / "prefect"),
    }
    flow = [sys.executable, "-m", "flows.nightly"]
    began = os.getloadavg()[0]
    with server(scratch / "server") if "server" in chosen else nullcontext("") as url:
        served = {**plain, "PREFECT_API_URL": url}
        ways: dict[str, Callable[[Path], tuple[float, float]]] = {
            "bare": lambda folder: (bare(names, benchmark, folder, plain),) * 2,
            "nightly": lambda folder: night([*SDGBIAS, "nightly"], benchmark, folder, plain),
            "server": lambda folder: night(flow, benchmark, folder, served),
            "no-server": lambda folder: night(flow, benchmark, folder, plain),
        }
        ways = {way: scored for way, scored in ways.items() if way in ("bare", *chosen)}
        took: dict[str, list[float]] = {way: [] for way in ways}
        still: dict[str, float] = {}
        for number in range(pairs + 1):
            for way, scored in ways.items():
                folder = Path(tempfile.mkdtemp(dir=scratch))
                seconds, _ = scored(folder)
                if number:
                    took[way].append(seconds)
                if number == pairs:
                    still[way] = scored(folder)[1]
                prompts = int(
                    store.query(folder / "r.duckdb", "SELECT sum(n_scored) AS n FROM runs")[
                        "n"
                    ].iloc[0]
                )
                shutil.rmtree(folder)
                print(
                    f"round {number} of {pairs}, {TITLES[way]}: {seconds:.1f}"
                    f" s{'' if number else ' (left out)'}",
                    file=sys.stderr,
                    flush=True,
                )
    base = took["bare"]
    load = f"load {began:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
    print(
        f"{models} planted models, {prompts:,} prompts scored in all, {pairs} pairs,"
        f" {os.cpu_count()} CPUs, {load}\n"
    )
    heads = (
        "way",
        "s",
        "times bare",
        "more s per model",
        "more s per 1,000 prompts",
        "nothing changed, whole s",
    )
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for way, values in took.items():
        more = [v - b for v, b in zip(values, base, strict=True)]
        cells = [
            TITLES[way],
            middle(values),
            middle([v / b for v, b in zip(values, base, strict=True)]),
        ]
        cells += (
            [
                middle([m / models for m in more], True),
                middle([1000 * m / prompts for m in more], True),
            ]
            if way != "bare"
            else ["", ""]
        )
        print("| " + " | ".join([*cells, f"{still[way]:.1f}"]) + " |")
        if way != "bare":
            figure = f"{cells[1]} s, {cells[2]} times"
            n = f"{models} models, {prompts:,} prompts, {pairs} pairs"
            beside = f"the command line alone: {middle(base)} s"
            summary.record("orchestration", [summary.Row(TITLES[way], n, figure, "none", beside)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--benchmark", type=Path, default=Path("data/benchmark"))
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument(
        "--pairs", type=int, default=3, help="rounds that count; medians are taken over them"
    )
    parser.add_argument(
        "--ways",
        default="nightly,server,no-server",
        help="what is compared with the bare command line",
    )
    args = parser.parse_args()
    chosen = args.ways.split(",")
    if args.models < 1 or args.pairs < 1 or not set(chosen) < set(TITLES):
        sys.exit(
            "--models and --pairs: 1 or more; --ways:"
            f" {', '.join(way for way in TITLES if way != 'bare')}, with commas"
        )
    if not (args.benchmark / "benchmark.json").is_file():
        sys.exit(f"{args.benchmark}: no benchmark; build one first: make demo, or sdgbias build")
    with tempfile.TemporaryDirectory() as scratch:
        measure(args.models, args.pairs, chosen, args.benchmark.resolve(), Path(scratch))


if __name__ == "__main__":
    main()
