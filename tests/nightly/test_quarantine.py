"""Who is put aside, for how long, and who comes back."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.nightly import quarantine
from sdgbias.nightly.attempt import FAILURES, JobOutcome
from sdgbias.nightly.night_options import NightOptions
from sdgbias.registry import entries
from tests.builders.night_stubs import NIGHT, entry, settings

TODAY = date(2026, 11, 21)
#: Trouble of the results file, the network, a token, the benchmark, or the night's settings.
NOT_ITS_OWN = {"Busy", "DiskFull", "StoreError", "HubUnreachable", "ExpiredToken", "KeyRefused"}
NOT_ITS_OWN |= {"Interrupted", "NoWorker", "OutOfTime", "Cancelled", "InputError", "UsageError"}
NOT_ITS_OWN |= {"EndpointUnavailable"}


def failed(s: NightOptions, kind: str = "ModelError", night: str = NIGHT) -> JobOutcome:
    outcome = JobOutcome("m", "sdg", "failed", kind=kind, message="no token for A", night=night)
    return quarantine.update_quarantine(s, outcome, TODAY)


def published(s: NightOptions) -> JobOutcome:
    good = JobOutcome("m", "people", "published", run_id="m-1", night=NIGHT)
    return quarantine.update_quarantine(s, good, TODAY)


def state(root: Path) -> tuple[str, str, str]:
    spec = entries.load(root, "m")
    return spec.state, spec.reason, spec.until


def history(s: NightOptions, *rows: tuple[str, str, str]) -> None:
    """(night, outcome, quarantined until) of model m."""
    frame = pd.DataFrame(rows, columns=["night", "outcome", "quarantined_until"])
    store.upsert(s.results, {"night_outcomes": frame.assign(model="m", suite="sdg")})


def test_given_a_failure_then_a_model_whose_own_it_is_is_put_aside_until_tomorrow(
    tmp_path: Path,
) -> None:
    s = settings(tmp_path, "m")
    for kind in NOT_ITS_OWN:
        assert failed(s, kind).quarantined_until == "" and state(tmp_path)[0] == "enabled"
    for kind in ("InfrastructureError", *FAILURES.keys() - NOT_ITS_OWN):
        assert failed(s, kind).quarantined_until == "2026-11-22"
        assert state(tmp_path) == ("quarantined", f"{kind}: no token for A", "2026-11-22")


def test_given_failed_nights_in_a_row_then_its_time_grows(tmp_path: Path) -> None:
    s, days = settings(tmp_path, "m"), []
    for n in range(6):
        night = f"2026-11-{n + 1:02d}T0130"
        until = failed(s, night=night).quarantined_until
        days.append((date.fromisoformat(until) - TODAY) // timedelta(days=1))
        # nights that did not ask it, or while the hub was down, count neither way
        others = (f"{night[:-4]}0900", "skipped", ""), (f"{night[:-4]}1000", "failed", "")
        history(s, (night, "failed", until), *others)
    assert days == [1, 2, 4, 8, 14, 14]
    history(s, ("2026-11-10T0130", "published", ""))
    assert failed(s, night="2026-11-11T0130").quarantined_until == "2026-11-22"


def test_given_success_then_it_comes_back_unless_its_other_suite_failed_tonight(
    tmp_path: Path,
) -> None:
    s = settings(tmp_path)
    entry(tmp_path, "m", state="quarantined", reason="hung", until="2026-11-21")
    for other, ended in (("failed", "quarantined"), ("unchanged", "enabled")):
        history(s, (NIGHT, other, "2026-11-22"))
        published(s)
        assert state(tmp_path)[0] == ended
    assert state(tmp_path) == ("enabled", "", "")


@pytest.mark.parametrize("chosen", ["candidate", "quarantined"])
def test_given_a_state_that_a_person_chose_then_it_stays(tmp_path: Path, chosen: str) -> None:
    s = settings(tmp_path)
    entry(tmp_path, "m", state=chosen, reason="until I say so")
    assert failed(s).quarantined_until == published(s).quarantined_until == ""
    assert state(tmp_path) == (chosen, "until I say so", "")


def test_given_an_entry_that_was_edited_into_garbage_then_the_message_says_so(
    tmp_path: Path,
) -> None:
    s = settings(tmp_path)
    path = entry(tmp_path, "m")
    path.write_text("name: [")
    outcome = failed(s)
    assert outcome.quarantined_until == "" and path.read_text() == "name: ["
    assert outcome.message.startswith("no token for A; its state can't be changed:")
