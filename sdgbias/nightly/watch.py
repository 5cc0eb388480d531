"""The watch: releases on the hub become candidates by the rules of registry/watch.yaml; with
`probe` they are fetched and asked a few questions, and with `enable: when_admitted` those that pass
are evaluated from tonight on.

The registry holds what was registered, and registry/seen.json what came of each repository: it is
announced once, and a refused one is examined again when it or a library that decides changed. An
entry never changes in place. watch.schema.json describes the rules.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter

from sdgbias import files, formats
from sdgbias.errors import Gated, InfrastructureError, RegistryError, SdgbiasError, UsageError
from sdgbias.formats import STRICT, Count, Day, Flag, Positive, Text
from sdgbias.nightly import notify, process
from sdgbias.nightly.attempt import CLI
from sdgbias.registry import entries, fetch, hub, propose
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import admission
from sdgbias.types import CANDIDATE, ENABLED, QUARANTINED, RETIRED

#: What came of a repository: no candidate; no answer; a candidate that can't be tried here, that
#: the next look tries, that passed, that didn't.
REFUSED, TROUBLE = "refused", "trouble"
NOT_HERE, WAITING, ADMITTED, NOT_ADMITTED = "not here", "waiting", "admitted", "not admitted"
LEDGER = Path("registry") / "seen.json"
#: Kinds of failure that judge the model; others are faults of the project.
_ON_THE_MODEL = ("ModelError", "EnginesDisagree", "InfrastructureError")


def _suites(names: tuple[str, ...]) -> tuple[str, ...]:
    for fault in filter(None, map(entries.suite_fault, names)):
        raise ValueError(fault)
    return names


@dataclass(frozen=True)
class Owner:
    """An owner whose new repositories become candidates, and the conditions on them. Empty or null:
    no condition."""

    __pydantic_config__ = STRICT
    owner: Annotated[str, Field(pattern="^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    """An account of the hub, such as llava-hf."""
    pipelines: tuple[Text, ...] = ("image-text-to-text",)
    """Pipeline tags, one of which the repository has."""
    max_params_b: Positive | None = None
    """At most so many billion parameters, by the hub's count of its safetensors."""
    licences: tuple[Text, ...] = ()
    """Licences, one of which its card names; empty: any."""
    match: re.Pattern[str] = re.compile("")
    """A regular expression that the whole name (without the owner) has to match; empty: any."""
    newer_than: Day = ""
    """Created after this day, such as 2026-01-31; empty: any."""
    suites: Annotated[tuple[Text, ...], AfterValidator(_suites)] = ()
    """The suites that the nightly scores; empty: the default."""
    gpu: str = ""
    """GPU kind of the work pool that would run it; empty: cpu."""

    def listed(self, pipeline: str) -> list[hub.ModelFacts]:
        """The repositories that the hub lists. Errors: as hub.listed."""
        return hub.listed(pipeline, self.owner)

    def admits(self, one: hub.ModelFacts) -> bool:
        """Whether a repository meets every condition. A value missing on the hub doesn't meet its
        condition."""
        name = one.repo.split("/")[-1]
        return (
            (self.max_params_b is None or 0 < one.params <= self.max_params_b * 1e9)
            and (not self.licences or not {*one.licence.split(", ")}.isdisjoint(self.licences))
            and (not self.match.pattern or self.match.fullmatch(name) is not None)
            and (not self.newer_than or str(one.created or "") > self.newer_than)
        )


@dataclass(frozen=True)
class Everyone(Owner):
    """The first repositories of the hub's own list, of any account, and the conditions on them."""

    owner: Literal[""] = ""
    apps: tuple[Text, ...] = ("vllm",)
    """Software that the hub lists it for; empty: any."""
    sort: Literal["trending_score", "created_at"] = "trending_score"
    """Which come first."""
    limit: Count = 50
    """So many repositories are looked at."""

    def listed(self, pipeline: str) -> list[hub.ModelFacts]:
        return hub.listed(pipeline, "", self.apps, self.sort, self.limit)


@dataclass(frozen=True)
class Probe:
    """How new candidates that fit this machine are tried, and what a look may spend on that."""

    __pydantic_config__ = STRICT
    questions: Count = 200
    """Questions per model."""
    minutes: Positive = 20.0
    """Of a look, for all models together."""


