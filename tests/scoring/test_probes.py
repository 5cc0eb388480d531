"""Which probes are drawn, what they are compared with, and what admission and parity conclude."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.errors import (
    EnginesDisagree,
    InfrastructureError,
    InputError,
    ModelError,
    OutOfMemory,
    RegistryError,
    StoreError,
    UsageError,
)
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import admission, parity, probes
from sdgbias.scoring.plan import make_plan
from sdgbias.suites import sdg
from sdgbias.types import Prompt, ScoreBatch
from tests.builders import thinker
from tests.builders.length_engine import Engine
from tests.builders.people import publish_people

ROOT = entries.find_root()
OPTIONS = {"share_prefix": False, "max_images": 1, "parity": ["vllm"]}
SPEC = ModelSpec("m", "M", "hf", "owner/m", "a" * 40, "enabled", options=OPTIONS, batch_size=4)
PROMPTS = [Prompt("x" * n, "AB") for n in range(1, 10)]
BY_HAND = probes.Probes(PROMPTS, "here", {"2 options": 9})


# -- drawing


def table() -> pd.DataFrame:
    pictures = ("", *(f"p{k}" for k in range(20)))
    kinds = {"ABC": [f"{'how high ' * (k % 7)}{k}?" for k in range(60)]}
    kinds["0123456789"] = [f"How many {k}? {'word ' * (k % 5)}" for k in range(30)]
    rows = [(text, p, k) for k, texts in kinds.items() for text in texts for p in pictures]
    return pd.DataFrame(rows, columns=["text", "image_id", "candidates"])


def test_every_kind_of_prompt_has_its_share_its_shortest_and_its_longest() -> None:
    drawn, every = probes.draw(table(), 48, 0), table()
    assert len(drawn) == 48 and not drawn.duplicated().any()
    kinds = drawn.groupby([drawn["image_id"] != "", drawn["candidates"].str.len()])
    assert sorted(kinds.groups) == [(shown, k) for shown in (False, True) for k in (3, 10)]
    assert set(kinds.size()) == {12}
    for (shown, k), part in kinds:
        same = every[(every["candidates"].str.len() == k) & ((every["image_id"] != "") == shown)]
        one, all_of_kind = part["text"].str.len(), same["text"].str.len()
        assert (one.min(), one.max()) == (all_of_kind.min(), all_of_kind.max())
    few = drawn.loc[drawn["image_id"] != "", "image_id"].value_counts()
    assert few.iloc[:3].sum() >= 24 - 2 * 2, "but for the extremes of two kinds, 48 // 16 pictures"


def test_the_draw_depends_on_the_seed_alone() -> None:
    one = probes.draw(table(), 30, 0)
    mixed = probes.draw(table().sample(frac=1, random_state=1), 30, 0)
    as_set = [set(drawn.itertuples(index=False, name=None)) for drawn in (one, mixed)]
    assert as_set[0] == as_set[1]
    other = probes.draw(table(), 30, 1)
    assert set(one["image_id"]) != set(other["image_id"])
    assert set(one[one["image_id"] == ""]["text"]) != set(other[other["image_id"] == ""]["text"])
    few = table()[:2]
    assert probes.draw(few, 64, 0).equals(few), "there are fewer prompts than probes"


def test_probes_are_prompts_of_the_benchmark(small_benchmark: Path) -> None:
    chosen = probes.probes(small_benchmark, 32, 0)
    card = json.loads((small_benchmark / "benchmark.json").read_text())
    assert chosen.origin == card["benchmark_id"]
    assert sum(chosen.kinds.values()) == len(chosen.prompts) == 32 and len(chosen.kinds) >= 4
    texts = set(make_plan(sdg.load_prompts(small_benchmark), "").distinct["text"])
    assert all(p.text in texts and bool(p.images) == bool(p.image_id) for p in chosen.prompts)
    again, other = (probes.probes(small_benchmark, 32, seed).digest for seed in (0, 1))
    assert chosen.digest == again != other
    with pytest.raises(InputError, match="no benchmark here"):
        probes.probes(small_benchmark / "nowhere", 32, 0)


def test_probes_of_people_are_their_prompts_with_candidates(tmp_path: Path) -> None:
    """p1 is answered freely: there is no score to compare."""
    publish_people(tmp_path)
    chosen = probes.probes(tmp_path / "b", 24, 0)
    assert chosen.kinds == {"3 options with a picture": 12, "3 options without": 12}


def test_without_a_benchmark_one_is_made() -> None:
    chosen = probes.probes(None, 24, 0)
    assert (chosen.origin, len(chosen.prompts)) == ("24 synthetic places", 24)
    assert len(chosen.kinds) >= 4


# -- admission


class Shifts(Engine):
    """The second candidate's score depends on the size of the batch."""

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        batch = super().candidate_scores(prompts)
        return replace(batch, logits=batch.logits + np.float32([0, 0.5 * (len(prompts) > 1)]))


