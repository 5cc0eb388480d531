"""Secrets of others are no business of a model's process: the webhook's address, whatever variable
the team keeps it in, and the tokens of services that a model doesn't need."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdgbias.nightly import attempt, plan
from sdgbias.nightly.regression.policy import DEFAULT
from tests.builders.night_stubs import NOW, PUBLISH, settings, stub

SECRETS = ("NIGHT_CHAT", "TEAM_ROOM", *attempt.NOT_FOR_MODELS)
SEEN = (
    f"assert not set(os.environ) & {set(SECRETS)!r}, 'leak'; assert os.environ['HF_TOKEN'] =="
    f" 'seen'; {PUBLISH}"
)
USUAL = "".join(
    line
    for line in DEFAULT.read_text(encoding="utf-8").splitlines(keepends=True)
    if not line.startswith("webhook:")
)


def test_given_secrets_then_none_reaches_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "https://chat.example/secret")
    monkeypatch.setenv("HF_TOKEN", "seen")
    policy = tmp_path / "own.yaml"
    policy.write_text(f"webhook: TEAM_ROOM\n{USUAL}")
    asked = settings(tmp_path, "m", webhook_env="NIGHT_CHAT", policy=policy)
    night = plan.tonight(asked, NOW)
    [job] = night.jobs
    assert attempt.attempt(job, asked.results, argv=stub(SEEN)).outcome == attempt.PUBLISHED
    assert plan.load(asked.results, job.night).jobs == (job,), "as a worker in another pool has it"
    written = (night.folder / "plan.json").read_text()
    assert json.loads(written)["jobs"][0]["withheld"] == ["NIGHT_CHAT", "TEAM_ROOM"]
    assert "chat.example" not in written


@pytest.mark.parametrize(
    ("text", "withheld"),
    [
        ("webhook: TEAM_ROOM\nrules: [", ("TEAM_ROOM",)),
        ('{"webhook": "TEAM_ROOM", "rules": 3}', ("TEAM_ROOM",)),
        ("webhook : 'TEAM_ROOM'\nrules: {}", ("TEAM_ROOM",)),
        (f"webhook: >-\n  TEAM_ROOM\n{USUAL}", ("TEAM_ROOM",)),
        (None, ()),
    ],
    ids=["no YAML", "no rules", "no list of rules", "a folded text", "no policy"],
)
def test_given_the_registrys_policy_then_its_variable_is_withheld_even_if_it_is_broken(
    tmp_path: Path, text: str | None, withheld: tuple[str, ...]
) -> None:
    asked = settings(tmp_path, "m")
    if text is not None:
        (tmp_path / "registry" / "policy.yaml").write_text(text)
    [job] = plan.tonight(asked, NOW).jobs
    assert job.withheld == withheld
