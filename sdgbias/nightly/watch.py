"""The watch: releases on the hub become candidates by the rules of registry/watch.yaml; with
`probe` they are fetched and asked a few questions, and with `enable: when_admitted` those that pass
are evaluated from tonight on.

The registry holds what was registered, and registry/seen.json what came of each repository that was
looked into: a refusal is announced once, and looked into again when the repository or a library
that decides changed. An entry never changes in place; one whose commit is gone (force-pushed, or
the repository withdrawn) is quarantined.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from sdgbias import files
from sdgbias.errors import (
    EnginesDisagree,
    InfrastructureError,
    ModelError,
    RegistryError,
    SdgbiasError,
)
from sdgbias.nightly import process
from sdgbias.nightly.attempt import CLI
from sdgbias.nightly.watch_rules import Owner, Rules
from sdgbias.registry import changes, entries, fetch, hub, machine, propose
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import CANDIDATE, ENABLED, QUARANTINED, RETIRED

NEW_COMMIT, NEW_REPOSITORY, GONE, SAME = "new commit", "new repository", "gone", "same"
REFUSED, TROUBLE = "refused", "trouble"
#: What came of a candidate; one that waits is tried by the next look.
ADMITTED, NOT_ADMITTED, WAITING = "admitted", "not admitted", "waiting"
LEDGER = Path("registry") / "seen.json"
_SHORT = 8
#: (name, questions, whether to enable it, seconds) -> whether it passes, and why not; None where it
#: could not be asked.
Ask = Callable[[str, int, bool, float], tuple[bool | None, str]]

# ----------------------------------------------------------------------
# findings and their memory


@dataclass(frozen=True)
class Finding:
    """One finding. name: the entry that was written (or would be) or is concerned, '' when none;
    repo: '' where the finding is what came of trying an entry; written: whether a file was; news:
    whether it wasn't announced before; ready: whether a new candidate can be tried here."""

    kind: str
    repo: str
    revision: str
    name: str
    text: str
    written: bool = False
    news: bool = True
    ready: bool = False

    def line(self) -> str:
        at = f"@{self.revision[:_SHORT]}" if self.revision else ""
        return f"{self.kind:15} {self.repo or self.name}{at}: {self.text}"


@dataclass(frozen=True)
class Seen:
    """A row of the ledger. verdict: the kind of the last finding; why: its reason, as announced;
    versions: of the libraries that it depends on; name: the entry that was written, '' for none."""

    repo: str
    commit: str
    first_seen: str
    verdict: str
    why: str
    versions: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


def read_ledger(root: Path) -> dict[str, Seen]:
    """Repository in lower case -> its row; {} before the first look. RegistryError for a file that
    isn't a ledger."""
    path = root / LEDGER
    if not path.exists():
        return {}
    onward = "remove it: everything is then announced once more"
    with files.understood(path, "not a ledger of the watch", onward, RegistryError):
        rows = TypeAdapter(list[Seen]).validate_json(path.read_bytes())
    return {row.repo.lower(): row for row in rows}


def write_ledger(root: Path, rows: Mapping[str, Seen]) -> None:
    """Replaces the ledger. RegistryError when it can't be written."""
    text = json.dumps([asdict(rows[repo]) for repo in sorted(rows)], indent=1, ensure_ascii=False)
    onward = "make registry writable, then again"
    files.write_atomically(root / LEDGER, text + "\n", onward, RegistryError)


# ----------------------------------------------------------------------
# looking


def look(
    root: Path, rules: Rules, here: propose.Host, dry_run: bool = False, today: date | None = None
) -> list[Finding]:
    """All findings, in the order of the checks: entries by repository, then owners and lists as the
    rules have them; what was refused before for the same commit and versions is left out. today: of
    the ledger, default this day.

    HubUnreachable and ExpiredToken end it (they affect every repository); the refusal of a single
    repository is a finding, and the others continue. RegistryError: a broken entry.
    """
    findings: list[Finding] = []
    ledger, day = read_ledger(root), (today or date.today()).isoformat()

    def note(one: Finding, commit: str) -> None:
        row = ledger.get(one.repo.lower())
        again = (row is not None and row.why == one.text) or one.kind == SAME
        announced = again or (one.kind == GONE and not one.written and not dry_run)
        findings.append(replace(one, news=not announced))
        # a repository that doesn't answer today keeps its candidate's row, which is tried later
        if one.kind != SAME and not (one.kind == TROUBLE and row is not None and row.name):
            first, at = row.first_seen if row else day, one.revision or commit
            verdict = WAITING if one.ready else one.kind
            seen = Seen(one.repo, at, first, verdict, one.text, dict(here.versions), one.name)
            ledger[one.repo.lower()] = seen

    try:
        watched = _watched(entries.load_all(root).values(), rules.skip) if rules.commits else {}
        for repo, specs in watched.items():
            for one in _or_why(repo, partial(_commits, root, specs, here, dry_run)):
                note(one, "")
        for owner in (*rules.owners, *rules.everyone):
            registered = {spec.repo.lower() for spec in entries.load_all(root).values()}
            registered |= {one.repo.lower() for one in findings}  # by an earlier rule
            for listed in {one.repo: one for one in owner.listed()}.values():
                row = ledger.get(listed.repo.lower())
                refused = (REFUSED, listed.commit, here.versions)
                before = row is not None and (row.verdict, row.commit, row.versions) == refused
                if listed.repo.lower() not in registered and not before and owner.admits(listed):
                    new = partial(_repository, root, listed, owner, here, dry_run)
                    for one in _or_why(listed.repo, new):
                        note(one if one.name else _described(one, listed, here), listed.commit)
    finally:
        if not dry_run:
            write_ledger(root, ledger)
    return findings


