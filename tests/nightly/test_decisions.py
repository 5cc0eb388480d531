"""Decisions hang on columns and classes: every sentence may be improved, and old nights keep their
meaning."""

from __future__ import annotations

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
from sdgbias.nightly.regression.measured import RunAnswers
from sdgbias.nightly.regression.policy import Policy, Rule
from sdgbias.report.pages import night as page
from sdgbias.vocabulary import Word
from tests.builders.night_stubs import NIGHT, settings


def test_given_any_sentence_of_a_step_then_its_state_decides(tmp_path: Path) -> None:
    """A step that failed is listed, a breach and a success are not, whatever they are called."""
    results = settings(tmp_path, "m").results
    states = {"gate": "breach", "report": "done", "wandb": "failed"}
    texts = {NIGHT: "done", "2026-11-22T0130": "breach: m: mass", "2026-11-23T0130": "no network"}
    steps = {
        night: {name: records.StepResult(state, text) for name, state in states.items()}
        for night, text in texts.items()
    }
    rows = [{"night": n, "status": "done", **records.step_columns(s)} for n, s in steps.items()]
    store.upsert(results, {"nights": pd.DataFrame(rows)})
    for name, text in texts.items():
        night = nights.load(results, name)
        assert night is not None and nights.failed_steps(night.row) == {"wandb": text}
        assert page.troubles_of(night) == [f"wandb: {text}"]
        assert f"• wandb: {text}" in notify.message(night, "")
        for step, code in (("gate", RegressionBreach.exit_code), ("wandb", 8)):
            ended = {"gate": steps[name][step]}
            assert run.NightSummary(name, "done", steps=ended).exit_code == code


def _decisions(root: Path, **note: str) -> dict[str, object]:
    """Everything that is decided by a breach of a rule that quarantines, a floor on either side,
    and a required metric that is missing, as the results file has them."""
    common: dict[str, Any] = {"metric": "accuracy", "task": "mcq", "methods": ("full",)}
    rules = (
        Rule("low", at_least=0.9, then="quarantine", **common),
        Rule("high", at_most=0.9, **common),
        Rule("needed", allowed=0.1, required=True, **common),
        Rule("extra", allowed=0.1, **common),
    )
    rows = np.arange(400)
    answers = {"test": "T1", "key": rows, "correct": (rows < 200) * 1.0, "cluster": rows}
    new = RunAnswers({}, {("mcq", "full"): pd.DataFrame(answers)})
    evidence = [e for rule in rules for e in of_rule(rule, new, None, "first run")]
    about = {"night": NIGHT, "model": "m", "suite": "sdg", "run_id": "r-1"}
    verdicts = pd.DataFrame(judge.apply_multiplicity(evidence, Policy(rules)))
    verdicts = verdicts.assign(**about, baseline="", **note)
    outcome = {**about, "outcome": "published"}
    frames = {"verdicts": verdicts, "night_outcomes": pd.DataFrame([outcome])}
    results = settings(root, "m").results
    done = pd.DataFrame([{"night": NIGHT, "status": "done"}])
    store.upsert(results, frames | {"nights": done})
    night = nights.load(results)
    assert night is not None
    [m] = night.models
    return {
        "verdicts": verdicts.set_index("rule")["verdict"].to_dict(),
        "mde": verdicts.set_index("rule")["mde"].notna().to_dict(),
        "quarantines": m.quarantines,
        "overall": m.verdict,
        "held": page.held_because(m).partition(":")[0],
        "without breaches": nights.overall([r for r in m.rows if r["verdict"] != BREACH]),
        "extra alone": nights.overall([r for r in m.rows if r["rule"] != "low"]),
    }


def test_given_other_sentences_then_the_decisions_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _decisions(tmp_path / "before")
    assert before["verdicts"] == {"low": BREACH, "high": PASS, "needed": MISSING, "extra": MISSING}
    assert before["quarantines"] and before["without breaches"] == MISSING
    words = night_text.WORDS
    for text in ("", "this rule quarantines; required; at_least; breach"):
        others = {
            "flags": dict.fromkeys(words.flags, Word(name=f"{text}!")),
            "floors": dict.fromkeys(words.floors, Word(name=f"{text}?")),
        }
        monkeypatch.setattr(night_text, "WORDS", words.model_copy(update=others))
        assert _decisions(tmp_path / f"after {text}", note=text) == before
