"""scripts/mutate.py on a small repository of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from scripts import mutate

REPOSITORY = Path(__file__).resolve().parents[1]
CODE = """def tall(height, limit):
    return height >= limit and not height < 0


def never():
    return 1 < 2
"""
TESTS = """import time

from house import tall


def test_tall():
    assert tall(3, 2)


def test_slow():
    while not tall(2, 1):
        time.sleep(1)
"""


@pytest.mark.slow
def test_verdicts_are_recorded_and_the_tree_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "house.py").write_text(CODE)
    (tmp_path / "test_house.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)

    def row(name: str, old: str, new: str, test: str) -> dict[str, object]:
        tests = [f"test_house.py::{test}"]
        return {"id": name, "file": "house.py", "old": old, "new": new, "tests": tests}

    table = [
        row("edge", ">= limit", "> limit", "test_tall"),
        row("none", ">= limit", "< limit", "test_tall"),
        row("loop", ">= limit", "< limit", "test_slow"),
        row("twice", "height", "limit", "test_tall"),
    ]
    path = tmp_path / "scripts" / "mutants.yaml"
    path.write_text("# what must be noticed\n" + yaml.safe_dump(table))
    assert mutate.main(["run", "--record"]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("1 killed, 1 survived, 1 timeout, 1 invalid\n")
    assert "occurs 3 times in house.py" in printed and "FAILED test_house.py::test_tall" in printed
    assert path.read_text().startswith("# what must be noticed\n")
    found = {r["id"]: r["verdict"] for r in yaml.safe_load(path.read_text())}
    assert found == {"edge": "survived", "none": "killed", "loop": "timeout", "twice": "invalid"}
    assert (tmp_path / "house.py").read_text() == CODE


def test_every_mutant_still_finds_its_line() -> None:
    rows = yaml.safe_load((REPOSITORY / mutate.TABLE).read_text("utf-8"))
    lost = [
        row["id"]
        for row in rows
        if (REPOSITORY / row["file"]).read_text("utf-8").count(row["old"]) != 1
    ]
    assert len(rows) > 100 and lost == []
