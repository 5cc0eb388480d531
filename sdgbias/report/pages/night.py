"""The night page, of the report and of `sdgbias serve`: outcomes, changes and their size, flipped
answers, quarantined models, and the steps after scoring.

All data is read from the results file; the page has no scripts. Pictures of people are blurred
until a reader reveals them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd

from sdgbias import suites, wording
from sdgbias.analysis import night_text as words
from sdgbias.analysis import nights
from sdgbias.analysis.nights import (
    INSUFFICIENT,
    MISSING,
    UNCHANGED,
    ModelNight,
    NightRecord,
)
from sdgbias.report import layout
from sdgbias.report.charts import described, over_nights, still
from sdgbias.report.pages.questions import attribute_words, option_rows
from sdgbias.vocabulary import METHODS, WORDS

#: Number of flipped questions shown per model, and of models whose breaches are shown in full.
SHOWN, EXPLAINED = 6, 20
#: Evaluations that are listed without a fold; a night of more shows first what needs a look.
FEW = 12
#: outcome or breach -> sign and words of the history strip; the sign alone identifies it.
SIGNS = {
    "breach": ("▲", "in breach"),
    "published": ("●", "published"),
    "unchanged": ("○", "unchanged"),
    "failed": ("✕", "failed"),
    "skipped": ("–", "skipped"),
    "": ("·", "not evaluated"),
}
#: Status of a night -> its words, and what an end before its time says.
STATES = {
    "done": "finished",
    "running": "scoring ended; publishing was under way when this page was written",
}
_ENDED = {"interrupted": "the night was interrupted", "failed": "the night failed"}
#: Closing steps in the order in which they run.
STEPS = ("analyse", "gate", "report", "wandb", "announce")
#: image_id -> address, of the pictures of some questions.
Pictures = Callable[[pd.DataFrame], Mapping[str, str]]


def context(night: NightRecord, query: nights.Query, pictures: Pictures) -> dict[str, Any]:
    """Data of night.html.j2. ``query``: what the results answer; ``pictures``: of questions with
    benchmark_id and image_id."""
    breached = night.breached[:EXPLAINED]
    shown = _examples(query, pictures, breached)
    fold = len(night.models) > FEW and any(map(_alarming, night.models))
    flipped = [m for m in night.models if len(m.flips)]
    run_ids = [run for m in night.models for run in (m.run_id, m.baseline)]
    stored = query("SELECT run_id FROM runs WHERE list_contains($ids, run_id)", {"ids": run_ids})
    announced = query(
        "FROM announcements WHERE night = $night ORDER BY target", {"night": night.night}
    )
    return {
        "night": night.night,
        "record": night,
        "text": words,
        "headline": words.headline(night),
        "tone": _tone(night),
        "tiles": {name.capitalize(): len(night.of(name)) for name in WORDS.outcomes}
        | {"Breaches": sum(len(m.breaches) for m in night.breached)},
        "seconds": _seconds(night.row),
        "facts": _facts(night),
        "troubles": troubles_of(night),
        "planted": sorted({m.model for m in night.models if m.planted}),
        "models": [m for m in night.models if _alarming(m) or not fold],
        "calm": [m for m in night.models if fold and not _alarming(m)],
        "why": _why,
        "plain": _plain,
        "few": FEW,
        "explained": [(m.model, m.suite) for m in breached],
        "breached": [_breach(m, shown.get((m.model, m.suite), [])) for m in breached],
        "beyond": max(0, len(night.breached) - EXPLAINED),
        "flipped": flipped,
        "stored": set(stored["run_id"]),  # others were removed since
        "open": [part for m in night.models if (part := _open(m))],
        "held": [m for m in night.models if m.until or m.quarantines],
        "held_because": held_because,
        "steps": _steps(night.row),
        "announced": announced.astype(object).where(announced.notna(), None).to_dict("records"),
        "history": _history(night),
        "signs": [{"sign": sign, "said": meaning} for sign, meaning in SIGNS.values()],
    }


def _tone(night: NightRecord) -> str:
    """Class of the headline: what needs a person first."""
    if night.breached:
        return "bad"
    if night.of("failed") or night.row["status"] in _ENDED:
        return "warn"
    return "good" if night.of("published", "unchanged") else "plain"


def _seconds(row: Mapping[str, Any]) -> float | None:
    began, ended = row["started_at"], row["finished_at"]
    return None if pd.isna(began) or pd.isna(ended) else (ended - began).total_seconds()


def _steps(row: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(step, state, sentence), in order of execution."""
    steps, states = row["steps"], row["step_states"]
    order = sorted(steps, key=lambda s: (STEPS.index(s) if s in STEPS else len(STEPS), s))
    return [(name, str(states.get(name, "")), str(steps[name])) for name in order]


