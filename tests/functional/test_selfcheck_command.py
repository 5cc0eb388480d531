"""`sdgbias selfcheck` as a person runs it."""

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
    found = {(c["plant"], c["what"]): c for c in told["checks"]}
    blind = found["image-blind", "image use, Full minus CTX+Q at T1"]
    assert (blind["truth"], blind["measured"]) == (0.0, 0.0)
    assert "PASSED" in (tmp_path / "page.html").read_text()


def test_what_makes_no_sense_is_told_at_once(tmp_path: Path) -> None:
    assert ".html" in refused(2, "selfcheck", "--out", tmp_path / "page.docx")
    assert "sdgbias build" in refused(3, "selfcheck", "--benchmark", tmp_path)
