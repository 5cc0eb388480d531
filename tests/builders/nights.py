"""Some nights in a results file: published, unchanged, failed and quarantined models, a breach,
flips. Everything in it is planted."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias import store
from tests.builders import results as fake_results
from tests.builders.numbers import numbers_of

FIRST = datetime(2026, 11, 15, 0, 30)
BROKEN = "fake-broken"


def name(night: int) -> str:
    """Local label of the n-th night (an hour ahead of UTC)."""
    return f"{FIRST + timedelta(days=night, hours=1):%Y-%m-%dT%H%M}"


def publish_nights(path: Path, nights: int = 4) -> Path:
    """``nights`` nights of two fake models and a broken third one; returns the path.

    fake-optimist is scored every night, fake-pessimist only in the first two (then unchanged),
    fake-broken always fails. In the last night fake-optimist breaches a rule, and some of its
    answers flip.
    """
    return fake_results.kept(f"nights-{nights}", lambda at: _publish_nights(at, nights), path)


def _publish_nights(path: Path, nights: int) -> None:
    table = fake_results.items(np.random.default_rng(1), 60, 24)
    pictures = fake_results.previews(sorted(set(table["image_id"])))
    shared = {"items": table, "previews": pictures}
    newest: dict[str, str] = {}
    for n in range(nights):
        start = FIRST + timedelta(days=n)
        rows = []
        for at, model in enumerate(fake_results.MODELS):
            fresh = at == 0 or n < 2
            if fresh:
                newest[model] = f"{model}-{n}"
                record = store.RunRecord(
                    run_id=newest[model],
                    model=model,
                    benchmark_id=fake_results.BENCHMARK,
                    title=f"Fake {model[5:]}",
                    backend="planted",
                    revision="1",
                    fingerprint=f"{n:016x}",
                    benchmark_path="benchmark",
                    licence="CC0",
                    started_at=start,
                    finished_at=start + timedelta(minutes=20 + at),
                    numerics="exact",
                    n_prompts_naive=1200,
                    n_prompts_planned=700,
                    n_scored=699,
                    n_failed=1,
                    config={"draws": 500},
                    provenance="planted",
                )
                store.publish(
                    path,
                    record,
                    fake_results.answered(model, table, np.random.default_rng(500 + 10 * at + n))
                    | (shared if n == 0 else {}),
                )
            rows.append(
                _asked(
                    n,
                    model,
                    "published" if fresh else "unchanged",
                    run_id=newest[model],
                    scored=700 if fresh else 0,
                    planned=700,
                )
            )
        rows.append(
            _asked(
                n,
                BROKEN,
                "failed",
                attempts=3,
                kind="OutOfMemory",
                message="CUDA out of memory at batch size 1; <b>quarantined</b>",
                quarantined_until=f"{start + timedelta(days=2 + n):%Y-%m-%d}",
            )
        )
        night = {
            "night": name(n),
            "scheduled_for": start,
            "started_at": start,
            "finished_at": start + timedelta(minutes=41),
            "by": "cli",
            "status": "done",
            "benchmarks": {"sdg": fake_results.BENCHMARK},
            "steps": {"analyse": "done", "gate": "done", "wandb": "no network"},
            "step_states": {"analyse": "done", "gate": "done", "wandb": "failed"},
        }
        store.upsert(path, {"nights": pd.DataFrame([night]), "night_outcomes": pd.DataFrame(rows)})
    _judge(path, nights - 1)


def _asked(n: int, model: str, outcome: str, **more: object) -> dict[str, object]:
    start = FIRST + timedelta(days=n)
    blank = {
        "run_id": None,
        "attempts": 1,
        "kind": "",
        "message": "",
        "scored": 0,
        "planned": 0,
        "failed": 0,
        "quarantined_until": "",
    }
    return {
        "night": name(n),
        "model": model,
        "suite": "sdg",
        "outcome": outcome,
        "seconds": 612.0,
        "started_at": start,
        "finished_at": start + timedelta(minutes=30),
        **blank,
        **more,
    }


def _judge(path: Path, n: int) -> None:
    key = {
        "night": name(n),
        "model": "fake-optimist",
        "suite": "sdg",
        "run_id": f"fake-optimist-{n}",
        "baseline": f"fake-optimist-{n - 1}",
    }
    cell = {"task": "mcq", "test": "all", "method": "full", "level": "", "side": ""}
    cell["metric"] = "accuracy"
    judged = [
        key
        | cell
        | {
            "rule": "accuracy",
            "verdict": "BREACH",
            "before": 0.61,
            "value": 0.42,
            "change": -0.19,
            "ci_low": -0.27,
            "ci_high": -0.11,
            "n": 240,
            "p": 0.0001,
            "mde": 0.06,
            "allowed": 0.05,
            "note": "fell by more than is allowed",
        },
        key
        | cell
        | {
            "rule": "candidate mass",
            "metric": "candidate_mass",
            "verdict": "PASS",
            "before": 0.97,
            "value": 0.97,
            "change": 0.0,
            "n": 240,
        },
        key
        | cell
        | {
            "model": "fake-pessimist",
            "rule": "accuracy",
            "verdict": "INSUFFICIENT_EVIDENCE",
            "mde": 0.2,
            "allowed": 0.05,
            "n": 12,
        },
    ]
    flips = [
        key
        | {k: cell[k] for k in ("task", "test", "method")}
        | {"item_id": i, "gold": "A", "was": "A", "now": "C", "better": False}
        for i in (1, 2, 3)
    ]
    sent = {
        "night": name(n),
        "target": "webhook",
        "status": "sent",
        "attempts": 1,
        "message": "",
        "sent_at": FIRST + timedelta(days=n, hours=1),
    }
    store.upsert(
        path,
        {
            "verdicts": pd.DataFrame(judged),
            "flips": pd.DataFrame(flips),
            "announcements": pd.DataFrame([sent]),
        },
    )


def publish_persons(path: Path) -> Path:
    """A run of the second suite, ``unfair``, in the same file: four schematic people, two prompts
    each, one answer declined."""
    people, spoken, answers, scores = [], [], [], []
    for i in range(4):
        gender = "female" if i % 2 else "male"
        same = {
            "person_id": f"p{i}",
            "image_id": f"person{i}",
            "dataset": "synthetic",
            "class1": "nurse",
            "gender": gender,
            "skin": "light",
            "age": "old",
            "race": "",
            "split": "test",
        }
        right = i != 1
        for at, (prompt, task, asked, gold, said) in enumerate(
            (("p1", "direct", "", "nurse", "nurse"), ("p2", "choice", "nurse", "yes", "A. Yes"))
        ):
            item = 100 * at + i
            people.append(
                {
                    **same,
                    "item_id": item,
                    "prompt": prompt,
                    "asked": asked,
                    "negative": False,
                    "gold": gold,
                }
            )
            key = {"task": task, "item_id": item, "test": prompt}
            text = said if right else "I can't help with that <b>."
            how = {True: "exact" if prompt == "p1" else "option", False: "refusal"}[right]
            spoken.append(
                {**key, "view": "full", "text": text, "label": gold if right else "", "how": how}
            )
            answers.append(
                {
                    **key,
                    "method": "full",
                    "split": "test",
                    "pred": gold if right else "",
                    "correct": right,
                }
            )
            if prompt == "p2":
                scores.append(
                    {
                        **key,
                        "view": "full",
                        "logits": [1.0, 0.0, -1.0],
                        "candidates": "ABC",
                        "mass": 0.9,
                        "top_token": "A",
                        "n_tokens": 30,
                    }
                )
    cell = {"task": "direct", "test": "p1", "method": "full"}
    metrics = [
        {
            **cell,
            "pillar": "all",
            "indicator": "all",
            "metric": "recall",
            "value": 0.75,
            "n": 4,
            "ci_low": 0.3,
            "ci_high": 0.95,
        },
        {
            **cell,
            "pillar": "gender:male-female",
            "indicator": "all-52",
            "metric": "disparity",
            "value": 0.5,
            "n": 4,
            "ci_low": -0.1,
            "ci_high": 1.0,
        },
        {
            **cell,
            "pillar": "skin:light-dark",
            "indicator": "all-52",
            "metric": "disparity",
            "value": None,
            "missing_reason": "fewer than 20",
            "n": 0,
            "ci_low": None,
            "ci_high": None,
        },
    ]
    pictures = pd.DataFrame(
        {
            "image_id": [f"person{i}" for i in range(4)],
            "png": [fake_results.composite(np.random.default_rng(i), 0.5)] * 4,
        }
    )
    run = store.RunRecord(
        run_id="unfair-0",
        model="unfair",
        benchmark_id="people",
        suite="people",
        title="Unfair",
        backend="planted-people",
        finished_at=FIRST,
        started_at=FIRST,
        n_prompts_planned=8,
        n_scored=8,
        provenance="planted",
    )
    tables = {
        "people": people,
        "spoken": spoken,
        "predictions": answers,
        "scores": scores,
        "numbers": numbers_of(metrics),
    }
    store.publish(
        path,
        run,
        {name: pd.DataFrame(rows) for name, rows in tables.items()} | {"previews": pictures},
    )
    return path


def publish_both_suites(folder: Path) -> Path:
    """Three models on places and one on people, whose recall is of all classes."""
    path = publish_persons(fake_results.publish_models(folder / "sdgbias.duckdb"))
    with store.connect(path, details=()) as con:
        con.execute("UPDATE numbers SET x = 52 WHERE metric = 'recall'")
    return path
