"""Finds new releases on the hub: commits of registered models, and repositories of watched owners.
Both become candidates, by rule.

The registry itself records what was seen before, so there is no separate state: a second run finds
nothing new. An entry never changes in place; a model whose registered commit is gone (force-pushed,
or the repository withdrawn) is quarantined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from sdgbias import files
from sdgbias.errors import (
    ExpiredToken,
    HubUnreachable,
    InfrastructureError,
    InputError,
    RegistryError,
    one_of,
)
from sdgbias.registry import changes, hub, propose
from sdgbias.registry import entries as registry
from sdgbias.types import CANDIDATE, ENABLED, QUARANTINED, RETIRED, ModelSpec

NEW_COMMIT, NEW_REPOSITORY, GONE, SAME, REFUSED, TROUBLE = (
    "new commit",
    "new repository",
    "gone",
    "same",
    "refused",
    "trouble",
)
_SHORT = 8


@dataclass(frozen=True)
class Owner:
    """An owner whose new repositories become candidates, and the conditions on them. Empty or None:
    no condition."""

    owner: str
    pipelines: tuple[str, ...] = ("image-text-to-text",)
    max_params_b: float | None = None
    licences: tuple[str, ...] = ()
    match: str = ""
    newer_than: str = ""
    suites: tuple[str, ...] = ()
    gpu: str = ""


@dataclass(frozen=True)
class Rules:
    """commits: whether to look for new commits; skip: names of entries that are not watched."""

    commits: bool = True
    skip: tuple[str, ...] = ()
    owners: tuple[Owner, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One finding. name: the entry that was written (or would be) or is concerned, '' when none;
    written: whether a file was."""

    kind: str
    repo: str
    revision: str
    name: str
    told: str
    written: bool = False

    def line(self) -> str:
        return (
            f"{self.kind:15} {self.repo}{f'@{self.revision[:_SHORT]}' if self.revision else ''}:"
            f" {self.told}"
        )


# ----------------------------------------------------------------------
# rules


