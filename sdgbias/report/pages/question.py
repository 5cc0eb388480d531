"""Single questions: the literal prompt of each view, the raw scores and answers, and why CADE chose
its answer. The web application shows one, the static report its examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from sdgbias import suites
from sdgbias.benchmark import people_items
from sdgbias.benchmark.prompts import REGRESSION_TAIL, choice_texts, question_lines
from sdgbias.methods import cade
from sdgbias.raw.facet import CLASSES
from sdgbias.raw.indicators import Template, load_indicators, load_regression_tasks
from sdgbias.report.pages.questions import option_directions, option_rows
from sdgbias.report.reader import Reader, Row, parsed
from sdgbias.types import MODALITIES, OPTION_LETTERS, CadeParams, Task, View
from sdgbias.vocabulary import WORDS, name_in
from sdgbias.wording import number

_SHOWN = {
    "photo": "a street photo",
    "tile": "the satellite tile, north up",
    "nightlights": "the night lights",
}
#: The meaning of single letters, of a question about a person.
_LETTERS = {"A": "yes", "B": "no", "C": "unknown"}
#: task, item_id and test of a question; test '': the first that was scored.
Wanted = tuple[str, int, str]


def load(reader: Reader, run: Row, wanted: Sequence[Wanted]) -> list[dict[str, Any] | None]:
    """All data of some questions of a run, in their order; None for one that the run's benchmark
    doesn't contain.

    Views: name, scores (candidate, probability, raw score; None if not scored), mass, top_token,
    answer.
    """
    suite = suites.named(run["suite"])
    ids = sorted({item_id for _, item_id, _ in wanted})
    marks = ", ".join("?" for _ in ids) or "NULL"
    items = reader.ask(
        f"SELECT * FROM {suite.items_table} WHERE benchmark_id = ? AND item_id IN ({marks})",
        [run["benchmark_id"], *ids],
    )
    run_ids, key = (run["run_id"],), [run["run_id"], *ids]
    details = {
        table: reader.ask(
            f"SELECT * FROM {table} WHERE run_id = ? AND item_id IN ({marks}) ORDER BY ALL",
            key,
            runs=run_ids,
        )
        for table in ("predictions", "scores", "spoken", "decoded")
    }
    params = reader.ask("SELECT * FROM cade_params WHERE run_id = ?", [run["run_id"]])
    images = sorted({i["image_id"] for i in items if i["image_id"]})
    pictured = reader.ask(
        "SELECT DISTINCT image_id FROM previews WHERE benchmark_id = ? AND image_id IN"
        " (SELECT unnest(?::VARCHAR[]))",
        [run["benchmark_id"], images],
    )
    available = {p["image_id"] for p in pictured}
    questions: list[dict[str, Any] | None] = []
    for task, item_id, test in wanted:
        keys = {"task": task, "item_id": item_id}
        item = next((i for i in items if all(i[k] == keys[k] for k in suite.question_keys)), None)
        of_question = {
            name: [r for r in rows if r["item_id"] == item_id] for name, rows in details.items()
        }
        for name in ("predictions", "scores", "spoken"):
            of_question[name] = [r for r in of_question[name] if r["task"] == task]
        tuned = [p for p in params if p["task"] == task]
        questions.append(
            item and _question(run, task, test, item, of_question | {"params": tuned}, available)
        )
    return questions


def _question(
    run: Row, task: str, test: str, item: Row, rows: dict[str, list[Row]], available: set[str]
) -> dict[str, Any]:
    suite = suites.named(run["suite"])
    tests = sorted({a["test"] for a in rows["predictions"]})
    test = test or (tests[0] if tests else "")
    answers = {a["method"]: a for a in rows["predictions"] if a["test"] == test}
    by_view = {s["view"]: s for s in rows["scores"] if s["test"] == test}
    views = [
        _view(v.value, by_view.get(v.value), answers)
        for v in View
        if v.value in by_view or v.value in answers
    ]
    options = option_rows(item)
    context = str(parsed(item.get("context")).get(test) or "")
    params = next((p for p in rows["params"] if p["test"] == test), None)
    return {
        "item": item,
        "people": suite.private,
        "groups": parsed(item["groups"]) if item.get("source_id") else None,
        "asked": _asked(item),
        "task": task,
        "tests": tests,
        "test": test,
        "views": views,
        "said": answers,
        "picture": item["image_id"] in available,
        "shown": caption(item.get("modalities")),
        "template": template_of(task, item),
        "options": options,
        "ways": option_directions(item) if task == Task.MCQ.value and options else {},
        "context": context,
        "prompts": prompts(item, task, options, context, [v["name"] for v in views]),
        "cade": _cade(run, task, params, answers, by_view),
        "letters": _LETTERS if suite.private else {},
        "decoded": [d for d in rows["decoded"] if d["test"] == test],
        "spoken": [
            s | {"how_said": name_in(WORDS.parsed, s["how"])}
            for s in rows["spoken"]
            if s["test"] == test
        ],
    }


def _asked(item: Row) -> str:
    """The exact question; of one about a person the list of classes is only named."""
    if "prompt" not in item:
        return str(item["question"] or "")
    if item["prompt"] in people_items.CHOICES:
        return people_items.CHOICES[item["prompt"]].format(name=item["asked"])
    return people_items.P1.format(list=f"the {len(CLASSES)} classes")


def prompts(
    item: Row,
    task: str,
    options: Sequence[tuple[str, str]],
    context: str,
    views: Sequence[str],
) -> list[tuple[list[str], str]]:
    """(views, text) of each distinct prompt of a question, rebuilt from the stored question by the
    code that wrote the benchmark's prompts: the results don't keep the text."""
    if "prompt" in item:  # a question about a person: one text, with and without picture
        frame = pd.DataFrame([item])
        return [(list(views), str(people_items.build_prompts(frame)["text"].iloc[0]))]
    seen = [view for view in View if view.value in views]
    columns = {f"option_{letter.lower()}": text for letter, text in options}
    given = pd.DataFrame({"question": str(item["question"] or ""), **columns}, range(len(seen)))
    shown = pd.Series([context if view.has_context else "" for view in seen], dtype=object)
    texts = (
        question_lines(given, shown) + REGRESSION_TAIL
        if task == Task.REGRESSION.value
        else choice_texts(given, shown)
    )
    by_text: dict[str, list[str]] = {}
    for view, text in zip(seen, texts, strict=True):
        by_text.setdefault(str(text), []).append(view.value)
    return [(names, text) for text, names in by_text.items()]


def _view(name: str, score: Row | None, answers: dict[str, Row]) -> dict[str, Any]:
    scores = None
    if score is not None and score["logits"]:
        candidates = score["candidates"] or ""
        bound = score["upper"] or [None] * len(score["logits"])
        pairs = zip(score["logits"], bound, candidates, strict=False)
        z = [b if math.isinf(x) and b is not None else x for x, b, _ in pairs]
        if z and all(map(math.isfinite, z)):
            e = [math.exp(x - max(z)) for x in z]
            scores = [(c, x / sum(e), raw) for c, x, raw in zip(candidates, e, z, strict=False)]
    kept = {name: score[name] if score else None for name in ("mass", "top_token")}
    return {"name": name, "scores": scores, "answer": answers.get(name), **kept}


def _cade(
    run: Row, task: str, params: Row | None, answers: dict[str, Row], by_view: dict[str, Row]
) -> dict[str, Any] | None:
    """CADE's parameters, terms by option and sentence; None if it gave no answer. terms: [] where
    an option's score is withheld or the answer is a number."""
    answer, full = answers.get("cade"), answers.get("full")
    if answer is None or full is None or params is None:
        return None
    choice = task == Task.MCQ.value
    terms = _terms(run, params, by_view) if choice else []
    changed = any(full[k] != answer[k] for k in (("pred",) if choice else ("pred", "value")))
    why = _why(answer, full, float(params["tau"]), changed, terms)
    return {"params": params, "answer": answer, "terms": terms, "why": why}


