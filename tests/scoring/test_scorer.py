"""Scoring in chunks: what fails is told apart, what is finished is kept, an engine that hangs ends
alone."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.errors import InputError, ModelError, RegistryError
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import scorer as scorer_module
from sdgbias.scoring.cache import ScoreCache
from sdgbias.scoring.plan import make_plan
from sdgbias.scoring.scorer import Scorer, not_generated
from sdgbias.types import Prompt, ScoreBatch
from tests.builders.length_engine import Engine

REPOSITORY = Path(__file__).resolve().parents[2]
COLUMNS = ["task", "item_id", "test", "view", "text", "image_id", "candidates"]
SPEC = ModelSpec("m", "m", "planted", "r", "local", "enabled", batch_size=16)


def plan(texts: Sequence[str]) -> pd.DataFrame:
    rows = [("mcq", n, "T5", "q_only", text, "", "AB") for n, text in enumerate(texts)]
    return make_plan(pd.DataFrame(rows, columns=COLUMNS), "f").distinct


def run(tmp_path: Path, engine: Engine, texts: Sequence[str]) -> tuple[Scorer, pd.DataFrame]:
    cache = ScoreCache(tmp_path, "m", "f")
    scorer = Scorer(engine, cache, {}, SPEC)
    scorer.score(plan(texts), lambda what, done, total: None)
    return scorer, cache.read("scores")


TEXTS = [f"text {n:02d}" for n in range(40)]


def test_out_of_memory_halves_the_chunk_and_remembers_what_fits(tmp_path: Path) -> None:
    engine = Engine(room=5)
    scorer, scores = run(tmp_path, engine, TEXTS)
    assert len(scores) == 40 and not scorer.failures
    assert engine.sizes[:3] == [16, 8, 4]  # 16 and 8 don't fit
    assert max(engine.sizes[engine.sizes.index(4) + 4 :]) <= 5 and scorer.size == 4


@pytest.mark.parametrize(
    ("room", "sizes", "named"), [(99, [16, 16, 8], 3), (8, [16, 8, 8, 8, 8, 8], 6)]
)
def test_the_next_chunks_are_named_while_one_is_scored_and_again_when_chunks_shrink(
    room: int, sizes: list[int], named: int, tmp_path: Path
) -> None:
    names: list[list[str]] = []
    two_ahead = threading.Event()

    class Named(Engine):
        def prefetch(self, prompts: Sequence[Prompt], *_: object) -> None:
            names.append([prompt.text for prompt in prompts])
            if len(names) == 3:
                two_ahead.set()

        def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
            assert two_ahead.wait(60), "the third chunk waits for the first"
            return super().candidate_scores(prompts)

    engine = Named(room=room)
    run(tmp_path, engine, TEXTS)
    assert engine.sizes == sizes and len(names) == named
    assert [text for chunk in names[-3:] for text in chunk] == TEXTS[-sum(sizes[-3:]) :]


def test_a_prompt_that_fails_alone_or_has_no_number_is_a_failure_and_stops_nobody(
    tmp_path: Path,
) -> None:
    engine = Engine(bad=["text 07"])
    scorer, scores = run(tmp_path, engine, [*TEXTS, "nan here"])
    assert len(scores) == 39
    failures = {kind: (key, message) for key, kind, message in scorer.failures}
    assert set(failures) == {"ValueError", "NonFiniteLogits"}
    key, message = failures["ValueError"]
    assert "text 07" in message and key not in set(scores["key"])
    assert len(engine.sizes) <= 3 + 2 * 4  # halving: two calls for each of the four levels below 16


def test_one_thread_watches_all_chunks_and_one_reads_them(tmp_path: Path) -> None:
    seen: list[set[threading.Thread]] = []

    class Counting(Engine):
        def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
            seen.append({*threading.enumerate()} - before)
            return super().candidate_scores(prompts)

    before = {*threading.enumerate()}
    run(tmp_path, Counting(), TEXTS)
    assert len(seen) == 3 and len(seen[0]) == 2 and seen[0] == seen[1] == seen[2]
    assert {thread.name for thread in seen[0]} == {"watchdog", "reader_0"}
    for thread in seen[0]:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(("every", "shards"), [(0.0, 3), (60.0, 1)])
def test_finished_chunks_are_committed_by_time(
    every: float, shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 prompts in chunks of 16. Progress counts what is committed."""
    monkeypatch.setattr(scorer_module, "COMMIT_EVERY", every)
    cache, told = ScoreCache(tmp_path, "m", "f"), []
    rows = plan(TEXTS)
    Scorer(Engine(), cache, {}, SPEC).score(rows, lambda what, done, total: told.append(done))
    assert len(list(cache.folder.glob("scores-*.parquet"))) == shards == len(told)
    assert told[-1] == 40 == len(cache.read("scores"))
    told.clear()

    class Broken(Engine):
        def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
            if self.sizes:
                raise InputError("the second chunk")
            return super().candidate_scores(prompts)

    other = ScoreCache(tmp_path / "other", "m", "f")
    with pytest.raises(InputError, match="the second chunk"):
        Scorer(Broken(), other, {}, SPEC).score(rows, lambda what, done, total: told.append(done))
    assert len(other.read("scores")) == 16 and told == ([16] if every == 0 else [])


class Bounded(Engine):
    """Tells the first candidate, and of the second only a bound; 'bare' has none, 'loose' an
    infinite one, 'lost' no score at all."""

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        batch = super().candidate_scores(prompts)
        logits, upper = batch.logits.copy(), np.full_like(batch.logits, np.nan)
        for i, prompt in enumerate(prompts):
            if prompt.text.startswith("text"):
                continue
            logits[i, 1] = -np.inf
            upper[i, 1] = {"bare": np.nan, "loose": np.inf}.get(prompt.text, -4.0)
            if prompt.text == "lost":
                logits[i, 0], upper[i, 0] = np.nan, -4.0
        return dataclasses.replace(batch, logits=logits, upper=upper)