def _or_why(repo: str, look_into: Callable[[], list[Finding]]) -> list[Finding]:
    """The findings in one repository, or the reason why it can't be read."""
    try:
        return look_into()
    except (InfrastructureError, RegistryError) as error:
        if hub.ends_all(error):
            raise
        kind = TROUBLE if isinstance(error, InfrastructureError) else REFUSED
        return [Finding(kind, repo, "", "", str(error).removeprefix(f"{repo}: "))]


def _watched(specs: Iterable[ModelSpec], skip: tuple[str, ...]) -> dict[str, list[ModelSpec]]:
    """Hub repository -> its pinned entries, first the one whose settings a new commit inherits. A
    repository whose entries are all retired isn't watched."""
    order = (ENABLED, QUARANTINED, CANDIDATE, RETIRED)
    by_repo: dict[str, list[ModelSpec]] = {}
    for spec in sorted(specs, key=lambda s: (s.repo, order.index(s.state), len(s.name), s.name)):
        pinned = entries.HUB_ID.fullmatch(spec.repo) and entries.COMMIT.fullmatch(spec.revision)
        if pinned and spec.name not in skip:
            by_repo.setdefault(spec.repo, []).append(spec)
    return {repo: specs for repo, specs in by_repo.items() if specs[0].state != RETIRED}


def _commits(
    root: Path, specs: list[ModelSpec], here: propose.Host, dry_run: bool
) -> list[Finding]:
    base, repo, findings = specs[0], specs[0].repo, []
    gone = _gone(repo, [spec for spec in specs if spec.state != RETIRED])
    for spec in (spec for spec in specs if spec.name in gone):
        state = CANDIDATE if spec.state == CANDIDATE else QUARANTINED
        new = spec.reason != gone[spec.name]
        if new and not dry_run:
            changes.set_state(root, spec.name, state, reason=gone[spec.name])
        text = f"{gone[spec.name]}; {spec.name} is {'now' if new else 'still'} {state}"
        findings.append(Finding(GONE, repo, spec.revision, spec.name, text, new and not dry_run))
    try:
        head = hub.commit(repo)
    except hub.NoRepository:
        return findings
    same = partial(Finding, SAME, repo, head.commit, "")
    if any(spec.revision == head.commit for spec in specs):
        return findings or [same("the newest commit is registered")]
    at_base = None if base.name in gone else hub.commit(repo, base.revision).that_matter()
    if head.that_matter() == at_base:
        return [*findings, same(f"weights and settings are those of {base.name}")]
    short = head.commit[:_SHORT]
    named = (f"{base.name}-{short}", f"{base.title} ({short})")
    wanted = propose.Request(*named, revision=head.commit)
    proposal = propose.propose(repo, root, here, wanted, base)
    return [*findings, _register(root, proposal, NEW_COMMIT, base.name, dry_run)]


def _gone(repo: str, specs: list[ModelSpec]) -> dict[str, str]:
    """Entry -> why its commit is no longer available."""
    reasons = {}
    for spec in specs:
        try:
            hub.commit(repo, spec.revision)
        except hub.NoRevision:
            at = spec.revision[:_SHORT]
            reasons[spec.name] = f"commit {at} is no longer on the hub (force-pushed?)"
        except hub.NoRepository:
            reasons[spec.name] = (
                f"{repo} is no longer on the hub, or no longer shown to this account"
            )
    return reasons


def _repository(
    root: Path, listed: hub.ModelFacts, owner: Owner, here: propose.Host, dry_run: bool
) -> list[Finding]:
    account = listed.repo.split("/")[0]
    wanted = propose.Request(suites=owner.suites, gpu=owner.gpu)
    proposal = propose.propose(listed.repo, root, here, wanted)
    if proposal.spec.name in entries.load_all(root):
        wanted = replace(wanted, name=f"{account.lower()}-{proposal.spec.name}")
        proposal = propose.propose(listed.repo, root, here, wanted)
    fit = f"{proposal.devices} x {proposal.gib:.0f} GiB" if proposal.gib else "memory unknown"
    facts = f"{proposal.spec.family}, {_facts(listed, proposal.spec.params_b)}, {fit}"
    return [_register(root, proposal, NEW_REPOSITORY, account, dry_run, f" ({facts})")]


