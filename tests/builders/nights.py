"""Nights of two fake models (results.py) and one that fails, in a results file: what the regression
check, the message and the pages are tested on. Everything in it is planted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sdgbias import store
from tests.builders import results as fake_results
from tests.builders.numbers import numbers_of

LOST, STEADY = fake_results.MODELS
BROKEN = "fake-broken"
START = datetime(2026, 11, 15, 0, 30)  # of night 0, in UTC
_LABEL = "%Y-%m-%dT%H%M"


def name(night: int) -> str:
    """Local label of the n-th night (an hour ahead of UTC)."""
    return f"{START + timedelta(days=night, hours=1):{_LABEL}}"


#: The nights of `two_nights` and `told_night`, and the one after.
FIRST, SECOND, THIRD = name(5), name(6), name(7)


def outcome(model: str, said: str, run_id: str = "", **more: object) -> dict[str, object]:
    """What came of a model in a night."""
    return {"model": model, "outcome": said, "run_id": run_id, **more}


def no_memory(message: str, until: str, model: str = "broken") -> dict[str, object]:
    """The outcome of a model that ran out of memory three times."""
    why = {"kind": "OutOfMemory", "message": message, "attempts": 3}
    return outcome(model, "failed", quarantined_until=until, **why)


def keep_night(path: Path, night: str, outcomes: list[dict[str, object]], **more: object) -> None:
    """A night that is done, with its outcomes; ``more``: other columns of ``nights``."""
    start = datetime.strptime(night, _LABEL) - timedelta(hours=1)
    row = {
        "night": night,
        **dict.fromkeys(("scheduled_for", "started_at"), start),
        "finished_at": start + timedelta(minutes=41),
        "by": "cli",
        "status": "done",
        "benchmarks": {"sdg": fake_results.BENCHMARK},
        **steps(),
        "report": "reports/latest",
        **more,
    }
    blank = {
        "night": night,
        "suite": "sdg",
        "attempts": 1,
        **dict.fromkeys(("kind", "message", "quarantined_until"), ""),
        "seconds": 612.0,
        "started_at": start,
        "finished_at": start + timedelta(minutes=30),
    }
    rows = [{**blank, **one} for one in outcomes]
    store.upsert(path, {"nights": pd.DataFrame([row]), "night_outcomes": pd.DataFrame(rows)})


def steps(**failed: str) -> dict[str, Mapping[str, str]]:
    """The columns of closing steps, of which these failed."""
    done = {"analyse": "done", "gate": "done"}
    return {"steps": done | failed, "step_states": done | dict.fromkeys(failed, "failed")}


def verdict(
    model: str,
    rule: str,
    said: str,
    moved: tuple[float, ...] = (),
    night: str = SECOND,
    **fields: object,
) -> dict[str, object]:
    """A row of table verdicts. moved: before, value and the interval of the change."""
    names = ("before", "value", "ci_low", "ci_high")
    change = {"change": round(moved[1] - moved[0], 6)} if moved else {}
    return {
        "night": night,
        **{"model": model, "suite": "sdg", "run_id": f"{model}-2", "baseline": f"{model}-1"},
        **{"task": "mcq", "test": "all", "method": "full", "level": "", "side": ""},
        **{"metric": "accuracy", "n": 1200, "quarantines": False, "required": False, "note": ""},
        **{"rule": rule, "verdict": said},
        **dict(zip(names, moved, strict=False)),
        **change,
        **fields,
    }


def flip(item: int, gold: str, now: str, **fields: object) -> dict[str, object]:
    """A row of table flips: an answer that was right."""
    row = {"night": SECOND, "model": LOST, "suite": "sdg", "run_id": f"{LOST}-2"}
    row |= {"baseline": f"{LOST}-1", "task": "mcq", "test": "T1", "method": "full"}
    row |= {"item_id": item, "gold": gold, "was": gold, "now": now, "better": False}
    return {**row, **fields}


# ----------------------------------------------------------------------
# four nights of three models


def publish_nights(path: Path, nights: int = 4) -> Path:
    """``nights`` nights of two fake models and a broken third one; returns the path.

    fake-optimist is scored every night, fake-pessimist only in the first two (then unchanged),
    fake-broken always fails. In the last night fake-optimist breaches a rule, and some of its
    answers flip.
    """
    return fake_results.kept(f"nights-{nights}", lambda at: _publish_nights(at, nights), path)


def _publish_nights(path: Path, nights: int) -> None:
    table = fake_results.items(np.random.default_rng(1), 60, 24)
    shared = {"items": table, "previews": fake_results.previews(sorted(set(table["image_id"])))}
    for n in range(nights):
        for at, model in enumerate(fake_results.MODELS):
            if at == 0 or n < 2:
                record = fake_results.record(
                    model,
                    n,
                    started_at=START + timedelta(days=n),
                    finished_at=START + timedelta(days=n, minutes=20 + at),
                    licence="CC0",
                )
                seeded = np.random.default_rng(500 + 10 * at + n)
                made = fake_results.answered(model, table, seeded)
                store.publish(path, record, made | (shared if n == 0 else {}))
        old = n >= 2
        night = [
            outcome(LOST, "published", f"{LOST}-{n}", scored=700, planned=700),
            outcome(STEADY, "published", f"{STEADY}-{n}", scored=700, planned=700)
            if not old
            else outcome(STEADY, "unchanged", f"{STEADY}-1", scored=0, planned=700),
            no_memory(
                "CUDA out of memory at batch size 1; <b>quarantined</b>",
                f"{START + timedelta(days=2 * n + 2):%Y-%m-%d}",
                BROKEN,
            ),
        ]
        keep_night(path, name(n), night, **steps(wandb="no network"))
    last = nights - 1
    about = {"night": name(last), "run_id": f"{LOST}-{last}", "baseline": f"{LOST}-{last - 1}"}
    mass = {"metric": "candidate_mass", "before": 0.97, "value": 0.97, "change": 0.0}
    why = {"p": 0.0001, "mde": 0.06, "allowed": 0.05, "note": "fell by more than is allowed"}
    judged = [
        verdict(LOST, "accuracy", "BREACH", (0.61, 0.42, -0.27, -0.11), n=240, **about, **why),
        verdict(LOST, "candidate mass", "PASS", n=240, **about, **mass),
        verdict(STEADY, "accuracy", "INSUFFICIENT_EVIDENCE", n=12, mde=0.2, allowed=0.05, **about),
    ]
    flips = [flip(item, "A", "C", test="all", **about) for item in (1, 2, 3)]
    sent = {"night": name(last), "target": "webhook", "status": "sent", "attempts": 1}
    sent |= {"message": "", "sent_at": START + timedelta(days=last, hours=1)}
    tables = {"verdicts": judged, "flips": flips, "announcements": [sent]}
    store.upsert(path, {table: pd.DataFrame(rows) for table, rows in tables.items()})


# ----------------------------------------------------------------------
# two nights, with scores for the regression check, and as it leaves them


@cache
def _questions() -> pd.DataFrame:
    return fake_results.items(np.random.default_rng(1), 150, 0)


@cache
def _answered(model: str) -> dict[str, pd.DataFrame]:
    """The tables of a run of a model, which are the same each time."""
    return fake_results.answered(model, _questions(), np.random.default_rng(100))


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
    tables = _answered(model)
    scores, predictions = tables["scores"].copy(), tables["predictions"].copy()
    # rows of both are in the same order
    prompts = scores.index[scores["view"] == "full"]
    answers = predictions.index[predictions["method"] == "full"]
    drawn = np.random.default_rng(5).random(len(scores))[prompts] < wrong
    turned = drawn & predictions["correct"][answers].to_numpy()
    prompts, answers = prompts[turned], answers[turned]
    scores.loc[prompts, "logits"] = scores["logits"][prompts].map(lambda z: np.roll(z, 1))
    now = predictions["pred"][answers].map({"A": "B", "B": "C", "C": "A"})
    predictions.loc[answers, "pred"] = now
    predictions.loc[answers, "correct"] = False
    record = fake_results.record(
        model,
        number,
        benchmark_id=benchmark,
        finished_at=START + timedelta(days=5 + day, minutes=30),
        n_scored=700,
        n_failed=0,
        config={"engine": {"seconds": 7.0}},
    )
    images = sorted(set(_questions()["image_id"]))[:12]
    changed = {"scores": scores, "predictions": predictions}
    changed |= {"failures": tables["failures"].head(0), "items": _questions()}
    store.publish(path, record, {**tables, **changed, "previews": fake_results.previews(images)})
    return f"{model}-{number}"


def two_nights(path: Path) -> Path:
    """The first night is good; in the second one model lost a third of its right answers, one is
    unchanged, one ran out of memory."""
    lost, steady = (publish_run(path, model, 1, 0) for model in (LOST, STEADY))
    good = [outcome(LOST, "published", lost), outcome(STEADY, "published", steady)]
    keep_night(path, FIRST, good)
    worse = publish_run(path, LOST, 2, 1, wrong=0.33)
    bad = [outcome(LOST, "published", worse), outcome(STEADY, "unchanged", steady)]
    keep_night(path, SECOND, [*bad, no_memory("too little memory for a chunk", "2026-11-22")])
    return path


def told_night(path: Path) -> Path:
    """A second night as the regression check leaves it, without scores: a breach with flips, an
    unchanged model, one that failed, one never judged."""
    table = fake_results.items(np.random.default_rng(1), 30, 0)
    previews = fake_results.previews(["image0", "image1"])
    for number in (1, 2):
        ended = START + timedelta(days=4 + number)
        record = fake_results.record(LOST, number, finished_at=ended)
        store.publish(path, record, {"items": table, "previews": previews})
    keep_night(path, FIRST, [outcome(LOST, "published", f"{LOST}-1")])
    outcomes = [
        outcome(LOST, "published", f"{LOST}-2"),
        outcome(STEADY, "unchanged", f"{STEADY}-1"),
        no_memory("too little <b>memory</b> & more", "2026-11-22"),
        outcome("new", "published", "new-1"),
    ]
    keep_night(path, SECOND, outcomes, **steps(wandb="timeout after 60 s"))
    signs = (
        "3 better, 71 worse, groups of questions 3 to 70, sign test p < 0.001; p: Holm over 14"
        " tests, alone < 0.001"
    )
    mass = {"metric": "candidate_mass", "side": "at_least", "value": 0.1, "quarantines": True}
    mass |= {"ci_low": 0.08, "ci_high": 0.12, "allowed": 0.2}
    mae = {"task": "regression", "metric": "mae", "p": 0.01, "allowed": 0.1}
    gain = {"metric": "cade_gain", "method": "cade", "p": 0.5, "mde": 0.08, "allowed": 0.03}
    whole = {"task": "", "test": "", "method": ""}
    speed = {"metric": "throughput", "before": 100.0, "value": 40.0, "allowed": 0.6}
    same = {"metric": "", "run_id": f"{STEADY}-1"}
    known = {"p": 0.0001, "mde": 0.031, "allowed": 0.02, "note": signs}
    rows = [
        verdict(LOST, "accuracy", "BREACH", (0.712, 0.655, -0.071, -0.043), **known),
        verdict(LOST, "candidate-mass", "BREACH", **mass),
        verdict(LOST, "mae", "BREACH", (0.5, 0.9, 0.3, 0.5), **mae),
        verdict(LOST, "cade-gain", "INSUFFICIENT_EVIDENCE", (0.02, 0.01, -0.06, 0.04), **gain),
        verdict(
            LOST, "throughput", "MISSING", note="hf x 1 now, vllm x 1 before", **whole, **speed
        ),
        verdict(
            STEADY,
            "unchanged",
            "PASS",
            note=f"the same run as in night {FIRST}, judged there",
            **whole,
            **same,
        ),
    ]
    turned = {"A": "B", "B": "C", "C": "A"}
    flips = [flip(i, gold, turned[gold]) for i, gold in enumerate(table["gold"][:8])]
    store.upsert(path, {"verdicts": pd.DataFrame(rows), "flips": pd.DataFrame(flips)})
    return path


# ----------------------------------------------------------------------
# the suite of people


def publish_persons(path: Path) -> Path:
    """A run of the second suite, ``unfair``, in the same file: four schematic people, two prompts
    each, one answer declined."""
    prompts = (("p1", "direct", "", "nurse", "nurse"), ("p2", "choice", "nurse", "yes", "A. Yes"))
    tables: dict[str, list[dict[str, Any]]] = {
        table: [] for table in ("people", "spoken", "predictions", "scores")
    }
    for i in range(4):
        person = {"person_id": f"p{i}", "image_id": f"person{i}", "dataset": "synthetic"}
        person |= {"class1": "nurse", "gender": "female" if i % 2 else "male", "skin": "light"}
        person |= {"age": "old", "race": "", "split": "test"}
        right = i != 1
        for at, (prompt, task, asked, gold, said) in enumerate(prompts):
            key = {"task": task, "item_id": 100 * at + i, "test": prompt}
            item = {"item_id": 100 * at + i, "prompt": prompt, "asked": asked, "gold": gold}
            tables["people"].append({**person, **item, "negative": False})
            how = ("exact" if prompt == "p1" else "option") if right else "refusal"
            text = said if right else "I can't help with that <b>."
            label = gold if right else ""
            tables["spoken"].append(
                {**key, "view": "full", "text": text, "label": label, "how": how}
            )
            answer = {"method": "full", "split": "test", "pred": label, "correct": right}
            tables["predictions"].append({**key, **answer})
            if prompt == "p2":
                score = {"view": "full", "logits": [1.0, 0.0, -1.0], "candidates": "ABC"}
                score |= {"mass": 0.9, "top_token": "A", "n_tokens": 30}
                tables["scores"].append({**key, **score})
    frames = {table: pd.DataFrame(rows) for table, rows in tables.items()}
    columns = ("pillar", "indicator", "metric", "value", "n", "ci_low", "ci_high", "missing_reason")
    metrics = [
        ("all", "all", "recall", 0.75, 4, 0.3, 0.95, None),
        ("gender:male-female", "all-52", "disparity", 0.5, 4, -0.1, 1.0, None),
        ("skin:light-dark", "all-52", "disparity", None, 0, None, None, "fewer than 20"),
    ]
    cells = pd.DataFrame(metrics, columns=columns).assign(task="direct", test="p1", method="full")
    names = [f"person{i}" for i in range(4)]
    png = [fake_results.composite(np.random.default_rng(i), 0.5) for i in range(4)]
    frames["previews"] = pd.DataFrame({"image_id": names, "png": png})
    run = fake_results.record(
        "unfair",
        0,
        benchmark_id="people",
        suite="people",
        title="Unfair",
        backend="planted-people",
        **dict.fromkeys(("started_at", "finished_at"), START),
        n_prompts_planned=8,
        n_scored=8,
    )
    store.publish(path, run, frames | {"numbers": numbers_of(cells)})
    return path


def publish_both_suites(folder: Path) -> Path:
    """Three models on places and one on people, whose recall is of all classes."""
    path = publish_persons(fake_results.publish_models(folder / "sdgbias.duckdb"))
    with store.connect(path) as con:
        con.execute("UPDATE numbers SET x = 52 WHERE metric = 'recall'")
    return path
