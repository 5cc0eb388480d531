"""How long it takes to score CADE's random draws, beside a plain vectorised float64 implementation
in torch.

    python bench/search.py [--rows 100000] [--digit-rows 20000] [--draws 10000] [--torch-draws N]
    [--repeats 3] [--torch-repeats 1]

Every draw is scored on every row: 3 options (accuracy), the same with a gate that keeps nothing,
and 10 digits (mean absolute error). Torch works on chunks of 512 draws x rows x candidates. Each
side runs in a process of its own; seconds are the median of the repeats after a first small call
(compiling, threads), memory is the largest resident set of the process. With
--torch-draws below --draws, torch scores the first so many draws, and its seconds are scaled up,
which the table says. Choices are compared through the scores: those of options must be equal, those
of digits equal to 1e-12 of their size (sums are rounded). Then the two searches as a whole: the
paper's protocol, and the exact search.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import summary

from sdgbias.methods.cade import Floats, Streams, streams
from sdgbias.methods.search import (
    RANGES,
    ExactResult,
    SearchSettings,
    draw_settings,
    evaluate_draws,
    exact_search,
    random_search,
)
from sdgbias.types import Task

CHUNK = 512
CASES = {
    "3 options": (Task.MCQ, 3, False),
    "3 options, no gate": (Task.MCQ, 3, True),
    "10 digits": (Task.REGRESSION, 10, False),
}


def problem(rows: int, k: int, seed: int = 0) -> tuple[Streams, np.ndarray]:
    """Views of a biased model of which the picture tells something; every tenth row of options
    lacks the last one."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(k - (k == 3), size=rows)
    prior, evidence = rng.normal(0, 1.5, k), np.eye(k)[gold] * 1.2
    full, ctx = (
        prior * 2 + evidence + rng.normal(size=(rows, k)),
        prior * 2 + rng.normal(0, 0.3, (rows, k)),
    )
    img, q = prior + evidence + rng.normal(size=(rows, k)), np.tile(prior, (rows, 1))
    present = np.ones((rows, k), dtype=bool)
    if k == 3:
        present[::10, 2] = False
        return streams(full, ctx, img, q, present), np.eye(3)[gold]
    return streams(full, ctx, img, q, present), -np.abs(np.arange(k) - gold[:, None]) - rng.random(
        (rows, k)
    ).round(1)


def draws_of(case: str, draws: int) -> np.ndarray:
    task, _, open_gate = CASES[case]
    settings = draw_settings(RANGES[task], draws, np.random.default_rng(1))
    if open_gate:
        settings[:, 3] = 2.0
    return settings


def in_torch(s: Streams, payoff: np.ndarray, settings: np.ndarray) -> np.ndarray:
    """The scores as one would write them down: chunks of draws, every intermediate a (draws, rows,
    candidates) tensor."""
    import torch

    log_img, log_ctx, log_q, divergence, base, confidence, valid, pays = (
        torch.from_numpy(np.ascontiguousarray(x))
        for x in (
            s.log_img,
            s.log_ctx,
            s.log_q,
            s.divergence,
            s.base,
            s.confidence,
            s.valid,
            payoff,
        )
    )
    out = []
    for start in range(0, len(settings), CHUNK):
        alpha, lambda_kl, beta, tau = (
            x[:, None] for x in torch.from_numpy(settings[start : start + CHUNK].copy()).T
        )
        alpha_i = alpha * (1.0 + lambda_kl * divergence)  # (C, N)
        score = log_img + -alpha_i[:, :, None] * log_ctx + -beta[:, :, None] * log_q  # (C, N, K)
        score = score.masked_fill(~valid, -torch.inf)
        choice = torch.where((base >= 0) & (confidence >= tau), base, score.argmax(dim=2))  # (C, N)
        earned = pays.expand(len(choice), -1, -1).gather(2, choice[:, :, None])
        out.append(earned[:, :, 0].mean(dim=1))
    return torch.cat(out).numpy()


def peak_gib() -> float:
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) / 2**20


