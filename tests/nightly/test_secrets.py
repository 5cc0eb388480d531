"""The webhook's address is no business of a model's process, whatever variable the team keeps it
in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdgbias.nightly import attempt, plan
from sdgbias.nightly.plan import Job, Settings
from sdgbias.nightly.regression.policy import DEFAULT
from tests.builders.night_stubs import NOW, PUBLISH, settings, stub

NAMES = ("NIGHT_CHAT", "TEAM_ROOM", "SDGBIAS_WEBHOOK")
SAID = (
    f"assert not set(os.environ) & {set(NAMES)!r}, 'leak'; assert os.environ['OTHER'] == 'seen';"
    f" {PUBLISH}"
)


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "https://chat.example/secret")
    monkeypatch.setenv("OTHER", "seen")


def only_job(asked: Settings) -> Job:
    [job] = plan.tonight(asked, NOW).jobs
    return job


def policy(root: Path, line: str, rest: str | None = None) -> Path:
    """The default policy with its line `webhook` replaced; ``rest``: in place of everything
    else."""
    kept = [
        text
        for text in DEFAULT.read_text(encoding="utf-8").splitlines()
        if not text.startswith("webhook:")
    ]
    path = root / "own.yaml"
    path.write_text("\n".join([line, *(kept if rest is None else [rest])]) + "\n")
    return path


def test_neither_the_settings_variable_nor_the_policys_reaches_a_model(tmp_path: Path) -> None:
    asked = settings(
        tmp_path, "m", webhook_env="NIGHT_CHAT", policy=policy(tmp_path, "webhook: TEAM_ROOM")
    )
    job = only_job(asked)
    assert job.withheld == ("NIGHT_CHAT", "TEAM_ROOM")
    assert attempt.attempt(job, asked.results, argv=stub(SAID)).outcome == attempt.PUBLISHED
    [there] = plan.load(asked.results, job.night).jobs  # as the worker in another pool has it
    assert there == job


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("webhook: TEAM_ROOM", "rules: ["),
        ('{"webhook": "TEAM_ROOM", "rules": 3}', ""),
        ("webhook : 'TEAM_ROOM'", "rules: {}"),
    ],
)
def test_a_policy_that_cannot_be_read_keeps_its_secret_too(
    tmp_path: Path, line: str, rest: str
) -> None:
    assert only_job(settings(tmp_path, "m", policy=policy(tmp_path, line, rest))).withheld == (
        "TEAM_ROOM",
    )


def test_without_a_policy_there_is_the_usual_name(tmp_path: Path) -> None:
    """Which no model gets anyway."""
    assert "SDGBIAS_WEBHOOK" in attempt.NOT_FOR_MODELS
    assert only_job(settings(tmp_path, "m")).withheld == ()
    assert only_job(settings(tmp_path, "m", policy=tmp_path, webhook_env="X")).withheld == ("X",)


def test_the_registrys_policy_counts_where_none_is_named(tmp_path: Path) -> None:
    asked = settings(tmp_path, "m")
    policy(tmp_path / "registry", "webhook: >-\n  TEAM_ROOM").rename(
        tmp_path / "registry" / "policy.yaml"
    )
    assert only_job(asked).withheld == ("TEAM_ROOM",)


def test_the_plan_names_variables_and_no_address(tmp_path: Path) -> None:
    night = plan.tonight(settings(tmp_path, "m", webhook_env="NIGHT_CHAT"), NOW)
    said = (night.folder / "plan.json").read_text()
    assert (
        "NIGHT_CHAT" in said
        and "chat.example" not in said
        and json.loads(said)["jobs"][0]["withheld"]
    )
