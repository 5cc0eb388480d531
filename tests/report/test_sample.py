"""The pages of docs/sample: whole, small, linked to each other, and no older than the templates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import sample_pages

SAMPLE = Path(__file__).parents[2] / "docs/sample"
PAGES = sorted(SAMPLE.rglob("*.html"))


def test_the_pages_are_of_the_templates_that_are_here() -> None:
    assert sample_pages.DIGEST.read_text(encoding="utf-8").strip() == sample_pages.digest(), (
        "templates, style or scripts changed since docs/sample was written: see"
        " scripts/sample_pages.py"
    )


def test_the_pages_are_small_enough_to_be_kept() -> None:
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*") if path.is_file()) < 3_000_000
    assert {path.parent.name for path in PAGES} == set(sample_pages.PAGES)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_link_of_a_page_leads_to_a_page_beside_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r'href="([^"#:]+)"', text):
        assert (path.parent / target).is_file(), target
    assert "Synthetic places" in text or path.stem != "index"


def test_a_breach_is_in_the_sample_of_a_breach() -> None:
    assert "in breach: planted-optimist" in (SAMPLE / "breach/night.html").read_text("utf-8")
