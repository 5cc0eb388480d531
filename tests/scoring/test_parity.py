"""Which probes are drawn, what they are compared with, and what is written down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.errors import (
    EnginesDisagree,
    InfrastructureError,
    InputError,
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
from tests.builders.length_engine import Engine

ROOT = entries.find_root()
SPEC = ModelSpec(
    "m",
    "M",
    "hf",
    "owner/m",
    "a" * 40,
    True,
    options={"share_prefix": False, "max_images": 1, "parity": ["vllm"]},
)


def texts(n: int, options: str = "A. low; B. mid; C. high", valid: str = "A, B, C") -> list[str]:
    return [
        f"Question: {'how high ' * (k % 7)}{k}?\nOptions: {options}\nVALID OPTIONS: {valid}\nSTRICT"
        for k in range(n)
    ]


def table() -> pd.DataFrame:
    pictures = ("", *(f"p{k}" for k in range(20)))
    rows = [(text, shown, "ABC") for text in texts(60) for shown in pictures]
    rows += [
        (f"How many {k}? {'word ' * (k % 5)}", shown, "0123456789")
        for k in range(30)
        for shown in pictures
    ]
    return pd.DataFrame(rows, columns=["text", "image_id", "candidates"])


def test_every_kind_has_its_share_and_its_extremes() -> None:
    drawn = probes.draw(table(), 48, 0)
    assert len(drawn) == 48 and not drawn.duplicated().any()
    kinds = drawn.groupby([drawn["image_id"] != "", drawn["candidates"].str.len()])
    assert sorted(kinds.groups) == [(shown, k) for shown in (False, True) for k in (3, 10)]
    assert set(kinds.size()) == {12}
    whole = table()
    for (shown, k), part in kinds:
        same = whole[(whole["candidates"].str.len() == k) & ((whole["image_id"] != "") == shown)]
        one, all_of_kind = part["text"].str.len(), same["text"].str.len()
        assert (one.min(), one.max()) == (all_of_kind.min(), all_of_kind.max())
    few = drawn.loc[drawn["image_id"] != "", "image_id"].value_counts()
    assert few.iloc[:3].sum() >= 24 - 2 * 2, "but for the extremes of two kinds, 48 // 16 pictures"


def test_the_draw_hangs_on_the_seed_alone() -> None:
    whole = table()
    one = probes.draw(whole, 30, 0)
    mixed = probes.draw(whole.sample(frac=1, random_state=1), 30, 0)
    assert set(one.itertuples(index=False, name=None)) == set(
        mixed.itertuples(index=False, name=None)
    )
    other = probes.draw(whole, 30, 1)
    assert set(one["image_id"]) != set(other["image_id"])
    assert set(one[one["image_id"] == ""]["text"]) != set(other[other["image_id"] == ""]["text"])


def test_fewer_prompts_than_probes() -> None:
    few = pd.DataFrame(
        {"text": ["one", "two"], "image_id": ["", "p"], "candidates": ["ABC", "ABC"]}
    )
    assert probes.draw(few, 64, 0).values.tolist() == few.values.tolist()


def test_probes_of_a_benchmark(small_benchmark: Path) -> None:
    found = probes.probes(small_benchmark, 32, 0)
    assert (
        found.origin == json.loads((small_benchmark / "benchmark.json").read_text())["benchmark_id"]
    )
    assert sum(found.kinds.values()) == len(found.prompts) == 32 and len(found.kinds) >= 4
    known = set(make_plan(sdg.load_prompts(small_benchmark), "").distinct["text"])
    assert all(p.text in known for p in found.prompts)
    assert all(bool(p.images) == bool(p.image_id) for p in found.prompts)
    assert (
        found.digest
        == probes.probes(small_benchmark, 32, 0).digest
        != probes.probes(small_benchmark, 32, 1).digest
    )
    with pytest.raises(InputError, match="no benchmark here"):
        probes.probes(small_benchmark / "nowhere", 32, 0)


def test_probes_of_a_bare_clone() -> None:
    found = probes.probes(None, 24, 0)
    assert (
        found.origin == "24 synthetic places" and len(found.prompts) == 24 and len(found.kinds) >= 4
    )


def test_what_a_model_is_compared_with(tmp_path: Path) -> None:
    (other,) = parity.counterparts(SPEC, ROOT).values()
    assert other == replace(SPEC, backend="vllm", options={"max_images": 1, "parity": ["vllm"]}), (
        "options of the other engine are not its own"
    )
    assert parity.counterparts(replace(SPEC, options={}), ROOT).keys() == {"vllm"}
    assert (
        parity.counterparts(replace(SPEC, backend="vllm", options={}), ROOT)["hf"].backend == "hf"
    )
    assert parity.counterparts(replace(SPEC, backend="planted", options={}), ROOT) == {}
    assert parity.counterparts(SPEC, ROOT, ["tiny-llava"]) == {
        "tiny-llava": entries.load(ROOT, "tiny-llava")
    }
    with pytest.raises(
        UsageError,
        match="m: backend api can't serve what hf does; valid: vllm, or another registered model",
    ):
        parity.counterparts(SPEC, ROOT, ["api"])
    with pytest.raises(RegistryError, match="unknown model 'nobody'"):
        parity.counterparts(SPEC, ROOT, ["nobody"])
    with pytest.raises(UsageError, match="itself"):
        parity.counterparts(SPEC, ROOT, ["m"])
    with pytest.raises(RegistryError, match=r"m\.yaml: parity is 'vllm'; valid: a list"):
        parity.counterparts(replace(SPEC, options={"parity": "vllm"}), ROOT)


PROMPTS = [Prompt("x" * n, "AB") for n in range(1, 10)]


def test_a_model_whose_code_raises_on_every_probe_says_so(
    monkeypatch: pytest.MonkeyPatch, small_benchmark: Path
) -> None:
    class Raises(Engine):
        def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
            raise TypeError("forward() got an unexpected\nkeyword")

    monkeypatch.setattr(admission, "load", lambda spec, root: Raises())
    verdict = admission.probe(SPEC, ROOT, small_benchmark, 6)
    assert not verdict.passed and verdict.line == (
        "ModelError: each of 6 probes fails, the first: TypeError: forward() got an unexpected"
    )

    def broken(spec: ModelSpec, root: Path) -> Engine:
        raise AttributeError("no such part")

    monkeypatch.setattr(admission, "load", broken)
    verdict = admission.probe(SPEC, ROOT, small_benchmark, 6)
    assert not verdict.passed and verdict.line == "AttributeError: no such part"


def test_a_model_that_overflows_says_so(
    monkeypatch: pytest.MonkeyPatch, small_benchmark: Path
) -> None:
    class Overflows(Engine):
        def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
            batch = super().candidate_scores(prompts)
            return replace(batch, logits=np.full_like(batch.logits, np.inf))

    monkeypatch.setattr(admission, "load", lambda spec, root: Overflows())
    verdict = admission.probe(SPEC, ROOT, small_benchmark, 6)
    assert not verdict.passed and verdict.line == (
        "ModelError: NonFiniteLogits: a candidate logit is NaN or infinite"
    )


def checked(
    monkeypatch: pytest.MonkeyPatch, engines: dict[str, Engine | Exception], **more: object
) -> dict[str, object]:
    def load(spec: ModelSpec, root: Path) -> Engine:
        made = engines[spec.name]
        if isinstance(made, Exception):
            raise made
        return made

    monkeypatch.setattr(parity, "load", load)
    others = {name: replace(SPEC, name=name) for name in engines if name != "m"}
    return parity.check(
        SPEC, ROOT, probes.Probes(PROMPTS, "here", {"2 options": 9}), others, **more
    )  # type: ignore[arg-type]


def test_an_engine_that_looks_at_the_neighbours_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told, _ = parity.save(tmp_path, checked(monkeypatch, {"m": Engine(by_place=0.5)}))
    assert told["verdict"] == "disagree" and told["itself"][0]["what"] == "hf: alone / in batches"
    assert not told["itself"][0]["agrees"] and not told["itself"][1]["agrees"]


def test_a_missing_engine_is_told_and_no_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engines = {"m": Engine(), "vllm": InfrastructureError("no vLLM here")}
    told, path = parity.save(tmp_path, checked(monkeypatch, engines))
    assert told["verdict"] == "only one backend here" and told["missing"] == {
        "vllm": "no vLLM here"
    }
    assert "not compared with vllm: no vLLM here" in parity.lines(told)
    assert path == tmp_path / "parity" / "m.json" and json.loads(path.read_text()) == told
    with pytest.raises(InfrastructureError):
        checked(monkeypatch, engines, must=True)


def test_the_tolerance_is_that_of_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: dict[str, Engine | Exception] = {"m": Engine()}
    assert checked(monkeypatch, engines)["tolerance"] == 1e-3
    monkeypatch.setattr(f"{__name__}.SPEC", replace(SPEC, dtype="bfloat16"))
    assert checked(monkeypatch, engines)["tolerance"] == 5e-2
    assert checked(monkeypatch, engines, tolerance=0.5)["tolerance"] == 0.5


def test_a_disagreement_is_only_undone_by_its_own_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad: dict[str, Engine | Exception] = {"m": Engine(), "b": Engine(by_place=0.5)}
    good: dict[str, Engine | Exception] = {"m": Engine(), "c": Engine()}
    told, _ = parity.save(tmp_path, checked(monkeypatch, bad))
    assert told["verdict"] == "disagree" and told["again"] == "sdgbias models parity m --against b"
    assert (
        "hf / b: log-probabilities differ by up to" in told["reasons"][0]
        and "the worst probe is" in told["reasons"][0]
    )
    told, _ = parity.save(tmp_path, checked(monkeypatch, good))
    assert told["verdict"] == "disagree" and list(told["against"]) == ["b", "c"]
    told, _ = parity.save(tmp_path, checked(monkeypatch, {"m": Engine(), "b": Engine()}))
    assert told["verdict"] == "agree" and told["reasons"] == []
    parity.save(tmp_path, checked(monkeypatch, bad))
    engine = Engine()
    engine.fingerprint = "other weights"
    told, _ = parity.save(tmp_path, checked(monkeypatch, {"m": engine, "c": Engine()}))
    assert told["verdict"] == "agree" and list(told["against"]) == ["c"]


def test_the_date_is_no_part_of_the_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one, _ = parity.save(tmp_path / "one", checked(monkeypatch, {"m": Engine(), "c": Engine()}))
    monkeypatch.setattr(
        parity, "datetime", type("Later", (), {"now": staticmethod(lambda zone: parity_date)})
    )
    two, _ = parity.save(tmp_path / "two", checked(monkeypatch, {"m": Engine(), "c": Engine()}))
    assert one["digest"] == two["digest"] and one["checked_at"] != two["checked_at"]
    other, _ = parity.save(
        tmp_path / "three", checked(monkeypatch, {"m": Engine(), "c": Engine(by_place=1.0)})
    )
    assert other["digest"] != one["digest"]


class _Date:
    def isoformat(self, timespec: str) -> str:
        return "2040-01-01"


parity_date = _Date()


def stored(folder: Path, **more: object) -> None:
    verdict = {"fingerprint": "f1", "verdict": "disagree", "again": "sdgbias models parity m"}
    verdict |= {"reasons": ["hf / vllm: differ by 0.3"], **more}
    (folder / "parity").mkdir()
    (folder / "parity" / "m.json").write_text(json.dumps(verdict))


def test_nothing_of_a_model_that_disagrees_is_published(tmp_path: Path) -> None:
    parity.require_agreement(tmp_path, "m", "f1")  # never checked
    stored(tmp_path)
    line = "^m: hf / vllm: differ by 0.3; nothing is published, .*: sdgbias models parity m$"
    with pytest.raises(EnginesDisagree, match=line):
        parity.require_agreement(tmp_path, "m", "f1")
    parity.require_agreement(tmp_path, "m", "f2")  # other weights or versions by now
    parity.require_agreement(tmp_path, "n", "f1")


@pytest.mark.parametrize("verdict", ["agree", "only one backend here"])
def test_what_agrees_is_published(tmp_path: Path, verdict: str) -> None:
    stored(tmp_path, verdict=verdict)
    parity.require_agreement(tmp_path, "m", "f1")


@pytest.mark.parametrize("text", ["", "[]", "{}", "\xff"])
def test_a_verdict_that_cannot_be_read_is_not_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "parity").mkdir()
    (tmp_path / "parity" / "m.json").write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match=r"m\.json: can't be read .*sdgbias models parity m"):
        parity.require_agreement(tmp_path, "m", "f1")