class Overflows(Engine):
    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        batch = super().candidate_scores(prompts)
        return replace(batch, logits=np.full_like(batch.logits, np.inf))


EACH = [prompt.text for prompt in PROMPTS]
RAISES = Engine(EACH, TypeError("forward() got an unexpected\nkeyword"))
ENGINES: dict[str, tuple[Engine | Exception, str]] = {
    "steady": (Engine(), "9 of here agree alone, in batches and shuffled: "),
    "neighbours": (Shifts(), "probes differ: hf: alone / in batches: log-probabilities by up to"),
    "some fail": (Engine(EACH[:3]), "3 of 9 probes have no score, the first: ValueError: at x"),
    "the model": (Engine(EACH, ModelError("m: no token")), "ModelError: m: no token"),
    "its code": (
        RAISES,
        "ModelError: each of 9 probes fails, the first: TypeError: forward() got an unexpected",
    ),
    "loading": (AttributeError("no such part"), "AttributeError: no such part"),
    "overflow": (Overflows(), "ModelError: NonFiniteLogits: a candidate logit is NaN or infinite"),
}


@pytest.mark.parametrize("case", ENGINES)
def test_probes_decide(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, line = ENGINES[case]

    def load(*_: object) -> Engine:
        if isinstance(engine, Exception):
            raise engine
        return engine

    monkeypatch.setattr(admission, "load", load)
    monkeypatch.setattr(probes, "probes", lambda *_: BY_HAND)
    verdict = admission.probe(SPEC, ROOT)
    assert verdict.passed is (case == "steady") and verdict.line.startswith(line), verdict.line
    assert bool(verdict.stored) is (case in ("steady", "neighbours", "some fail"))
    assert verdict.kind is (EnginesDisagree if case == "neighbours" else ModelError)


def test_an_endpoint_is_not_probed_and_a_wrong_benchmark_is_named() -> None:
    options = {"api_key_env": "KEY", "base_url": "https://HOST/v1"}
    api = replace(SPEC, backend="api", repo="a/b", revision="1", options=options)
    assert admission.probe(api, ROOT) == admission.Verdict(True, "not probed: backend api")
    mistyped = replace(api, options=options | {"top_logprob": 5})
    assert "unknown field 'top_logprob'" in admission.probe(mistyped, ROOT).line
    with pytest.raises(InputError, match="no benchmark here"):
        admission.probe(SPEC, ROOT, Path("nowhere"))


def test_a_folder_that_is_gone_is_refused_before_any_probe_is_made() -> None:
    gone = replace(SPEC, repo="path:/gone", revision="local")
    verdict = admission.probe(gone, ROOT, Path("nowhere"))
    assert not verdict.passed and verdict.line.startswith("ModelError: /gone: no config.json")


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder = thinker.write(tmp_path_factory.mktemp("thinker"))
    return ModelSpec("thinker", "T", "hf", f"path:{folder}", "local", "candidate", batch_size=16)


def test_a_thinker_passes_once_its_template_says_not_to_think(
    thinking: ModelSpec, small_benchmark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "QUESTIONS", 4)
    refused = admission.probe(thinking, Path(), small_benchmark, n=6)
    assert not refused.passed and refused.stored is not None
    assert "begin with a reasoning tag" in refused.line
    assert "registry/models/thinker.yaml set options: template: {enable_thinking: false}" in (
        refused.line
    )
    assert refused.stored["admission"]["first"][0][0] == "<think>"

    silent = replace(thinking, options={"template": {"enable_thinking": False}})
    sizes: list[int] = []
    scores = HuggingFace.candidate_scores

    def counted(self: HuggingFace, prompts: Sequence[Prompt]) -> ScoreBatch:
        sizes.append(len(prompts))
        return scores(self, prompts)

    monkeypatch.setattr(HuggingFace, "candidate_scores", counted)
    passed = admission.probe(silent, Path(), small_benchmark, n=6)
    assert passed.passed and passed.stored is not None and passed.entry is not None, passed.line
    assert sum(sizes) == 5 * 6 + 16, (
        "alone, in batches, shuffled, by other kernels, shared; then the questions"
    )
    assert passed.stored["ways"]["options"]["share_prefix"] is True
    assert passed.entry.options["share_prefix"] is True
    asked = passed.stored["admission"]
    # letters have 3/13 of the mass where they are asked for, digits 10/13
    assert 3 / 13 - 0.01 < asked["mass"] < 10 / 13 + 0.01 and asked["thinks"] == 0
    assert (asked["questions"], asked["prompts"], asked["ties"]) == (4, 16, 16)
    assert set(asked["by_view"]) == {"full", "img_q", "ctx_q", "q_only"}
    assert f"candidate mass {asked['mass']:.3f} (95 % " in passed.line
    assert refused.stored["fingerprint"] != passed.stored["fingerprint"]


def answers(mass: float, first: str, thinks: int = 0) -> admission.Admission:
    return admission.Admission(4, 16, mass, 0.0, 1.0, {}, ((first, 16),), 0, thinks, 1.0)


THINKS, TALKS = answers(0.01, "<think>", 16), answers(0.01, "Sure")
#: What is likely inside an open thought is no answer; nor is what stands behind 'Answer: ' in it.
LIKELY = answers(0.9, "A")
OPEN = 'options: template: {answer_prefix: "\\n</think>\\n\\n"}'


@pytest.mark.parametrize(
    ("answered", "prefix", "opens", "advice"),
    [
        (THINKS, "", False, 'answer_prefix: "<think>\\n\\n</think>\\n\\n"'),
        (TALKS, "", False, 'system: "Answer with the letter or number alone."'),
        (answers(0.3, "Sure"), "", False, ""),
        (LIKELY, "", True, OPEN),
        (LIKELY, "Answer: ", True, OPEN),
        (LIKELY, "\n</think>\n\n", True, ""),
    ],
)
def test_a_refusal_names_the_option_that_would_change_it(
    answered: admission.Admission, prefix: str, opens: bool, advice: str, thinking: ModelSpec
) -> None:
    plain = Path(thinking.repo.removeprefix("path:")) / "chat_template.jinja"
    text = plain.read_text(encoding="utf-8")
    without_switch = text.replace("enable_thinking", "other")
    if opens:
        without_switch = without_switch.replace("ASSISTANT:", "ASSISTANT:<think>\n")
    spec = replace(thinking, options={"template": {"answer_prefix": prefix}} if prefix else {})
    try:
        plain.write_text(without_switch, encoding="utf-8")
        why = admission.refusal(answered, spec, Path(), floor=0.2)
        assert opens or "is below 0.4" in admission.refusal(
            replace(answered, thinks=0), spec, Path(), floor=0.4
        )
    finally:
        plain.write_text(text, encoding="utf-8")
    assert advice in why and bool(why) is bool(advice)
    assert ("its prompts end inside a thought, which <think> begins" in why) is (advice == OPEN)


def test_ties_are_exact_and_missing_candidates_are_none() -> None:
    logits = np.array([[1, 1, 0], [1, 0.5, 0], [0, np.nan, np.nan], [-np.inf, -np.inf, np.nan]])

    class Four(Engine):
        def candidate_scores(self, prompts: object) -> ScoreBatch:
            mass = np.array([1, 1, 0.5, 0.5], dtype=np.float32)
            tops = ["A", "A", "B", "<|thinking|>"]
            return ScoreBatch(logits.astype(np.float32), mass, mass, tops, np.ones(4))

    asked = admission.ask(Four(), PROMPTS[:4], ["full", "q_only"] * 2, ["1", "1", "2", "2"])
    assert (asked.ties, asked.thinks, asked.questions) == (1, 1, 2)
    assert asked.mass == 0.75 and asked.by_view == {"full": 0.75, "q_only": 0.75}
    assert asked.first[0] == ("A", 2)


# -- parity


def test_a_model_is_compared_with_the_other_engines_of_its_weights() -> None:
    (other,) = parity.counterparts(SPEC, ROOT).values()
    kept = {"max_images": 1, "parity": ["vllm"]}
    assert other == replace(SPEC, backend="vllm", options=kept), "no options of the other engine"
    for backend, names in {"hf": {"vllm"}, "vllm": {"hf"}, "planted": set()}.items():
        spec = replace(SPEC, backend=backend, options={})
        assert parity.counterparts(spec, ROOT).keys() == names
    tiny = entries.load(ROOT, "tiny-llava")
    assert parity.counterparts(SPEC, ROOT, ["tiny-llava"]) == {"tiny-llava": tiny}


@pytest.mark.parametrize(
    ("against", "error", "line"),
    [
        (["api"], UsageError, "m: backend api can't serve .* hf does; valid: vllm, or another"),
        (["nobody"], RegistryError, "unknown model 'nobody'"),
        (["m"], UsageError, "itself"),
        ([], RegistryError, r"m\.yaml: options: parity is 'vllm'; valid: a list"),
    ],
)
def test_what_a_model_can_not_be_compared_with_is_refused(
    against: list[str], error: type[Exception], line: str
) -> None:
    with pytest.raises(error, match=line):
        parity.counterparts(replace(SPEC, options={"parity": "vllm"}), ROOT, against)


Check = Callable[..., dict[str, Any]]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Check:
    """Checks m against other engines and stores the verdict."""

    def checked(m: Engine, spec: ModelSpec = SPEC, **others: Engine | Exception) -> dict[str, Any]:
        must = bool(others.pop("must", None))
        engines = {"m": m, **others}

        def load(one: ModelSpec, root: Path) -> Engine:
            engine = engines[one.name]
            if isinstance(engine, Exception):
                raise engine
            return engine

        monkeypatch.setattr(parity, "load", load)
        against = {name: replace(spec, name=name) for name in others}
        verdict = parity.check(spec, ROOT, BY_HAND, against, must=must)
        return parity.save(tmp_path, verdict)[0]

    return checked


BAD = Engine(by_place=0.5)


def test_an_engine_that_looks_at_the_neighbours_disagrees_with_itself(check: Check) -> None:
    verdict = check(BAD)
    assert verdict["verdict"] == "disagree"
    assert verdict["itself"][0]["what"] == "hf: alone / in batches"
    assert [row["agrees"] for row in verdict["itself"]] == [False, False]


def test_a_missing_engine_is_named_and_no_verdict(check: Check, tmp_path: Path) -> None:
    verdict = check(Engine(), vllm=InfrastructureError("no vLLM here"))
    assert verdict["verdict"] == "only one backend here"
    assert verdict["missing"] == {"vllm": "no vLLM here"}
    assert "not compared with vllm: no vLLM here" in parity.lines(verdict)
    assert json.loads((tmp_path / "parity" / "m.json").read_text()) == verdict
    with pytest.raises(InfrastructureError):
        check(Engine(), vllm=InfrastructureError("no vLLM here"), must=Engine())


class Rounds(Engine):
    """Other kernels of attention move the difference of two candidates by ``apart``."""

    def __init__(self, apart: float, by_place: float = 0.0) -> None:
        super().__init__(by_place=by_place)
        self.apart, self.moved = apart, 0.0

    @contextmanager
    def other_attention(self) -> Iterator[bool]:
        self.moved = self.apart
        yield True
        self.moved = 0.0

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        batch = super().candidate_scores(prompts)
        return replace(batch, logits=batch.logits + np.float32([0, self.moved]))


class NoRoom(Rounds):
    """Its other kernels need more memory than there is."""

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        if self.moved:
            raise OutOfMemory("out of memory: tried to allocate")
        return super().candidate_scores(prompts)


@pytest.mark.parametrize(
    ("dtype", "engine", "tolerance"),
    [
        ("float32", Engine(), 1e-3),
        ("bfloat16", Rounds(0.0), 5e-2),
        ("bfloat16", Engine(), 0.25),  # an engine that can't show its rounding
        ("bfloat16", NoRoom(0.2), 0.25),
    ],
)
def test_the_tolerance_is_that_of_the_dtype(
    check: Check, dtype: str, engine: Engine, tolerance: float
) -> None:
    assert check(engine, replace(SPEC, dtype=dtype))["tolerance"] == tolerance


@pytest.mark.parametrize(("by_place", "agrees"), [(0.1, True), (0.5, False)])
def test_a_difference_counts_beyond_twice_the_rounding_of_the_model(
    check: Check, by_place: float, agrees: bool
) -> None:
    half = replace(SPEC, dtype="bfloat16")
    verdict = check(Rounds(0.2, by_place), half)
    assert 0.3 < verdict["tolerance"] < 0.4
    assert [row["agrees"] for row in verdict["itself"]] == [agrees, agrees]
    lent = [
        check(one, half, vllm=two)["against"]["vllm"]["tolerance"]
        for one, two in ((Rounds(0.2), Engine()), (Engine(), Rounds(0.2)))
    ]
    assert 0.3 < lent[0] == lent[1]
    assert check(Rounds(5.0), half)["tolerance"] == 0.05, "so far apart they aren't the same model"


def test_a_disagreement_is_only_undone_by_its_own_check(check: Check) -> None:
    verdict = check(Engine(), b=BAD)
    assert verdict["verdict"] == "disagree"
    assert verdict["again"] == "sdgbias models parity m --against b"
    assert "hf / b: log-probabilities differ by up to" in verdict["reasons"][0]
    assert "the worst probe is" in verdict["reasons"][0]
    verdict = check(Engine(), c=Engine())
    assert (verdict["verdict"], list(verdict["against"])) == ("disagree", ["b", "c"])
    verdict = check(Engine(), b=Engine())
    assert (verdict["verdict"], verdict["reasons"]) == ("agree", [])
    check(Engine(), b=BAD)
    other = Engine()
    other.fingerprint = "other weights"
    verdict = check(other, c=Engine())
    assert (verdict["verdict"], list(verdict["against"])) == ("agree", ["c"])


def stored(folder: Path, text: str) -> None:
    (folder / "parity").mkdir()
    (folder / "parity" / "m.json").write_text(text, encoding="latin-1")


@pytest.mark.parametrize("verdict", ["disagree", "agree", "only one backend here"])
def test_nothing_of_a_model_that_disagrees_is_published(tmp_path: Path, verdict: str) -> None:
    parity.require_agreement(tmp_path, "m", "f1")  # never checked
    row = {"fingerprint": "f1", "verdict": verdict, "again": "sdgbias models parity m"}
    stored(tmp_path, json.dumps(row | {"reasons": ["hf / vllm: differ by 0.3"]}))
    parity.require_agreement(tmp_path, "m", "f2")  # other weights or versions by now
    parity.require_agreement(tmp_path, "n", "f1")
    if verdict != "disagree":
        parity.require_agreement(tmp_path, "m", "f1")
        return
    line = "^m: hf / vllm: differ by 0.3; nothing is published, .*: sdgbias models parity m$"
    with pytest.raises(EnginesDisagree, match=line):
        parity.require_agreement(tmp_path, "m", "f1")


@pytest.mark.parametrize("text", ["", "[]", "{}", "\xff"])
def test_a_verdict_that_cannot_be_read_is_not_passed_over(tmp_path: Path, text: str) -> None:
    stored(tmp_path, text)
    with pytest.raises(StoreError, match=r"m\.json: can't be read .*sdgbias models parity m"):
        parity.require_agreement(tmp_path, "m", "f1")
