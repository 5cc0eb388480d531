"""Example questions of the static report: selection, pictures, the answers of each view and CADE,
and the reasons."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from sdgbias import store
from sdgbias.analysis.nights import Query
from sdgbias.methods import cade
from sdgbias.report.labels import number
from sdgbias.types import OPTION_LETTERS, CadeParams, View

LIMIT = 120


#: Total size of all pictures, base64-encoded, so that the page stays below 6 MB.
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

    At most ``limit`` questions, taken in turn from every model x pillar x test x outcome; within a
    group they are ordered by hash of the item, so that models are shown on the same items where
    possible. Pictures are re-encoded to fit ``PICTURE_BYTES``.
    """
    rows = _pick(_candidates(results, run_ids), limit)
    if rows.empty:
        return {"pictures": [], "questions": []}
    rows = _with_scores(results, _with_items(results, rows))
    uris = pictures(partial(store.query, results), rows)
    index = {image_id: i for i, image_id in enumerate(uris)}
    questions: list[dict[str, Any]] = []
    for (_, test), part in rows.groupby(["run_id", "test"], sort=True):
        questions += _explained(part, str(test), index)
    order = {name: i for i, name in enumerate(OUTCOMES)}
    questions.sort(key=lambda q: (q["model"], order[q["outcome"]], q["pillar"], q["test"], q["id"]))
    return {"pictures": list(uris.values()), "questions": questions}


def _candidates(results: Path, run_ids: list[str]) -> pd.DataFrame:
    """run_id, item_id, test, pillar, outcome and the answers of Full and CADE, for every eligible
    question: its picture was in the store when the newest of these runs was published, so that
    later runs don't change the examples of earlier ones."""
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
    """Add the item's columns, the model's name and CADE's parameters to the few selected
    questions."""
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
    """Round robin over the groups, so that rare outcomes appear and no model or pillar crowds out
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
        # a withheld score is set to its bound, as in CADE's decision
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


def pictures(query: Query, rows: pd.DataFrame) -> dict[str, str]:
    """image_id -> data URI, all at the highest quality that keeps them below PICTURE_BYTES.
    Unreadable pictures are left out."""
    sql = (
        "SELECT DISTINCT ON (image_id) image_id, png FROM previews WHERE list_contains($ids,"
        " image_id) ORDER BY image_id"
    )
    table = query(sql, {"ids": sorted(set(rows["image_id"]))})
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
    """Questions of one run and test with probabilities, CADE's terms and a sentence on the deciding
    term."""
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
        views["full"],
        views["ctx_q"],
        views["img_q"],
        views["q_only"],
        form=cade.Form(numerics),
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
                "photo": not str(r["modalities"]).startswith("tile"),
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
    """Probabilities over the candidates; empty if the view was not scored."""
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
    """One or two sentences: the gate's verdict and, if it opened, the term that moved the answer
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