@dataclass(frozen=True)
class Rules:
    """What `sdgbias models watch` looks for (registry/watch.yaml)."""

    __pydantic_config__ = STRICT
    commits: Flag = True
    """Look for new commits of the registered hub models."""
    skip: tuple[Text, ...] = ()
    """Names of entries that are not watched."""
    owners: tuple[Owner, ...] = ()
    """Accounts whose new repositories become candidates, each with `owner`."""
    everyone: tuple[Everyone, ...] = ()
    """Lists of the hub whose repositories become candidates, of any account."""
    probe: Probe | None = None
    """Fetch and try new candidates; null: only register them."""
    enable: Literal["", "when_admitted"] = ""
    """when_admitted: candidates that pass are enabled; empty: by hand."""


def read_rules(path: Path) -> Rules:
    """The rules of a YAML file. RegistryError names the file and the invalid value."""
    data = formats.load(path, RegistryError, "give the rules with --rules FILE")
    return formats.parse({} if data is None else data, Rules, path, RegistryError)


@dataclass(frozen=True)
class Release:
    """What came of a repository: a row of the ledger. why: as announced; name: the entry that was
    written (or would be), '' for none; first_seen: ISO date; versions: of the libraries that
    decide; news: whether this look found it out."""

    repo: str
    commit: str
    verdict: str
    why: str
    name: str = ""
    first_seen: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    news: Annotated[bool, Field(exclude=True)] = False

    def line(self) -> str:
        at = f"@{self.commit[:8]}" if self.commit else ""
        return f"{self.verdict:12} {self.repo}{at}: {self.why}"


_ROWS = TypeAdapter(list[Release])


def read_ledger(root: Path) -> dict[str, Release]:
    """Repository in lower case -> its row; {} before the first look. RegistryError for a file that
    isn't a ledger."""
    path = root / LEDGER
    if not path.exists():
        return {}
    onward = "remove it: everything is then announced once more"
    with files.understood(path, "not a ledger of the watch", onward, RegistryError):
        return {row.repo.lower(): row for row in _ROWS.validate_json(path.read_bytes())}


def write_ledger(root: Path, ledger: Mapping[str, Release]) -> None:
    """Replaces the ledger. RegistryError when it can't be written."""
    text = _ROWS.dump_json([ledger[repo] for repo in sorted(ledger)], indent=1).decode()
    onward = "make registry writable, then again"
    files.write_atomically(root / LEDGER, text + "\n", onward, RegistryError)


def look(
    root: Path, rules: Rules, here: propose.Host, dry_run: bool = False, today: date | None = None
) -> list[Release]:
    """What came of the repositories of entries, then of owners and lists as the rules have them.
    One without a new commit, and one refused before for the same commit and versions, is left out.
    today: of the ledger, default this day.

    HubUnreachable and ExpiredToken end it (they affect every repository); the refusal of a single
    repository doesn't. RegistryError: a broken entry.
    """
    releases: list[Release] = []
    ledger, day = read_ledger(root), (today or date.today()).isoformat()

    def examine(repo: str, commit: str, judge: Callable[[], Release | None]) -> None:
        try:
            one = judge()
        except (InfrastructureError, RegistryError) as error:
            if hub.ends_all(error):
                raise
            verdict = TROUBLE if isinstance(error, InfrastructureError) else REFUSED
            one = Release(repo, commit, verdict, str(error).removeprefix(f"{repo}: "))
        row = ledger.get(repo.lower())
        if one is None and row is not None and row.name and row.verdict == REFUSED:
            one = replace(row, verdict=WAITING, why="it can be read again")
        if one is not None:
            one = replace(one, name=one.name or (row.name if row else ""))
            first, news = row.first_seen if row else day, row is None or row.why != one.why
            one = replace(one, first_seen=first, versions=dict(here.versions), news=news)
            releases.append(one)
            # a repository that doesn't answer today keeps its candidate's row, which is tried later
            if one.verdict != TROUBLE or row is None or not row.name:
                ledger[repo.lower()] = one

    registered = entries.load_all(root).values()
    examined = {spec.repo.lower() for spec in registered}
    try:
        for repo, specs in _watched(registered, rules).items():
            examine(repo, "", partial(_commit, root, specs, here, dry_run, examined))
        for rule in (*rules.owners, *rules.everyone):
            for listed in (one for tag in rule.pipelines for one in rule.listed(tag)):
                repo, row = listed.repo.lower(), ledger.get(listed.repo.lower())
                refusal = (REFUSED, listed.commit, here.versions)
                refused = row is not None and (row.verdict, row.commit, row.versions) == refusal
                if repo not in examined and not refused and rule.admits(listed):
                    examined.add(repo)
                    judge = partial(_repository, root, listed, rule, here, dry_run)
                    examine(listed.repo, listed.commit, judge)
    finally:
        if not dry_run:
            write_ledger(root, ledger)
    return releases


