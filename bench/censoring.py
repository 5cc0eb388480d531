"""What an interface that names only the k likeliest tokens leaves of CADE, measured with full
scores at hand.

    python bench/censoring.py --benchmark DIR [--model tiny-llava] [--items 1500]

Scores every prompt in this process, keeps the whole vocabulary's log-probabilities, then withholds
all but the top k, as a closed endpoint does, and reads that as the API engine reads an answer. CADE
is tuned on what is left (a censored score at its upper bound) on val rows; on test rows the table
says for which share of the questions the answer of each view and of CADE is certain, and between
which accuracies the withheld scores leave CADE, beside the accuracy that they give. For numbers, an
answer is the first digit, and "right" means the gold answer's. `sdgbias evaluate` publishes the
same of a run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from sdgbias.engines.api.engine import first_token
from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.methods.bounds import Bounds, alone, between, fill, payoff_bounds, verdict
from sdgbias.methods.cade import decide, streams
from sdgbias.methods.search import random_search, take
from sdgbias.raw.images.image_store import ImageReader
from sdgbias.registry import entries
from sdgbias.suites import sdg
from sdgbias.types import DIGITS, ContextTest, Prompt, Task, View

CASES = [(Task.MCQ, ContextTest.T1), (Task.MCQ, ContextTest.T4), (Task.REGRESSION, ContextTest.T2)]
#: (k named tokens, spellings of a candidate that the vocabulary may hold)
ENDPOINTS = [(2, 4), (3, 4), (5, 4), (10, 4), (20, 4), (5, 1), (20, 1)]
ORDER, NAMES = (
    (View.FULL, View.CTX_Q, View.IMG_Q, View.Q_ONLY),
    ("Full", "CTX+Q", "IMG+Q", "Q-only"),
)


@torch.inference_mode()
def vocabulary_scores(engine: HuggingFace, prompts: list[Prompt], size: int) -> np.ndarray:
    """(N, V) log-probabilities of the first token, in left-padded batches."""
    out: list[np.ndarray | None] = [None] * len(prompts)
    for shown in (True, False):
        rows = sorted(
            (i for i, p in enumerate(prompts) if bool(p.images) is shown),
            key=lambda i: len(prompts[i].text),
        )
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            texts = [engine.render(prompts[i]) for i in part]
            images = engine.pixels.open([prompts[i] for i in part])
            inputs = dict(
                engine.processor(
                    images=images or None, text=texts, padding=True, return_tensors="pt"
                )
            )
            inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
            known = {k: v for k, v in inputs.items() if k in engine.accepts}
            scores = torch.log_softmax(
                engine.model(**known, logits_to_keep=1).logits[:, -1].double(), -1
            ).numpy()
            for i, row in zip(part, scores, strict=True):
                out[i] = row
    return np.array(out)


def withheld(
    scores: np.ndarray, words: list[str], candidates: list[str], k: int, spellings: int, width: int
) -> Bounds:
    """What the top k tell of each row's candidates: bounds (N, width)."""
    low, upper = np.full((len(scores), width), np.nan), np.full((len(scores), width), np.nan)
    top = np.argpartition(-scores, k, axis=1)[:, :k]
    for i, own in enumerate(candidates):
        one = first_token(
            [(words[t], float(scores[i, t])) for t in top[i]], own, spellings=spellings
        )
        low[i, : len(own)], upper[i, : len(own)] = one.logits, one.upper
    return between(low, upper)


def case(
    engine: HuggingFace, benchmark: Path, task: Task, test: ContextTest, most: int
) -> list[dict[str, object]]:
    items = sdg.load_items(benchmark)[task].head(most)
    cells = sdg.load_prompts(benchmark)
    cells = cells[
        (cells["task"] == task.value)
        & (cells["test"] == test.value)
        & cells["item_id"].isin(items["item_id"])
    ]
    asked = cells[["text", "image_id", "candidates"]].drop_duplicates(ignore_index=True)
    images = ImageReader(benchmark)
    prompts = [
        Prompt(r.text, r.candidates, images[r.image_id] if r.image_id else (), r.image_id)
        for r in asked.itertuples()
    ]
    scores = vocabulary_scores(engine, prompts, 48)
    words = [engine.tokenizer.decode([t]) for t in range(scores.shape[1])]
    present = sdg.present_options(items, task)
    width = present.shape[1]
    place = cells.merge(
        asked.reset_index(names="row"), on=["text", "image_id", "candidates"]
    ).set_index(["view", "item_id"])["row"]
    rows = {view: place.loc[view.value].loc[items["item_id"]].to_numpy() for view in View}
    exact = np.full((len(prompts), width), np.nan)
    for i, prompt in enumerate(prompts):
        exact[i, : len(prompt.candidates)] = [
            np.logaddexp.reduce(scores[i, list(engine.candidates.ids[c])])
            for c in prompt.candidates
        ]
    gold = (
        sdg.gold_index(items)
        if task is Task.MCQ
        else np.array([DIGITS.index(f"{abs(a):.1f}"[0]) for a in items["answer"]])
    )
    payoff = (np.arange(width) == gold[:, None]).astype(float)
    val, judged = (items["split"] == "val").to_numpy(), (items["split"] == "test").to_numpy()
    full_scores = streams(*(exact[rows[v]] for v in ORDER), present)
    found = []
    for k, spellings in ENDPOINTS:
        b = withheld(scores, words, list(asked["candidates"]), k, spellings, width)
        views = [Bounds(b.low[rows[v]], b.high[rows[v]]) for v in ORDER]
        told = streams(*(fill(v) for v in views), present)
        params = random_search(take(told, val), payoff[val], task, draws=2000, seed=0).params
        v = verdict(*views, params, present)
        truth = decide(full_scores, params).choice
        if not v.possible[np.arange(len(truth)), truth].all():
            raise AssertionError("a decision lies outside its bounds")
        low, high = (x[judged].mean() for x in payoff_bounds(v, payoff))
        hidden = np.isneginf(np.stack([x.low for x in views])[:, judged])
        found.append(
            {
                "task": task.value,
                "test": test.value,
                "k": k,
                "spellings": spellings,
                "n": int(judged.sum()),
                "a score withheld": hidden.any(axis=(0, 2)).mean(),
                **{
                    f"{name} certain": alone(b, present).certain[judged].mean()
                    for name, b in zip(NAMES, views, strict=True)
                },
                "CADE certain": v.certain[judged].mean(),
                "right, at least": low,
                "right, at most": high,
                "right, all scores": payoff[np.arange(len(truth)), truth][judged].mean(),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benchmark", type=Path, required=True)
    parser.add_argument("--model", default="tiny-llava")
    parser.add_argument(
        "--items", type=int, default=1500, help="items per task, the first by item_id"
    )
    arguments = parser.parse_args()
    root = entries.find_root()
    engine = HuggingFace(entries.load(root, arguments.model), root)
    table = pd.DataFrame(
        [
            row
            for task, test in CASES
            for row in case(engine, arguments.benchmark, task, test, arguments.items)
        ]
    )
    shares = table.columns[5:]
    table[shares] = (100 * table[shares]).round(1)
    print(table.to_string(index=False))
    print("docs/how-to/api-models.md has this table: it is about answers, not about speed or size")


if __name__ == "__main__":
    main()
