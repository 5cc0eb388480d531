"""Finds new releases on the hub: commits of registered models, and repositories of watched owners.
Both become candidates, by rule.

The registry records what was registered, and a ledger (seen.py) everything else that was looked at:
a refusal is announced once, and looked into again when the repository or a library that decides
changed. An entry never changes in place; a model whose registered commit is gone (force-pushed, or
the repository withdrawn) is quarantined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sdgbias import formats
from sdgbias.errors import InfrastructureError, RegistryError
from sdgbias.formats import STRICT, Count, Day, Flag, Positive, Text
from sdgbias.registry import changes, hub, machine, propose, seen
from sdgbias.registry import entries as registry
from sdgbias.types import CANDIDATE, ENABLED, QUARANTINED, RETIRED, ModelSpec

NEW_COMMIT, NEW_REPOSITORY, GONE, SAME = "new commit", "new repository", "gone", "same"
REFUSED, TROUBLE, OUTSIDE = "refused", "trouble", "outside the rules"
_SHORT = 8


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        fault = f"{text!r} is no regular expression ({error})"
        raise ValueError(f"{fault}; valid: such as 'llava-.*-hf'") from None
    return text


def _suites(names: tuple[str, ...]) -> tuple[str, ...]:
    for fault in filter(None, map(registry.suite_fault, names)):
        raise ValueError(fault)
    return names


@dataclass(frozen=True)
class Owner:
    """An owner whose new repositories become candidates, and the conditions on them. Empty or null:
    no condition."""

    __pydantic_config__ = STRICT
    owner: Annotated[
        str,
        Field(
            pattern="^[A-Za-z0-9_][A-Za-z0-9._-]*$",
            description="An account of the hub, such as llava-hf.",
        ),
    ]
    pipelines: Annotated[
        tuple[Text, ...], Field(description="Pipeline tags, one of which the repository has.")
    ] = ("image-text-to-text",)
    max_params_b: Annotated[
        Positive | None,
        Field(
            description="At most so many billion parameters, by the hub's count of its safetensors."
        ),
    ] = None
    licences: Annotated[
        tuple[Text, ...], Field(description="Licences, one of which its card names; empty: any.")
    ] = ()
    match: Annotated[
        str,
        AfterValidator(_pattern),
        Field(
            description="A regular expression that the whole name (without the owner) has to"
            " match; empty: any."
        ),
    ] = ""
    newer_than: Annotated[
        Day, Field(description="Created after this day, such as 2026-01-31; empty: any.")
    ] = ""
    suites: Annotated[
        tuple[Text, ...],
        AfterValidator(_suites),
        Field(description="The suites that the nightly scores; empty: the default."),
    ] = ()
    gpu: Annotated[
        str, Field(description="GPU kind of the work pool that would run it; empty: cpu.")
    ] = ""


@dataclass(frozen=True)
class Everyone(Owner):
    """The first repositories of the hub's own list, of any account, and the conditions on them."""

    owner: Literal[""] = ""
    apps: Annotated[
        tuple[Text, ...], Field(description="Software that the hub lists it for; empty: any.")
    ] = ("vllm",)
    sort: Annotated[
        Literal["trending_score", "created_at"], Field(description="Which come first.")
    ] = "trending_score"
    limit: Annotated[Count, Field(description="So many repositories are looked at.")] = 50


@dataclass(frozen=True)
class Probe:
    """How new candidates that fit this machine are tried, and what a look may spend on that."""

    __pydantic_config__ = STRICT
    questions: Annotated[Count, Field(description="Questions per model.")] = 200
    minutes: Annotated[Positive, Field(description="Of a look, for all models together.")] = 20.0


@dataclass(frozen=True)
class Rules:
    """What `sdgbias models watch` looks for (registry/watch.yaml)."""

    __pydantic_config__ = STRICT
    commits: Annotated[
        Flag, Field(description="Look for new commits of the registered hub models.")
    ] = True
    skip: Annotated[
        tuple[Text, ...], Field(description="Names of entries that are not watched.")
    ] = ()
    owners: Annotated[
        tuple[Owner, ...],
        Field(description="Accounts whose new repositories become candidates, each with `owner`."),
    ] = ()
    everyone: Annotated[
        tuple[Everyone, ...],
        Field(description="Lists of the hub whose repositories become candidates, of any account."),
    ] = ()
    probe: Annotated[
        Probe | None, Field(description="Fetch and try new candidates; null: only register them.")
    ] = None
    enable: Annotated[
        Literal["", "when_admitted"],
        Field(description="when_admitted: candidates that pass are enabled; empty: by hand."),
    ] = ""