def one_side(
    side: str, case: str, rows: int, draws: int, repeats: int, folder: Path
) -> dict[str, Any]:
    s, payoff = problem(rows, CASES[case][1])
    settings = draws_of(case, draws)
    work: Callable[..., np.ndarray] = in_torch if side == "torch" else evaluate_draws
    small, pays = problem(50, CASES[case][1])
    work(small, pays, settings[:1])
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        scores = work(s, payoff, settings)
        seconds.append(time.perf_counter() - began)
    np.save(folder / f"{side}.npy", scores)
    return {"s": statistics.median(seconds), "gib": peak_gib()}


def in_a_process(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, __file__, "--side", *map(str, arguments)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1]
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(given: argparse.Namespace) -> None:
    torch_draws = given.torch_draws or given.draws
    print(
        "| case | rows | draws | torch s | our s | faster | torch GiB | our GiB | memory | scores"
        " |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for case, (task, _, _) in CASES.items():
        rows = given.rows if task is Task.MCQ else given.digit_rows
        with tempfile.TemporaryDirectory(prefix="sdgbias-search-") as temporary:
            ours = in_a_process("ours", case, rows, given.draws, given.repeats, temporary)
            plain = in_a_process("torch", case, rows, torch_draws, given.torch_repeats, temporary)
            a, b = (
                np.load(Path(temporary) / f"{side}.npy")[:torch_draws] for side in ("ours", "torch")
            )
        if task is Task.MCQ:
            same, said = np.array_equal(a, b), "equal"
        else:
            same, said = (
                bool(np.allclose(a, b, rtol=1e-12, atol=0)),
                f"within {np.abs(a / b - 1).max():.0e}",
            )
        if not same:
            raise SystemExit(f"{case}: the scores differ by up to {np.abs(a - b).max()}")
        seconds = plain["s"] * given.draws / torch_draws
        scaled = "" if torch_draws == given.draws else f" (from {torch_draws:,} draws)"
        if given.draws >= 10_000:
            n = f"{rows:,} rows, {given.draws:,} draws, {given.repeats} runs"
            figure = f"{ours['s']:.3f} s, {ours['gib']:.2f} GiB"
            beside = f"torch{scaled}: {seconds:.1f} s, {plain['gib']:.2f} GiB"
            aim = "100 times faster" if task is Task.MCQ else "50 times faster"
            summary.record(
                "search", [summary.Row(f"CADE's search, {case}", n, figure, aim, beside)]
            )
        print(
            f"| {case} | {rows:,} | {given.draws:,} | {seconds:.1f}{scaled} | {ours['s']:.3f} |"
            f" {seconds / ours['s']:.0f} x | {plain['gib']:.2f} | {ours['gib']:.2f} |"
            f" 1/{plain['gib'] / ours['gib']:.0f} | {said} |",
            flush=True,
        )


def exact(s: Streams, payoff: Floats, task: Task, *, draws: int) -> ExactResult:
    return exact_search(s, payoff, task, SearchSettings(draws=draws))


def searches(given: argparse.Namespace) -> None:
    print("\n| search | rows | val value | s |\n|---|---|---|---|")
    for case, (task, k, open_gate) in CASES.items():
        if open_gate:
            continue
        rows = given.rows if task is Task.MCQ else given.digit_rows
        s, payoff = problem(rows, k)
        for name, search in (
            ("random, the paper's protocol", random_search),
            ("exact", exact),
        ):
            search(*problem(200, k), task, draws=300)
            seconds = []
            for _ in range(given.repeats):
                began = time.perf_counter()
                found = search(s, payoff, task, draws=given.draws)
                seconds.append(time.perf_counter() - began)
            print(
                f"| {case}, {name} | {rows:,} | {found.value:.5f} |"
                f" {statistics.median(seconds):.3f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--digit-rows", type=int, default=20_000)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--torch-draws", type=int, help="default: as many as --draws")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--torch-repeats", type=int, default=1)
    parser.add_argument("--side", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        side, case, rows, draws, repeats, folder = given.side
        print(json.dumps(one_side(side, case, int(rows), int(draws), int(repeats), Path(folder))))
        return
    compare(given)
    searches(given)


if __name__ == "__main__":
    main()
