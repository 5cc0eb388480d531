"""The benchmarks' summary table is the one that the scripts recorded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench import summary


def test_the_page_shows_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = summary.PAGE.read_text(encoding="utf-8")
    assert summary.page(text) == text, "python -m bench.summary"
    for name in ("ROWS", "PAGE"):
        monkeypatch.setattr(summary, name, tmp_path / getattr(summary, name).name)
    summary.ROWS.mkdir()
    summary.PAGE.write_text(text, encoding="utf-8")
    row = summary.Row("x", "3 runs", "8 s", "5 s", "a bare loop: 7 s", 1.25)
    summary.record("b", [row])
    summary.record("a", [row, dataclasses.replace(row, what="y")])
    summary.record("b", [dataclasses.replace(row, figure="7 s")])
    found = summary.PAGE.read_text(encoding="utf-8")
    table = found.partition(summary.BEGIN)[2].partition(summary.END)[0].splitlines()
    assert [line.split(" | ")[-1] for line in table[2:]] == [
        *["bench/a.py |"] * 2,
        "bench/b.py |",
    ]
    assert table[-1] == "| x | 3 runs | 7 s | 5 s | a bare loop: 7 s | 1.2 | bench/b.py |"
    assert found.partition(summary.END)[2] == text.partition(summary.END)[2]