@dataclass(frozen=True)
class Finding:
    """One finding. name: the entry that was written (or would be) or is concerned, '' when none;
    written: whether a file was; news: whether it wasn't announced before; ready: whether a new
    candidate can be tried on this machine; params_b: of a gated repository that can't be read, by
    the hub's list; else 0."""

    kind: str
    repo: str
    revision: str
    name: str
    told: str
    written: bool = False
    news: bool = True
    ready: bool = False
    params_b: float = 0.0

    def line(self) -> str:
        at = f"@{self.revision[:_SHORT]}" if self.revision else ""
        return f"{self.kind:15} {self.repo}{at}: {self.told}"


# ----------------------------------------------------------------------
# rules


def read(path: Path) -> Rules:
    """The rules of a YAML file (fields: registry/watch.schema.json). RegistryError names the file
    and the invalid value."""
    data = formats.load(path, RegistryError, "give the rules with --rules FILE")
    return formats.parse({} if data is None else data, Rules, path, RegistryError)


# ----------------------------------------------------------------------
# looking


def watch(
    root: Path,
    rules: Rules,
    here: propose.Host,
    dry_run: bool = False,
    today: date | None = None,
) -> list[Finding]:
    """All findings, in the order of the checks: entries by repository, then owners and lists as the
    rules have them; what was refused before for the same commit and versions is left out. today:
    of the ledger, default this day. HubUnreachable and ExpiredToken end it (they affect every
    repository); the refusal of a single repository is reported as a finding and the others
    continue. RegistryError: a broken entry."""
    found: list[Finding] = []
    ledger, day = seen.read(root), (today or date.today()).isoformat()

    def note(new: list[Finding], commit: str = "") -> None:
        for one in new:
            row = ledger.get(one.repo.lower())
            same = row is not None and (row.verdict, row.why) == (one.kind, one.told)
            old = one.kind == SAME or (one.kind == GONE and not one.written and not dry_run) or same
            found.append(replace(one, news=not old))
            # a repository that doesn't answer today keeps its candidate's row, which is tried later
            if one.kind != SAME and not (one.kind == TROUBLE and row is not None and row.name):
                first = row.first_seen if row else day
                told = (one.kind, one.told, dict(here.versions), one.name, one.ready)
                at = one.revision or commit
                ledger[one.repo.lower()] = seen.Seen(one.repo, at, first, *told)

    try:
        if rules.commits:
            for repo, entries in _watched(registry.load_all(root).values(), rules.skip).items():
                note(_told(repo, partial(_commits, root, repo, entries, here, dry_run)))
        for owner in (*rules.owners, *rules.everyone):
            known = {spec.repo.lower() for spec in registry.load_all(root).values()}
            for one in {one.repo: one for one in _all_listed(owner)}.values():
                row = ledger.get(one.repo.lower())
                looked = any(one.repo == other.repo for other in found)  # by an earlier rule
                if looked or one.repo.lower() in known:
                    continue
                as_before = (REFUSED, one.commit, here.versions)
                if row is not None and (row.verdict, row.commit, row.versions) == as_before:
                    continue
                if _wanted(one, owner):
                    look = partial(_repository, root, one, owner, here, dry_run)
                    new = _told(one.repo, look)
                    note([_described(finding, one, here) for finding in new], one.commit)
                elif row is None:
                    ledger[one.repo.lower()] = seen.Seen(one.repo, one.commit, day, OUTSIDE, "")
    finally:
        if not dry_run:
            seen.write(root, ledger)
    return found


def _all_listed(owner: Owner) -> list[hub.Listed]:
    kind = (owner.apps, owner.sort, owner.limit) if isinstance(owner, Everyone) else ()
    return [one for tag in owner.pipelines for one in hub.listed(tag, owner.owner, *kind)]