def _when(value: object) -> str:
    if not isinstance(value, datetime) or pd.isna(value):
        return "not recorded"
    return f"{value:%d %B %Y, %H:%M} UTC".lstrip("0")


def _facts(night: NightRecord) -> list[tuple[str, str]]:
    row, status = night.row, str(night.row["status"])
    facts = [("Night", night.night), ("Started", _when(row["started_at"]))]
    if status != "running":
        facts.append(("Ended", _when(row["finished_at"])))
    if isinstance(row["by"], str) and row["by"]:
        facts.append(("Started by", row["by"]))
    facts.append(("State", STATES.get(status, status)))
    of = row["benchmarks"]
    return facts + [(f"Benchmark, {layout.SUITES.get(n, n)}", of[n]) for n in suites.in_order(of)]


def troubles_of(night: NightRecord) -> list[str]:
    """Problems of the night as a whole, beyond single models."""
    steps = [f"{step}: {reason}" for step, reason in nights.failed_steps(night.row).items()]
    ended = _ENDED.get(str(night.row["status"]))
    return [ended, *steps] if ended else steps


def _alarming(m: ModelNight) -> bool:
    """Whether a person should look at it."""
    return m.verdict == nights.BREACH or m.outcome in ("failed", "skipped")


def _why(m: ModelNight) -> str:
    """What one line of the overview says of a model: what moved first, why it has no result, that
    its run was judged before, or the first required rule that lacks data."""
    if m.breaches:
        more = wording.many(len(m.breaches) - 1, "more breach", "more breaches")
        return words.moved(m.breaches[0]) + (f"; and {more}" if len(m.breaches) > 1 else "")
    judged_before = str(m.rows[0]["note"]) if {r["rule"] for r in m.rows} == {UNCHANGED} else ""
    needed = [_plain(r) for r in m.rows if m.verdict == MISSING and r["required"]]
    return words.why(m) or judged_before or next(iter(needed), "")


def held_because(m: ModelNight) -> str:
    if m.quarantines:
        return "the gate: " + "; ".join(words.moved(r) for r in m.breaches if r["quarantines"])
    return words.why(m) or "no reason was kept"


def _breach(m: ModelNight, examples: list[dict[str, Any]]) -> dict[str, Any]:
    figure = over_nights.moves(m)
    return {
        "m": m,
        "private": suites.named(m.suite).private,
        "chart": still(figure)[0] if figure else "",
        "alt": described(figure) if figure else "",
        "legend": figure.legend if figure else (),
        "flips": _flips(m),
        "examples": examples,
    }


def _plain(r: Mapping[str, Any]) -> str:
    """A row's note without the parts that have their own columns in the table."""
    return "; ".join(p for p in str(r["note"]).split("; ") if not p.startswith("p: Holm"))


def _flips(m: ModelNight) -> list[tuple[str, str]]:
    """Counts of flipped answers with McNemar's p, for every rule on correct answers, breach or
    not."""
    notes = [(words.what(r), str(r["note"]).split("; ")) for r in m.rows]
    return [(what, p) for what, parts in notes for p in parts if "McNemar" in p]


