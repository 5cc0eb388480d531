"""Decisions hang on columns and classes: every sentence may be improved, and old nights keep what
they meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.analysis import night_text, nights
from sdgbias.analysis.nights import BREACH, MISSING, PASS
from sdgbias.errors import RegressionBreach
from sdgbias.nightly import notify, records, run
from sdgbias.nightly.regression import judge
from sdgbias.nightly.regression.evidence import of_rule
from sdgbias.nightly.regression.measured import RunMetrics
from sdgbias.nightly.regression.policy import Policy, Rule
from sdgbias.report.pages import night as page
from sdgbias.vocabulary import Word
from tests.builders.night_stubs import NIGHT, settings


@pytest.mark.parametrize("text", ["done", "breach", "breach: m: mass", "no network"])
def test_the_sentence_of_a_step_decides_nothing(tmp_path: Path, text: str) -> None:
    """A step that failed is listed, a breach and a success are not, whatever they are called."""
    s = settings(tmp_path, "m")
    store.upsert(s.results, {"nights": pd.DataFrame([{"night": NIGHT, "status": "done"}])})
    steps = {
        "gate": records.StepResult("breach", text),
        "report": records.StepResult("done", text),
        "wandb": records.StepResult("failed", text),
    }
    row = {"night": NIGHT, "status": "done", **records.step_columns(steps)}
    store.upsert(s.results, {"nights": pd.DataFrame([row])})
    night = nights.load(s.results)
    assert night is not None and nights.failed_steps(night.row) == {"wandb": text}
    assert page._troubles(night) == [f"wandb: {text}"]
    assert f"• wandb: {text}" in notify.message(night, "")
    summary = run.NightSummary(NIGHT, "done", steps={"gate": steps["gate"]})
    assert summary.exit_code == RegressionBreach.exit_code
    assert run.NightSummary(NIGHT, "done", steps={"gate": steps["wandb"]}).exit_code == 8


def _judged() -> list[dict[str, object]]:
    """A breach of a rule that quarantines, a floor on either side, and a required metric that is
    missing."""
    common: dict[str, Any] = {"metric": "accuracy", "task": "mcq", "methods": ("full",)}
    rules = (
        Rule("low", at_least=0.9, then="quarantine", **common),
        Rule("high", at_most=0.9, **common),
        Rule("needed", allowed=0.1, required=True, **common),
        Rule("extra", allowed=0.1, **common),
    )
    rows = np.arange(400)
    answers = pd.DataFrame({"key": rows, "value": (rows < 200) * 1.0, "cluster": rows})
    new = RunMetrics({}, {"mcq": ["T1"]}, lambda task, test, metric, method: answers)
    found = [e for rule in rules for e in of_rule(rule, new, None, "first run")]
    return judge.apply_multiplicity(found, Policy(rules))


def _decisions(root: Path) -> dict[str, object]:
    """Everything that is decided by what stands in the results file."""
    s = settings(root, "m")
    rows = pd.DataFrame(_judged()).assign(
        night=NIGHT, model="m", suite="sdg", run_id="r-1", baseline=""
    )
    asked = {"night": NIGHT, "model": "m", "suite": "sdg", "outcome": "published", "run_id": "r-1"}
    frames = {"verdicts": rows, "night_outcomes": pd.DataFrame([asked])}
    store.upsert(s.results, frames | {"nights": pd.DataFrame([{"night": NIGHT, "status": "done"}])})
    night = nights.load(s.results)
    assert night is not None
    [m] = night.models
    return {
        "verdicts": rows.set_index("rule")["verdict"].to_dict(),
        "mde": rows.set_index("rule")["mde"].notna().to_dict(),
        "quarantines": m.quarantines,
        "overall": m.verdict,
        "held": page._held_because(m).partition(":")[0],
        "without breaches": nights.overall([r for r in m.rows if r["verdict"] != BREACH]),
        "extra alone": nights.overall([r for r in m.rows if r["rule"] != "low"]),
    }


@pytest.mark.parametrize("text", ["", "this rule quarantines; required", "at_least", "breach"])
def test_other_sentences_decide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    before = _decisions(tmp_path / "before")
    assert before["verdicts"] == {"low": BREACH, "high": PASS, "needed": MISSING, "extra": MISSING}
    assert before["quarantines"]
    assert before["without breaches"] == MISSING
    plain: Callable[..., list[dict[str, object]]] = judge.apply_multiplicity
    monkeypatch.setattr(
        judge,
        "apply_multiplicity",
        lambda found, policy: [{**r, "note": text} for r in plain(found, policy)],
    )
    words = night_text.WORDS
    others = {
        "flags": dict.fromkeys(words.flags, Word(name=f"{text}!")),
        "floors": dict.fromkeys(words.floors, Word(name=f"{text}?")),
    }
    monkeypatch.setattr(night_text, "WORDS", words.model_copy(update=others))
    assert _decisions(tmp_path / "after") == before