def _told(repo: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    """The findings in one repository, or the reason why it can't be read."""
    try:
        return look()
    except (InfrastructureError, RegistryError) as error:
        if hub.ends_all(error):
            raise
        kind = TROUBLE if isinstance(error, InfrastructureError) else REFUSED
        return [Finding(kind, repo, "", "", str(error).removeprefix(f"{repo}: "))]


def _described(found: Finding, one: hub.Listed, here: propose.Host) -> Finding:
    """A gated repository that can't be read, with what the hub's list shows of it to everybody: a
    person decides by that whether to accept its conditions."""
    if found.name or not one.gated or not one.params:
        return found
    sizes = machine.Sizes(machine.weights_gib(one.params, "bfloat16"))
    devices = sizes.devices(here.machine)
    fit = f"{devices} x {sizes.need(devices):.0f} GiB" if devices else "too large for this machine"
    params_b = float(f"{one.params / 1e9:.3g}")
    size = f"{params_b:g} billion parameters"
    facts = (size, one.licence or "licence not stated", "gated", f"{fit} in bfloat16")
    return replace(found, told=f"{found.told} ({', '.join(facts)})", params_b=params_b)


def _watched(entries: Iterable[ModelSpec], skip: tuple[str, ...]) -> dict[str, list[ModelSpec]]:
    """Hub repository -> its pinned entries, first the one whose settings a new commit inherits. A
    repository whose entries are all retired isn't watched."""
    order = (ENABLED, QUARANTINED, CANDIDATE, RETIRED)
    found: dict[str, list[ModelSpec]] = {}
    for spec in entries:
        if (
            registry.HUB_ID.fullmatch(spec.repo)
            and registry.COMMIT.fullmatch(spec.revision)
            and spec.name not in skip
        ):
            found.setdefault(spec.repo, []).append(spec)
    kept = {
        repo: sorted(specs, key=lambda s: (order.index(s.state), len(s.name), s.name))
        for repo, specs in sorted(found.items())
    }
    return {repo: specs for repo, specs in kept.items() if specs[0].state != RETIRED}


def _commits(
    root: Path, repo: str, entries: list[ModelSpec], here: propose.Host, dry_run: bool
) -> list[Finding]:
    base, found = entries[0], []
    gone = _gone(repo, [spec for spec in entries if spec.state != RETIRED])
    for spec in (spec for spec in entries if spec.name in gone):
        state = CANDIDATE if spec.state == CANDIDATE else QUARANTINED
        is_new = spec.reason != gone[spec.name]
        if is_new and not dry_run:
            changes.set_state(root, spec.name, state, reason=gone[spec.name])
        told = f"{gone[spec.name]}; {spec.name} is {'now' if is_new else 'still'} {state}"
        found.append(Finding(GONE, repo, spec.revision, spec.name, told, is_new and not dry_run))
    try:
        head = hub.commit(repo)
    except hub.NoRepository:
        return found
    same = partial(Finding, SAME, repo, head.commit, "")
    if any(spec.revision == head.commit for spec in entries):
        return found or [same("the newest commit is registered")]
    at_base = None if base.name in gone else hub.commit(repo, base.revision).that_matter()
    if head.that_matter() == at_base:
        return [*found, same(f"weights and settings are those of {base.name}")]
    short = head.commit[:_SHORT]
    named = (f"{base.name}-{short}", f"{base.title} ({short})")
    wanted = propose.Request(*named, revision=head.commit)
    proposal = propose.propose(repo, root, here, wanted, base)
    return [*found, _register(root, proposal, NEW_COMMIT, f"new commit of {base.name}", dry_run)]


def _gone(repo: str, entries: list[ModelSpec]) -> dict[str, str]:
    """Entry -> why its commit is no longer available."""
    found = {}
    for spec in entries:
        try:
            hub.commit(repo, spec.revision)
        except hub.NoRevision:
            at = spec.revision[:_SHORT]
            found[spec.name] = f"commit {at} is no longer on the hub (force-pushed?)"
        except hub.NoRepository:
            found[spec.name] = f"{repo} is no longer on the hub, or no longer shown to this account"
    return found


def _wanted(one: hub.Listed, owner: Owner) -> bool:
    """Whether a repository meets every condition. A value missing on the hub doesn't meet its
    condition."""
    small = owner.max_params_b is None or 0 < one.params <= owner.max_params_b * 1e9
    licensed = not owner.licences or one.licence in owner.licences
    named = not owner.match or re.fullmatch(owner.match, one.repo.split("/")[-1]) is not None
    new = not owner.newer_than or (
        one.created is not None and one.created > date.fromisoformat(owner.newer_than)
    )
    return small and licensed and named and new


def _repository(
    root: Path, one: hub.Listed, owner: Owner, here: propose.Host, dry_run: bool
) -> list[Finding]:
    account = one.repo.split("/")[0]
    wanted = propose.Request(suites=owner.suites, gpu=owner.gpu)
    found = propose.propose(one.repo, root, here, wanted)
    if found.spec.name in registry.load_all(root):
        wanted = replace(wanted, name=f"{account.lower()}-{found.spec.name}")
        found = propose.propose(one.repo, root, here, wanted)
    why = f"new repository of {account}"
    made = _register(root, found, NEW_REPOSITORY, why, dry_run)
    size = f"{found.spec.params_b:g} billion parameters" if found.spec.params_b else "size unknown"
    fit = f"{found.devices} x {found.gib:.0f} GiB" if found.gib else "memory unknown"
    access = "gated" if one.gated else "not gated"
    facts = (found.spec.family, size, one.licence or "licence not stated", access, fit)
    return [replace(made, told=f"{made.told} ({', '.join(facts)})")]


def _register(root: Path, found: propose.Proposal, kind: str, why: str, dry_run: bool) -> Finding:
    onward = found.obstacle or f"not checked yet: sdgbias models enable {found.spec.name}"
    spec = replace(found.spec, reason=f"{why}; {onward}")
    if not dry_run:
        changes.write(root, spec)
    told = f"candidate {spec.name}: {spec.reason}"
    at = (spec.repo, spec.revision, spec.name)
    return Finding(kind, *at, told, not dry_run, ready=not found.obstacle)
