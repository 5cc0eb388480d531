"""The benchmark's intended use and the terms of its data: one packaged text
(data/intended_use.yaml) for dataset cards, releases and model pages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sdgbias.files import packaged_yaml


@dataclass(frozen=True)
class IntendedUse:
    """summary: two sentences for places with little room. intended, excluded, terms: sentences, one
    a point."""

    summary: str
    intended: tuple[str, ...]
    excluded: tuple[str, ...]
    terms: tuple[str, ...]

    def record(self) -> dict[str, object]:
        """As JSON, for a release."""
        return {
            "summary": self.summary,
            "for": list(self.intended),
            "not_for": list(self.excluded),
            "terms": list(self.terms),
        }

    def markdown(self, heading: str = "## Intended use and terms") -> str:
        def points(lines: tuple[str, ...]) -> str:
            return "\n".join(f"- {line}" for line in lines)

        return (
            f"{heading}\n\n{self.summary}\n\nFor:\n\n{points(self.intended)}\n\nNot for:\n\n"
            f"{points(self.excluded)}\n\nTerms:\n\n{points(self.terms)}"
        )


@cache
def intended_use() -> IntendedUse:
    told = packaged_yaml("intended_use.yaml")
    return IntendedUse(
        str(told["summary"]), *(tuple(map(str, told[k])) for k in ("for", "not_for", "terms"))
    )
