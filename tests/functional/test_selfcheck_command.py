"""`sdgbias selfcheck` as a person runs it: the instrument passes, a broken one doesn't."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders.commands import ok, refused


@pytest.mark.long
def test_the_instrument_passes(tmp_path: Path) -> None:
    """The small self-check with a benchmark of its own: what `make test` promises of this
    checkout."""
    told = json.loads(ok("selfcheck", "--json", "--out", tmp_path / "page.html"))
    assert told["passed"] is True
    assert len(told["checks"]) > 300
    assert told["intervals_that_hold"] / told["intervals"] > 0.93
    found = {(c["part"], c["plant"], c["what"]): c for c in told["checks"]}
    blind = found["pipeline", "image-blind", "image use, Full minus CTX+Q at T1"]
    assert (blind["truth"], blind["measured"]) == (0.0, 0.0)
    assert found["seeds", "right", "CADE's gain where Full is always right"]["measured"] == 0.0
    page = (tmp_path / "page.html").read_text()
    assert "PASSED" in page and "<svg" in page


@pytest.mark.long
def test_views_taken_for_each_other_fail_the_gate() -> None:
    words = refused(6, "selfcheck", "--break", "order")
    assert "checks failed" in words and "planted" in words


def test_what_makes_no_sense_is_told_at_once(tmp_path: Path) -> None:
    assert ".html" in refused(2, "selfcheck", "--out", tmp_path / "page.docx")
    assert "sdgbias build" in refused(3, "selfcheck", "--benchmark", tmp_path)
    assert "narrow" in refused(2, "selfcheck", "--break", "hammer")
