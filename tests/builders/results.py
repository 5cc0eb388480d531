"""A small seeded results file: two models with different planted habits, 60 multiple-choice and 24
regression items, T1-T5.

Scores are drawn, everything else follows from them through sdgbias.methods.cade and
sdgbias.methods.stats, so that the report's numbers can be recomputed from the tables.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw

from sdgbias import store
from sdgbias.methods import cade, stats
from sdgbias.types import PILLARS, CadeParams
from tests.builders import once
from tests.builders.numbers import numbers_of

MODELS = {
    "fake-optimist": (2.0, 0.3),
    "fake-pessimist": (-1.5, 1.2),
}  # prior towards the best option, weight of the image
TESTS = ("T1", "T2", "T3", "T4", "T5")
VIEWS = ("q_only", "ctx_q", "img_q", "full")
METHODS = (*VIEWS, "cade")
PARAMS = CadeParams(alpha=0.8, lambda_kl=0.5, beta=0.9, tau=0.85)
BENCHMARK = "0123456789abcdef"
INDICATORS = ("stunting", "electricity-access", "shdi")
TITLES = ("Stunting prevalence", "Access to electricity", "Subnational HDI")
TOKENS = {"candidates": "ABC", "mass": 0.97, "minus_logit": -3.0, "top_token": "A", "n_tokens": 120}
#: Columns of an item that its answers are counted by.
KEPT = ["task", "item_id", "split", "cluster_id", "pillar", "polarity", "question"]
CONTEXT = {
    "T1": "Given: asset_index=0.4, urban=Urban",
    "T2": "Given: urban=Urban",
    "T3": "You may consider: asset_index, urban",
    "T4": "You may consider: urban",
    "T5": "",
}


def composite(rng: np.random.Generator, wealth: float) -> bytes:
    """448 x 448 lights in the dark; more where wealth is."""
    image = Image.new("RGB", (448, 448), (4, 4, 10))
    draw = ImageDraw.Draw(image)
    for _ in range(20 + int(120 * wealth)):
        x, y = rng.integers(0, 440, 2).tolist()
        draw.rectangle((x, y, x + 5, y + 5), fill=(200, 190, 176))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def previews(images: Sequence[str]) -> pd.DataFrame:
    """Table previews of these pictures, from poor to rich."""
    drawn = [composite(np.random.default_rng(i), i / len(images)) for i in range(len(images))]
    return pd.DataFrame({"image_id": images, "png": drawn})


def items(rng: np.random.Generator, n: int, n_regression: int) -> pd.DataFrame:
    rows = []
    for i in range(n + n_regression):
        mcq, p = i < n, i % 3
        gold, place = int(rng.integers(3)), i // 3
        higher = INDICATORS[p] != "stunting"
        rows.append(
            {
                "task": "mcq" if mcq else "regression",
                "item_id": i if mcq else 1000 + i,
                "cluster_id": f"KE2014{place:08d}",
                "country": "Kenya",
                "year": 2014,
                "urban": "U" if place % 2 else "R",
                "pillar": PILLARS[p],
                "indicator": INDICATORS[p] if mcq else "under5_mort",
                "unit": "%" if mcq else "deaths per 1,000 live births",
                "indicator_title": TITLES[p] if mcq else "Under-5 mortality",
                "question": (
                    f"What share fits this place best for {INDICATORS[p]} </script><b>&?"
                    if mcq
                    else "How many children die before five?"
                ),
                "options": ["below 20 %", "20-40 %", "above 40 %"] if mcq else {},
                "gold": "ABC"[gold] if mcq else "40.0",
                "gold_value": 20.0 * gold + 5 if mcq else 40.0,
                "split": "val" if i % 5 == 0 else "test",
                "polarity": ("higher" if higher else "lower") if mcq else "",
                "image_id": f"image{place}",
                "context": CONTEXT,
            }
        )
    return pd.DataFrame(rows)


def logits(
    table: pd.DataFrame, prior: float, sight: float, test: str, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """view -> (N, 3): a prior towards the best option, some context (none at T5), some image."""
    n = len(table)
    gold = table["gold"].map({"A": 0, "B": 1, "C": 2}).to_numpy()
    best = np.where(table["polarity"] == "higher", 2, 0)
    q = np.zeros((n, 3))
    q[np.arange(n), best] = prior
    ctx, img = rng.normal(0, 0.6, (n, 3)), rng.normal(0, 0.6, (n, 3))
    ctx[np.arange(n), gold] += 1.0
    img[np.arange(n), gold] += sight
    ctx = ctx * (0.0 if test == "T5" else 1.0)
    return {"q_only": q, "ctx_q": q + ctx, "img_q": q + img, "full": q + ctx + 0.7 * img}


def _cells(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """The numbers of each method on each test and on all, of each pillar and of all."""
    best = np.where(frame["polarity"] == "higher", "C", "A")
    pred, now, before = frame["pred"], frame["correct"], frame["before"]
    values = {
        "accuracy": now,
        "share_optimistic": pred == best,
        "share_conservative": pred == "B",
        "share_pessimistic": pred == np.where(best == "C", "A", "C"),
        "candidate_mass": np.full(len(frame), 0.97),
        "off_candidate_rate": np.zeros(len(frame)),
        "accuracy_gain": now.astype(float) - before.astype(float),
        "changed_rate": pred != frame["pred_full"],
        "fixed_rate": now & ~before,
        "broken_rate": before & ~now,
        "kept_rate": frame["kept"],
    }
    kinds: dict[str, stats.Kind] = {"candidate_mass": "fraction", "accuracy_gain": "mean"}
    of_cade = list(values)[6:]
    elsewhere = frame["method"] != "cade"
    # one prompt a question, however many places share it
    place = np.where(frame["method"] == "q_only", frame["question"], frame["cluster_id"])
    for pooled in ({}, {"test": "all"}, {"pillar": "all"}, {"test": "all", "pillar": "all"}):
        grouped = frame.assign(task="mcq", **pooled).groupby(["task", "test", "method", "pillar"])
        cells = [dict(zip(grouped.keys, key, strict=True)) for key in grouped.groups]
        values["off_candidate_rate"] = grouped.cumcount() == 0
        columns = [
            stats.ValueColumn(
                metric,
                np.where(elsewhere, np.nan, x) if metric in of_cade else x,
                kinds.get(metric, "share"),
            )
            for metric, x in values.items()
        ]
        by = grouped.ngroup().to_numpy()
        for column in stats.measure(columns, by, len(cells), [stats.codes(place.astype(str))[0]]):
            for i in np.flatnonzero(column.n):
                e = column.estimate(int(i))
                more = {"clusters": e.clusters, "note": "too few prompts" if e.too_few else ""}
                yield cells[i] | _number("all", column.metric, e) | more


def _number(indicator: str, metric: str, e: stats.Estimate) -> dict[str, object]:
    interval = {"value": e.value, "n": e.n, "ci_low": e.low, "ci_high": e.high}
    return {"indicator": indicator, "metric": metric, **interval}


def _repeated(rows: pd.DataFrame, of: str, names: Sequence[str]) -> pd.DataFrame:
    """The rows once for each test and each of ``names``, which are in column ``of``."""
    n = len(rows)
    return pd.concat([rows] * (len(TESTS) * len(names)), ignore_index=True).assign(
        test=np.repeat(TESTS, len(names) * n), **{of: np.tile(np.repeat(names, n), len(TESTS))}
    )


def _estimates(regression: pd.DataFrame, rng: np.random.Generator) -> Iterator[dict[str, object]]:
    """The numbers of each method on the tests of regression questions and on all."""
    cells = [(test, method) for test in ("T2", "T5", "all") for method in METHODS]
    n = len(regression)
    off = [rng.normal(12 if method == "cade" else 15, 4, n) for _, method in cells]
    amount = np.abs(off).ravel()
    columns = [
        stats.ValueColumn("mae", amount, "amount"),
        stats.ValueColumn("interval_accuracy", amount <= 12),
        stats.ValueColumn("unparsed_rate", np.ravel(off) > 24),
    ]
    place = np.tile(stats.codes(regression["cluster_id"].to_numpy(dtype=str))[0], len(cells))
    by = np.repeat(np.arange(len(cells)), n)
    for column in stats.measure(columns, by, len(cells), [place]):
        for i in np.flatnonzero(column.n):
            test, method = cells[i]
            for pillar, indicator in (("all", "all"), (PILLARS[0], "under5_mort")):
                cell = {"task": "regression", "test": test, "method": method, "pillar": pillar}
                yield cell | _number(indicator, column.metric, column.estimate(int(i)))


def answered(model: str, table: pd.DataFrame, rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    """The tables of a run of one of `MODELS` on these items."""
    prior, sight = MODELS[model]
    mcq = table[table["task"] == "mcq"].reset_index(drop=True)
    letters = np.array(list("ABC"))
    logits_of: list[np.ndarray] = []
    answers: list[dict[str, np.ndarray]] = []
    for test in TESTS:
        views = logits(mcq, prior, sight, test, rng)
        s = cade.streams(*(views[v] for v in ("full", "ctx_q", "img_q", "q_only")))
        d = cade.decide(s, PARAMS)
        pred = {v: letters[z.argmax(axis=1)] for v, z in views.items()} | {
            "cade": letters[d.choice]
        }
        for view in VIEWS:
            logits_of.extend(views[view])
        for method in METHODS:
            of_all = {"confidence": s.confidence, "kl": s.divergence, "pred_full": pred["full"]}
            kept = d.kept if method == "cade" else np.ones(len(mcq), dtype=bool)
            answers.append({"pred": pred[method], **of_all, "kept": kept})
    scores = _repeated(mcq[["task", "item_id"]], "view", VIEWS).assign(logits=logits_of, **TOKENS)
    frame = _repeated(mcq[[*KEPT, "gold"]], "method", METHODS).assign(
        **{name: np.concatenate([each[name] for each in answers]) for name in answers[0]}
    )
    frame["correct"] = frame["pred"] == frame["gold"]
    frame["before"] = frame["pred_full"] == frame["gold"]
    metrics = [
        *_cells(frame[frame["split"] == "test"]),
        *_estimates(table[table["task"] == "regression"], rng),
    ]
    chosen = {**asdict(PARAMS), "mode": "", "objective": "accuracy", "val_value": 0.6}
    chosen |= {"n_val": 12, "n_draws": 500, "seed": 0}
    params = [
        {"task": task, "test": t, **chosen}
        for task, tests in (("mcq", "T1 T2 T3 T4 T5"), ("regression", "T2 T5"))
        for t in tests.split()
    ]
    keep = ["task", "item_id", "test", "method", "split", "pred", "correct"]
    keep += ["confidence", "kl", "kept"]
    failed = ("abc", "NonFiniteLogits", "a candidate logit is NaN or infinite")
    failures = [failed] if model == "fake-pessimist" else []
    return {
        "scores": scores,
        "predictions": frame[keep],
        "numbers": numbers_of(metrics),
        "cade_params": pd.DataFrame(params),
        "failures": pd.DataFrame(failures, columns=["key", "kind", "message"]),
    }


def record(model: str, number: int, **more: Any) -> dict[str, Any]:
    """The record of a planted model's run ``model-number``."""
    known = {
        "run_id": f"{model}-{number}",
        "model": model,
        "benchmark_id": BENCHMARK,
        "title": f"Fake {model[5:]}",
        "backend": "planted",
        "revision": "1",
        "fingerprint": f"{number:016x}",
        "benchmark_path": "benchmark",
        "licence": "CC BY-SA 4.0",
        "numerics": "exact",
        "n_prompts_naive": 1200,
        "n_prompts_planned": 700,
        "n_scored": 699,
        "n_failed": 1,
        "config": {"draws": 500},
        "provenance": "planted",
    }
    return known | more


