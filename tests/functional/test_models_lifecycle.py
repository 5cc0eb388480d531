"""A model's entry as a person sees it: put aside, retired, enabled again, removed; entries edited
into nonsense. test_new_releases.py leads from a hub to the results at the pinned commit."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml

from sdgbias import store
from tests.builders.commands import add_model, ok, refused, sdgbias


def entry(root: Path, name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((root / "registry" / "models" / f"{name}.yaml").read_text()))


def test_a_registry_without_models_says_how_to_add_one(root: Path) -> None:
    assert ok("models", registry=root) == "No model yet. Next: sdgbias register-model REPO\n"
    line = refused(4, "models show m", registry=root)
    assert line.endswith(
        "unknown model 'm'; there is none yet; add one: sdgbias register-model REPO"
    )


def test_the_states_by_hand(root: Path) -> None:
    path = add_model(root, "m", title="M", options={"suites": ["sdg", "people"]})
    path.write_text("# kept\n" + path.read_text())
    add_model(root, "shy", state="candidate", reason="not looked at")
    columns = ["model", "backend", "state", "until", "suites", "reason"]
    table = ok("models", registry=root)
    assert table == ok("models", registry=root) and table.splitlines()[0].split() == columns
    candidates = ok("models --state candidate", registry=root).splitlines()
    assert [line.split()[0] for line in candidates[:2]] == ["model", "shy"]
    assert candidates[-1] == "Models: 1 candidate. Next: sdgbias models show NAME"

    days = {(datetime.now(UTC) + timedelta(days=more)).date().isoformat() for more in (1, 2)}
    printed = ok("models quarantine m --reason 'OOM at 40 GiB' --days 1", registry=root)
    assert sdgbias("models quarantine m --reason x --days 100000000", registry=root).returncode == 2
    tomorrow = entry(root, "m")["until"]
    assert tomorrow in days, "the test may run over midnight"
    assert f"tried again from {tomorrow}" in printed and entry(root, "m")["state"] == "quarantined"
    assert path.read_text().startswith("# kept\n")
    listed = json.loads(ok("models --json", registry=root))["models"]
    assert [(m["name"], m["state"], m["until"]) for m in listed] == [
        ("m", "quarantined", tomorrow),
        ("shy", "candidate", ""),
    ]
    assert "is enabled" in ok("models enable m --no-check", registry=root)
    assert "reason" not in entry(root, "m")
    ok("models retire m --reason 'superseded by n'", registry=root)
    line = refused(4, "models quarantine m --reason x", registry=root)
    assert "retired can't become quarantined; valid: retired, enabled" in line
    assert "is enabled" in ok("models enable m --no-check", registry=root)


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12"])  # never of one day
def test_days_of_a_quarantine_count_from_the_day_of_the_nights(
    root: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    add_model(root, "m")
    monkeypatch.setenv("SDGBIAS_TIMEZONE", zone)
    days = [datetime.now(ZoneInfo(zone)).date()]
    ok("models quarantine m --reason x --days 1", registry=root)
    days.append(datetime.now(ZoneInfo(zone)).date())
    assert entry(root, "m")["until"] in {str(day + timedelta(days=1)) for day in days}


def test_a_model_added_by_mistake_is_removed(root: Path, tmp_path: Path) -> None:
    path = add_model(root, "typo")
    add_model(root, "m")
    assert "unknown model 'tpyo'" in refused(4, "models remove tpyo", registry=root)
    results = tmp_path / "r.duckdb"
    record = {"model": "typo", "benchmark_id": "b", "suite": "sdg"}
    record["finished_at"] = "2026-11-20T00:00:00"
    for run_id in ("typo-1", "typo-2"):
        store.publish(results, record | {"run_id": run_id}, {})
    printed = ok(f"models remove typo --results {results}", registry=root)
    assert not path.exists() and (root / "registry/models/m.yaml").exists()
    stay, _, onward = printed.partition(f" stay in {results}. Next: sdgbias ")
    assert stay.endswith("2 of its runs")
    printed = ok(onward)
    assert "2 runs of typo are removed" in printed and store.run_ids(results) == []
    assert "no run 'typo-1'" in refused(7, f"store remove typo-1 --results {results}")


def test_entries_edited_into_nonsense_are_named_and_the_others_listed(root: Path) -> None:
    add_model(root, "good")
    models = root / "registry" / "models"
    add_model(root, "sleepy", state="asleep")
    add_model(root, "silent", state="quarantined")
    add_model(root, "late", state="quarantined", reason="x", until="next week")
    (models / "torn.yaml").write_text("name: torn\nstate: [\n")
    shutil.copy(models / "good.yaml", models / "twice.yml")

    done = sdgbias("models", registry=root)

    assert done.returncode == 4 and "Traceback" not in done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines()[:2]]
    assert listed == ["model", "good"], "the others are listed"
    for words in (
        "unknown state 'asleep'; valid: candidate, enabled, quarantined, retired",
        "silent.yaml: state is quarantined without a reason",
        "until is 'next week'",
        "torn.yaml: line",
        "twice.yml: the file of model good is named good.yaml",
    ):
        assert words in done.stderr, done.stderr
    assert "error: 5 of 6 entries can't be read" in done.stderr
