"""Numbers as people read them, and the headline sentences. Every sentence follows from the data by a stated rule."""

from __future__ import annotations

from sdgbias.report.data import DIRECTIONS, ReportData
from sdgbias.stats import Estimate
from sdgbias.types import PILLARS

NBSP, MINUS, DASH = "\u00a0", "\u2212", "\u2013"


def number(value: float, digits: int = 1, signed: bool = False) -> str:
    """'1,234.5' with a real minus; 'n/a' for NaN."""
    if value != value:
        return "n/a"
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def percent(e: Estimate | None) -> str:
    return "n/a" if e is None or e.value != e.value else f"{number(100 * e.value)}{NBSP}%"


def interval(e: Estimate | None, scale: float = 100.0, digits: int = 1, signed: bool = False) -> str:
    """'41.0-45.5' (en dash), or '-1.2 to +0.4' when signed; 'no interval' where none can be had."""
    if e is None or e.low != e.low or e.high != e.high:
        return "no interval"
    low, high = number(scale * e.low, digits, signed), number(scale * e.high, digits, signed)
    return f"{low} to {high}" if signed or e.low < 0 else f"{low}{DASH}{high}"


def aside(e: Estimate, signed: bool = False, scale: float = 100.0) -> str:
    """'(95 % CI 41.0-45.5, n = 1,200)'."""
    ci = interval(e, scale, signed=signed)
    return f"({'no interval' if ci == 'no interval' else f'95{NBSP}% CI {ci}'}, n{NBSP}={NBSP}{e.n:,})"


def lean(shares: dict[str, Estimate]) -> str:
    """Which way answers without evidence go, from the three shares of three-option questions.

    'leans X': X lies above one third and above every other share, intervals not overlapping. 'splits between X and Y': the
    third option lies below one third and below both. Else 'shows no clear direction'.
    """
    if len(shares) < 3 or any(e.low != e.low for e in shares.values()):
        return "can't be judged"
    first, second, third = sorted(DIRECTIONS, key=lambda d: (-shares[d].value, d))
    if shares[first].low > max(1 / 3, shares[second].high):
        return f"leans {first}"
    if shares[third].high < min(1 / 3, shares[second].low):
        return f"splits between {min(first, second)} and {max(first, second)}"
    return "shows no clear direction"


def sign_of(e: Estimate) -> int:
    """1 or -1 when the interval excludes zero, else 0."""
    return 0 if e.low != e.low or e.low <= 0 <= e.high else (1 if e.value > 0 else -1)


def leaning(data: ReportData, model: str) -> list[tuple[str, str, str]]:
    """(pillar, 'leans optimistic', evidence) per pillar with three-option questions."""
    out = []
    row = data.runs[data.runs["model"] == model].iloc[0]
    for pillar in PILLARS:
        cells = {d: data.cell(model=model, task="mcq", test="T1", method="q_only", pillar=pillar, metric=f"share_{d}") for d in DIRECTIONS}
        shares = {d: e for d, e in cells.items() if e is not None and e.value == e.value}
        if not shares:
            continue
        known = data.prompts[(data.prompts["benchmark_id"] == row["benchmark_id"]) & (data.prompts["pillar"] == pillar)]["n"]
        verdict = lean(shares)
        named = [d for d in DIRECTIONS if d in verdict] or [max(shares, key=lambda d: shares[d].value)]
        prompts = ""
        if len(known):
            count = int(known.iloc[0])
            prompts = f"; {count:,} distinct prompt{'' if count == 1 else 's'}"
        text = ", ".join(f"{percent(shares[d])} {d} {aside(shares[d])}" for d in named) + prompts
        out.append((pillar, verdict, text))
    return out


def image_use(data: ReportData, model: str) -> tuple[str, str] | None:
    """('adds little', evidence) about Acc(Full) - Acc(CTX+Q) at T1."""
    rows = data.image_use[(data.image_use["model"] == model) & (data.image_use["pillar"] == "all")]
    if rows.empty:
        return None
    r = rows.iloc[0]
    e = Estimate(float(r["value"]), int(r["n"]), float(r["low"]), float(r["high"]))
    verdict = {1: "The image helps", 0: "The image makes no measurable difference", -1: "The image hurts"}[sign_of(e)]
    return verdict, f"{number(100 * e.value, signed=True)} points, Full minus CTX+Q at T1 {aside(e, signed=True)}"


def cade_change(data: ReportData, model: str) -> tuple[str, str] | None:
    """('CADE raises accuracy', evidence), pooled over T1-T5."""

    def of(metric: str) -> Estimate | None:
        return data.cell(model=model, task="mcq", test="all", method="cade", metric=metric)

    gain = of("accuracy_gain")
    if gain is None:
        return None
    verdict = {1: "CADE raises accuracy", 0: "CADE makes no measurable difference", -1: "CADE lowers accuracy"}[sign_of(gain)]
    text = f"{number(100 * gain.value, signed=True)} points over T1{DASH}T5 {aside(gain, signed=True)}"
    fixed, broken = of("fixed_rate"), of("broken_rate")
    if fixed is not None and broken is not None:
        text += f"; {percent(fixed)} of answers fixed (CI {interval(fixed)}), {percent(broken)} broken (CI {interval(broken)})"
    return verdict, text