def _watched(registered: Iterable[ModelSpec], rules: Rules) -> dict[str, list[ModelSpec]]:
    """Hub repository -> its pinned entries, first the one whose settings a new commit inherits. A
    repository whose entries are all retired isn't watched."""
    order = (ENABLED, QUARANTINED, CANDIDATE, RETIRED)
    by_repo: dict[str, list[ModelSpec]] = {}
    for spec in sorted(registered, key=lambda s: (order.index(s.state), len(s.name), s.name)):
        pinned = entries.HUB_ID.fullmatch(spec.repo) and entries.COMMIT.fullmatch(spec.revision)
        if rules.commits and pinned and spec.name not in rules.skip:
            by_repo.setdefault(spec.repo, []).append(spec)
    return {repo: by_repo[repo] for repo in sorted(by_repo) if by_repo[repo][0].state != RETIRED}


def _commit(
    root: Path, specs: list[ModelSpec], here: propose.Host, dry_run: bool, examined: set[str]
) -> Release | None:
    """A commit that no entry of its repository has, if it can change a score. A repository that was
    renamed is ``examined`` under its name of today, too."""
    base, head = specs[0], hub.commit(specs[0].repo)
    examined.add(head.now.lower())
    if any(spec.revision == head.commit for spec in specs):
        return None
    with suppress(hub.NoRevision):  # a forced push: there is nothing to compare with
        if head.that_matter() == hub.commit(base.repo, base.revision).that_matter():
            return None
    short = head.commit[:8]
    name, title = f"{base.name}-{short}", f"{base.title} ({short})"
    wanted = propose.Request(name, title, revision=head.commit)
    proposal = propose.propose(base.repo, root, here, wanted, base)
    return _register(root, proposal, f"new commit of {base.name}", "", dry_run)


def _repository(
    root: Path, listed: hub.ModelFacts, rule: Owner, here: propose.Host, dry_run: bool
) -> Release:
    """A repository of which there is no entry."""
    account = listed.repo.split("/")[0]
    size = f"{listed.params / 1e9:.3g} billion parameters" if listed.params else "size unknown"
    access = "gated" if listed.gated else "not gated"
    facts = f"{size}, {listed.licence or 'licence not stated'}, {access}"
    wanted = propose.Request(suites=rule.suites, gpu=rule.gpu)
    try:
        proposal = propose.propose(listed.repo, root, here, wanted)
        if proposal.spec.name in entries.load_all(root):
            wanted = replace(wanted, name=f"{account.lower()}-{proposal.spec.name}")
            proposal = propose.propose(listed.repo, root, here, wanted)
    except Gated as error:  # a person decides by the facts whether to accept its conditions
        raise Gated(f"{error} ({facts})") from None
    fit = f"{proposal.devices} x {proposal.gib:.0f} GiB" if proposal.gib else "memory unknown"
    facts = f" ({proposal.spec.family}, {facts}, {fit})"
    return _register(root, proposal, f"new repository of {account}", facts, dry_run)


def _register(
    root: Path, proposal: propose.Proposal, origin: str, facts: str, dry_run: bool
) -> Release:
    spec = replace(proposal.spec, reason=f"{origin}; {proposal.spec.reason}")
    if not dry_run:
        entries.write(root, spec)
    verdict = NOT_HERE if proposal.obstacle else WAITING
    why = f"candidate {spec.name}: {spec.reason}{facts}"
    return Release(spec.repo, spec.revision, verdict, why, spec.name)


