"""The intended use and the terms: one text, in all places that hand data or results on."""

from __future__ import annotations

from pathlib import Path

from sdgbias.benchmark.card.intended_use import intended_use

REPOSITORY = Path(__file__).resolve().parents[2]


def plain(text: str) -> str:
    return " ".join(text.split())


def test_the_text_says_what_it_is_for_what_not_and_whose_terms_hold() -> None:
    use = intended_use()
    points = [*use["for"], *use["not_for"], *use["terms"]]
    said = plain(" ".join([use["summary"], *points]))
    for words in ("non-commercial research", "high-stakes", "ranking places", "DHS", "Mapillary"):
        assert words in said
    assert use["for"] and use["not_for"] and len(use["terms"]) >= 3
    assert all(isinstance(point, str) and point for point in points)


def test_the_readme_holds_the_summary() -> None:
    assert intended_use()["summary"] in plain(
        (REPOSITORY / "README.md").read_text(encoding="utf-8")
    )
