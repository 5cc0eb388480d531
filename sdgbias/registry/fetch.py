"""Brings the pinned revisions of registered models from the hub into its client's cache, so that an
evaluation, which stays offline, finds them.

A revision is fetched with the client's own `snapshot_download`: the files that can change a score
(hub.THAT_MATTER), several at a time. A connection that breaks goes on where it was; after a kill,
whole files are kept. What was downloaded is compared with the hub's hashes. Nothing here raises for
one model: each has a row.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdgbias.errors import Gated, RegistryError, UsageError
from sdgbias.progress import Progress, silent
from sdgbias.registry import entries, hub
from sdgbias.types import ModelSpec

PRESENT, FETCHED, NOTHING = "in the cache", "fetched", "nothing to fetch"
NO_ROOM, DAMAGED, LICENCE = "no room", "damaged", "needs a licence click"
REFUSED, TROUBLE = "can't be fetched", "not answered"
GOOD = (PRESENT, FETCHED, NOTHING)
#: Copies of the weights in formats of other libraries.
_NOT = ("original/*", "consolidated*", "onnx/*", "openvino/*", "gguf/*")
#: Bytes of the disk that stay free; age in seconds of a part that a killed download left behind.
RESERVE, STALE = 2 * 2**30, 3600


@dataclass(frozen=True)
class Fetched:
    """What became of one model. bytes: downloaded now, or needed where there is no room."""

    name: str
    verdict: str
    why: str = ""
    bytes: int = 0

    def line(self) -> str:
        size = f", {self.bytes / 2**30:.1f} GiB" if self.bytes else ""
        return f"{self.name}: {self.verdict}{size}{f': {self.why}' if self.why else ''}"


@dataclass(frozen=True)
class Unnamed:
    """A revision in the cache that no registry entry names. bytes: freed by its removal, about."""

    repo: str
    commit: str
    bytes: int
    used: float


#: GiB that the cache may have.
ENV_DISK = "SDGBIAS_DISK_GIB"


@dataclass(frozen=True)
class Disk:
    """limit: bytes that the cache may have, None: what the disk has; prune(revisions): whether
    these may be removed for room; verify: hash what is in the cache already, too."""

    limit: int | None = None
    prune: Callable[[Sequence[Unnamed]], bool] = lambda revisions: False
    verify: bool = False


def disk_limit(gib: object) -> int | None:
    """Bytes of so many GiB; None where none are given. Raises UsageError."""
    if gib in (None, ""):
        return None
    with suppress(ValueError, OverflowError):  # no number, nan, inf
        if (limit := int(float(str(gib)) * 2**30)) >= 0:
            return limit
    raise UsageError(f"--disk or {ENV_DISK}={gib}; valid: a number of GiB such as 500")


def fetch(
    root: Path,
    specs: Sequence[ModelSpec],
    disk: Disk = Disk(),
    progress: Progress = silent,
) -> list[Fetched]:
    """Brings each model (and its LoRA adapter) into the cache, although HF_HUB_OFFLINE may be set;
    rows in the order of ``specs``. Raises RegistryError (a broken entry of the registry, whose
    revisions must not be pruned), ExpiredToken and HubUnreachable, which concern them all."""
    rows = []
    with _online():
        for spec in specs:
            rows += [_fetch(root, one, disk, progress) for one in _parts(spec)]
    return rows


def is_cached(spec: ModelSpec) -> bool:
    """Whether the cache has all of a model, as far as that is known without the hub; True for one
    that is no hub model."""
    from huggingface_hub import snapshot_download

    for part in _parts(spec):
        if _on_hub(part):
            try:
                snapshot_download(**_where(part), local_files_only=True)
            except (OSError, ValueError):
                return False
    return True


def _on_hub(spec: ModelSpec) -> bool:
    return bool(entries.HUB_ID.fullmatch(spec.repo)) and spec.backend != "api"


def _parts(spec: ModelSpec) -> list[ModelSpec]:
    adapter = entries.adapter(spec)
    return [spec] if adapter is None else [spec, adapter]


@contextmanager
def _online() -> Iterator[None]:
    """The client may use the network: fetching is asked for by name, whatever evaluations do."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, False
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _fetch(root: Path, spec: ModelSpec, disk: Disk, progress: Progress) -> Fetched:
    if not _on_hub(spec):
        return Fetched(spec.name, NOTHING, "it is no hub model")
    if not entries.COMMIT.fullmatch(spec.revision):
        return Fetched(spec.name, REFUSED, f"not pinned: sdgbias register-model {spec.repo}")
    try:
        need = _missing(spec)
        if need and (short := need - _room(disk)) > 0:
            _make_room(root, disk, short)
            if (short := need - _room(disk)) > 0:
                why = f"{short / 2**30:.1f} GiB short; --prune removes what no entry names"
                return Fetched(spec.name, NO_ROOM, why, need)
        if need:
            _download(spec, need, progress)
        if (need or disk.verify) and (bad := _damaged(spec)):
            why = f"{', '.join(bad)}: other bytes than the hub's, removed; run this again"
            return Fetched(spec.name, DAMAGED, why)
        return Fetched(spec.name, FETCHED if need else PRESENT, bytes=need)
    except OSError as error:
        if getattr(error, "errno", None) == 28 or isinstance(error, PermissionError):
            return Fetched(spec.name, NO_ROOM, str(error.strerror or error))
        return _refused(spec, error)
    except RegistryError:
        raise
    except Exception as error:  # of the hub's client, which has no common base
        return _refused(spec, error)


