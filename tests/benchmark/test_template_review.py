"""Review of templates: what an expert is shown, and how far two of them agree."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from sdgbias.benchmark.review.template_sheets import (
    template_agreement,
    template_rows,
    write_template_sheets,
)
from sdgbias.errors import InputError
from sdgbias.raw.indicators import indicator


def judged(path: Path, *verdicts: str) -> Path:
    rows = pd.DataFrame({"template": [f"mcq-{i}" for i in range(len(verdicts))]})
    rows.assign(verdict=verdicts).to_csv(path, index=False)
    return path


def test_every_template_is_shown_with_its_options_and_evidence(small_benchmark: Path) -> None:
    rows = template_rows(small_benchmark).set_index("template")

    items = pd.read_parquet(small_benchmark / "items_mcq.parquet")
    assert {f"mcq-{slug}" for slug in items["indicator"]} <= set(rows.index)
    row, item = rows.loc["mcq-stunting"], items[items["indicator"] == "stunting"].iloc[0]
    assert row["question"] == item["question"]
    assert row["options"].startswith(f"A. {item['option_a']}; B. {item['option_b']}")
    assert row["reasoning_target"] == indicator("stunting").template.reasoning
    assert rows.filter(like="regression-", axis=0)["answer"].str.contains("right within").all()


def test_verdicts_survive_a_second_writing(small_benchmark: Path, tmp_path: Path) -> None:
    [path] = write_template_sheets(small_benchmark, tmp_path, ["ann"])
    table = pd.read_csv(path, encoding="utf-8-sig", keep_default_na=False, dtype=str)
    table.loc[0, "verdict"] = "reject"
    table.to_csv(path, index=False)
    before = path.read_bytes()

    write_template_sheets(small_benchmark, tmp_path, ["ann"])

    assert path.read_bytes() == before


def test_agreement_names_what_an_adjudicator_decides(tmp_path: Path) -> None:
    first = judged(tmp_path / "a.csv", "accept", "accept", "reject", "reject", "accept", "")
    second = judged(tmp_path / "b.csv", "accept", "reject", "reject", "Reject ", "accept", "accept")

    found = template_agreement(first, second)

    assert found["templates"] == 5 and found["equal_verdicts"] == 0.8
    assert found["kappa"] == pytest.approx((0.8 - 0.48) / (1 - 0.48))
    assert found["to_adjudicate"] == ["mcq-1"]
    assert found["rejected_by_both"] == ["mcq-2", "mcq-3"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("template,verdict\nmcq-0,perhaps\n", "line 2: unknown verdict 'perhaps'; valid: accept"),
        ("a,b\n1,2\n", "missing column"),
        ("template,verdict\nmcq-0,\n", "no template has a verdict in both"),
    ],
)
def test_a_sheet_that_cannot_be_used_is_named(tmp_path: Path, text: str, fault: str) -> None:
    wrong = tmp_path / "a.csv"
    wrong.write_text(text)

    with pytest.raises(InputError, match=fault):
        template_agreement(wrong, judged(tmp_path / "b.csv", "accept"))
