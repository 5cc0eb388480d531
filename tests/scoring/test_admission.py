"""What a model answers before it may run at night, with real folders and their real templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import admission
from sdgbias.types import Prompt, ScoreBatch
from tests.builders import thinker


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder = thinker.write(tmp_path_factory.mktemp("thinker"))
    return ModelSpec("thinker", "T", "hf", f"path:{folder}", "local", "candidate", batch_size=16)


def test_a_thinker_passes_once_its_template_is_told_not_to_think(
    spec: ModelSpec, small_benchmark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "QUESTIONS", 4)
    refused = admission.probe(spec, Path(), small_benchmark, n=6)
    assert not refused.passed
    assert "begin with a reasoning tag" in refused.line
    assert "registry/models/thinker.yaml" in refused.line
    assert "options: template: {enable_thinking: false}" in refused.line
    assert refused.stored is not None
    assert refused.stored["admission"]["first"][0][0] == "<think>"

    told = replace(spec, options={"template": {"enable_thinking": False}})
    asked_for: list[int] = []
    whole = HuggingFace.candidate_scores

    def counted(self: HuggingFace, prompts: Sequence[Prompt]) -> ScoreBatch:
        asked_for.append(len(prompts))
        return whole(self, prompts)

    monkeypatch.setattr(HuggingFace, "candidate_scores", counted)
    passed = admission.probe(told, Path(), small_benchmark, n=6)
    assert passed.passed, passed.line
    assert sum(asked_for) == 4 * 6 + 16, "alone, in batches, shuffled, shared; then the questions"
    assert passed.stored is not None and passed.entry is not None
    assert passed.stored["ways"]["options"]["share_prefix"] is True
    assert passed.entry.options["share_prefix"] is True
    asked = passed.stored["admission"]
    # letters have 3/13 of the mass where they are asked for, digits 10/13
    assert 3 / 13 - 0.01 < asked["mass"] < 10 / 13 + 0.01 and asked["thinks"] == 0
    assert asked["ties"] == asked["prompts"]
    assert (asked["questions"], asked["prompts"]) == (4, 16)
    assert set(asked["by_view"]) == {"full", "img_q", "ctx_q", "q_only"}
    assert f"candidate mass {asked['mass']:.3f} (95 % " in passed.line
    assert refused.stored["fingerprint"] != passed.stored["fingerprint"]


def test_without_a_switch_the_beginning_of_the_answer_is_named(spec: ModelSpec) -> None:
    folder = Path(spec.repo.removeprefix("path:"))
    plain = folder / "chat_template.jinja"
    text = plain.read_text(encoding="utf-8")
    found = admission.Admission(4, 16, 0.01, 0.0, 0.02, {}, (("<think>", 16),), 0, 16, 1.0)
    try:
        plain.write_text(text.replace("enable_thinking", "other"), encoding="utf-8")
        why = admission.refusal(found, spec, Path())
    finally:
        plain.write_text(text, encoding="utf-8")
    assert 'answer_prefix: "<think>\\n\\n</think>\\n\\n"' in why
    talks = replace(found, thinks=0, first=(("Sure", 16),))
    assert 'system: "Answer with the letter or number alone."' in admission.refusal(
        talks, replace(spec, backend="planted"), Path()
    )
    assert admission.refusal(replace(talks, mass=0.3), spec, Path(), floor=0.2) == ""
    assert "is below 0.4" in admission.refusal(replace(talks, mass=0.3), spec, Path(), floor=0.4)


def test_a_thought_that_the_template_opens_is_to_be_closed(spec: ModelSpec) -> None:
    """Letters inside an open thought are no answer, however likely they are; nor is what stands
    behind 'Answer: ' in it."""
    folder = Path(spec.repo.removeprefix("path:"))
    plain = folder / "chat_template.jinja"
    text = plain.read_text(encoding="utf-8")
    found = admission.Admission(4, 16, 0.9, 0.8, 0.95, {}, (("A", 16),), 0, 0, 1.0)
    inside = replace(spec, options={"template": {"answer_prefix": "Answer: "}})
    closed = replace(spec, options={"template": {"answer_prefix": "\n</think>\n\n"}})
    try:
        opens = text.replace("enable_thinking", "other").replace(
            "ASSISTANT:", "ASSISTANT:<think>\n"
        )
        plain.write_text(opens, encoding="utf-8")
        told = [admission.refusal(found, one, Path()) for one in (spec, inside, closed)]
    finally:
        plain.write_text(text, encoding="utf-8")
    for why in told[:2]:
        assert "its prompts end inside a thought, which <think> begins" in why
        assert 'options: template: {answer_prefix: "\\n</think>\\n\\n"}' in why
    assert told[2] == ""


def test_ties_are_exact_and_unasked_candidates_are_none() -> None:
    logits = np.array([[1, 1, 0], [1, 0.5, 0], [0, np.nan, np.nan], [-np.inf, -np.inf, np.nan]])

    class Engine:
        def candidate_scores(self, prompts: object) -> ScoreBatch:
            n = len(logits)
            mass = np.array([1, 1, 0.5, 0.5], dtype=np.float32)
            return ScoreBatch(
                logits.astype(np.float32), mass, mass, ["A", "A", "B", "<|thinking|>"], np.ones(n)
            )

    engine: object = Engine()
    found = admission.ask(engine, [None] * 4, ["full", "q_only"] * 2, ["1", "1", "2", "2"])  # type: ignore[arg-type,list-item]
    assert (found.ties, found.thinks, found.questions) == (1, 1, 2)
    assert found.mass == 0.75 and found.by_view == {"full": 0.75, "q_only": 0.75}
    assert found.first[0] == ("A", 2)
