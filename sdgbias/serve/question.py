"""One question: what was shown, what every view made of it, and what CADE decided."""

from __future__ import annotations

import math
from typing import Any

from sdgbias.people.classes import CLASSES
from sdgbias.people.prompts import ATTRIBUTE, ATTRIBUTES, CHOICES, P1
from sdgbias.serve import words
from sdgbias.serve.source import Reader, Row
from sdgbias.types import FACET, View

#: How an answer about people was read (suites/facet.py).
HOW = {
    "exact": "word for word", "normalised": "after normalising", "option": "as an option letter", "cosine": "by the nearest label",
    "refusal": "declined", "unparsed": "not understood", "empty": "empty", "several": "names several", "argmax": "likeliest letter",
}  # fmt: skip
_LETTERS = {"A": "yes", "B": "no", "C": "unknown"}


def load(reader: Reader, run: Row, task: str, item_id: int, test: str) -> dict[str, Any] | None:
    """Everything about one question under one test of a run; None for a question that the run's benchmark doesn't have.

    ``test`` '' is the first that was asked. Views: name, probabilities by candidate (None where it was not scored), mass, what it said.
    """
    people = run["suite"] == FACET
    if people:
        item = reader.one("SELECT * FROM people WHERE benchmark_id = ? AND item_id = ?", [run["benchmark_id"], item_id])
    else:
        sql = "SELECT * REPLACE (options::VARCHAR AS options, context::VARCHAR AS context) FROM items WHERE benchmark_id = ? AND task = ? AND item_id = ?"
        item = reader.one(sql, [run["benchmark_id"], task, item_id])
    if item is None:
        return None
    own, key = (run["run_id"],), [run["run_id"], task, item_id]
    answers = reader.ask("SELECT * FROM predictions WHERE run_id = ? AND task = ? AND item_id = ? ORDER BY test, method", key, runs=own)
    tests = list(dict.fromkeys(a["test"] for a in answers))
    test = test or (tests[0] if tests else "")
    said = {a["method"]: a for a in answers if a["test"] == test}
    scores = reader.ask(
        """SELECT "view", logits, upper, candidates, mass, top_token FROM scores WHERE run_id = ? AND task = ? AND item_id = ? AND test = ?""",
        [*key, test],
        runs=own,
    )
    by_view = {s["view"]: s for s in scores}
    views = [_view(v.value, by_view.get(v.value), said) for v in View if v.value in by_view or v.value in said]
    shown = reader.one("SELECT 1 AS there FROM previews WHERE benchmark_id = ? AND image_id = ?", [run["benchmark_id"], item["image_id"]])
    return {
        "item": item, "people": people, "asked": _asked(item) if people else str(item["question"] or ""), "task": task, "tests": tests, "test": test, "views": views, "said": said, "picture": shown is not None,
        "options": _options(item, people), "context": "" if people else str(words.parsed(item["context"]).get(test) or ""),
        "cade": _cade(reader, run, task, test, said), "letters": _LETTERS if people else {},
        "spoken": [s | {"how_said": HOW.get(s["how"], s["how"])} for s in reader.ask(
            "SELECT * FROM spoken WHERE run_id = ? AND task = ? AND item_id = ? AND test = ?", [*key, test], runs=own)],
    }  # fmt: skip


def _asked(item: Row) -> str:
    """What was asked about a person, word for word; the list of classes or groups is only named."""
    prompt = str(item["prompt"])
    if prompt in CHOICES:
        return CHOICES[prompt].format(name=item["asked"])
    if prompt in ATTRIBUTES:
        return ATTRIBUTE.format(what=ATTRIBUTES[prompt], list="...")
    return P1.format(list=f"the {len(CLASSES)} classes")


def _view(name: str, score: Row | None, said: dict[str, Row]) -> dict[str, Any]:
    probabilities = None
    if score is not None and score["logits"]:
        bound = score["upper"] or [None] * len(score["logits"])
        z = [b if math.isinf(x) and b is not None else x for x, b in zip(score["logits"], bound, strict=False)]
        z = z[: len(score["candidates"] or "")]
        if z and all(map(math.isfinite, z)):
            top = max(z)
            e = [math.exp(x - top) for x in z]
            probabilities = [(c, x / sum(e)) for c, x in zip(score["candidates"], e, strict=False)]
    return {"name": name, "probabilities": probabilities, "mass": score["mass"] if score else None, "answer": said.get(name)}


def _options(item: Row, people: bool) -> list[tuple[str, str]]:
    """(letter, text) of a multiple-choice item; [] for an estimate and for people."""
    if people:
        return []
    texts = words.parsed(item["options"], list)
    return list(zip("ABC", (str(t) for t in texts), strict=False))


def _cade(reader: Reader, run: Row, task: str, test: str, said: dict[str, Row]) -> dict[str, Any] | None:
    """CADE's parameters, gate and sentence; None where it gave no answer."""
    answer, full = said.get("cade"), said.get("full")
    params = reader.one(
        "SELECT alpha, lambda_kl, beta, tau FROM cade_params WHERE run_id = ? AND task = ? AND test = ?", [run["run_id"], task, test]
    )
    if answer is None or params is None:
        return None
    tau, sure = params["tau"], answer["confidence"] if answer["confidence"] is not None else math.nan
    if answer["kept"]:
        why = f"The Full view is sure to {sure:.3f}, which reaches the gate τ = {tau:.3f}: CADE keeps its answer."
    else:
        changed = full is not None and (full["pred"], full["value"]) != (answer["pred"], answer["value"])
        outcome = "and its answer differs from Full’s" if changed else "and comes to the same answer"
        why = f"The Full view is sure to {sure:.3f}, less than the gate τ = {tau:.3f}: CADE weighs the views anew, {outcome}."
    return {"params": params, "answer": answer, "why": why}