def read(path: Path) -> Rules:
    """The rules of a YAML file (fields: registry/watch.schema.json). RegistryError names the file
    and the invalid value."""
    try:
        data = files.load_yaml(files.read_small(path))
    except InputError as error:
        raise RegistryError(f"{error}; give the rules with --rules FILE") from None
    except OSError as error:
        raise RegistryError(
            f"{path}: can't be read ({error.strerror}); give the rules with --rules FILE"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        why = getattr(error, "problem", None) or type(error).__name__
        raise RegistryError(f"{path}: not readable YAML: {why}; see registry/README.md") from None
    data = {} if data is None else data
    given = _fields(data, Rules, str(path))
    owners = given.get("owners", [])
    if not isinstance(owners, list):
        raise RegistryError(
            f"{path}: owners is {owners!r}; valid: a list of owners, each with `owner`"
        )
    return Rules(
        commits=_typed(given.get("commits", True), bool, "commits", path),
        skip=_texts(given.get("skip", []), "skip", path),
        owners=tuple(_owner(one, f"{path}: owners[{at}]") for at, one in enumerate(owners)),
    )


def _owner(data: Any, where: str) -> Owner:
    given = _fields(data, Owner, where)
    name = given.get("owner")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise RegistryError(
            f"{where}: owner is {name!r}; valid: an account of the hub, such as llava-hf"
        )
    most = given.get("max_params_b")
    if most is not None and (
        isinstance(most, bool) or not isinstance(most, int | float) or not most > 0
    ):
        raise RegistryError(
            f"{where}: max_params_b is {most!r}; valid: a number of billions above 0"
        )
    pattern = _typed(given.get("match", ""), str, "match", where)
    try:
        re.compile(pattern)
    except re.error as error:
        raise RegistryError(
            f"{where}: match {pattern!r} is no regular expression ({error}); valid: such as"
            " 'llava-.*-hf'"
        ) from None
    since = given.get("newer_than", "")
    since = since.isoformat() if type(since) is date else since
    if not isinstance(since, str) or (since and not registry.is_date(since)):
        raise RegistryError(f"{where}: newer_than is {since!r}; valid: a date such as 2026-01-31")
    suites = _texts(given.get("suites", []), "suites", where)
    for fault in filter(None, map(registry.suite_fault, suites)):
        raise RegistryError(f"{where}: {fault}")
    pipelines = _texts(given.get("pipelines", list(Owner.pipelines)), "pipelines", where)
    licences = _texts(given.get("licences", []), "licences", where)
    gpu = _typed(given.get("gpu", ""), str, "gpu", where)
    return Owner(
        name,
        pipelines,
        None if most is None else float(most),
        licences,
        pattern,
        since,
        suites,
        gpu,
    )


def _fields(data: Any, kind: type, where: str) -> Mapping[str, Any]:
    valid = [f.name for f in fields(kind)]
    if not isinstance(data, dict):
        raise RegistryError(f"{where}: not a mapping of fields; valid fields: {', '.join(valid)}")
    for key in data:
        if key not in valid:
            raise RegistryError(f"{where}: {one_of('field', key, valid)}")
    return data


def _typed(value: Any, kind: type, name: str, where: object) -> Any:
    if not isinstance(value, kind):
        raise RegistryError(
            f"{where}: {name} is {value!r}; valid: {'true or false' if kind is bool else 'text'}"
        )
    return value


def _texts(value: Any, name: str, where: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise RegistryError(f"{where}: {name} is {value!r}; valid: a list of texts")
    return tuple(value)


# ----------------------------------------------------------------------
# looking


def watch(root: Path, rules: Rules, here: propose.Host, dry_run: bool = False) -> list[Finding]:
    """All findings, in the order of the checks: entries by repository, then owners as the rules
    list them. HubUnreachable and ExpiredToken end it (they affect every repository); the refusal of
    a single repository is reported as a finding and the others continue. RegistryError: a broken
    entry."""
    found: list[Finding] = []
    if rules.commits:
        for repo, entries in _watched(registry.load_all(root).values(), rules.skip).items():
            found += _told(repo, partial(_commits, root, repo, entries, here, dry_run))
    for owner in rules.owners:
        known = {spec.repo.lower() for spec in registry.load_all(root).values()}
        for one in {
            one.repo: one
            for pipeline in owner.pipelines
            for one in hub.listed(owner.owner, pipeline)
        }.values():
            if one.repo.lower() not in known and _wanted(one, owner):
                found += _told(one.repo, partial(_repository, root, one, owner, here, dry_run))
    return found


def _told(repo: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    """The findings in one repository, or the reason why it can't be read."""
    try:
        return look()
    except (InfrastructureError, RegistryError) as error:
        if isinstance(error, HubUnreachable | ExpiredToken) and not isinstance(
            error, hub.BadResponse
        ):
            raise
        kind = TROUBLE if isinstance(error, InfrastructureError) else REFUSED
        return [Finding(kind, repo, "", "", str(error).removeprefix(f"{repo}: "))]


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
    if any(spec.revision == head.commit for spec in entries):
        return found or [Finding(SAME, repo, head.commit, "", "the newest commit is registered")]
    if (
        base.name not in gone
        and head.that_matter() == hub.commit(repo, base.revision).that_matter()
    ):
        return [
            *found,
            Finding(SAME, repo, head.commit, "", f"weights and settings are those of {base.name}"),
        ]
    short = head.commit[:_SHORT]
    wanted = propose.Request(
        name=f"{base.name}-{short}", title=f"{base.title} ({short})", revision=head.commit
    )
    proposal = propose.propose(repo, root, here, wanted, base)
    return [*found, _register(root, proposal, NEW_COMMIT, f"new commit of {base.name}", dry_run)]


def _gone(repo: str, entries: list[ModelSpec]) -> dict[str, str]:
    """Entry -> why its commit is no longer available."""
    found = {}
    for spec in entries:
        try:
            hub.commit(repo, spec.revision)
        except hub.NoRevision:
            found[spec.name] = (
                f"commit {spec.revision[:_SHORT]} is no longer on the hub (force-pushed?)"
            )
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
    wanted = propose.Request(suites=owner.suites, gpu=owner.gpu)
    found = propose.propose(one.repo, root, here, wanted)
    if found.spec.name in registry.load_all(root):
        found = propose.propose(
            one.repo, root, here, replace(wanted, name=f"{owner.owner.lower()}-{found.spec.name}")
        )
    return [_register(root, found, NEW_REPOSITORY, f"new repository of {owner.owner}", dry_run)]


def _register(root: Path, found: propose.Proposal, kind: str, why: str, dry_run: bool) -> Finding:
    onward = found.obstacle or f"not checked yet: sdgbias models enable {found.spec.name}"
    spec = replace(found.spec, reason=f"{why}; {onward}")
    if not dry_run:
        changes.write(root, spec)
    return Finding(
        kind,
        spec.repo,
        spec.revision,
        spec.name,
        f"candidate {spec.name}: {spec.reason}",
        not dry_run,
    )
