"""A night and its verdicts as sentences, shared by the notification, the HTML page and the command
line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sdgbias.analysis.nights import FIRST, UNCHANGED, ModelNight, NightRecord
from sdgbias.methods.stats import Estimate
from sdgbias.vocabulary import METHODS, WORDS, Word, metric_word, name_in
from sdgbias.wording import CI, NBSP, NO_INTERVAL, amount, many, p_value, written

#: In place of a number of rules: the first run of a model has no change to judge.
NOTHING_YET = "first run: nothing to compare with yet"
#: Columns of numbers of table ``verdicts``.
NUMBERS = ("before", "value", "change", "ci_low", "ci_high", "mde", "allowed", "p")
#: Metric -> the one that a verdict shows: errors are judged in tolerances of their targets.
_JUDGED = {"mae": "mae_in_tolerances"}


def what(r: Mapping[Any, Any]) -> str:
    """Label of a row of table ``verdicts``, e.g. 'accuracy, Full, choice, all tests'."""
    if r["rule"] == UNCHANGED:
        return "unchanged run"
    level = str(r["level"] or "")
    if level:  # groups that are compared, or the one that is judged alone
        level = f" by {level}" if r["metric"] == "disparity" else f" of {level}"
    test = str(r["test"] or "")
    parts = [
        metric_word(str(r["metric"])).in_sentence + level,
        METHODS.get(str(r["method"]), str(r["method"] or "")),
        WORDS.tasks[task].in_sentence if (task := str(r["task"] or "")) in WORDS.tasks else task,
        "all tests" if test == "all" else test,
    ]
    return ", ".join(p for p in parts if p)


def floor(r: Mapping[Any, Any]) -> str:
    """'at least', 'at most', or '' for a comparison with another run."""
    return name_in(WORDS.floors, str(r["side"] or ""))


def note(r: Mapping[Any, Any]) -> str:
    """A row's note, extended by its flags (quarantining rule, required metric)."""
    text = r["note"] if isinstance(r["note"], str) else ""
    parts = [text, *(word.name for name, word in WORDS.flags.items() if r[name])]
    return "; ".join(p for p in parts if p)


def cells(r: Mapping[Any, Any]) -> dict[str, str]:
    """The numbers of a row as text: before, value, change, ci, n, mde, allowed, p; '' where
    missing."""
    metric = str(r["metric"])
    word = metric_word(_JUDGED.get(metric, metric))
    word = word.model_copy(update={"format": word.format.removeprefix("+")})
    unit = "points" if word.scale == 100 else word.unit
    change = word.model_copy(update={"unit": unit, "format": f"+{word.format}"})
    limit, least = (word if floor(r) else change.model_copy(update={"format": word.format})), change
    if metric == "throughput":  # judged by the ratio of two nights
        least = change.model_copy(update={"unit": "%", "format": "+.0f"})
        limit = word.model_copy(update={"unit": "%", "format": ".0f"})

    def of(name: str, shown: Word = word) -> str:
        return "" if (text := amount(r[name], shown)) == "none" else text

    e = Estimate.of_row(r)
    ci = written(e, word if floor(r) else change).ci
    return {
        "before": of("before"),
        "value": of("value"),
        "change": of("change", least),
        "ci": "" if ci.startswith(NO_INTERVAL) else ci,
        "n": f"{e.n:,}" if r["n"] == r["n"] else "",
        "mde": of("mde", change.model_copy(update={"format": word.format})),
        "allowed": f"{floor(r)} {of('allowed', limit)}".strip(),
        "p": p_value(r["p"]),
    }


def moved(r: Mapping[Any, Any]) -> str:
    """'accuracy, Full, choice, all tests: 71.2 % → 65.5 % (-5.7 points, 95 % CI ..., n = 1,200;
    allowed 2.0 points)'."""
    c = cells(r)
    if r["rule"] == UNCHANGED:
        return f"{r['note']}"
    ci = f", {CI} {c['ci']}" if c["ci"] else ""
    if floor(r):
        return f"{what(r)}: {c['value']} (n{NBSP}={NBSP}{c['n']}{ci}; must be {c['allowed']})"
    return (
        f"{what(r)}: {c['before']} → {c['value']} ({c['change']}{ci}, n{NBSP}={NBSP}{c['n']};"
        f" allowed {c['allowed']})"
    )


def headline(night: NightRecord) -> str:
    """One sentence on a night: the outcomes and the models in breach."""
    models = night.models
    if not models:
        return "No model was evaluated."
    parts = [f"{len(night.of(k)):,} {k}" for k in WORDS.outcomes if night.of(k)]
    breached = sorted({m.model for m in night.breached})
    closing = "nothing is in breach" if night.of("published", "unchanged") else "nothing was judged"
    if breached:
        closing = f"{many(len(breached), 'model')} in breach: {', '.join(breached[:5])}" + (
            f" and {len(breached) - 5} more" if len(breached) > 5 else ""
        )
    elif not any(m.verdict for m in models) and night.of("published", "unchanged"):
        closing = "nothing was judged"
    elif {m.verdict for m in models if m.verdict} == {FIRST}:
        closing = NOTHING_YET
    return f"{many(len(models), 'evaluation')}: {', '.join(parts)}; {closing}."


def why(m: ModelNight) -> str:
    """Why a model has no new result, in one line; '' if it has one."""
    if m.outcome in ("failed", "skipped"):
        cause = ": ".join(x for x in (m.kind, m.message) if x) or "no reason was kept"
        return f"{cause} (after {many(m.attempts, 'attempt')})" if m.attempts > 1 else cause
    return ""


def directions_first(r: Mapping[Any, Any]) -> bool:
    """Sorts rows of table ``verdicts``: where answers moved to, then the other metrics."""
    return not str(r["metric"]).startswith("share_")


def ways_on(m: ModelNight) -> list[str]:
    """The commands that accept a model's breach, or take it out of the nights."""
    if m.accepted:
        return []
    ways = [f"accept: sdgbias gate accept {m.run_id} --reason TEXT"]
    if not m.until and not m.quarantines:
        ways.append(f"put aside: sdgbias models quarantine {m.model} --reason TEXT")
    return [f"{m.model}: {way}" for way in ways]


def back(model: str) -> str:
    """The command that lifts a model's quarantine."""
    return f"sdgbias models enable {model}"


def summary(rows: Sequence[Mapping[Any, Any]]) -> str:
    """'3 breach, 12 pass, 2 missing' of rows of table ``verdicts``; of a first run: '2 pass, first
    run: nothing to compare with yet'."""
    counts = {v: sum(r["verdict"] == v for r in rows) for v in WORDS.verdicts}
    return ", ".join(
        NOTHING_YET if v == FIRST else f"{n} {WORDS.verdicts[v].name.lower()}"
        for v, n in counts.items()
        if n
    )