def try_candidates(root: Path, rules: Rules, versions: Mapping[str, str]) -> list[Release]:
    """Fetches and asks what waits and, after an upgrade (of the libraries of these versions), what
    was not admitted; [] where the rules have no `probe`. What the minutes of a look don't suffice
    for waits for the next. Raises RegistryError."""
    end = time.monotonic() + (60 * rules.probe.minutes if rules.probe else -1)
    tried, ledger, registered = [], read_ledger(root), entries.load_all(root)
    for repo, row in sorted(ledger.items(), key=lambda pair: (pair[1].first_seen, pair[0])):
        due = row.verdict == WAITING or (row.verdict == NOT_ADMITTED and row.versions != versions)
        spec = registered.get(row.name)  # None: removed or renamed by a person
        if not due or spec is None or spec.state != CANDIDATE or time.monotonic() >= end:
            continue
        try:
            fetch.fetch(spec, lambda line: None)
            verdict, why = ask(spec.name, rules)
        except SdgbiasError as error:
            verdict, why = WAITING, str(error)
        if verdict == NOT_ADMITTED and entries.load(root, spec.name).state == CANDIDATE:
            entries.set_state(root, spec.name, CANDIDATE, reason=f"not admitted: {why}")
        why = f"{spec.name}: {why}"
        one = replace(row, verdict=verdict, why=why, versions=versions, news=why != row.why)
        ledger[repo] = one
        tried.append(one)
        write_ledger(root, ledger)  # one by one: a look that is killed asks no model twice
    return tried


def ask(name: str, rules: Rules) -> tuple[str, str]:
    """(ADMITTED, NOT_ADMITTED or WAITING, why) of a candidate: runs `sdgbias models enable` in a
    process, which is ended when its time is up."""
    assert rules.probe is not None
    command = [*CLI, "models", "enable", name, "--probes", str(rules.probe.questions)]
    command += [] if rules.enable else ["--dry-run"]
    with tempfile.TemporaryDirectory() as folder:
        end = process.run(command, Path(folder, "log"), 60 * rules.probe.minutes)
    if end.kind == process.TIMED_OUT:
        return NOT_ADMITTED, f"its questions took longer than {rules.probe.minutes:g} minutes"
    if not end.kind:
        enabled = "enabled: evaluated from tonight on"
        return ADMITTED, enabled if rules.enable else f"sdgbias models enable {name}"
    # of its entry: RegistryError, as of a project whose registry is broken
    refused = end.kind in _ON_THE_MODEL or end.message.startswith(f"{name} is not enabled: ")
    return NOT_ADMITTED if refused else WAITING, end.message


def run(
    file: Path | None, variable: str, dry_run: bool, show: Callable[[list[Release]], None]
) -> None:
    """One look by the rules of a file (None: registry/watch.yaml), with its trials. ``show`` gets
    what came of it; then the news are sent to the address in this environment variable ('': to
    nobody). Raises UsageError (the variable isn't set), what `look` and `try_candidates` raise,
    and InfrastructureError: a repository didn't answer, or the news could not be sent."""
    address = os.environ.get(variable, "") if variable else ""
    if variable and not address:
        raise UsageError(f"--webhook-env {variable}: not set; export it: the address is secret")
    root = entries.find_root()
    rules, here = read_rules(file or root / "registry" / "watch.yaml"), admission.here(root)
    releases = look(root, rules, here, dry_run)
    tried = [] if dry_run else try_candidates(root, rules, here.versions)
    show(releases + tried)
    lines = [one.line() for one in releases + tried if one.news]
    to_send = "\n".join(["New on the hub:", *lines]) if lines and address and not dry_run else ""
    if to_send and (why := notify.post(address, to_send)[1]):
        raise InfrastructureError(f"the news could not be sent: {why}; they are printed above")
    if failed := ", ".join(one.repo for one in releases if one.verdict == TROUBLE):
        raise InfrastructureError(f"can't be read: {failed}; later again: sdgbias models watch")
