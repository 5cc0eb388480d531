"""Results files of a few nights for the tests of the gate, the message and the morning page: two
fake models (fake_results), one that fails."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias import store
from tests.builders import results as fake_results

FIRST, SECOND, THIRD = "2026-11-20T0130", "2026-11-21T0130", "2026-11-22T0130"
STARTS = {
    FIRST: datetime(2026, 11, 20, 0, 30),
    SECOND: datetime(2026, 11, 21, 0, 30),
    THIRD: datetime(2026, 11, 22, 0, 30),
}
LOST, STEADY = "fake-optimist", "fake-pessimist"


def publish_run(
    path: Path,
    model: str,
    number: int,
    day: int,
    *,
    wrong: float = 0.0,
    benchmark: str = fake_results.BENCHMARK,
) -> str:
    """A run of 150 choice questions in 50 places; of the right Full answers, the share ``wrong`` is
    turned to another letter, and its scores with it. Everything else is the same in every run of a
    model."""
    table = fake_results.items(np.random.default_rng(1), 150, 0)
    made = fake_results.answered(model, table, np.random.default_rng(100))
    rng = np.random.default_rng(5)
    gold = table.set_index("item_id")["gold"].map("ABC".index)
    scores, said = made["scores"], made["predictions"]
    full = scores["view"] == "full"
    turned = full & (rng.random(len(scores)) < wrong)
    logits = [list(z) for z in scores["logits"]]
    for at in np.flatnonzero(turned):
        z, right = np.array(logits[at]), gold[scores["item_id"][at]]
        if z.argmax() == right:
            logits[at] = list(np.roll(z, 1))
    scores["logits"] = logits
    letter = pd.Series(["ABC"[int(np.argmax(z))] for z in logits]).where(full).dropna()
    now = scores.loc[letter.index, ["item_id", "test"]].assign(pred_now=letter, method="full")
    said = said.merge(now, on=["item_id", "test", "method"], how="left")
    said["pred"] = said["pred_now"].fillna(said["pred"])
    said["correct"] = said["pred"] == said["item_id"].map(table.set_index("item_id")["gold"])
    previews = fake_results.previews(sorted(set(table["image_id"]))[:12])
    run_id = f"{model}-{number}"
    record = store.RunRecord(
        run_id=run_id,
        model=model,
        benchmark_id=benchmark,
        backend="planted",
        finished_at=STARTS[FIRST] + timedelta(days=day, minutes=30),
        n_prompts_planned=700,
        n_scored=700,
        config={"engine": {"seconds": 7.0}},
        provenance="planted",
    )
    tables = {
        **made,
        "scores": scores,
        "predictions": said.drop(columns="pred_now"),
        "failures": made["failures"].head(0),
    }
    store.publish(path, record, tables | {"items": table, "previews": previews})
    return run_id


def keep_night(path: Path, night: str, models: list[dict[str, object]], **more: object) -> None:
    """Rows of nights and night_outcomes; a model's row holds at least model, outcome and run_id."""
    start = STARTS[night]
    row = {
        "night": night,
        "scheduled_for": start,
        "started_at": start,
        "finished_at": start + timedelta(hours=1),
        "by": "cli",
        "status": "done",
        "benchmarks": {"sdg": fake_results.BENCHMARK},
        "steps": {"analyse": "done"},
        "step_states": {"analyse": "done"},
        "report": "reports/latest",
        **more,
    }
    blank = {
        "night": night,
        "suite": "sdg",
        "attempts": 1,
        "kind": "",
        "message": "",
        "quarantined_until": "",
        "seconds": 1.0,
    }
    store.upsert(
        path,
        {
            "nights": pd.DataFrame([row]),
            "night_outcomes": pd.DataFrame([{**blank, **m} for m in models]),
        },
    )


def two_nights(path: Path) -> Path:
    """The first night is good; in the second one model lost a third of its right answers, one is
    unchanged, one ran out of memory."""
    one, two = publish_run(path, LOST, 1, 0), publish_run(path, STEADY, 1, 0)
    keep_night(
        path,
        FIRST,
        [
            {"model": LOST, "outcome": "published", "run_id": one},
            {"model": STEADY, "outcome": "published", "run_id": two},
        ],
    )
    worse = publish_run(path, LOST, 2, 1, wrong=0.33)
    broken = {
        "model": "broken",
        "outcome": "failed",
        "run_id": "",
        "kind": "OutOfMemory",
        "message": "too little memory <for> a chunk",
        "attempts": 3,
        "quarantined_until": "2026-11-22",
    }
    keep_night(
        path,
        SECOND,
        [
            {"model": LOST, "outcome": "published", "run_id": worse},
            {"model": STEADY, "outcome": "unchanged", "run_id": two},
            broken,
        ],
    )
    return path