def _open(m: ModelNight) -> dict[str, Any]:
    """Rules with insufficient evidence, and rules with missing data by reason; {} without any."""
    rows = [r for r in m.rows if r["verdict"] in (INSUFFICIENT, MISSING)]
    missing: dict[str, list[str]] = {}
    for r in rows:
        if r["verdict"] == MISSING:
            missing.setdefault(_plain(r), []).append(str(r["rule"]))
    weak = [r for r in rows if r["verdict"] == INSUFFICIENT]
    return {"m": m, "weak": weak, "missing": missing} if rows else {}


def _history(night: NightRecord) -> dict[str, Any]:
    """heads: nights, oldest first; rows: (model, suite, cells of sign and words)."""
    frame = night.history
    heads = sorted(set(zip(frame["at"], frame["night"], strict=True)))
    rows = []
    for (model, suite), part in frame.groupby(["model", "suite"], sort=True):
        by_night = {int(r["at"]): r for r in part.to_dict("records")}
        cells = [_sign(name, by_night.get(at)) for at, name in heads]
        rows.append({"model": model, "suite": suite, "cells": cells})
    return {"heads": [name for _, name in heads], "rows": rows}


def _sign(night: str, row: Mapping[Any, Any] | None) -> dict[str, str]:
    """A model's cell of the history for one night."""
    kind = "" if row is None else "breach" if row["breach"] else str(row["outcome"] or "")
    sign, meaning = SIGNS.get(kind, SIGNS[""])
    judged = row is None or row["judged"] or kind in ("failed", "skipped")
    text = f"{night}: {meaning}{'' if judged else ', not judged'}"
    return {"sign": sign, "said": text, "kind": kind or "none"}


# ----------------------------------------------------------------------
# examples


def _examples(
    query: nights.Query, pictures: Pictures, models: Sequence[ModelNight]
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """(model, suite) -> up to SHOWN flipped questions: those with a picture in the store first,
    then in stored order."""
    examples = []
    for m in models:
        if m.flips.empty:
            continue
        sql = """SELECT task, item_id, benchmark_id, image_id, question, options, about, attributes,
                 q.benchmark_id IN (SELECT benchmark_id FROM previews v WHERE
                 v.image_id = q.image_id) AS pictured
                 FROM questions q JOIN runs r USING (benchmark_id)
                 WHERE r.run_id = $run AND list_contains($items, q.item_id)"""
        flipped = {"run": m.run_id, "items": [int(i) for i in m.flips["item_id"]]}
        part = m.flips.assign(at=range(len(m.flips))).merge(
            query(sql, flipped), on=["task", "item_id"]
        )
        part = part.assign(again=part.groupby("item_id").cumcount()).sort_values(
            ["again", "pictured", "at"], ascending=[True, False, True]
        )
        examples.append((m, part.head(SHOWN).sort_values(["better", "at"])))
    keys = ["benchmark_id", "image_id", "pictured"]
    uris = pictures(pd.concat([part[keys] for _, part in examples])) if examples else {}
    return {
        (m.model, m.suite): [
            _card(r, uris, suites.named(m.suite).private) for r in part.to_dict("records")
        ]
        for m, part in examples
    }


def _card(r: Mapping[Any, Any], uris: Mapping[str, str], private: bool) -> dict[str, Any]:
    """A flipped question; ``private``: it shows a person."""
    letters = {"right": r["gold"], "was": r["was"], "now": r["now"]}
    about = ", ".join(filter(None, (str(r["about"] or ""), attribute_words(r["attributes"]))))
    options = [
        {"letter": k, "text": text, "tags": [tag for tag in letters if letters[tag] == k]}
        for k, text in option_rows(r)
    ]
    return {
        **{name: r[name] for name in ("task", "gold", "test")},
        "picture": uris.get(str(r["image_id"]), ""),
        "alt": "Picture of a person, blurred unless shown" if private else f"Picture with {about}",
        "blur": private,
        "question": r["question"] or "any of the listed classes",
        "item_id": int(r["item_id"]),
        "options": options,
        "place": about,
        "was": r["was"] or "nothing",
        "now": r["now"] or "nothing",
        "better": bool(r["better"]),
        "method": METHODS.get(str(r["method"]), str(r["method"])),
    }
