"""Which way a model leans, by the rule of `methods.lean`, and what the verdict rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdgbias.methods import lean
from sdgbias.methods.stats import Estimate
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report.reader import Cells
from sdgbias.types import GENERATED, PILLARS
from sdgbias.wording import percent, span, written

#: What a verdict counts -> how they were asked, and what it holds for.
_HOLDS = {
    "indicator": ("in several wordings each", "holds for other indicators and wordings"),
    "distinct prompt": ("in one wording", "holds for other questions in this wording"),
    "wording": ("of {} indicators", "holds for other wordings of these"),
}
_ORDERS = {"reversed": "reversed", "random": "in random order"}


@dataclass(frozen=True)
class Lean:
    """What is said of a model on a pillar. verdict: 'leans optimistic'; counted: the shares behind
    it; shares: those that it is about, as words; n: what they count, each a ``kind`` of _HOLDS: a
    'wording' where the number of ``indicators`` is too small to stand for others. alike: the
    direction that every answer has, '' if they differ."""

    pillar: str
    verdict: str
    counted: dict[str, Estimate]
    shares: str
    n: int
    kind: str
    alike: str = ""
    indicators: int = 0

    @property
    def way(self) -> str:
        """The direction of a lean that can be stated, else ''."""
        return self.verdict.removeprefix("leans ") if self.verdict.startswith("leans ") else ""

    @property
    def stated(self) -> bool:
        """Whether the answers are said to follow something: a direction or the order of options."""
        return bool(self.way) or self.verdict == lean.FOLLOWS_ORDER

    @property
    def prompts(self) -> str:
        return prompts([self])

    @property
    def short(self) -> str:
        """The verdict in a few words: 'optimistic', 'no clear lean'."""
        if self.verdict.startswith("shows"):
            return "no clear lean"
        return self.phrase.removeprefix("leans ")

    @property
    def phrase(self) -> str:
        """'leans optimistic on its 5 indicators'."""
        scope = f" on its {self.indicators} indicators" if self.kind == "wording" else ""
        return self.verdict + scope

    @property
    def cell(self) -> str:
        """The same for a table, where answers that are all alike must not read as if they pointed
        nowhere: 'all optimistic (5 prompts): too few to say'."""
        if self.stated or not self.alike:
            return self.short
        reason = "too few to say" if "too few" in self.verdict else "could be chance"
        return f"all {self.alike} ({self.prompts.replace('distinct ', '')}): {reason}"

    @property
    def numbers(self) -> str:
        """The shares, and what they were counted on."""
        return f"{self.shares}; {self.prompts} {_HOLDS[self.kind][0].format(self.indicators)}"

    @property
    def evidence(self) -> str:
        holds = "" if "too few" in self.verdict else f": {_HOLDS[self.kind][1]}"
        return self.numbers + holds


def prompts(leans: Sequence[Lean]) -> str:
    """'12 distinct prompts', or '9 to 14 distinct prompts' of several leans."""
    kind, counts = max((x.kind for x in leans), key=len), [x.n for x in leans]
    return f"{span(counts)} {kind}{'' if max(counts) == 1 else 's'}"


def leaning(cells: Cells, model: str, pillars: Sequence[str] = tuple(PILLARS)) -> list[Lean]:
    """A verdict per pillar ('all': over all of them) with three-option questions: over the wordings
    of its questions if these were scored, else over the bare questions. Of a pillar with too few
    indicators to stand for others, what its own indicators show over their wordings."""
    out = []
    for pillar in pillars:
        shares, kind = cells.wordings(model, pillar), "indicator"
        if not shares:
            shares, kind = _by_answers(cells, model, pillar, "q_only"), "distinct prompt"
        if not shares:
            continue
        where = {"model": model, "task": "mcq", "test": "T1", "method": "q_only", "pillar": pillar}
        tied = cells.estimate(**where, metric="tie_rate")
        ties = 0.0 if tied is None else tied.value
        most, indicators = max(shares, key=lambda d: shares[d].value), 0
        # the middle option stays the middle one when they are reversed
        order = "random" if most == DIRECTIONS[1] else "reversed"
        reordered = cells.reordered(model, pillar, order)
        verdict = lean.verdict(shares, kind.removeprefix("distinct "), ties, reordered)
        if kind == "indicator" and "too few" in verdict:
            same = cells.wordings(model, pillar, "wordings_share_")
            scoped = lean.verdict(same, "wording", ties, reordered)
            if scoped.startswith(("leans ", lean.FOLLOWS_ORDER)):
                indicators = min(e.clusters for e in shares.values())
                shares, kind, verdict = same, "wording", scoped
        named = [d for d in DIRECTIONS if d in verdict] or [most]
        text = ", ".join(f"{percent(shares[d])} {d} {written(shares[d]).aside}" for d in named)
        if named == [most] and most in reordered:
            e = reordered[most]
            text += f", with the options {_ORDERS[order]} {percent(e)} {written(e).aside}"
        elif verdict.startswith("leans "):
            text += ", with the options in one order"
        text += f"; {percent(tied)} of the bare answers are ties" if tied and ties else ""
        n = min(e.clusters for e in shares.values())
        alike = next((d for d in shares if shares[d].value == 1 and not ties), "")
        out.append(Lean(pillar, verdict, shares, text, n, kind, alike, indicators))
    return out


def answered(cells: Cells, model: str, level: str, method: str) -> dict[str, Estimate]:
    """Direction -> share of a model's answers on a level ('all' or a pillar): without evidence over
    the wordings of the questions where they were scored; else over all context tests. {} where one
    is missing."""
    if method == "q_only" and (worded := cells.wordings(model, level)):
        return worded
    shares = _by_answers(cells, model, level, method)
    return shares if len(shares) == len(DIRECTIONS) else {}


def _by_answers(cells: Cells, model: str, level: str, method: str) -> dict[str, Estimate]:
    """Direction -> share of the answers of a view, in words where its scores name none."""
    words = method + GENERATED
    return cells.shares(model, level, method) or cells.shares(model, level, words)
