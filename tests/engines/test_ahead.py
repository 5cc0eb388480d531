"""Beside an accelerator the next chunk is decoded and processed while one is computed."""

from __future__ import annotations

import inspect
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.progress import silent
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.scorer import Scorer
from sdgbias.types import LETTERS, Prompt
from tests.builders import families
from tests.builders.pictures import noise

#: Two chunks, each of two prompts about a picture and one without.
CHUNKS = [
    [
        Prompt(f"Is it rich in {n}? A or B", LETTERS, (noise(n),), f"p{n}"),
        Prompt(f"Is it poor in {n}? A or B", LETTERS, (noise(n),), f"p{n}"),
        Prompt(f"And without a picture in {n}?", LETTERS),
    ]
    for n in (1, 2)
]
SPEC = ModelSpec("m", "M", "hf", "path:", "local", "enabled", options={"share_prefix": True})


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> HuggingFace:
    folder = tmp_path_factory.mktemp("llava")
    families.write_small(folder, "llava")
    return HuggingFace(replace(SPEC, repo=f"path:{folder}"), Path())


class Watched:
    """The processor, which says when it begins with a second picture."""

    def __init__(self, processor: Any) -> None:
        self.processor, self.pictures = processor, 0
        self.second_begins = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.processor, name)

    def __call__(self, images: Any = None, **given: Any) -> Any:
        self.pictures += images is not None
        if self.pictures == 2:
            self.second_begins.set()
        return self.processor(images=images, **given)


@pytest.mark.parametrize("answers", [False, True])
def test_the_next_chunk_is_processed_while_the_model_computes_one(
    engine: HuggingFace, answers: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watched = Watched(engine.processor)
    monkeypatch.setattr(engine.chat, "processor", watched)
    monkeypatch.setattr(engine.maker, "ahead", True)
    monkeypatch.setattr(engine, "share_prefix", not answers)
    plain = engine.model.forward

    def forward(*given: Any, **named: Any) -> Any:
        # a model that ends only when the second picture is at the processor
        assert watched.second_begins.wait(60), "the second chunk waits for the first"
        return plain(*given, **named)

    forward.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
    monkeypatch.setattr(engine.model, "forward", forward)
    asked = [prompt for chunk in CHUNKS for prompt in chunk]
    rows = pd.DataFrame(asked)[["text", "candidates", "image_id"]]
    rows = rows.assign(key=[f"{n:032x}" for n in range(len(rows))], forced="", limit=2)
    images = {prompt.image_id: prompt.images for prompt in asked}
    scorer = Scorer(engine, ScoreCache(tmp_path, "m", "f"), images, SPEC)
    scorer.size = len(CHUNKS[0])

    scorer.generate(rows, silent) if answers else scorer.score(rows, silent)

    assert not scorer.failures and watched.second_begins.is_set()


def test_what_is_made_ahead_scores_the_same_and_is_forgotten(
    engine: HuggingFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_turn = [engine.candidate_scores(chunk).logits for chunk in CHUNKS]
    answers = engine.generate(CHUNKS[0], ["", "1"], 2).texts
    monkeypatch.setattr(engine.maker, "ahead", True)

    engine.prefetch(CHUNKS[0])
    engine.prefetch(CHUNKS[1])
    ahead = [engine.candidate_scores(chunk).logits for chunk in CHUNKS]
    again = engine.candidate_scores(CHUNKS[0][:2]).logits  # as of a chunk that was halved

    np.testing.assert_array_equal(np.stack(ahead), np.stack(in_turn))
    np.testing.assert_allclose(again, in_turn[0][:2], atol=1e-5)
    assert engine.generate(CHUNKS[0], ["", "1"], 2).texts == answers
    assert not engine.maker.ready, "nothing keeps the pictures of finished chunks"
