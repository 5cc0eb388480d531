"""Single questions for the report's browser: what was shown, what each view said, and why CADE
chose what it chose.

One question: what was shown, what every view made of it, and what CADE decided.

The question browser: the answers of one run by test and method, filtered and paged. Both suites.

Every value of a filter is a parameter of the statement, never part of it; names of columns come
from `filters_of` alone.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from sdgbias import store, suites
from sdgbias.benchmark.people_items import ATTRIBUTE, ATTRIBUTES, CHOICES, P1
from sdgbias.methods import cade
from sdgbias.raw.facet import CLASSES
from sdgbias.report import labels
from sdgbias.report.labels import number
from sdgbias.report.pages import runs as known
from sdgbias.report.web.source import Reader, Row
from sdgbias.types import OPTION_LETTERS, CadeParams, View

LIMIT = 120
#: All pictures together, base64-encoded, so that the page stays below 6 MB.
PICTURE_BYTES = 4_000_000
OUTCOMES = {
    "fixed": "Fixed by CADE",
    "broken": "Broken by CADE",
    "moved": "Changed, wrong both times",
    "same": "Unchanged",
}


def examples(results: Path, run_ids: list[str], limit: int = LIMIT) -> dict[str, Any]:
    """{'pictures': [data URI], 'questions': [...]} of test-split MCQs whose picture is in the
    store.

    At most ``limit`` questions, taken in turn from every model x pillar x test x outcome; the order
    within one is by hash of the item, so models are shown on the same items where possible.
    Pictures are re-encoded to fit ``PICTURE_BYTES``.
    """
    rows = _pick(_candidates(results, run_ids), limit)
    if rows.empty:
        return {"pictures": [], "questions": []}
    rows = _with_scores(results, _with_items(results, rows))
    uris = _pictures(results, rows)
    index = {image_id: i for i, image_id in enumerate(uris)}
    questions: list[dict[str, Any]] = []
    for (_, test), part in rows.groupby(["run_id", "test"], sort=True):
        questions += _explained(part, str(test), index)
    order = {name: i for i, name in enumerate(OUTCOMES)}
    questions.sort(key=lambda q: (q["model"], order[q["outcome"]], q["pillar"], q["test"], q["id"]))
    return {"pictures": list(uris.values()), "questions": questions}


def _candidates(results: Path, run_ids: list[str]) -> pd.DataFrame:
    """run_id, item_id, test, pillar, outcome and what Full and CADE said, of every question that
    could be shown: its picture was in the store when the newest of these runs was published, so
    that later runs don't change what is shown of earlier ones."""
    sql = """
        WITH then_shown AS (
            FROM previews WHERE run_id = '' OR run_id IN (
                SELECT run_id FROM runs WHERE finished_at <= (SELECT max(finished_at) FROM runs
                WHERE run_id IN (SELECT unnest($runs))))
        ), shown AS (
            SELECT r.run_id, i.item_id, i.pillar FROM runs r JOIN items i USING (benchmark_id)
            SEMI JOIN then_shown v ON v.benchmark_id = r.benchmark_id AND v.image_id = i.image_id
            WHERE r.run_id IN (SELECT unnest($runs)) AND i.task = 'mcq'
        )
        SELECT run_id, item_id, test, pillar, max(pred) FILTER (method = 'full') AS said_full,
        max(pred) FILTER (method = 'cade') AS said_cade,
               bool_or(correct) FILTER (method = 'full') AS right_full, bool_or(correct) FILTER
               (method = 'cade') AS right_cade,
               bool_or(kept) FILTER (method = 'cade') AS kept
        FROM predictions JOIN shown USING (run_id, item_id)
        WHERE run_id IN (SELECT unnest($runs)) AND task = 'mcq' AND method IN ('full', 'cade') AND
        split = 'test'
        GROUP BY ALL HAVING count(*) = 2 ORDER BY run_id, item_id, test"""
    rows = store.query(results, sql, {"runs": run_ids}, runs=run_ids)
    now, before = rows["right_cade"].astype(bool), rows["right_full"].astype(bool)
    changed = rows["said_full"] != rows["said_cade"]
    return rows.assign(
        outcome=np.select(
            [now & ~before, before & ~now, changed], ["fixed", "broken", "moved"], "same"
        )
    )


