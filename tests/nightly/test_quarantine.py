"""Who is put aside, for how long, and who comes back."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.nightly import quarantine
from sdgbias.nightly.attempt import JobOutcome
from sdgbias.nightly.night_options import NightOptions
from sdgbias.registry import entries
from tests.builders.night_stubs import NIGHT, NOW, entry, settings

TODAY = date(2026, 11, 21)


def failed(kind: str = "ModelError", model: str = "m", night: str = NIGHT) -> JobOutcome:
    return JobOutcome(
        model, "sdg", "failed", kind=kind, message="no token for A", night=night, attempts=1
    )


def history(s: NightOptions, *rows: tuple[str, str, str]) -> None:
    """(night, outcome, quarantined until) of model m."""
    if rows:
        frame = pd.DataFrame(rows, columns=["night", "outcome", "quarantined_until"]).assign(
            model="m", suite="sdg", started_at=NOW.replace(tzinfo=None)
        )
        store.upsert(s.results, {"night_outcomes": frame})


def test_a_failure_of_the_model_puts_it_aside_until_tomorrow(tmp_path: Path) -> None:
    s = settings(tmp_path, "m")
    made = quarantine.update_quarantine(s, failed(), TODAY)
    assert made.quarantined_until == "2026-11-22"
    spec = entries.load(tmp_path, "m")
    assert (spec.state, spec.reason, spec.until) == (
        "quarantined",
        "ModelError: no token for A",
        "2026-11-22",
    )


@pytest.mark.parametrize(
    "kind", ["Busy", "DiskFull", "HubUnreachable", "ExpiredToken", "KeyRefused", "InputError"]
)
def test_trouble_that_is_not_its_own_puts_nobody_aside(tmp_path: Path, kind: str) -> None:
    s = settings(tmp_path, "m")
    assert quarantine.update_quarantine(s, failed(kind), TODAY).quarantined_until == ""
    assert entries.load(tmp_path, "m").state == "enabled"


def test_it_grows_with_every_night_in_a_row(tmp_path: Path) -> None:
    s = settings(tmp_path, "m")
    days = []
    for n in range(6):
        night = f"2026-11-{n + 1:02d}T0130"
        made = quarantine.update_quarantine(s, failed(night=night), TODAY)
        days.append((date.fromisoformat(made.quarantined_until) - TODAY) // timedelta(days=1))
        history(s, (night, "failed", made.quarantined_until))
        history(s, (f"{night[:-4]}0900", "skipped", ""))  # nights that asked it nothing
        history(s, (f"{night[:-4]}1000", "failed", ""))  # the hub was down: counts neither way
    assert days == [1, 2, 4, 8, 14, 14]
    history(s, ("2026-11-10T0130", "published", ""))
    assert (
        quarantine.update_quarantine(s, failed(night="2026-11-11T0130"), TODAY).quarantined_until
        == "2026-11-22"
    )


def test_success_brings_it_back_unless_its_other_suite_failed_tonight(tmp_path: Path) -> None:
    s = settings(tmp_path)
    good = JobOutcome("m", "people", "published", run_id="m-1", night=NIGHT)
    entry(tmp_path, "m", state="quarantined", reason="hung", until="2026-11-21")
    history(s, (NIGHT, "failed", "2026-11-22"))
    quarantine.update_quarantine(s, good, TODAY)
    assert entries.load(tmp_path, "m").state == "quarantined"
    history(s, (NIGHT, "unchanged", ""))
    quarantine.update_quarantine(s, good, TODAY)
    assert (entries.load(tmp_path, "m").state, entries.load(tmp_path, "m").reason) == (
        "enabled",
        "",
    )


def test_states_that_a_person_chose_stay(tmp_path: Path) -> None:
    s = settings(tmp_path)
    entry(tmp_path, "m", state="candidate", reason="look at it")
    assert quarantine.update_quarantine(s, failed(), TODAY).quarantined_until == ""
    entry(tmp_path, "m", state="quarantined", reason="until I say so")
    for outcome in (failed(), JobOutcome("m", "sdg", "published", night=NIGHT)):
        quarantine.update_quarantine(s, outcome, TODAY)
        assert (entries.load(tmp_path, "m").state, entries.load(tmp_path, "m").until) == (
            "quarantined",
            "",
        )


def test_an_entry_that_was_edited_into_garbage_is_told_and_left(tmp_path: Path) -> None:
    s = settings(tmp_path, "m")
    entry(tmp_path, "m").write_text("name: [")
    made = quarantine.update_quarantine(s, failed(), TODAY)
    assert made.quarantined_until == "" and made.message.startswith(
        "no token for A; its state can't be changed:"
    )
    assert entry(tmp_path, "other").parent.joinpath("m.yaml").read_text() == "name: ["
