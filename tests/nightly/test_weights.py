"""Weights that a night fetches before its first model, from a hub on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias.nightly import attempt, steps
from sdgbias.nightly import run as nights
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import Job
from sdgbias.registry import entries
from sdgbias.registry.fetch import is_cached
from tests.builders.hub import Hub, Repo, commit
from tests.builders.night_stubs import NOW, entry, settings

FILES = {"config.json": {"model_type": "llava"}, "model.safetensors": b"w" * 2**16}
REPOS = {name: Repo([commit(FILES, name)]) for name in ("open", "closed", "other")}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    repos = {f"lab/{name}": repo for name, repo in REPOS.items()}
    repos["lab/closed"] = replace(REPOS["closed"], gated=True)
    with Hub(repos) as running:
        running.into(monkeypatch, tmp_path / "hf", seconds=5)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        yield running


@pytest.fixture
def s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NightOptions:
    monkeypatch.setattr(steps, "run_step", lambda *step: steps.DONE)
    for name in ("closed", "open"):
        put(tmp_path, name, name)
    return settings(tmp_path, "planted", fetch="yes")


def put(root: Path, name: str, repo: str) -> None:
    revision = REPOS[repo].commits[0].sha
    entry(root, name, backend="hf", repo=f"lab/{repo}", revision=revision)


def run(s: NightOptions) -> dict[str, tuple[str, str]]:
    """Model -> outcome and message of a night; models that are started are published."""

    def score(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        return attempt.outcome_of(job, NOW, outcome="published", run_id=f"{job.model}-1")

    night = nights.run(s, lambda: NOW, [].append, score, steps=())
    assert night.exit_code == 0
    return {o.model: (o.outcome, o.message) for o in night.outcomes}


def test_given_weights_that_cant_be_fetched_then_their_model_is_left_out(
    s: NightOptions, hub: Hub
) -> None:
    outcomes = run(s)
    assert outcomes["open"] == outcomes["planted"] == ("published", "")
    outcome, why = outcomes["closed"]
    assert outcome == "skipped" and why.endswith("then: sdgbias models fetch closed")
    assert why.startswith("not fetched: lab/closed: gated, and you are not logged in")
    cached = {name: is_cached(entries.load(s.root, name)) for name in ("open", "closed")}
    assert cached == {"open": True, "closed": False}
    assert entries.load(s.root, "closed").enabled, "no failure of the model"


def test_given_a_night_that_fetches_nothing_then_the_hub_is_not_asked(
    s: NightOptions, hub: Hub
) -> None:
    assert run(replace(s, fetch="no"))["closed"] == ("published", "") and not hub.asked


def test_given_a_hub_that_is_away_then_it_stops_no_model_that_is_here(
    s: NightOptions, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(s)["open"][0] == "published"
    put(s.root, "a-new", "other")
    with Hub({}) as away:
        pass
    away.into(monkeypatch, tmp_path / "hf", seconds=5)
    outcomes = run(replace(s, night="2026-11-22T0130"))
    assert {model: outcome for model, (outcome, _) in outcomes.items()} == {
        **dict.fromkeys(("a-new", "closed"), "skipped"),
        **dict.fromkeys(("open", "planted"), "published"),
    }
