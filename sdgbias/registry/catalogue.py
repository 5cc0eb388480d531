"""Registers the models of the papers, and a list of current ones, in one go: each is pinned, sized
and proposed an engine, and what can't be registered is listed with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sdgbias.errors import Gated, InfrastructureError, RegistryError
from sdgbias.files import packaged_yaml
from sdgbias.progress import Progress, each, silent
from sdgbias.registry import changes, entries, hub, propose
from sdgbias.types import CANDIDATE, SUITES, ModelSpec

PAPER, RECOMMENDED = "paper", "recommended"
READY, KNOWN, LICENCE = "ready", "registered already", "needs a licence click"
TOO_LARGE, CLOSED = "doesn't fit here", "closed"
REFUSED, TROUBLE = "can't be registered", "not answered"
_CLOSED = (
    "closed model, costs money: add options.base_url, prices and a dated model name, see"
    " docs/how-to/api-models.md"
)


@dataclass(frozen=True)
class Registered:
    """What became of one model. gib: needed on each of the devices, 0 where not known; why: one
    line."""

    name: str
    repo: str
    verdict: str
    why: str = ""
    revision: str = ""
    engine: str = ""
    devices: int = 0
    gib: float = 0.0

    def cells(self) -> tuple[str, ...]:
        gpus = f"{self.devices} x {self.gib:.0f} GiB" if self.gib else ""
        return (self.name, self.revision[:8], self.engine, gpus, self.verdict, self.why)


def listed(kind: str) -> list[dict[str, Any]]:
    """The rows of sdgbias/data/models.yaml of a kind, PAPER or RECOMMENDED."""
    found: list[dict[str, Any]] = packaged_yaml("models.yaml")[kind]
    return found


def register(
    root: Path,
    here: propose.Host,
    kinds: tuple[str, ...],
    *,
    gpu: str = "",
    dry_run: bool = False,
    progress: Progress = silent,
) -> list[Registered]:
    """Writes a candidate for every model of these kinds that isn't registered. What one model's
    repository refuses is its row; HubUnreachable and ExpiredToken end it, with what was written
    kept. RegistryError: a broken entry."""
    models = [one for kind in kinds for one in listed(kind)]
    asked = each(progress, "asking the hub", models)
    return [_register(root, here, one, gpu, dry_run) for one in asked]


def _register(
    root: Path, here: propose.Host, one: Mapping[str, Any], gpu: str, dry_run: bool
) -> Registered:
    repo, name = str(one["repo"]), str(one.get("name", ""))
    shown = name or repo.split("/")[-1].lower()
    backend = str(one.get("backend", ""))
    for spec in _same(root, repo, backend):
        return Registered(spec.name, repo, KNOWN, f"{spec.state}", spec.revision, spec.backend)
    if backend == "api":
        spec = _closed(one)
        if not dry_run:
            changes.write(root, spec)
        return Registered(name, repo, CLOSED, spec.reason, engine="api")
    wanted = propose.Request(
        name=name,
        title=str(one.get("title", "")),
        backend=backend,
        suites=tuple(one.get("suites", () if name else SUITES)),
        gpu=gpu,
        anew=True,
    )
    try:
        found = propose.propose(repo, root, here, wanted)
        changes.require_free(root, found.spec)
    except Gated as error:
        return replace(Registered(shown, repo, LICENCE, _line(repo, error)), **_public(repo))
    except (InfrastructureError, RegistryError) as error:
        if hub.ends_all(error):
            raise
        kind = TROUBLE if isinstance(error, InfrastructureError) else REFUSED
        return Registered(shown, repo, kind, _line(repo, error))
    if not dry_run:
        changes.write(root, found.spec)
    large = found.obstacle.startswith("too large")
    verdict, why = (TOO_LARGE, "") if large else (READY, found.obstacle)
    made = (found.spec.revision, found.spec.backend, found.devices, found.gib)
    return Registered(found.spec.name, repo, verdict, why, *made)


def _same(root: Path, repo: str, backend: str) -> Iterator[ModelSpec]:
    """The entries of a repository that need nothing more: pinned ones, and those of an endpoint."""
    for spec in entries.load_all(root).values():
        kind = spec.backend == backend or (not backend and spec.backend in ("hf", "vllm"))
        if kind and spec.repo.lower() == repo.lower() and spec.revision != entries.UNPINNED:
            yield spec


def _closed(one: Mapping[str, Any]) -> ModelSpec:
    suites = {"suites": list(one["suites"])} if "suites" in one else {}
    return ModelSpec(
        name=str(one["name"]),
        title=str(one["title"]),
        backend="api",
        repo=str(one["repo"]),
        revision="not stated in the paper",
        state=CANDIDATE,
        reason=_CLOSED,
        batch_size=1,
        licence="proprietary",
        options={"api_key_env": one["key"], **suites},
    )


def _line(repo: str, error: Exception) -> str:
    return str(error).removeprefix(f"{repo}: ")


def _public(repo: str) -> dict[str, Any]:
    """What a gated repository shows to everybody: its commit."""
    try:
        return {"revision": hub.commit(repo).commit}
    except (InfrastructureError, RegistryError):
        return {}
