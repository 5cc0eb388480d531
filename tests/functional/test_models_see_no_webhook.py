"""What the process of a real (planted) model finds in its environment."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sdgbias.nightly import attempt, plan
from sdgbias.nightly.plan import Settings
from sdgbias.nightly.regression.policy import DEFAULT
from tests.builders.commands import add_model

SPY = """
import os, pathlib, sys
if "evaluate" in sys.orig_argv:
    seen = "\\n".join(f"{name}={value}" for name, value in os.environ.items())
    pathlib.Path(os.environ["SPY"]).write_text(seen)
"""


def test_a_models_process_does_not_see_the_webhook_by_any_name(
    tiny_benchmark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(tmp_path, "good")
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "sitecustomize.py").write_text(SPY)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "spy"), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("SPY", str(tmp_path / "seen"))
    for name in ("NIGHT_CHAT", "TEAM_ROOM", "SDGBIAS_WEBHOOK"):
        monkeypatch.setenv(name, "https://chat.example/T0/secret")
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        DEFAULT.read_text(encoding="utf-8").replace(
            "webhook: SDGBIAS_WEBHOOK", "webhook: TEAM_ROOM"
        )
    )
    asked = Settings(
        tmp_path,
        tmp_path / "r.duckdb",
        (tiny_benchmark,),
        tmp_path / "report",
        policy=policy,
        webhook_env="NIGHT_CHAT",
        passes="none",
        draws=10,
    )
    [job] = plan.tonight(asked, datetime(2026, 11, 21, 1, 30, tzinfo=UTC)).jobs
    made = attempt.attempt(job, asked.results)
    assert made.outcome == attempt.PUBLISHED, made.message
    seen = (tmp_path / "seen").read_text()
    assert f"SDGBIAS_REGISTRY={tmp_path}" in seen and "chat.example" not in seen
