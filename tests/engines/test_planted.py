"""Planted models: today's formula unchanged, and with an oracle exactly the process that the
docstring states."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.engines import load
from sdgbias.engines.planted import Habits, Planted, parts, read_habits, rounded
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, PILLARS, Prompt

SPEC = ModelSpec(
    name="m", title="M", backend="planted", repo="planted", revision="local", state="enabled"
)
LACKS = "How many lack it?"
QUESTION, OPTIONS = "How many have it?", "below 10 %; B. 10 % to under 20 %; C. 20 % or more"
TAIL = f"Options: A. {OPTIONS}\nVALID OPTIONS: A, B, C\nSTRICT OUTPUT"


def text(context: str = "", question: str = QUESTION, tail: str = TAIL) -> str:
    return f"Question: {question}\n" + (f"Context: {context}\n" if context else "") + tail


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two questions about two places; 'lower' is better in the second pillar. Three places share
    one context line."""
    folder = tmp_path_factory.mktemp("oracle")
    columns = ["item_id", "question", "pillar", "polarity", "answer"]
    options = dict(zip(("option_a", "option_b", "option_c"), parts(text())[2], strict=True))
    mcq = pd.DataFrame(
        [
            (1, QUESTION, PILLARS[0], "higher", "C"),
            (2, QUESTION, PILLARS[0], "higher", "A"),
            (3, LACKS, PILLARS[1], "lower", "B"),
        ],
        columns=columns,
    ).assign(**options)
    columns = ["item_id", "question", "pillar", "target", "answer"]
    regression = pd.DataFrame(
        [(9, "How much?", PILLARS[2], "asset_index", -1.685094)], columns=columns
    )
    rows = []
    for item, place, question in ((1, "x", QUESTION), (2, "y", QUESTION), (3, "x", LACKS)):
        rows += [
            ("mcq", item, "T1", text("Given: urban=Rural", question), place),
            ("mcq", item, "T3", text("You may consider: urban", question), place),
            ("mcq", item, "T5", text("", question), place),
        ]
    rows.append(("regression", 9, "T5", "Question: How much?\nAnswer", "x"))
    mcq.to_parquet(folder / "items_mcq.parquet")
    regression.to_parquet(folder / "items_regression.parquet")
    pd.DataFrame(rows, columns=["task", "item_id", "test", "text", "image_id"]).to_parquet(
        folder / "prompts.parquet"
    )
    return folder


def engine(benchmark: Path, **habits: object) -> Planted:
    return Planted(replace(SPEC, options={"oracle": str(benchmark), **habits}))


def scores(e: Planted, *prompts: Prompt) -> np.ndarray:
    return e.candidate_scores(prompts).logits.astype(float)


def test_without_an_oracle_nothing_has_changed() -> None:
    """Stored runs rest on these logits and this fingerprint."""
    options = {"optimism": 0.6, "image_weight": 1.0, "context_weight": 1.0, "noise": 0.5}
    old = Planted(replace(SPEC, options=options))
    found = scores(old, Prompt("asset_index=1.5 with a picture", "ABC", (b"",), "two"))
    assert old.fingerprint == "9bdab894e9ce829e"
    assert found[0] == pytest.approx([0.67752278, 0.08333319, 1.91318202], abs=1e-7)
    assert old.generate([Prompt("Q", "AB")], ["", "B"], 8).texts == [["B.0", "B.0"]]


def test_prior_follows_direction_and_pillar(benchmark: Path) -> None:
    """Pillar 1 is told to be optimistic, the others pessimistic; in pillar 2 'lower' is better, so
    pessimistic is the last option."""
    e = engine(benchmark, prior={PILLARS[0]: [0, 1, 3], "all": [2, 1, 0]})
    first, second = scores(e, Prompt(text(), "ABC"), Prompt(text("", LACKS), "ABC"))
    assert list(first) == [0, 1, 3]
    assert list(second) == [0, 1, 2]


def test_evidence_adds_up_as_stated(benchmark: Path) -> None:
    """Without noise: 2 for the picture's gold, 3 x (1/2, 0, 1/2) for a context line that items with
    gold C and A share."""
    e = engine(benchmark, context_weight=3.0, image_weight=2.0)
    given, named = text("Given: urban=Rural"), text("You may consider: urban")
    q, ctx, hint, img, full = scores(
        e,
        Prompt(text(), "ABC"),
        Prompt(given, "ABC"),
        Prompt(named, "ABC"),
        Prompt(text(), "ABC", (b"",), "x"),
        Prompt(given, "ABC", (b"",), "x"),
    )
    assert list(q) == [0, 0, 0]
    assert list(ctx) == [1.5, 0, 1.5]
    assert list(hint) == [0, 0, 0], "names of variables are no evidence"
    assert list(img) == [0, 0, 2]
    assert list(full) == [1.5, 0, 3.5]