def publish_fake(path: Path, n: int = 60, n_regression: int = 24) -> Path:
    """Writes the results file and returns its path. An older run of the first model is there,
    too."""
    return kept(f"fake-{n}-{n_regression}", lambda at: _publish_fake(at, n, n_regression), path)


def _publish_fake(path: Path, n: int, n_regression: int) -> None:
    table = items(np.random.default_rng(1), n, n_regression)
    pictures = previews(sorted(set(table["image_id"])))
    quarantine = pd.DataFrame(
        [("clusters", f"KE{i}", "missing-tile", "no npz file") for i in range(3)]
        + [("clusters", "KE9", "photo-corrupt", "<cut off>")],
        columns=["table", "key", "rule", "detail"],
    )
    for day, model in enumerate(["fake-optimist", *MODELS]):
        run = record(
            model,
            day,
            started_at=f"2026-11-1{day}T02:00:00",
            finished_at=f"2026-11-1{day}T03:00:00",
            config={"draws": 500, "extra": {"cells": 240, "prompts": 60}},
        )
        tables = answered(model, table, np.random.default_rng(100 + day))
        store.publish(
            path, run, tables | {"items": table, "previews": pictures, "quarantine": quarantine}
        )


#: Runs of `publish_models`: model -> (provenance, repo). The first is a model of the paper, the
#: second only bears the name of one.
NAMED = {
    "llava-1.5-7b": ("measured", "llava-hf/llava-1.5-7b-hf"),
    "qwen2.5-vl-7b": ("planted", "planted"),
    "tiny-llava": ("measured", "local:registry/weights/tiny-llava"),
}