def _register(
    root: Path,
    proposal: propose.Proposal,
    kind: str,
    base: str,
    dry_run: bool,
    facts: str = "",
) -> Finding:
    name = proposal.spec.name
    onward = proposal.obstacle or f"not checked yet: sdgbias models enable {name}"
    spec = replace(proposal.spec, reason=f"{kind} of {base}; {onward}")
    if not dry_run:
        changes.write(root, spec)
    text = f"candidate {name}: {spec.reason}{facts}"
    at = (spec.repo, spec.revision, name)
    return Finding(kind, *at, text, not dry_run, ready=not proposal.obstacle)


def _described(one: Finding, listed: hub.ModelFacts, here: propose.Host) -> Finding:
    """A gated repository that can't be read, with what the hub's list shows of it to everybody: a
    person decides by that whether to accept its conditions."""
    if not listed.gated or not listed.params:
        return one
    weights = machine.weights_gib(listed.params, "bfloat16")
    devices = machine.devices_for(weights, here.machine)
    each = f"{devices} x {machine.need(weights, devices or 1):.0f} GiB"
    fit = each if devices else "too large for this machine"
    params_b = float(f"{listed.params / 1e9:.3g}")
    facts = f"{_facts(listed, params_b)}, {fit} in bfloat16"
    return replace(one, text=f"{one.text} ({facts})")


def _facts(listed: hub.ModelFacts, params_b: float | None) -> str:
    size = f"{params_b:g} billion parameters" if params_b else "size unknown"
    access = "gated" if listed.gated else "not gated"
    return f"{size}, {listed.licence or 'licence not stated'}, {access}"


# ----------------------------------------------------------------------
# trying


def _ask(name: str, questions: int, enable: bool, seconds: float) -> tuple[bool | None, str]:
    """`sdgbias models enable` in a process, which is ended when its time is up."""
    command = [*CLI, "models", "enable", name, "--probes", str(questions)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        ended = process.run([*command, *([] if enable else ["--dry-run"])], log, seconds)
        code, why = ended.code, process.last_error(log)
    if ended.timed_out:
        return False, f"its questions took longer than the {seconds / 60:.0f} minutes left"
    # what is no verdict on the model is a fault of the project
    verdicts = (ModelError.exit_code, EnginesDisagree.exit_code, InfrastructureError.exit_code)
    return (True, "") if code == 0 else (False if code in verdicts else None, why)


def try_candidates(
    root: Path, rules: Rules, versions: Mapping[str, str], ask: Ask = _ask
) -> list[Finding]:
    """Fetches and asks what waits and, after an upgrade (of the libraries of these versions), what
    was not admitted; [] where the rules have no `probe`. What the minutes of a look don't suffice
    for waits for the next. Raises RegistryError, and what fetch.fetch raises."""
    if rules.probe is None:
        return []
    end, ledger, findings = time.monotonic() + 60 * rules.probe.minutes, read_ledger(root), []
    for repo, row in sorted(ledger.items(), key=lambda pair: (pair[1].first_seen, pair[0])):
        if _is_due(root, row, versions):
            verdict, why = _try(root, rules, row.name, end, ask)
            findings.append(Finding(verdict, "", "", row.name, why))
            ledger[repo] = replace(row, verdict=verdict, why=why, versions=dict(versions))
            write_ledger(root, ledger)  # one by one: a look that is killed asks no model twice
    return findings


def _is_due(root: Path, row: Seen, versions: Mapping[str, str]) -> bool:
    upgraded = row.verdict == NOT_ADMITTED and row.versions != versions
    try:
        state = entries.load(root, row.name).state if upgraded or row.verdict == WAITING else ""
    except RegistryError:  # removed or renamed by a person
        return False
    return state == CANDIDATE


def _try(root: Path, rules: Rules, name: str, end: float, ask: Ask) -> tuple[str, str]:
    """(what came of a candidate, why)."""
    assert rules.probe is not None
    if end <= time.monotonic():
        return WAITING, f"the {rules.probe.minutes:g} minutes of this look are spent"
    try:
        fetch.fetch(entries.load(root, name), lambda line: None)
    except SdgbiasError as error:
        if hub.ends_all(error):
            raise
        return WAITING, str(error)
    left = end - time.monotonic()
    if left <= 0:
        return WAITING, "fetched; no time was left to ask it"
    passed, why = ask(name, rules.probe.questions, rules.enable != "", left)
    if passed:
        enabled = f"sdgbias models enable {name}"
        return ADMITTED, "enabled: evaluated from tonight on" if rules.enable else enabled
    if passed is not None and entries.load(root, name).state == CANDIDATE:
        changes.set_state(root, name, CANDIDATE, reason=f"not admitted: {why}")
    return WAITING if passed is None else NOT_ADMITTED, why
