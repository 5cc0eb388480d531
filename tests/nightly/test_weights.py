"""Weights that a night fetches before its first model, from a hub on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias.nightly import attempt
from sdgbias.nightly import run as nights
from sdgbias.nightly import steps as finish
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import Job
from sdgbias.registry import entries
from sdgbias.registry.fetch import is_cached
from tests.builders.hub import Hub, Repo, commit
from tests.builders.night_stubs import NOW, entry, settings

FILES = {"config.json": {"model_type": "llava"}, "model.safetensors": b"w" * 2**16}
OPEN, CLOSED, OTHER = (commit(FILES, name) for name in ("open", "closed", "other"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    repos = {
        "lab/open": Repo([OPEN]),
        "lab/closed": Repo([CLOSED], gated=True),
        "lab/other": Repo([OTHER]),
    }
    with Hub(repos) as made:
        made.into(monkeypatch, tmp_path / "hf", seconds=5)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        yield made


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NightOptions:
    monkeypatch.setattr(finish, "run_step", lambda *step: finish.DONE)
    for name, at in (("closed", CLOSED), ("open", OPEN)):
        entry(tmp_path, name, backend="hf", repo=f"lab/{name}", revision=at.sha)
    return settings(tmp_path, "planted", fetch="yes")


def run(s: NightOptions) -> dict[str, tuple[str, str]]:
    """Model -> outcome and message of a night; models that are started are published."""

    def ask(job: Job, results: Path, device: str | None) -> attempt.JobOutcome:
        made = attempt.outcome_of(job, NOW, attempts=1)
        return replace(made, outcome="published", run_id=f"{job.model}-1")

    done = nights.run(s, lambda: NOW, [].append, ask, steps=())
    assert done.exit_code == 0
    return {o.model: (o.outcome, o.message) for o in done.outcomes}


def test_what_can_t_be_fetched_is_left_out_with_its_reason(asked: NightOptions, hub: Hub) -> None:
    found = run(asked)
    assert found["open"] == found["planted"] == ("published", "")
    outcome, why = found["closed"]
    assert outcome == "skipped" and why.startswith(
        "not fetched: lab/closed: gated, and you are not logged in"
    )
    assert why.endswith("then: sdgbias models fetch closed")
    assert is_cached(entries.load(asked.root, "open"))
    assert not is_cached(entries.load(asked.root, "closed"))
    assert entries.load(asked.root, "closed").enabled, "no failure of the model"


def test_the_hub_is_asked_by_those_who_want_it(asked: NightOptions, hub: Hub) -> None:
    assert run(replace(asked, fetch="no"))["closed"] == ("published", "")
    assert not hub.asked


def test_a_hub_that_is_away_stops_no_model_that_is_here(
    asked: NightOptions, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(asked)["open"][0] == "published"
    entry(asked.root, "a-new", backend="hf", repo="lab/other", revision=OTHER.sha)
    with Hub({}) as away:
        pass
    away.into(monkeypatch, tmp_path / "hf", seconds=5)
    found = run(replace(asked, night="2026-11-22T0130"))
    assert {model: outcome for model, (outcome, _) in found.items()} == {
        "a-new": "skipped",
        "closed": "skipped",
        "open": "published",
        "planted": "published",
    }
