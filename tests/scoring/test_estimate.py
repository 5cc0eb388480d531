"""GPU hours before a run, by measured runs or by the hardware, and against what it took."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.errors import UsageError
from sdgbias.scoring import estimate
from sdgbias.scoring.cost import Cost
from sdgbias.types import ModelSpec

SPEC = ModelSpec(
    name="m",
    title="m",
    backend="vllm",
    repo="a/b",
    revision="0" * 40,
    state="enabled",
    params_b=8.0,
    dtype="bfloat16",
)
COST = Cost(
    model="m",
    items=100,
    prompts_naive=4000,
    prompts_full=1000,
    prompts_planned=2000,
    prompts_extra=0,
    tokens_naive=2_000_000,
    tokens_full=800_000,
    tokens_distinct=900_000,
    tokens_planned=1_000_000_000,
    tokens_extra=0,
    images_naive=0,
    images_full=0,
    images_planned=0,
    images_extra=0,
    image_tokens=256,
    asked={"mcq": 3000, "regression": 600},
    answer_tokens=64_000_000,
)


def publish(
    path: Path, run: str, day: int, seconds: float, model: str = "m", **more: object
) -> None:
    """A run of 300 MCQ prompts and 60 regression prompts; the latter take a tenth of the time."""
    rows = [
        {"task": task, "phase": phase, "view": "full", "pass": ""}
        | {"cells": n, "prompts": n, "cached": 0, "untimed": 0, "tokens": 9000}
        | dict.fromkeys(("seconds", "seconds_measured", "seconds_alone"), s)
        | more
        for task, phase, n, s in (
            ("mcq", "score", 300, 0.75 * seconds),
            ("mcq", "decode", 50, 0.25 * seconds),
            ("regression", "score", 60, 0.1 * seconds),
        )
    ]
    record = {"run_id": run, "suite": "sdg", "model": model, "benchmark_id": "b"}
    record |= {"finished_at": datetime(2026, 11, day)}
    store.publish(path, record, {"timings": pd.DataFrame(rows)})


def test_without_a_run_by_the_hardware() -> None:
    found = estimate.estimate(SPEC, COST, None)
    prefill = 2 * 8e9 * 1e9 / (989e12 * 0.25)
    decode = 64e6 / 2 / 32 * 16e9 / 3350e9
    assert found.hours == pytest.approx((prefill + decode) / 3600)
    assert found.low == pytest.approx(found.hours / 2) and found.high == pytest.approx(
        found.hours * 3
    )
    assert (found.devices, found.gib) == (1, pytest.approx(1.15 * 16e9 / 2**30 + 4))
    assert "the published figures of one h100: this model has no measured run" in found.words()
    slower = estimate.estimate(SPEC, COST, None, "l4")
    assert slower.hours > 8 * found.hours
    pool = replace(SPEC, options={"gpu": "h100x4", "tensor_parallel_size": 4})
    shared = estimate.estimate(pool, COST, None)
    assert shared.hours == found.hours and shared.devices == 4, "the same work on four"
    with pytest.raises(UsageError, match="unknown kind 'abacus'; valid: a100"):
        estimate.estimate(SPEC, COST, None, "abacus")
    unknown = estimate.estimate(replace(SPEC, params_b=None), COST, None)
    assert "not known" in unknown.words() and unknown.hours == 0


def test_measured_runs_count_more(tmp_path: Path) -> None:
    path = tmp_path / "r.duckdb"
    publish(path, "first", 1, 360.0)
    one = estimate.estimate(SPEC, COST, path)
    assert one.hours == pytest.approx(360 * 11 / 3600), "ten times the prompts of both tasks"
    assert (one.low, one.high) == (one.hours / 1.5, one.hours * 1.5)
    publish(path, "second", 2, 720.0)
    publish(path, "other", 3, 9e9, model="else")
    publish(path, "untimed", 3, 9e9, untimed=1)
    two = estimate.estimate(replace(SPEC, options={"tensor_parallel_size": 2}), COST, path)
    assert two.hours == pytest.approx(2 * 540 * 11 / 3600), "on two devices"
    assert two.low == pytest.approx(2 * 360 * 11 / 3600 / 1.2)
    assert two.high == pytest.approx(2 * 720 * 11 / 3600 * 1.2)
    assert "2 measured runs" in two.words()
    more = replace(COST, asked={**COST.asked, "people": 5})
    assert "no measured run" in estimate.estimate(SPEC, more, path).words()


def test_afterwards_it_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "r.duckdb"
    publish(path, "first", 1, 3600.0)
    assert estimate.compared(path, "first", SPEC) == (
        "took 1.1 hours of engines; nothing to compare with: the first timed run"
    )
    judged = 360 * 157 * 2 * 8e9 / (989e12 * 0.25) + 360 * 8 / 2 / 32 * 16e9 / 3350e9
    for options in ({"gpu": "h100x4"}, {"gpu": "h100", "tensor_parallel_size": 2}):
        assert estimate.compared(path, "first", replace(SPEC, options=options)) == (
            f"took {1.1 * options.get('tensor_parallel_size', 1):g} hours of engines, outside the"
            f" <0.001 to {3 * judged / 3600:.3g} that the throughput of one h100 (no earlier run)"
            " lets expect"
        )
    publish(path, "quick", 2, judged, model="quick")
    quick = replace(SPEC, name="quick", options={"gpu": "h100"})
    assert "within the <0.001" in estimate.compared(path, "quick", quick)
    publish(path, "second", 2, 4000.0)
    assert "within the 0.733 to 1.65 that 1 earlier run let" in estimate.compared(
        path, "second", SPEC
    )
    publish(path, "third", 3, 36000.0)
    assert "took 11 hours of engines, outside the 0.917 to 1.47 that 2 earlier runs" in (
        estimate.compared(path, "third", SPEC)
    )
    assert estimate.compared(path, "gone", SPEC) == ""


def test_money_and_several_models() -> None:
    one = estimate.GpuHours("m", 10.0, 5.0, 30.0, 1, 19.1, "1 measured run")
    shown = estimate.lines([(COST, one), (COST, one)], 2.5)
    assert "money: 25.00 (12.50 to 75.00) at 2.5 a GPU hour" in shown
    assert shown[-2] == "2 models: GPU hours: 20 (10 to 60), judged by the sum of the above"
    assert shown[-1] == "money: 50.00 (25.00 to 150.00) at 2.5 a GPU hour"
    assert not any("money" in line for line in estimate.lines([(COST, one)], None))
    told = estimate.as_json([(COST, one)], 2.0)
    assert (told["estimate"]["money"], told["prompts_planned"]) == (20.0, 2000)
    assert len(estimate.as_json([(COST, one)] * 2, None)) == 2
