"""A whole run through an endpoint that names its k likeliest tokens, against the same model with
all scores known.

The endpoint is a real server on loopback. Behind it stands a planted model whose candidates share a
vocabulary with words and, for letters, a second spelling; on some prompts the words come first, so
that few or no candidates are named.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.engines import load
from sdgbias.errors import InputError
from sdgbias.methods.bounds import alone, between, verdict
from sdgbias.methods.cade import decide, streams
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.evaluate import evaluate
from sdgbias.suites import sdg, sdg_metrics
from sdgbias.suites.suite import EvalSettings
from sdgbias.types import DIGITS, LETTERS, CadeParams, ContextTest, Task, View
from tests.builders.endpoint import Reply, Server, completion, ok, prompt, question
from tests.builders.text_only import letters_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PLANTED = ModelSpec(
    "planted",
    "Planted",
    "planted",
    "planted",
    "planted-1",
    False,
    batch_size=64,
    options={"optimism": 1.5, "image_weight": 3.0, "context_weight": 2.0},
)
WORDS = [
    ("The", 0.5),
    ("It", 0.0),
    ("I", -1.0),
    ("-", -2.0),
    *((f"word{i}", -12.0 - i) for i in range(10)),
]
SETTINGS = EvalSettings(draws=200, mode="replace")  # such an endpoint can't continue a given digit
BOUNDS = {"censored_rate", "unanswered_rate", "certain_rate"}
BOUNDS |= {f"{name}_{end}" for name in ("accuracy", "mae") for end in ("low", "high")}
KEYS = ["task", "test", "method", "pillar", "indicator", "metric"]


def answer(model: Any, body: dict[str, Any]) -> Reply:
    candidates = letters_of(question(body)) or DIGITS
    asked = prompt(body, candidates)
    if not body.get("logprobs"):
        reply = completion(None, model.generate([asked], [""], body["max_tokens"]).texts[0][0])
        reply["choices"][0]["finish_reason"] = "stop"
        return ok(reply)
    own = list(zip(candidates, map(float, model.candidate_scores([asked]).logits[0]), strict=True))
    spelt = [
        (f" {c}", z - 3.0) for c, z in own if c in LETTERS
    ]  # the same share of every candidate: shifts all logits alike
    chatty = 8.0 if zlib.crc32(asked.text.encode()) % 7 == 0 else 0.0
    tokens = sorted([*own, *spelt, *((word, z + chatty) for word, z in WORDS)], key=lambda t: -t[1])
    whole = np.logaddexp.reduce([z for _, z in tokens])
    top = [(token, float(z - whole)) for token, z in tokens[: body["top_logprobs"]]]
    return ok(completion(top, top[0][0]))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Server]:
    model, server = load(PLANTED, ROOT), Server()

    def script(body: dict[str, Any], n: int) -> Reply:
        server.bodies.clear()  # a whole run's pictures
        return answer(model, body)

    server.script = script
    yield server
    server.close()


@pytest.fixture(scope="module")
def runs(
    endpoint: Server, small_benchmark: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """Results file, and by model its run: exact, and the endpoint at k = 2 and 20."""
    results = tmp_path_factory.mktemp("censored") / "r.duckdb"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPBACK_KEY", "loopback-only-4711")
        outcomes = {"exact": evaluate(PLANTED, ROOT, small_benchmark, results, SETTINGS)}
        asked = {}
        for k in (2, 20):
            before = endpoint.asked.total()
            outcomes[f"k{k}"] = evaluate(
                closed(endpoint, k), ROOT, small_benchmark, results, SETTINGS
            )
            asked[f"k{k}"] = endpoint.asked.total() - before
        yield {"results": results, "benchmark": small_benchmark, "asked": asked, **outcomes}


def closed(endpoint: Server, k: int) -> ModelSpec:
    options = {
        "api_key_env": "LOOPBACK_KEY",
        "base_url": endpoint.url,
        "model": "closed",
        "top_logprobs": k,
        "concurrency": 4,
    }
    return ModelSpec(
        f"closed-{k}", "Closed", "api", "closed", "1", False, batch_size=64, options=options
    )


@pytest.fixture(scope="module")
def ask(runs: dict[str, Any]) -> Callable[[str, str], pd.DataFrame]:
    def table(name: str, run: str) -> pd.DataFrame:
        return store.query(
            runs["results"],
            f"SELECT * EXCLUDE run_id FROM {name} WHERE run_id = ? ORDER BY ALL",
            [runs[run].run_id],
        )

    return table


def matrix(
    scores: pd.DataFrame, items: pd.DataFrame, task: Task, test: str, view: str, column: str
) -> np.ndarray:
    """(N, K) of one view and test, in the order of the items."""
    own = scores[
        (scores["task"] == task.value) & (scores["test"] == test) & (scores["view"] == view)
    ].set_index("item_id")[column]
    out = np.full((len(items), len(sdg_metrics.candidates(items, task))), np.nan)
    for i, values in enumerate(own.reindex(items["item_id"])):
        if isinstance(values, np.ndarray):
            out[i, : len(values)] = np.ma.filled(values, np.nan)
    return out


VIEWS = (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY)
CELLS = [(Task.MCQ, t.value) for t in ContextTest] + [
    (Task.REGRESSION, "T2"),
    (Task.REGRESSION, "T5"),
]


def test_nothing_fails_and_only_what_is_withheld_has_a_bound(
    runs: dict[str, Any], ask: Callable[[str, str], pd.DataFrame]
) -> None:
    for run in ("k2", "k20"):
        assert runs[run].failed == 0 and ask("failures", run).empty
        assert runs[run].scored == runs[run].planned == runs["exact"].planned
    assert ask("scores", "exact")["upper"].isna().all()
    scores = ask("scores", "k2")
    for _, row in scores.iterrows():
        z, upper = (
            np.ma.filled(np.asarray(row[name], dtype=float), np.nan) for name in ("logits", "upper")
        )
        assert (np.isfinite(z) | (np.isneginf(z) & np.isfinite(upper))).all() and np.isfinite(
            z
        ).sum() <= 2
    assert not any(np.isneginf(z).any() for z in ask("scores", "k20")["logits"])


def test_with_every_candidate_named_the_run_is_the_exact_one(
    ask: Callable[[str, str], pd.DataFrame],
) -> None:
    order = ["task", "item_id", "test", "method"]
    named, exact = (
        ask("predictions", run).sort_values(order, ignore_index=True) for run in ("k20", "exact")
    )
    same = [*order, "split", "pred", "value", "correct", "error", "kept"]
    pd.testing.assert_frame_equal(named[same], exact[same])
    np.testing.assert_allclose(named["kl"], exact["kl"], atol=1e-5)
    params = [ask("cade_params", run).drop(columns="val_value") for run in ("k20", "exact")]
    pd.testing.assert_frame_equal(*params)
    joined = ask("metrics", "exact").merge(
        ask("metrics", "k20"), on=KEYS, how="outer", suffixes=("", "_api"), indicator=True
    )
    extra, both = (joined[joined["_merge"] == side] for side in ("right_only", "both"))
    assert set(extra["metric"]) == BOUNDS and len(both) + len(extra) == len(joined)
    # words are part of the endpoint's vocabulary only
    both = both[~both["metric"].isin(["candidate_mass", "off_candidate_rate"])]
    for name in ("value", "n", "ci_low", "ci_high"):
        one, two = (both[column].astype(float) for column in (name, f"{name}_api"))
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)
    of_all = extra[(extra["pillar"] == "all") & (extra["test"] == "all")]
    rates = of_all.groupby("metric")["value_api"]
    assert rates.max()["censored_rate"] == rates.max()["unanswered_rate"] == 0
    # spellings that aren't named could still add a little, so that a near tie stays open
    assert rates.min()["certain_rate"] > 0.95


@pytest.mark.parametrize(("task", "test"), CELLS)
def test_what_is_certain_is_what_all_scores_say(
    runs: dict[str, Any], ask: Callable[[str, str], pd.DataFrame], task: Task, test: str
) -> None:
    """CADE with the parameters of the endpoint's run, on the exact scores; and each view."""
    items = sdg.load_items(runs["benchmark"])[task]
    ids, tested = items["item_id"], (items["split"] == "test").to_numpy()
    present = sdg.present_options(items, task)
    exact, named = ask("scores", "exact"), ask("scores", "k2")
    bounds = [
        between(*(matrix(named, items, task, test, view, name) for name in ("logits", "upper")))
        for view in VIEWS
    ]
    scores = [matrix(exact, items, task, test, view, "logits") for view in VIEWS]
    p = ask("cade_params", "k2").set_index(["task", "test"]).loc[(task.value, test)]
    params = CadeParams(p["alpha"], p["lambda_kl"], p["beta"], p["tau"])
    truth = decide(streams(*scores, present), params).choice
    possible = verdict(*bounds, params, present)
    certain = possible.sum(axis=1) == 1
    names = np.array(list(sdg_metrics.candidates(items, task)))
    answers = ask("predictions", "k2")
    answers = answers[(answers["task"] == task.value) & (answers["test"] == test)]
    by_method = answers.pivot(index="item_id", columns="method", values="pred").reindex(ids)
    rows = ask("metrics", "k2").query("task == @task.value and test == @test and pillar == 'all'")
    value = rows.set_index(["method", "metric"])["value"]

    assert not certain[tested].all()
    assert (by_method["cade"].to_numpy()[certain] == names[truth[certain]]).all()
    assert possible[np.arange(len(items)), truth].all()
    assert value["cade", "certain_rate"] == pytest.approx(certain[tested].mean())
    if task is Task.MCQ:
        kind, right = "accuracy", truth == sdg.gold_index(items)
    else:
        free = ask("decoded", "exact").query("test == @test and view == 'full'")
        digits = free.set_index("item_id")["by_digit"].reindex(ids)
        numbers = np.array([values[t] for values, t in zip(digits, truth, strict=True)])
        kind, right = "mae", np.abs(numbers - items["answer"].to_numpy(dtype=float))
    low, high = (value["cade", f"{kind}_{end}"] for end in ("low", "high"))
    assert low <= right[tested].mean() <= high and low < high

    for view, bound, z in zip(VIEWS, bounds, scores, strict=True):
        hidden = np.isneginf(bound.low).any(axis=1)
        assert value[view.value, "censored_rate"] == pytest.approx(hidden[tested].mean())
        if task is not Task.MCQ:
            assert (view.value, "accuracy_low") not in value.index  # numbers are decoded freely
            continue
        answered, best = by_method[view.value], np.nanargmax(z, axis=1)
        unnamed = ~np.isfinite(bound.low).any(axis=1)
        assert (answered.isna().to_numpy() == unnamed).all()
        assert value[view.value, "unanswered_rate"] == pytest.approx(unnamed[tested].mean())
        certain = alone(bound, present).sum(axis=1) == 1
        assert (answered.to_numpy()[certain] == names[best[certain]]).all()
        assert value[view.value, "certain_rate"] == pytest.approx(certain[tested].mean())
        low, high = (value[view.value, f"accuracy_{end}"] for end in ("low", "high"))
        assert low <= (best == sdg.gold_index(items))[tested].mean() <= high


def test_again_asks_nothing_and_reference_numerics_are_refused(
    endpoint: Server, runs: dict[str, Any]
) -> None:
    before = endpoint.asked.total()
    assert (
        evaluate(closed(endpoint, 2), ROOT, runs["benchmark"], runs["results"], SETTINGS).run_id
        == runs["k2"].run_id
    )
    with pytest.raises(InputError, match="--numerics exact"):
        evaluate(
            closed(endpoint, 2),
            ROOT,
            runs["benchmark"],
            runs["results"],
            replace(SETTINGS, numerics="reference"),
        )
    assert endpoint.asked.total() == before