def publish_models(path: Path) -> Path:
    """A results file with a measured, a planted and an embedded run (`NAMED`) on one benchmark,
    none of them analysed."""
    return kept("models", _publish_models, path)


def _publish_models(path: Path) -> None:
    table = items(np.random.default_rng(1), 60, 24)
    for at, (model, (provenance, repo)) in enumerate(NAMED.items()):
        config = {
            "draws": 500,
            "mode": "continue",
            "synthetic": False,
            "engine": {"seconds": 34.8},
            "spec": {"repo": repo},
        }
        run = record(
            model,
            0,
            **dict.fromkeys(("title", "revision", "fingerprint", "licence"), ""),
            backend="hf",
            finished_at=f"2026-11-1{at}T03:00:00",
            n_prompts_naive=0,
            n_scored=700 - 10 * at,
            n_cached=10 * at,
            n_failed=0,
            config=config,
            provenance=provenance,
        )
        quarantine = pd.DataFrame(
            {"table": ["items_mcq"], "key": ["1"], "rule": ["near-duplicate"], "detail": [""]}
        )
        tables = answered(list(MODELS)[at % 2], table, np.random.default_rng(200 + at))
        store.publish(path, run, tables | {"items": table, "quarantine": quarantine})


def kept(name: str, make: Callable[[Path], object], to: Path) -> Path:
    """``make(to)``, a new results file: the first test of a run of pytest makes it, the others copy
    it. Into a file that is there already it is made each time."""
    if once.KEPT is None or to.exists():
        make(to)
        return to
    to.parent.mkdir(parents=True, exist_ok=True)
    first = once.the_only(once.KEPT / f"results-{name}", lambda at: make(at / "r.duckdb"))
    return copied(first / "r.duckdb", to)


def empty(to: Path) -> Path:
    """A results file without a run; to make its tables takes longer than most of what is tested in
    them."""

    def make(path: Path) -> None:
        with store.connect(path):
            pass

    return kept("empty", make, to)


def copied(results: Path, to: Path) -> Path:
    """A results file with its folders of Parquet files and nights, copied to the path ``to``."""
    for kind in (".nights", ".runs"):
        if results.with_suffix(kind).exists():
            shutil.copytree(results.with_suffix(kind), to.with_suffix(kind))
    return Path(shutil.copy(results, to))


def altered(results: Path, folder: Path, *statements: str | tuple[str, list[Any]]) -> Path:
    """A copy of the results in ``folder`` after these SQL statements (with their parameters)."""
    (folder / "altered").mkdir()
    path = copied(results, folder / "altered" / "r.duckdb")
    with store.connect(path) as con:
        for statement in statements:
            con.execute(*((statement,) if isinstance(statement, str) else statement))
    return path
