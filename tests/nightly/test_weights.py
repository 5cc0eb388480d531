"""Weights that a night fetches before its first model, from a hub on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias.nightly import attempt, steps, weights
from sdgbias.nightly import run as nights
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import Job, tonight
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
def s(tmp_path: Path) -> NightOptions:
    for name in ("closed", "open"):
        put(tmp_path, name, name)
    return settings(tmp_path, "planted", fetch="yes")


def put(root: Path, name: str, repo: str) -> None:
    revision = REPOS[repo].commits[0].sha
    entry(root, name, backend="hf", repo=f"lab/{repo}", revision=revision)


def lacking(s: NightOptions) -> dict[str, str]:
    return weights.lacking(s, tonight(s, NOW), [].append)


def test_given_weights_that_cant_be_fetched_then_their_model_is_left_out(
    s: NightOptions, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        return attempt.outcome_of(job, NOW, outcome="published", run_id=f"{job.model}-1")

    monkeypatch.setattr(steps, "run_step", lambda *step: steps.DONE)
    night = nights.run(s, lambda: NOW, [].append, score, steps=())
    outcomes = {o.model: (o.outcome, o.message) for o in night.outcomes}
    assert outcomes["open"] == outcomes["planted"] == ("published", "") and night.exit_code == 0
    outcome, why = outcomes["closed"]
    assert outcome == "skipped" and why.endswith("then: sdgbias models fetch closed")
    assert why.startswith("not fetched: lab/closed: gated, and you are not logged in")
    cached = {name: is_cached(entries.load(s.root, name)) for name in ("open", "closed")}
    assert cached == {"open": True, "closed": False}
    assert entries.load(s.root, "closed").enabled, "no failure of the model"


def test_given_no_fetch_or_a_hub_that_is_away_then_no_model_that_is_here_is_lacking(
    s: NightOptions, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lacking(replace(s, fetch="no")) == {} and not hub.asked
    assert set(lacking(s)) == {"closed"}
    put(s.root, "a-new", "other")
    with Hub({}) as away:
        pass
    away.into(monkeypatch, tmp_path / "hf", seconds=1)
    assert set(lacking(s)) == {"a-new", "closed"}
