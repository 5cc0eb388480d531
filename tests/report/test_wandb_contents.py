"""Names, config and summary of a W&B run, as plain values."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise

import pandas as pd
import pytest

from sdgbias.errors import UsageError
from sdgbias.report.wandb import log

NIGHT = "2026-11-21T0130"
DAY = 24 * 60


def test_an_id_is_always_one_that_wandb_takes() -> None:
    assert log.safe("tiny-llava-0a1b") == "tiny-llava-0a1b"
    odd = [log.safe(name) for name in ("a/b#c?d%e:f\\g", "a-b#c?d%e:f\\g", "x" * 90, "x" * 91)]
    assert len(set(odd)) == 4
    assert all(len(name) <= 64 and not set(name) & set("/\\#?%:") for name in odd)


def test_nights_are_steps_in_their_order() -> None:
    nights = ["2025-12-31T0130", "2026-01-01T0130", "2026-01-01T1330", "2026-10-25T0130"]
    steps, years = zip(*(log.axis(log.night_time(n, {})) for n in nights), strict=True)
    assert [b - a for a, b in pairwise(steps)] == [DAY, DAY // 2, 296 * DAY + DAY // 2]
    assert list(years) == sorted(years)
    assert years[1] == pytest.approx(2026 + (1.5 / 24) / 365, abs=1e-6)
    finished = datetime(2026, 11, 21, 3)
    assert log.night_time("", {"finished_at": finished}) == finished
    for wrong in ("last night", "2026-13-41T0130"):
        with pytest.raises(UsageError, match=r"a night is written like 2026-11-21T0130"):
            log.night_time(wrong, {})


def test_no_secret_and_no_path_of_this_machine_gets_out() -> None:
    spec = {
        "repo": "path:/secret/place/weights",
        "options": {
            "api_key_env": "OPENAI_API_KEY",
            "api_key": "abc",
            "hub_token": "xyz",
            "base_url": "https://me:correcthorse@host/v1",
            "headers": ["Bearer sk-0123456789abcdef"],
            "num_image_tokens": 576,
        },
        "notes": "see hf_0123456789abcdef",
    }
    record = {
        "run_id": "r",
        "night": NIGHT,
        "config": json.dumps({"draws": 5, "spec": spec, "sdgbias": "0.1.0"}),
        "finished_at": None,
        "started_at": datetime(2026, 11, 21, 3),
        "seconds": float("nan"),
    }
    params = pd.DataFrame(columns=["task", "test", "alpha", "lambda_kl", "beta", "tau"])
    config = log.config(record, params)
    text = json.dumps(config)
    for leak in ("/secret/place", 'abc"', "xyz", "correcthorse", "sk-0123", "hf_0123"):
        assert leak not in text, leak
    assert config["spec"]["repo"] == "path:.../weights"
    assert config["spec"]["options"]["api_key_env"] == "OPENAI_API_KEY"
    assert config["spec"]["options"]["num_image_tokens"] == 576
    assert (config["started_at"], config["seconds"]) == ("2026-11-21T03:00:00Z", None)
    assert (config["finished_at"], config["night"]) == (None, NIGHT)
    assert config["sdgbias_version"] == "0.1.0"


@pytest.mark.parametrize(
    ("given", "worst"),
    [
        (["PASS", "BREACH", "MISSING"], "BREACH"),
        (["PASS", "MISSING"], "MISSING"),
        (["PASS"], "PASS"),
    ],
)
def test_the_gates_worst_verdict_stands_for_the_night(given: list[str], worst: str) -> None:
    summary = log.gate_summary(pd.Series(given))
    assert summary["gate/verdict"] == worst
    assert summary["gate/pass"] == 1
    assert log.gate_summary(pd.Series([], dtype=str)) == {}
