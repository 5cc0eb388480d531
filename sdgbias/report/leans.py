"""Which way a model leans, by the rule of `methods.lean`, and what the verdict rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdgbias.methods import lean
from sdgbias.methods.stats import Estimate
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report.reader import Cells
from sdgbias.types import PILLARS
from sdgbias.wording import percent, span, written


@dataclass(frozen=True)
class Lean:
    """What is said of a model on a pillar. verdict: 'leans optimistic'; shares: the numbers behind
    it, as words; n: what they count, each a ``kind``: an 'indicator' with several wordings, so that
    the verdict holds for other indicators and wordings, a 'wording' of ``indicators`` that are too
    few to stand for others, or a 'distinct prompt', so that it holds for other questions in this
    wording."""

    pillar: str
    verdict: str
    shares: str
    n: int
    kind: str
    #: The direction that every answer has, '' if they differ.
    alike: str = ""
    indicators: int = 0

    @property
    def prompts(self) -> str:
        return prompts([self])

    @property
    def short(self) -> str:
        """The verdict in a few words, for a cell: 'optimistic', 'no clear lean'."""
        if self.verdict.startswith("shows"):
            return "no clear lean"
        scope = f" on its {self.indicators} indicators" if self.kind == "wording" else ""
        return self.verdict.removeprefix("leans ") + scope

    @property
    def evidence(self) -> str:
        holds = {
            "indicator": "in several wordings each: holds for other indicators and wordings",
            "distinct prompt": "in one wording: holds for other questions in this wording",
            "wording": f"of {self.indicators} indicators: holds for other wordings of these",
        }
        return f"{self.shares}; {self.prompts} {holds[self.kind]}"


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
        shares, what = cells.wordings(model, pillar), "indicator"
        if not shares:
            shares, what = _bare(cells, model, pillar), "distinct prompt"
        if not shares:
            continue
        verdict, indicators = lean.verdict(shares, what.removeprefix("distinct ")), 0
        if what == "indicator" and "too few" in verdict:
            same = cells.wordings(model, pillar, "wordings_share_")
            if (scoped := lean.verdict(same, "wording")).startswith("leans "):
                indicators = min(e.clusters for e in shares.values())
                shares, what, verdict = same, "wording", scoped
        named = [d for d in DIRECTIONS if d in verdict] or [
            max(shares, key=lambda d: shares[d].value)
        ]
        text = ", ".join(f"{percent(shares[d])} {d} {written(shares[d]).aside}" for d in named)
        n = min(e.clusters for e in shares.values())
        alike = next((d for d in shares if shares[d].value == 1), "")
        out.append(Lean(pillar, verdict, text, n, what, alike, indicators))
    return out


def _bare(cells: Cells, model: str, pillar: str) -> dict[str, Estimate]:
    where = {"model": model, "task": "mcq", "test": "T1", "method": "q_only", "pillar": pillar}
    shares = {d: cells.estimate(**where, metric=f"share_{d}") for d in DIRECTIONS}
    return {d: e for d, e in shares.items() if e is not None}
