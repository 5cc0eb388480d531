"""The benchmarks' summary table is the one that the scripts recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import summary


def test_the_page_shows_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = summary.PAGE.read_text(encoding="utf-8")
    assert summary.page(text) == text, "python bench/summary.py"
    monkeypatch.setattr(summary, "ROWS", tmp_path / "summary.json")
    row = dict.fromkeys(summary.COLUMNS[:-1], "x")
    summary.record("bench/b.py", [row])
    summary.record("bench/a.py", [row, row])
    summary.record("bench/b.py", [{**row, "figure": "7 s"}])
    rows = json.loads(summary.ROWS.read_text(encoding="utf-8"))
    assert [r["script"] for r in rows] == ["bench/a.py", "bench/a.py", "bench/b.py"]
    assert "| x | 7 s | x | x | x | bench/b.py |" in summary.page(text)
    assert summary.page(text) != text