def _with_items(results: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Adds what the item says, the model's name and CADE's parameters to the few questions that are
    shown."""
    sql = """
        SELECT r.run_id, r.model, r.numerics, i.* EXCLUDE (pillar), p.test, p.alpha, p.lambda_kl,
        p.beta, p.tau
        FROM runs r JOIN items i USING (benchmark_id) JOIN cade_params p ON p.run_id = r.run_id AND
        p.task = i.task
        WHERE r.run_id IN (SELECT unnest($runs)) AND i.task = 'mcq' AND list_contains($items,
        i.item_id)"""
    known = store.query(
        results,
        sql,
        {"runs": sorted(set(rows["run_id"])), "items": sorted({int(i) for i in rows["item_id"]})},
    )
    return rows.merge(known, on=["run_id", "item_id", "test"], how="inner")


def _pick(rows: pd.DataFrame, limit: int) -> pd.DataFrame:
    """In turn from every group, so that rare outcomes are seen and no model or pillar crowds out
    another."""
    key = [
        hashlib.sha256(f"{item}|{test}".encode()).hexdigest()
        for item, test in zip(rows["item_id"], rows["test"], strict=True)
    ]
    rows = rows.assign(turn_key=key).sort_values(["turn_key", "run_id"])
    wide = rows.groupby(["run_id", "pillar", "outcome"]).cumcount()
    narrow = rows.groupby(["run_id", "pillar", "test", "outcome"]).cumcount()
    return (
        rows.assign(narrow=narrow, wide=wide)
        .sort_values(["narrow", "wide", "turn_key", "run_id"])
        .head(limit)
    )


def _with_scores(results: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Adds one column of logits per view; a question that lacks a view's score keeps NaN there."""
    with store.connect(
        results, read_only=True, details=("scores",), runs=sorted(set(rows["run_id"]))
    ) as con:
        con.register("chosen", rows[["run_id", "item_id", "test"]])
        # a withheld score stands at its bound, as where CADE was decided
        scores = con.execute(
            """SELECT run_id, item_id, test, "view", CASE WHEN upper IS NULL THEN logits ELSE
                                list_transform(logits, lambda z, i: CASE WHEN isinf(z) THEN
                                upper[i] ELSE z END) END AS logits
                                FROM scores SEMI JOIN chosen USING (run_id, item_id, test) WHERE
                                task = 'mcq'"""
        ).df()
    wide = scores.pivot(
        index=["run_id", "item_id", "test"], columns="view", values="logits"
    ).reset_index()
    return rows.merge(wide, on=["run_id", "item_id", "test"], how="left")


def _pictures(results: Path, rows: pd.DataFrame) -> dict[str, str]:
    """image_id -> data URI, all at the highest quality that keeps them below PICTURE_BYTES.
    Unreadable pictures are left out."""
    sql = (
        "SELECT DISTINCT ON (image_id) image_id, png FROM previews WHERE list_contains($ids,"
        " image_id) ORDER BY image_id"
    )
    table = store.query(results, sql, {"ids": sorted(set(rows["image_id"]))})
    images = {}
    for image_id, png in zip(table["image_id"], table["png"], strict=True):
        try:
            images[str(image_id)] = Image.open(
                io.BytesIO(bytes(png)), formats=("PNG", "JPEG")
            ).convert("RGB")
        except OSError:
            continue
    encoded: dict[str, str] = {}
    for quality, size in ((80, 448), (65, 448), (45, 448), (35, 336), (25, 224)):
        encoded = {}
        for image_id, image in images.items():
            buffer = io.BytesIO()
            (image if size == 448 else image.resize((size, size))).save(
                buffer, "WEBP", quality=quality, method=4
            )
            encoded[image_id] = (
                "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
            )
        if sum(map(len, encoded.values())) <= PICTURE_BYTES:
            break
    return encoded


def _explained(rows: pd.DataFrame, test: str, pictures: Mapping[str, int]) -> list[dict[str, Any]]:
    """Questions of one run and test with probabilities, CADE's terms and the sentence that says
    what decided."""
    first = rows.iloc[0]
    params = CadeParams(*(float(first[name]) for name in ("alpha", "lambda_kl", "beta", "tau")))
    views = {}
    for view in View:
        z = np.full((len(rows), len(OPTION_LETTERS)), np.nan)
        for i, values in enumerate(rows.get(view.value, [])):
            if isinstance(values, np.ndarray):
                z[i, : len(values)] = np.ma.filled(values, np.nan)
        views[view.value] = z
    numerics: cade.Numerics = "reference" if first["numerics"] == "reference" else "exact"
    s = cade.streams(
        views["full"], views["ctx_q"], views["img_q"], views["q_only"], numerics=numerics
    )
    terms = cade.score_terms(s, params)
    out = []
    for i, r in enumerate(rows.to_dict("records")):
        k = int(s.valid[i].sum())
        probability = {v: _softmax(z[i, :k]) for v, z in views.items()}
        score = [sum(float(t[i, j]) for t in terms) for j in range(k)]
        gate = {
            "confidence": float(s.confidence[i]),
            "tau": params.tau,
            "kept": bool(r["kept"]),
            "beta": params.beta,
            "alpha": params.alpha * (1 + params.lambda_kl * float(s.divergence[i])),
        }
        where = {"U": "urban", "R": "rural"}.get(str(r["urban"]), "")
        year = "" if pd.isna(r["year"]) else str(int(r["year"]))
        out.append(
            {
                "id": int(r["item_id"]),
                "model": r["model"],
                "test": test,
                "pillar": r["pillar"],
                "outcome": r["outcome"],
                "indicator": r["indicator_title"],
                "place": ", ".join(x for x in (str(r["country"] or ""), year, where) if x),
                "picture": pictures.get(r["image_id"], -1),
                "context": _context(r["context"], test),
                "question": r["question"],
                "options": _options(r["options"], k),
                "gold": r["gold"],
                "full": r["said_full"],
                "cade": r["said_cade"],
                "views": {v: [round(p, 4) for p in ps] for v, ps in probability.items()},
                "terms": [[round(float(t[i, j]), 3) for j in range(k)] for t in terms],
                "score": [round(x, 3) for x in score],
                "gate": {
                    name: v if isinstance(v, bool) else round(v, 4) for name, v in gate.items()
                },
                "why": _why(r, gate, [t[i] for t in terms], score),
            }
        )
    return out


def _softmax(z: np.ndarray) -> list[float]:
    """Probabilities over the candidates; empty when the view was not scored."""
    if not np.isfinite(z).all():
        return []
    p = np.exp(z - z.max())
    return [float(x) for x in p / p.sum()]


def _context(stored: object, test: str) -> str:
    """The context line shown under this test ('' for none)."""
    try:
        lines = json.loads(stored) if isinstance(stored, str) else {}
    except ValueError:
        return ""
    return str(lines.get(test) or "") if isinstance(lines, dict) else ""


def _options(stored: object, k: int) -> list[str]:
    texts = json.loads(stored) if isinstance(stored, str) else []
    texts = [str(t) for t in texts] if isinstance(texts, list) else []
    return (texts + [""] * k)[:k]


def _why(
    r: Mapping[Any, Any],
    gate: Mapping[str, float | bool],
    terms: list[np.ndarray],
    score: list[float],
) -> str:
    """One or two sentences: the gate's verdict and, where it opened, the term that moved the answer
    most."""
    full, chosen = str(r["said_full"]), str(r["said_cade"])
    m, tau = number(float(gate["confidence"]), 3), number(float(gate["tau"]), 3)
    if gate["kept"]:
        return (
            f"The Full view is sure of {full}: its confidence {m} reaches the gate τ = {tau}, so"
            " CADE keeps the answer."
        )
    opened = (
        f"The Full view prefers {full} with confidence {m}, below the gate τ = {tau}, so CADE"
        " re-weighs the evidence."
    )
    if chosen == full or full not in OPTION_LETTERS or chosen not in OPTION_LETTERS:
        return f"{opened} {chosen} still has the highest score."
    a, b = OPTION_LETTERS.index(full), OPTION_LETTERS.index(chosen)
    shifts = [float(t[b] - t[a]) for t in terms]
    names = (
        "what the views with the image say",
        *(f"the penalty on what the {x} alone says" for x in ("context", "question")),
    )
    top = int(np.argmax(shifts))
    return (
        f"{opened} {chosen} now beats {full} by {number(score[b] - score[a], 2)}; what favours"
        f" {chosen} most is {names[top]} ({number(shifts[top], 2, signed=True)} against {full})."
    )


#: How an answer about people was read (suites/facet.py).
HOW = {
    "exact": "word for word",
    "normalised": "after normalising",
    "option": "as an option letter",
    "cosine": "by the nearest label",
    "refusal": "declined",
    "unparsed": "not understood",
    "empty": "empty",
    "several": "names several",
    "argmax": "likeliest letter",
}
_LETTERS = {"A": "yes", "B": "no", "C": "unknown"}


def load(reader: Reader, run: Row, task: str, item_id: int, test: str) -> dict[str, Any] | None:
    """Everything about one question under one test of a run; None for a question that the run's
    benchmark doesn't have.

    ``test`` '' is the first that was asked. Views: name, probabilities by candidate (None where it
    was not scored), mass, what it said.
    """
    suite = suites.named(run["suite"])
    layout, people = _LAYOUTS[suite.items_table], suite.private
    keys = {"task": task, "item_id": item_id}
    item = reader.one(
        f"SELECT {layout.columns} FROM {suite.items_table} WHERE benchmark_id = ? AND"
        f" {' AND '.join(f'{key} = ?' for key in suite.question_keys)}",
        [run["benchmark_id"], *(keys[key] for key in suite.question_keys)],
    )
    if item is None:
        return None
    own, key = (run["run_id"],), [run["run_id"], task, item_id]
    answers = reader.ask(
        "SELECT * FROM predictions WHERE run_id = ? AND task = ? AND item_id = ? ORDER BY test,"
        " method",
        key,
        runs=own,
    )
    tests = list(dict.fromkeys(a["test"] for a in answers))
    test = test or (tests[0] if tests else "")
    said = {a["method"]: a for a in answers if a["test"] == test}
    scores = reader.ask(
        """SELECT "view", logits, upper, candidates, mass, top_token FROM scores WHERE run_id = ?
           AND task = ? AND item_id = ? AND test = ?""",
        [*key, test],
        runs=own,
    )
    by_view = {s["view"]: s for s in scores}
    views = [
        _view(v.value, by_view.get(v.value), said)
        for v in View
        if v.value in by_view or v.value in said
    ]
    shown = reader.one(
        "SELECT 1 AS there FROM previews WHERE benchmark_id = ? AND image_id = ?",
        [run["benchmark_id"], item["image_id"]],
    )
    return {
        "item": item,
        "people": people,
        "asked": layout.asked(item),
        "task": task,
        "tests": tests,
        "test": test,
        "views": views,
        "said": said,
        "picture": shown is not None,
        "options": layout.options(item),
        "context": str(labels.parsed(item.get("context")).get(test) or ""),
        "cade": _cade(reader, run, task, test, said),
        "letters": layout.letters,
        "spoken": [
            s | {"how_said": HOW.get(s["how"], s["how"])}
            for s in reader.ask(
                "SELECT * FROM spoken WHERE run_id = ? AND task = ? AND item_id = ? AND test = ?",
                [*key, test],
                runs=own,
            )
        ],
    }


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
        z = [
            b if math.isinf(x) and b is not None else x
            for x, b in zip(score["logits"], bound, strict=False)
        ]
        z = z[: len(score["candidates"] or "")]
        if z and all(map(math.isfinite, z)):
            top = max(z)
            e = [math.exp(x - top) for x in z]
            probabilities = [(c, x / sum(e)) for c, x in zip(score["candidates"], e, strict=False)]
    return {
        "name": name,
        "probabilities": probabilities,
        "mass": score["mass"] if score else None,
        "answer": said.get(name),
    }


def _option_rows(item: Row) -> list[tuple[str, str]]:
    """(letter, text) of a multiple-choice item; [] for an estimate."""
    texts = labels.parsed(item["options"], list)
    return list(zip(OPTION_LETTERS, (str(t) for t in texts), strict=False))


def _cade(
    reader: Reader, run: Row, task: str, test: str, said: dict[str, Row]
) -> dict[str, Any] | None:
    """CADE's parameters, gate and sentence; None where it gave no answer."""
    answer, full = said.get("cade"), said.get("full")
    params = reader.one(
        "SELECT alpha, lambda_kl, beta, tau FROM cade_params WHERE run_id = ? AND task = ? AND"
        " test = ?",
        [run["run_id"], task, test],
    )
    if answer is None or params is None:
        return None
    tau, sure = (
        params["tau"],
        answer["confidence"] if answer["confidence"] is not None else math.nan,
    )
    if answer["kept"]:
        why = (
            f"The Full view is sure to {sure:.3f}, which reaches the gate τ = {tau:.3f}: CADE keeps"
            " its answer."
        )
    else:
        changed = full is not None and (full["pred"], full["value"]) != (
            answer["pred"],
            answer["value"],
        )
        outcome = (
            "and its answer differs from Full’s" if changed else "and comes to the same answer"
        )
        why = (
            f"The Full view is sure to {sure:.3f}, less than the gate τ = {tau:.3f}: CADE weighs"
            f" the views anew, {outcome}."
        )
    return {"params": params, "answer": answer, "why": why}


PAGE = 40


@dataclass(frozen=True)
class Layout:
    """How questions of one table are read and shown. filters: name in the address -> (column, what
    the page calls it). columns: of one question. searched: SQL of the words of a question ``i``.
    shown: SQL of its columns what, place and question. asked: the question's text; options: its
    (letter, text); letters: what single letters mean."""

    filters: Mapping[str, tuple[str, str]]
    columns: str
    searched: str
    shown: str
    asked: Callable[[Row], str]
    options: Callable[[Row], list[tuple[str, str]]]
    letters: Mapping[str, str]


#: Where a suite's questions are stored -> how they are shown.
_LAYOUTS = {
    "items": Layout(
        filters={
            "pillar": ("pillar", "Pillar"),
            "indicator": ("indicator_title", "Indicator"),
            "country": ("country", "Country"),
            "urban": ("urban", "Urban or rural"),
        },
        columns="* REPLACE (options::VARCHAR AS options, context::VARCHAR AS context)",
        searched="concat_ws(' ', i.question, i.indicator_title, i.options::VARCHAR)",
        shown=(
            "coalesce(i.indicator_title, i.indicator) AS what, concat_ws(', ', i.country, i.year,"
            " i.urban) AS place, i.question"
        ),
        asked=lambda item: str(item["question"] or ""),
        options=_option_rows,
        letters={},
    ),
    "people": Layout(
        filters={
            "class": ("class1", "Class"),
            "gender": ("gender", "Gender, perceived"),
            "skin": ("skin", "Skin tone, perceived"),
            "age": ("age", "Age, perceived"),
        },
        columns="*",
        searched="concat_ws(' ', i.asked, i.class1, i.prompt)",
        shown=(
            "coalesce(nullif(i.asked, ''), i.class1) AS what, concat_ws(', ', i.gender, i.skin,"
            " i.age) AS place, i.prompt AS question"
        ),
        asked=_asked,
        options=lambda item: [],
        letters=_LETTERS,
    ),
}
#: What a prediction (by its alias) says: the number of an estimate, else the letter or label.
SAID = """CASE WHEN {0}."value" IS NULL OR isnan({0}."value") THEN {0}.pred ELSE printf('%.4g', {0}."value") END"""
RIGHT_OR_WRONG = {"right": "Right", "wrong": "Wrong"}
PLACES = {"U": "urban", "R": "rural"}


def filters_of(run: Row) -> Mapping[str, tuple[str, str]]:
    """Filters of a run's questions: name in the address -> (column, what the page calls it)."""
    return _LAYOUTS[suites.named(run["suite"]).items_table].filters


def cells(reader: Reader, run: Row) -> list[tuple[str, str, str]]:
    """(task, test, method) of everything that the run answered, in order."""
    rows = reader.ask(
        "SELECT DISTINCT task, test, method FROM predictions WHERE run_id = ? ORDER BY ALL",
        [run["run_id"]],
        runs=(run["run_id"],),
    )
    return [(r["task"], r["test"], r["method"]) for r in rows]


def choices(reader: Reader, run: Row) -> dict[str, list[str]]:
    """Filter -> its values in the run's benchmark."""
    table, own = suites.named(run["suite"]).items_table, filters_of(run)
    made = {}
    for name, (column, _) in own.items():
        sql = (
            f"SELECT DISTINCT {column} AS v FROM {table} WHERE benchmark_id = ? AND {column} IS NOT"
            f" NULL AND {column} != '' ORDER BY 1"
        )
        made[name] = [str(r["v"]) for r in reader.ask(sql, [run["benchmark_id"]])]
    return made


def page(
    reader: Reader,
    run: Row,
    cell: tuple[str, str, str],
    filters: Mapping[str, str],
    outcome: str,
    flipped: bool,
    text: str,
    at: int,
) -> dict[str, Any]:
    """rows (item_id, what, place, question, gold, said, correct, was, was_right, split), total,
    page, pages, previous (run before; None without one).

    ``filters``: name of one of `filters_of` -> value. ``flipped``: only answers that differ from the
    run before. ``text``: part of the question's words, whatever their case.
    """
    suite = suites.named(run["suite"])
    layout = _LAYOUTS[suite.items_table]
    task, test, method = cell
    where, params = ["i.benchmark_id = ?"], [run["benchmark_id"]]
    if "task" in suite.question_keys:
        where.append("i.task = ?")
        params.append(task)
    for name, value in filters.items():
        where.append(f"i.{layout.filters[name][0]} = ?")
        params.append(value)
    if outcome:
        where.append("p.correct = ?")
        params.append(outcome == "right")
    if text:
        where.append(f"contains(lower({layout.searched}), lower(?))")
        params.append(text)
    previous = known.before(reader, run)
    mine = "SELECT * FROM predictions WHERE run_id = ? AND task = ? AND test = ? AND method = ?"
    head: list[Any] = [run["run_id"], task, test, method]
    own = (run["run_id"], previous) if previous else (run["run_id"],)
    join, was = "", "NULL AS was, NULL AS was_right"
    if previous:
        join = f"LEFT JOIN ({mine}) o ON o.item_id = p.item_id"
        was = f"{SAID.format('o')} AS was, o.correct AS was_right"
        head += [previous, task, test, method]
    if flipped:
        where.append(
            f"{SAID.format('p')} IS DISTINCT FROM {SAID.format('o')} AND o.item_id IS NOT NULL"
            if previous
            else "false"
        )
    body = (
        f"FROM ({mine}) p JOIN {suite.items_table} i ON i.item_id = p.item_id {join} WHERE"
        f" {' AND '.join(where)}"
    )
    total = reader.ask(f"SELECT count(*) AS n {body}", [*head, *params], runs=own)[0]["n"]
    rows = reader.ask(
        f"""SELECT p.item_id, {SAID.format("p")} AS said, p.correct, p.split, i.gold, {layout.shown}, {was}
            {body} ORDER BY p.item_id LIMIT {PAGE} OFFSET ?""",
        [*head, *params, (at - 1) * PAGE],
        runs=own,
    )
    return {
        "rows": rows,
        "total": total,
        "page": at,
        "pages": max(1, -(-total // PAGE)),
        "previous": previous,
    }