def _terms(run: Row, params: Row, by_view: dict[str, Row]) -> list[list[float]]:
    """The three terms of CADE's score and their sum, each by option."""
    views = {}
    for view in View:
        score = by_view.get(view.value)
        logits = [] if score is None else score["logits"] or []
        bound = [] if score is None else score["upper"] or []
        bounded = [b if math.isinf(x) else x for x, b in zip(logits, bound, strict=False)] or logits
        z = np.full((1, len(OPTION_LETTERS)), np.nan)
        z[0, : len(bounded)] = [np.nan if x is None else x for x in bounded]
        views[view.value] = z
    numerics: cade.Numerics = "reference" if run["numerics"] == "reference" else "exact"
    s = cade.streams(
        views["full"], views["ctx_q"], views["img_q"], views["q_only"], form=cade.Form(numerics)
    )
    k = int(s.valid[0].sum())
    tuned = CadeParams(*(float(params[name]) for name in ("alpha", "lambda_kl", "beta", "tau")))
    terms = [[float(x) for x in term[0, :k]] for term in cade.score_terms(s, tuned)]
    whole = bool(k) and all(math.isfinite(x) for term in terms for x in term)
    return [*terms, [sum(by) for by in zip(*terms, strict=True)]] if whole else []


def _why(answer: Row, full: Row, threshold: float, changed: bool, terms: list[list[float]]) -> str:
    """One or two sentences: the gate's verdict and, if it opened, the term that moved the answer
    most."""
    sure = math.nan if answer["confidence"] is None else float(answer["confidence"])
    m, tau = number(sure, 3), number(threshold, 3)
    if answer["kept"]:
        # the candidate: a number that was decoded freely may begin with another digit
        what = "that digit, with which the free answer doesn't begin" if changed else "the answer"
        return (
            f"The Full view is sure of {full['pred']}: its confidence {m} reaches the gate"
            f" τ = {tau}, so CADE keeps {what}."
        )
    opened = (
        f"The Full view prefers {full['pred']} with confidence {m}, below the gate τ = {tau}, so"
        " CADE re-weighs the evidence."
    )
    chosen = str(answer["pred"])
    if not changed:
        return f"{opened} {chosen} still has the highest score."
    if not terms:
        return f"{opened} Its answer differs from that of the Full view."
    a, b = OPTION_LETTERS.index(str(full["pred"])), OPTION_LETTERS.index(chosen)
    shifts = [term[b] - term[a] for term in terms]
    names = (
        "what the views with the image say",
        *(f"the penalty on what the {x} alone says" for x in ("context", "question")),
    )
    top = int(np.argmax(shifts[:3]))
    return (
        f"{opened} {chosen} now beats {full['pred']} by {number(shifts[3], 2)}; what favours"
        f" {chosen} most is {names[top]} ({number(shifts[top], 2, signed=True)} against"
        f" {full['pred']})."
    )


def template_of(task: str, item: Row) -> Template | None:
    """The template of the item's indicator; None where the question isn't ours (a release, custom
    questions) or is of another version."""
    entries = load_regression_tasks() if task == Task.REGRESSION.value else load_indicators()
    for entry in entries:
        if (entry.slug, entry.question) == (item.get("indicator"), item.get("question")):
            return entry.template
    return None


def caption(modalities: object) -> str:
    """What the picture of a question shows, in words; of a question of an earlier version, whose
    picture isn't described, the usual panels."""
    listed = str(modalities or "")
    names = [name for name in MODALITIES if name in listed.split(", ")] or list(MODALITIES)
    text = f"What the model was shown: {', '.join(_SHOWN[name] for name in names)}."
    return text if "photo" in names else f"{text} There is no street photo of this place."
