"""Names, config, history and tables of a W&B run, as plain values."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from sdgbias.errors import UsageError
from sdgbias.report.wandb import contents as w

NIGHT = "2026-11-21T0130"
COLUMNS = [
    "task",
    "test",
    "method",
    "pillar",
    "indicator",
    "metric",
    "value",
    "n",
    "ci_low",
    "ci_high",
]


def test_an_id_is_the_night_and_the_run_and_always_one_that_wandb_takes() -> None:
    assert w.wandb_id("tiny-llava-0a1b", NIGHT) == "2026-11-21T0130-tiny-llava-0a1b"
    assert w.wandb_id("tiny-llava-0a1b") == "tiny-llava-0a1b"
    odd = [
        w.wandb_id(name, NIGHT) for name in ("a/b#c?d%e:f\\g", "a-b#c?d%e:f\\g", "x" * 90, "x" * 91)
    ]
    assert len(set(odd)) == 4
    assert all(
        len(name) <= 64 and not set(name) & set("/\\#?%:") and name.startswith(NIGHT)
        for name in odd
    )
    assert odd[0] == w.wandb_id("a/b#c?d%e:f\\g", NIGHT)


def test_nights_are_steps_in_their_order() -> None:
    nights = [
        "2025-12-31T0130",
        "2026-01-01T0130",
        "2026-01-01T1330",
        "2026-10-25T0130",
        "2026-10-26T0130",
    ]
    whens = [w.night_of(n, {}) for n in nights]
    assert [w.step(b) - w.step(a) for a, b in pairwise(whens)] == [
        1440,
        720,
        296 * 1440 + 720,
        1440,
    ]
    years = [w.year(when) for when in whens]
    assert years == sorted(years)
    assert years[1] == pytest.approx(2026 + (1.5 / 24) / 365, abs=1e-6)
    assert w.night_of("", {"finished_at": datetime(2026, 11, 21, 3)}) == datetime(2026, 11, 21, 3)
    for wrong in ("last night", "2026-13-41T0130"):
        with pytest.raises(UsageError, match=r"a night is written like 2026-11-21T0130"):
            w.night_of(wrong, {})


def test_no_secret_and_no_path_of_this_machine_gets_out() -> None:
    spec = {
        "repo": "path:/secret/place/weights",
        "options": {
            "api_key_env": "OPENAI_API_KEY",
            "api_key": "abc",
            "hub_token": "xyz",
            "base_url": "https://me:pass@host/v1",
            "headers": ["Bearer sk-0123456789abcdef"],
            "num_image_tokens": 576,
        },
        "notes": "see hf_0123456789abcdef",
    }
    record = {
        "run_id": "r",
        "config": json.dumps({"draws": 5, "spec": spec, "sdgbias": "0.1.0"}),
        "finished_at": None,
        "started_at": datetime(2026, 11, 21, 3),
        "seconds": float("nan"),
        "seed": 3,
    }
    config = w.config(record, NIGHT, pd.DataFrame(columns=["task", "test", "alpha"]))
    text = json.dumps(config)
    for leak in ("/secret/place", 'abc"', "xyz", "me:pass", "sk-0123", "hf_0123"):
        assert leak not in text, leak
    assert config["spec"]["options"]["api_key_env"] == "OPENAI_API_KEY"
    assert config["spec"]["options"]["num_image_tokens"] == 576
    assert config["spec"]["options"]["base_url"] == "https://(left out)@host/v1"
    assert (config["started_at"], config["seconds"]) == ("2026-11-21T03:00:00Z", None)
    assert (config["seed"], config["finished_at"], config["night"], config["sdgbias_version"]) == (
        3,
        None,
        NIGHT,
        "0.1.0",
    )


def test_summary_leaves_nan_and_indicators_out() -> None:
    rows = [
        ("mcq", "T1", "full", "all", "all", "accuracy", 0.5, 7, np.nan, np.nan),
        ("mcq", "T1", "full", "p", "shdi", "accuracy", 0.1, 1, 0, 1),
        ("direct", "p1", "full", "gender:male-female", "all-52", "disparity", -0.1, 9, -0.2, 0.0),
    ]
    found = w.summary(pd.DataFrame(rows, columns=COLUMNS))
    place = "direct/p1/full/gender-male-female/all-52/disparity"
    assert found == {
        "mcq/T1/full/accuracy": 0.5,
        "mcq/T1/full/accuracy/n": 7,
        place: -0.1,
        f"{place}/n": 9,
        f"{place}/ci_low": -0.2,
        f"{place}/ci_high": 0.0,
    }


@pytest.mark.parametrize(
    ("given", "worst"),
    [
        (["PASS", "BREACH", "MISSING"], "BREACH"),
        (["PASS", "MISSING"], "MISSING"),
        (["PASS"], "PASS"),
    ],
)
def test_the_gates_worst_verdict_stands_for_the_night(given: list[str], worst: str) -> None:
    found = w.gate_summary(pd.DataFrame({"verdict": given}))
    assert found["gate/verdict"] == worst
    assert found["gate/pass"] == 1
    assert w.gate_summary(pd.DataFrame({"verdict": []})) == {}