def test_views_share_their_draws(benchmark: Path) -> None:
    """Full - Q-only = (CTX+Q - Q-only) + (IMG+Q - Q-only) with noise 0: one draw for a context, one
    for a picture."""
    noises = {"context_noise": 1.0, "image_noise": 1.0}
    e = engine(benchmark, **noises, context_weight=1.0, image_weight=1.0, prior={"all": [0, 1, 2]})
    given = text("Given: urban=Rural")
    q, ctx, img, full = scores(
        e,
        Prompt(text(), "ABC"),
        Prompt(given, "ABC"),
        Prompt(text(), "ABC", (b"",), "y"),
        Prompt(given, "ABC", (b"",), "y"),
    )
    assert full - q == pytest.approx((ctx - q) + (img - q), abs=1e-5)
    other = scores(engine(benchmark, **noises, seed=1), Prompt(given, "ABC", (b"",), "y"))
    assert np.abs(other[0] - full).min() > 1e-3, "another seed, other draws"


def test_draws_are_standard_normal_and_independent(benchmark: Path) -> None:
    e = engine(benchmark, noise=1.0)
    z = scores(e, *(Prompt(text("", f"unknown {i}"), "ABC") for i in range(4000)))
    assert z.mean(axis=0) == pytest.approx([0, 0, 0], abs=0.06)  # 4 / sqrt(4000)
    assert z.std(axis=0) == pytest.approx([1, 1, 1], abs=0.05)
    assert np.abs(np.corrcoef(z.T)[np.triu_indices(3, 1)]).max() < 0.07


def test_answers_are_known_by_what_they_say(benchmark: Path) -> None:
    """The same options in reverse order under other letters: the same logit for each text."""
    e = engine(benchmark, prior={"all": [0, 1, 3]}, image_weight=2.0, image_noise=1.0)
    turned = "a. 20 % or more; b. 10 % to under 20 %; c. below 10 %"
    other = text(tail=f"Options: {turned}\nVALID OPTIONS: a, b, c")
    straight, reverse = scores(
        e, Prompt(text(), "ABC", (b"",), "x"), Prompt(other, "abc", (b"",), "x")
    )
    assert list(straight) == list(reverse[::-1])


def test_numbers_lead_from_the_first_digit(benchmark: Path) -> None:
    """Gold -1.685 is said as -1.7: its rest is '.7' and its sign '-' where the picture is shown,
    and '.0' without."""
    e = engine(benchmark, image_weight=5.0, digit_prior=[0, 0, 0, 2, 0, 0, 0, 0, 0, 0])
    prompt = Prompt("Question: How much?\nAnswer", DIGITS, (b"",), "x")
    bare = replace(prompt, images=(), image_id="")
    assert scores(e, prompt)[0].tolist() == [0, 5, 0, 2, 0, 0, 0, 0, 0, 0]
    assert e.generate([prompt, bare], ["", "7", "-7"], 8).texts == [
        ["-1.7", "7.7", "-7.7"],
        ["3.0", "7.0", "-7.0"],
    ]
    assert (rounded(-0.04), rounded(0.3), rounded(87.16)) == ("0.0", "0.3", "87.2")


def test_parts_of_a_prompt() -> None:
    options = ("below 10 %", "10 % to under 20 %", "20 % or more")
    assert parts(text("Given: a=1")) == (QUESTION, "Given: a=1", options)
    assert parts("Question: How much?\nAnswer strictly") == ("How much?", "", ())
    assert parts("anything") == ("anything", "", ())


def test_fingerprint_follows_habits_and_benchmark(benchmark: Path, tmp_path: Path) -> None:
    one, two = engine(benchmark, noise=0.1), engine(benchmark, noise=0.2)
    assert one.fingerprint != two.fingerprint
    for path in benchmark.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert engine(tmp_path, noise=0.1).fingerprint == one.fingerprint, "wherever the folder is"
    items = pd.read_parquet(tmp_path / "items_mcq.parquet")
    items.assign(answer="A").to_parquet(tmp_path / "items_mcq.parquet")
    assert engine(tmp_path, noise=0.1).fingerprint != one.fingerprint


def test_an_oracle_is_found_below_the_root(benchmark: Path) -> None:
    relative = replace(SPEC, options={"oracle": benchmark.name})
    absolute = replace(SPEC, options={"oracle": str(benchmark)})
    assert load(relative, benchmark.parent).fingerprint == load(absolute, Path()).fingerprint


def test_habits_survive_a_registry_entry() -> None:
    digits = tuple(map(float, range(10)))
    habits = Habits({"all": (0.0, 1.0, 2.0)}, digits, context_noise=0.5, seed=3)
    assert read_habits({**asdict(habits), "oracle": "x"}, "here") == habits