def _refused(spec: ModelSpec, error: Exception) -> Fetched:
    causes = [error, error.__cause__, error.__context__]
    answered = (e for e in causes if e is not None and hasattr(e, "response"))
    real = next(answered, error.__cause__ or error)
    found = hub.plain(spec.repo, spec.revision, real)  # type: ignore[arg-type]
    if hub.ends_all(found):
        raise found from None
    kind = LICENCE if isinstance(found, Gated) else REFUSED
    kind = TROUBLE if isinstance(found, hub.BadResponse) else kind
    return Fetched(spec.name, kind, str(found).removeprefix(f"{spec.repo}: "))


def _where(spec: ModelSpec) -> dict[str, Any]:
    return {
        "repo_id": spec.repo,
        "revision": spec.revision,
        "allow_patterns": list(hub.THAT_MATTER),
        "ignore_patterns": list(_NOT),
        "etag_timeout": hub.seconds(),
    }


def _missing(spec: ModelSpec) -> int:
    """Bytes to download."""
    from huggingface_hub import snapshot_download

    plan = snapshot_download(**_where(spec), dry_run=True, tqdm_class=_bar(lambda n: None))
    return sum(int(file.file_size or 0) for file in plan if file.will_download)


def _download(spec: ModelSpec, need: int, progress: Progress) -> None:
    from huggingface_hub import snapshot_download

    for part in _blobs(spec).glob("*.incomplete"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > STALE:
                part.unlink()
    done = 0

    def count(n: int) -> None:
        nonlocal done
        done += n
        progress(f"fetching {spec.name} (MiB)", min(done, need) >> 20, need >> 20)

    snapshot_download(**_where(spec), tqdm_class=_bar(count))
    # offline, vLLM asks the client for the whole snapshot, which is refused while the client knows
    # of files (README.md) that were left out
    (_blobs(spec).parent / "trees" / f"{spec.revision}.json").unlink(missing_ok=True)


def _bar(count: Callable[[int], None]) -> Any:
    """A bar of the client's that draws nothing and reports the bytes that are on the disk."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Bar(tqdm):  # type: ignore[misc,valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            self.counts = options.get("name") == "huggingface_hub.snapshot_download"
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if self.counts:
                count(int(n or 0))

    return Bar


def _blobs(spec: ModelSpec) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=spec.repo, repo_type="model")
    return Path(constants.HF_HUB_CACHE) / folder / "blobs"


def _damaged(spec: ModelSpec) -> list[str]:
    """Files whose bytes are not the hub's; they are removed from the cache."""
    from huggingface_hub import HfApi

    told = HfApi().verify_repo_checksums(spec.repo, revision=spec.revision)
    bad = sorted(one["path"] for one in told.mismatches)
    for name in bad:
        link = Path(told.verified_path) / name
        link.resolve().unlink(missing_ok=True)
        link.unlink(missing_ok=True)
    return bad


# ----------------------------------------------------------------------
# room


def _room(disk: Disk) -> int:
    """Bytes that may still be downloaded."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free - RESERVE
    return free if disk.limit is None else min(free, disk.limit - _scan().size_on_disk)


def _scan() -> Any:
    from huggingface_hub import constants, scan_cache_dir

    return scan_cache_dir(constants.HF_HUB_CACHE)


def unnamed(root: Path) -> list[Unnamed]:
    """Revisions of models in the cache that no entry of the registry names, whatever its state,
    the longest unused first. RegistryError: a broken entry."""
    specs = [part for spec in entries.load_all(root).values() for part in _parts(spec)]
    named = {(spec.repo.lower(), spec.revision) for spec in specs}
    found = [
        Unnamed(repo.repo_id, revision.commit_hash, revision.size_on_disk, repo.last_accessed)
        for repo in _scan().repos
        for revision in repo.revisions
        if repo.repo_type == "model" and (repo.repo_id.lower(), revision.commit_hash) not in named
    ]
    return sorted(found, key=lambda one: (one.used, one.repo, one.commit))


def _make_room(root: Path, disk: Disk, short: int) -> None:
    """Removes revisions that no entry names until ``short`` bytes more are free, where the user
    allows it."""
    chosen: list[Unnamed] = []
    for one in unnamed(root):
        if sum(other.bytes for other in chosen) < short:
            chosen.append(one)
    if chosen and disk.prune(chosen):
        _scan().delete_revisions(*(one.commit for one in chosen)).execute()
