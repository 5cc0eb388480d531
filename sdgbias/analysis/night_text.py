"""A night and its verdicts as sentences, shared by the notification, the HTML page and the command
line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sdgbias.analysis.nights import FIRST, UNCHANGED, ModelNight, NightRecord
from sdgbias.vocabulary import METHODS, WORDS, metric_in_sentence

#: In place of a number of rules: the first run of a model has no change to judge.
NOTHING_YET = "first run: nothing to compare with yet"
#: Columns of numbers of table ``verdicts``.
NUMBERS = ("before", "value", "change", "ci_low", "ci_high", "mde", "allowed", "p")
_MINUS, _NBSP = "−", "\u00a0"


def number(value: float, digits: int = 1, signed: bool = False) -> str:
    """'1,234.5' with a true minus sign (U+2212); 'n/a' for NaN."""
    if value != value:
        return "n/a"
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    return (text.lstrip("+-") if float(text.replace(",", "")) == 0 else text).replace("-", _MINUS)


def p_value(p: float | None) -> str:
    """'0.042', '< 0.001'; '' for NaN and None."""
    return "" if p is None or p != p else "< 0.001" if p < 0.001 else f"{p:.3f}"


def what(r: Mapping[Any, Any]) -> str:
    """Label of a row of table ``verdicts``, e.g. 'accuracy, Full, choice, all tests'."""
    if r["rule"] == UNCHANGED:
        return "unchanged run"
    level = str(r["level"] or "")
    if level:  # groups that are compared, or the one that is judged alone
        level = f" by {level}" if r["metric"] == "disparity" else f" of {level}"
    test = str(r["test"] or "")
    parts = [
        metric_in_sentence(str(r["metric"])) + level,
        METHODS.get(str(r["method"]), str(r["method"] or "")),
        WORDS.tasks[task].short if (task := str(r["task"] or "")) in WORDS.tasks else task,
        "all tests" if test == "all" else test,
    ]
    return ", ".join(p for p in parts if p)


def floor(r: Mapping[Any, Any]) -> str:
    """'at least', 'at most', or '' for a comparison with another run."""
    return WORDS.floors.get(str(r["side"] or ""), "")


def note(r: Mapping[Any, Any]) -> str:
    """A row's note, extended by its flags (quarantining rule, required metric)."""
    own = r["note"] if isinstance(r["note"], str) else ""
    parts = [own, *(text for name, text in WORDS.flags.items() if r[name])]
    return "; ".join(p for p in parts if p)


def cells(r: Mapping[Any, Any]) -> dict[str, str]:
    """The numbers of a row as text: before, value, change, ci, n, mde, allowed, p; '' where
    missing."""
    word = WORDS.metrics.get(str(r["metric"]))
    scale, digits, unit = 100.0, 1, f"{_NBSP}%"
    if word and word.judged:
        scale, digits, unit = word.judged.scale, word.judged.digits, f" {word.judged.unit}"
    points = unit if scale == 1.0 else " points"
    ratio = r["metric"] == "throughput"
    known = {n: float(r[n]) if r[n] is not None else float("nan") for n in NUMBERS}

    def of(name: str, after: str = unit, *, signed: bool = False) -> str:
        value = known[name]
        return "" if value != value else number(scale * value, digits, signed=signed) + after

    p, signed = known["p"], not floor(r)
    ends = [number(scale * known[name], digits, signed=signed) for name in ("ci_low", "ci_high")]
    change = of("change", points, signed=True)
    allowed = of("allowed", points if not floor(r) else unit)
    if ratio:
        shares = (number(100 * known[n], 0, signed=n == "change") for n in ("change", "allowed"))
        change, allowed = ("" if s == "n/a" else f"{s}{_NBSP}%" for s in shares)
    return {
        "before": of("before"),
        "value": of("value"),
        "change": change,
        "ci": "" if "n/a" in ends else f"{ends[0]} to {ends[1]}",
        "n": f"{int(r['n'] or 0):,}" if r["n"] == r["n"] else "",
        "mde": of("mde", points),
        "allowed": f"{floor(r)} {allowed}".strip(),
        "p": p_value(p),
    }


def moved(r: Mapping[Any, Any]) -> str:
    """'accuracy, Full, choice, all tests: 71.2 % → 65.5 % (-5.7 points, 95 % CI ..., n = 1,200;
    allowed 2.0 points)'."""
    c = cells(r)
    if r["rule"] == UNCHANGED:
        return f"{r['note']}"
    ci = f", 95{_NBSP}% CI {c['ci']}" if c["ci"] else ""
    if floor(r):
        return f"{what(r)}: {c['value']} (n{_NBSP}={_NBSP}{c['n']}{ci}; must be {c['allowed']})"
    return (
        f"{what(r)}: {c['before']} → {c['value']} ({c['change']}{ci}, n{_NBSP}={_NBSP}{c['n']};"
        f" allowed {c['allowed']})"
    )


def many(count: int, one: str, several: str = "") -> str:
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def headline(night: NightRecord) -> str:
    """One sentence on a night: the outcomes and the models in breach."""
    asked = night.models
    if not asked:
        return "No model was evaluated."
    parts = [f"{len(night.of(k)):,} {k}" for k in WORDS.outcomes if night.of(k)]
    breached = sorted({m.model for m in night.breached})
    told = "nothing is in breach" if night.of("published", "unchanged") else "nothing was judged"
    if breached:
        told = f"{many(len(breached), 'model')} in breach: {', '.join(breached[:5])}" + (
            f" and {len(breached) - 5} more" if len(breached) > 5 else ""
        )
    elif not any(m.verdict for m in asked) and night.of("published", "unchanged"):
        told = "nothing was judged"
    elif {m.verdict for m in asked if m.verdict} == {FIRST}:
        told = NOTHING_YET
    return f"{many(len(asked), 'evaluation')}: {', '.join(parts)}; {told}."


def why(m: ModelNight) -> str:
    """Why a model has no new result, in one line; '' if it has one."""
    if m.outcome in ("failed", "skipped"):
        said = ": ".join(x for x in (m.kind, m.message) if x) or "no reason was kept"
        return f"{said} (after {many(m.attempts, 'attempt')})" if m.attempts > 1 else said
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
    found = {v: sum(r["verdict"] == v for r in rows) for v in WORDS.verdicts}
    return ", ".join(
        NOTHING_YET if v == FIRST else f"{n} {WORDS.verdicts[v].name.lower()}"
        for v, n in found.items()
        if n
    )