def verdict(model: str, rule: str, said: str, **fields: object) -> dict[str, object]:
    """A row of table verdicts of the second night."""
    blank = {
        "night": SECOND,
        "model": model,
        "suite": "sdg",
        "run_id": f"{model}-2",
        "baseline": f"{model}-1",
        "task": "mcq",
        "test": "all",
        "method": "full",
        "level": "",
        "side": "",
        "metric": "accuracy",
        "n": 1200,
        "quarantines": False,
        "required": False,
        "note": "",
    }
    return {**blank, "rule": rule, "verdict": said, **fields}


def told_night(path: Path) -> Path:
    """A second night as the gate leaves it, without scores: a breach with flips, an unchanged
    model, one that failed, one never judged."""
    table = fake_results.items(np.random.default_rng(1), 30, 0)
    previews = fake_results.previews(["image0", "image1"])
    for number in (1, 2):
        record = store.RunRecord(
            run_id=f"{LOST}-{number}",
            model=LOST,
            benchmark_id=fake_results.BENCHMARK,
            finished_at=STARTS[FIRST] + timedelta(days=number - 1),
            provenance="planted",
        )
        store.publish(path, record, {"items": table, "previews": previews})
    keep_night(path, FIRST, [{"model": LOST, "outcome": "published", "run_id": f"{LOST}-1"}])
    asked = [
        {"model": LOST, "outcome": "published", "run_id": f"{LOST}-2"},
        {"model": STEADY, "outcome": "unchanged", "run_id": f"{STEADY}-1"},
        {
            "model": "broken",
            "outcome": "failed",
            "run_id": "",
            "kind": "OutOfMemory",
            "message": "too little <b>memory</b> & more",
            "attempts": 3,
            "quarantined_until": "2026-11-22",
        },
        {"model": "new", "outcome": "published", "run_id": "new-1"},
    ]
    keep_night(
        path,
        SECOND,
        asked,
        steps={"analyse": "done", "wandb": "timeout after 60 s"},
        step_states={"analyse": "done", "wandb": "failed"},
    )
    rows = [
        verdict(
            LOST,
            "accuracy",
            "BREACH",
            before=0.712,
            value=0.655,
            change=-0.057,
            ci_low=-0.071,
            ci_high=-0.043,
            p=0.0001,
            mde=0.031,
            allowed=0.02,
            note=(
                "3 better, 71 worse, groups of questions 3 to 70, sign test p < 0.001; p: Holm over"
                " 14 tests, alone < 0.001"
            ),
        ),
        verdict(
            LOST,
            "candidate-mass",
            "BREACH",
            side="at_least",
            metric="candidate_mass",
            value=0.1,
            ci_low=0.08,
            ci_high=0.12,
            allowed=0.2,
            quarantines=True,
        ),
        verdict(
            LOST,
            "mae",
            "BREACH",
            task="regression",
            metric="mae",
            before=0.5,
            value=0.9,
            change=0.4,
            ci_low=0.3,
            ci_high=0.5,
            p=0.01,
            allowed=0.1,
        ),
        verdict(
            LOST,
            "cade-gain",
            "INSUFFICIENT_EVIDENCE",
            metric="cade_gain",
            method="cade",
            before=0.02,
            value=0.01,
            change=-0.01,
            ci_low=-0.06,
            ci_high=0.04,
            p=0.5,
            mde=0.08,
            allowed=0.03,
        ),
        verdict(
            LOST,
            "throughput",
            "MISSING",
            task="",
            test="",
            method="",
            metric="throughput",
            before=100.0,
            value=40.0,
            allowed=0.6,
            note="hf x 1 now, vllm x 1 before",
        ),
        verdict(
            STEADY,
            "unchanged",
            "PASS",
            task="",
            test="",
            method="",
            metric="",
            run_id=f"{STEADY}-1",
            note=f"the same run as in night {FIRST}, judged there",
        ),
    ]
    flips = [
        {
            "night": SECOND,
            "model": LOST,
            "suite": "sdg",
            "run_id": f"{LOST}-2",
            "baseline": f"{LOST}-1",
            "task": "mcq",
            "test": "T1",
            "method": "full",
            "item_id": i,
            "gold": str(table["gold"][i]),
            "was": str(table["gold"][i]),
            "now": "ABC"[("ABC".index(table["gold"][i]) + 1) % 3],
            "better": False,
        }
        for i in range(8)
    ]
    store.upsert(path, {"verdicts": pd.DataFrame(rows), "flips": pd.DataFrame(flips)})
    return path
