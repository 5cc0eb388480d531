"""Several engines against one on the same prompts: processes of this machine (`--workers`), and
actors of a Ray cluster on it (`--ray`).

    python bench/engines.py [--model tiny-llava] [--engines 2] [--clusters 40] [--mcq 150] [--runs
    3]

Everything in one run: the local engine, the workers and Ray take turns on an empty cache; medians
of the runs. "start" is what comes before the first prompt (loading the engine; for Ray also
connecting and asking one engine for its fingerprint), "scoring" the rest, Ray's own actors' loading
included. The cluster is one node in a network namespace of its own (`unshare -n`, needs root), with
a token.

    python bench/engines.py --at-once 20000

What one process can send to engines and commit: prompts a second with engines that answer at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import os
import secrets
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import summary

ADDRESS = "127.0.0.1:6398"
INSIDE = "SDGBIAS_BENCH_INSIDE"


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(
            s, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40)
        )  # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING


def end(mark: str) -> None:
    """Ends the processes that have this in their environment, this one aside; `ray stop` would end
    every cluster of the machine."""
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and int(entry.name) != os.getpid()
                and mark.encode() in (entry / "environ").read_bytes().split(b"\0")
            ):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue  # gone in the meantime


def one(model: str, benchmark: Path, workers: int, address: str) -> tuple[float, float, int]:
    """(seconds before the first prompt, seconds of scoring, prompts) of a run on an empty cache."""
    from sdgbias.registry import entries
    from sdgbias.scoring.evaluate import Pool, open_engine, score_model

    root = entries.find_root()
    spec = entries.load(root, model)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "r.duckdb"
        began = time.perf_counter()
        with open_engine(spec, root, benchmark, Pool(workers, address)) as backend:
            ready = time.perf_counter()
            done = score_model(backend, spec, benchmark, results)
            assert len(done.scored.scores) == len(done.asked)
            return ready - began, time.perf_counter() - ready, len(done.asked)


def at_once(prompts: int) -> None:
    """Rates of WorkerPool alone. Its engines answer in this process, so that their time, some tens
    of microseconds a prompt, counts too."""
    import numpy as np
    import pandas as pd

    from sdgbias.engines.subprocess import Frame, RemoteEngine, Server, put_scores
    from sdgbias.registry import entries
    from sdgbias.scoring.cache import ScoreCache
    from sdgbias.scoring.scorer import Scorer
    from sdgbias.scoring.workers import Worker, WorkerPool
    from sdgbias.types import ScoreBatch

    spec = dataclasses.replace(entries.load(entries.find_root(), "planted-optimist"), options={})

    class AtOnce(RemoteEngine):
        def _exchange(self, frame: Frame) -> Frame:
            if "prompts" not in frame[0]:
                return Server().answer(frame)
            n = len(frame[0]["prompts"])
            ones = np.ones(n, np.float32)
            batch = ScoreBatch(
                np.ones((n, 4), np.float32), ones, ones, ["A"] * n, ones.astype("i4")
            )
            header, payload = put_scores(batch)
            return {**header, "counts": {}}, payload

        def kill(self) -> None:
            pass

    class Alone(WorkerPool):
        def _load(self, worker: Worker) -> Scorer:
            engine = worker.engine = self.start(worker.number, self.over)
            worker.scorer = Scorer(engine, self.cache, pictures, self.spec, engine.kill)
            return worker.scorer

    pictures = {f"p{n}": (bytes([n]) * 150_000,) for n in range(10)}
    rows = pd.DataFrame({"key": [f"{n:032d}" for n in range(prompts)]})
    rows["image_id"] = [f"p{n // 16 % 10}" for n in range(prompts)]
    rows = rows.assign(text="question " * 100 + rows["key"], candidates="ABCD", run="r")
    none = rows.iloc[:0].assign(forced=False, limit=8)
    print("| engines | prompts a batch | prompts/s | load |\n|---|---|---|---|")
    for engines, size in ((1, 16), (4, 16), (8, 16), (8, 64)):
        one = dataclasses.replace(spec, batch_size=size)
        pool = Alone(one, Path(), engines, lambda n, over, one=one: AtOnce(one, Path(), "here"))
        with tempfile.TemporaryDirectory() as folder:
            cache = ScoreCache(Path(folder), "m", "f")
            began = time.perf_counter()
            pool.scorer(cache, {}).run(rows, none, lambda what, done, total: None)
            rate = prompts / (time.perf_counter() - began)
            assert not cache.lacks("scores", rows["key"]).any()
        pool.close()
        print(f"| {engines} | {size} | {rate:,.0f} | {os.getloadavg()[0]:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny-llava")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--clusters", type=int, default=40)
    parser.add_argument("--mcq", type=int, default=150)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--at-once", type=int, metavar="PROMPTS")
    args = parser.parse_args()
    if args.at_once:
        return at_once(args.at_once)
    if not os.environ.get(INSIDE):
        environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            INSIDE: "1",
        }
        os.execvpe(
            "unshare", ["unshare", "-n", sys.executable, *sys.argv], {**os.environ, **environment}
        )
    loopback_up()
    from sdgbias.benchmark.build import Draw, build
    from sdgbias.raw.synthetic import write_sample

    ray = str(Path(sys.executable).with_name("ray"))
    with tempfile.TemporaryDirectory(prefix="ray") as temporary:
        folder = Path(temporary)
        os.environ["RAY_TMPDIR"] = temporary
        write_sample(folder / "raw", args.clusters, 0)
        build(
            folder / "raw",
            folder / "raw" / "indicators",
            folder / "benchmark",
            Draw(mcq=args.mcq, regression=args.mcq // 5),
        )
        start = [
            ray,
            "start",
            "--head",
            "--port=6398",
            f"--num-cpus={args.engines}",
            "--node-ip-address=127.0.0.1",
        ]
        subprocess.run(
            [*start, "--include-dashboard=false", "--object-store-memory=200000000"],
            check=True,
            capture_output=True,
        )
        ways = {
            "one engine": (1, ""),
            f"--workers {args.engines}": (args.engines, ""),
            "--ray": (args.engines, ADDRESS),
        }
        took: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ways}
        try:
            for run in range(args.runs):
                for name in list(ways)[run % 3 :] + list(ways)[: run % 3]:
                    took[name].append(one(args.model, folder / "benchmark", *ways[name]))
        finally:
            end(f"RAY_AUTH_TOKEN={os.environ['RAY_AUTH_TOKEN']}")
    prompts = took["one engine"][0][2]
    load = os.getloadavg()[0]
    print(
        f"{args.model}, {prompts:,} prompts, {args.engines} engines, {args.runs} runs each,"
        f" {os.cpu_count()} CPUs, load {load:.1f}\n"
    )
    print(
        "| where | start s | scoring s | prompts/s | scoring, of one engine"
        " |\n|---|---|---|---|---|"
    )
    alone = statistics.median(t[1] for t in took["one engine"])
    for name, runs in took.items():
        before, scoring = (statistics.median(t[n] for t in runs) for n in (0, 1))
        print(
            f"| {name} | {before:.1f} | {scoring:.1f} | {prompts / scoring:,.0f} |"
            f" {scoring / alone:.2f} |"
        )
    local, ray_took = (statistics.median(t[1] for t in runs) for runs in list(took.values())[1:])
    summary.record(
        "engines",
        [
            summary.Row(
                f"{args.model} on {args.engines} engines of a Ray cluster of one node",
                f"{prompts:,} prompts, {args.runs} runs",
                f"{ray_took:.1f} s of scoring, {ray_took / local:.2f} times --workers",
                "1.1 times",
                f"--workers {args.engines}: {local:.1f} s; one engine: {alone:.1f} s",
                load,
            )
        ],
    )


if __name__ == "__main__":
    main()