def test_a_withheld_score_is_kept_with_its_bound_and_without_one_it_is_a_failure(
    tmp_path: Path,
) -> None:
    scorer, scores = run(tmp_path, Bounded(), ["text", "withheld", "bare", "loose", "lost"])
    assert [kind for _, kind, _ in scorer.failures] == ["NonFiniteLogits"] * 3
    known = {tuple(row["logits"]): row["upper"] for _, row in scores.iterrows()}
    assert set(known) == {(4.0, 5.0), (8.0, -np.inf)}  # the first logit is the length of the text
    assert known[(4.0, 5.0)] is None
    np.testing.assert_array_equal(known[(8.0, -np.inf)], np.array([np.nan, -4.0], dtype=np.float32))


@pytest.mark.parametrize(
    ("bad", "error"), [(TEXTS, ModelError), (["text 03"], InputError)], ids=["model", "pictures"]
)
def test_a_model_that_scores_nothing_and_damaged_pictures_end_the_run(
    bad: list[str], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error, match="at text"):
        run(tmp_path, Engine(bad=bad, error=error), TEXTS)


def test_a_prompt_that_a_model_refuses_ends_no_run_that_has_scored_others_before(
    tmp_path: Path,
) -> None:
    run(tmp_path, Engine(), TEXTS)
    refuses = Engine(bad=["too much"], error=ModelError)
    scorer, scores = run(tmp_path, refuses, ["too much"])
    assert len(scores) == 40 and [kind for _, kind, _ in scorer.failures] == ["ModelError"]


HANGS = textwrap.dedent("""
    import sys, time, dataclasses
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    import tests.scoring.test_scorer as t
    from sdgbias.scoring.cache import ScoreCache
    from sdgbias.scoring.scorer import Scorer

    class Hanging(t.Engine):
        def candidate_scores(self, prompts):
            if any(p.text == "text 20" for p in prompts):
                time.sleep(600)
            return super().candidate_scores(prompts)

    cache = ScoreCache(Path(sys.argv[1]), "m", "f")
    spec = dataclasses.replace(t.SPEC, options={"chunk_timeout": 5})
    Scorer(Hanging(), cache, {}, spec).score(t.plan(t.TEXTS), lambda *a: None)
""")


def test_a_hung_engine_ends_and_its_prompts_are_tried_last_and_alone_then_given_up(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", HANGS, str(tmp_path), str(REPOSITORY)]
    note = tmp_path / "scores/m/f/hung.json"
    for prompts, finished in ((16, 16), (1, 16 + 8 + 4)):
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 8, done.stderr
        assert f"did not answer for 5 s on {prompts} prompt(s)" in done.stderr
        assert "Traceback" not in done.stderr
        kept = ScoreCache(tmp_path, "m", "f").read("scores")
        assert len(kept) == finished, "what was finished before is safe"
    counts = json.loads(note.read_text())
    assert len(counts) == 16 and sorted(counts.values()) == [1] * 15 + [2]
    (hung,) = (key for key, count in counts.items() if count == 2)
    engine, cache = Engine(), ScoreCache(tmp_path, "m", "f")
    nothing = plan([]).assign(forced="", limit=8)
    scorer, missing = Scorer(engine, cache, {}, SPEC), plan(TEXTS)
    left = missing[~missing["key"].isin(kept["key"])]
    scorer.run(left, nothing, lambda what, done, total: None)
    scorer.forget_hangs()
    assert engine.sizes == [1] * 11 and len(left) == 12, "it is not asked a third time"
    assert scorer.failures == [(hung, "Hung", "the engine hung twice on this prompt")]
    assert not note.exists(), "the next start tries it as any other failure"


def test_prompts_that_hung_once_come_last_and_alone(tmp_path: Path) -> None:
    engine, cache, rows = Engine(), ScoreCache(tmp_path, "m", "f"), plan(TEXTS)
    (cache.folder / "hung.json").write_text(json.dumps(dict.fromkeys(rows["key"][4:7], 1)))
    Scorer(engine, cache, {}, SPEC).score(rows, lambda what, done, total: None)
    assert engine.sizes == [16, 16, 5, 1, 1, 1] and len(cache.read("scores")) == 40


@pytest.mark.parametrize("text", ["{half a no", "[1]", '{"keys": ["a"]}', "3"])
def test_what_is_no_note_of_hangs_is_ignored(text: str, tmp_path: Path) -> None:
    note = tmp_path / "hung.json"
    note.write_text(text)
    assert not scorer_module.Watchdog(note, 1.0, None).hangs


def test_a_wrong_timeout_is_one_line(tmp_path: Path) -> None:
    spec = ModelSpec(**{**SPEC.__dict__, "options": {"chunk_timeout": "soon"}})
    with pytest.raises(RegistryError, match="chunk_timeout is 'soon'"):
        Scorer(Engine(), ScoreCache(tmp_path, "m", "f"), {}, spec)


def test_a_prompt_is_generated_once_at_each_length() -> None:
    rows = pd.DataFrame({"key": ["there", "none"], "limit": 8})
    decoded = pd.DataFrame({"key": ["there"], "limit": 8})
    assert not_generated(rows, decoded)["key"].tolist() == ["none"]
    assert not_generated(rows, decoded[:0])["key"].tolist() == ["there", "none"]
    assert not_generated(rows.assign(limit=16), decoded)["key"].tolist() == ["there", "none"]
