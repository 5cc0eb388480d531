"""Tries the candidates that the watch registered, where the rules say so: weights are fetched, and
each model is asked a few questions in a process of its own; with `enable: when_admitted`, one that
passes is evaluated from tonight on. All within the minutes of one look; the others wait for the
next."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sdgbias.errors import (
    EnginesDisagree,
    InfrastructureError,
    ModelError,
    RegistryError,
    SdgbiasError,
)
from sdgbias.nightly import process
from sdgbias.nightly.attempt import CLI
from sdgbias.registry import changes, entries, fetch, hub, propose, seen, watch
from sdgbias.types import CANDIDATE

ADMITTED, NOT_ADMITTED, WAITING = "admitted", "not admitted", "waiting"
_TRIED = (watch.NEW_COMMIT, watch.NEW_REPOSITORY, WAITING)


@dataclass(frozen=True)
class Tried:
    """What came of one candidate: ADMITTED, NOT_ADMITTED (kept with its reason, asked again when a
    library changes), or WAITING for the next look. enabled: whether it is evaluated tonight."""

    name: str
    verdict: str
    why: str
    enabled: bool = False

    def line(self) -> str:
        return f"{self.verdict:15} {self.name}: {self.why}"


def admit(
    root: Path,
    rules: watch.Rules,
    here: propose.Host,
    ask: Callable[[str, int, bool, float], tuple[bool | None, str]] | None = None,
) -> list[Tried]:
    """Tries what the ledger has as new or waiting and, after an upgrade, as not admitted; [] where
    the rules have no `probe`. ask(name, questions, enable, seconds): whether it passes, and why
    not, None where it could not be asked; default: `sdgbias models enable` in a process. Raises
    RegistryError, and what fetch.fetch raises."""
    if rules.probe is None:
        return []
    end, ledger = time.monotonic() + 60 * rules.probe.minutes, seen.read(root)
    done = []
    for repo, row in sorted(ledger.items(), key=lambda pair: (pair[1].first_seen, pair[0])):
        if not _due(root, row, here.versions):
            continue
        found = _try(root, rules.probe, row.name, rules.enable, end, ask or _ask)
        done.append(found)
        versions = dict(here.versions)
        ledger[repo] = replace(row, verdict=found.verdict, why=found.why, versions=versions)
        seen.write(root, ledger)  # one by one: a look that is killed asks no model twice
    return done


def next_tried(root: Path, rules: watch.Rules) -> list[str]:
    """The candidates that the next look would ask, but for those that it asks again after an
    upgrade; nothing is written. Raises RegistryError."""
    if rules.probe is None:
        return []
    return sorted(row.name for row in seen.read(root).values() if _due(root, row, row.versions))


def _due(root: Path, row: seen.Seen, versions: Mapping[str, str]) -> bool:
    again = row.verdict == NOT_ADMITTED and row.versions != versions
    if not row.ready or not (row.verdict in _TRIED or again):
        return False
    try:
        return entries.load(root, row.name).state == CANDIDATE
    except RegistryError:
        return False  # removed or renamed by a person


def _try(
    root: Path,
    probe: watch.Probe,
    name: str,
    enable: str,
    end: float,
    ask: Callable[[str, int, bool, float], tuple[bool | None, str]],
) -> Tried:
    if end - time.monotonic() <= 0:
        return Tried(name, WAITING, f"the {probe.minutes:g} minutes of this look are spent")
    spec = entries.load(root, name)
    try:
        fetch.fetch(spec, lambda line: None)
    except SdgbiasError as error:
        if hub.ends_all(error):
            raise
        return Tried(name, WAITING, str(error))
    left = end - time.monotonic()
    if left <= 0:
        return Tried(name, WAITING, "fetched; no time was left to ask it")
    passed, why = ask(name, probe.questions, enable != "", left)
    if passed is None:
        return Tried(name, WAITING, why)
    if not passed:
        if entries.load(root, name).state == CANDIDATE:
            changes.set_state(root, name, CANDIDATE, reason=f"not admitted: {why}")
        return Tried(name, NOT_ADMITTED, why)
    told = "enabled: evaluated from tonight on" if enable else f"sdgbias models enable {name}"
    return Tried(name, ADMITTED, told, enable != "")


def _ask(name: str, questions: int, enable: bool, seconds: float) -> tuple[bool | None, str]:
    """Puts the questions in a process, which is killed when its time is up."""
    command = [*CLI, "models", "enable", name, "--probes", str(questions)]
    try:
        code, _, why = process.run_captured([*command, *([] if enable else ["--dry-run"])], seconds)
    except subprocess.TimeoutExpired:
        return False, f"its questions took longer than the {seconds / 60:.0f} minutes left"
    if code == 0:
        return True, ""
    # anything else is a fault of the project, not of the model
    verdicts = (ModelError.exit_code, EnginesDisagree.exit_code, InfrastructureError.exit_code)
    return False if code in verdicts else None, why
