"""Brings the pinned revisions of registered models from the hub into its client's cache, so that an
evaluation, which stays offline, finds them: the files that can change a score
(weights.THAT_MATTER), by the client's own `snapshot_download`, which goes on where it was
stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdgbias.errors import DiskFull, RegistryError, SdgbiasError
from sdgbias.files import writable
from sdgbias.registry import entries, hub, weights
from sdgbias.registry.spec import ModelSpec

#: Copies of the weights in formats of other libraries.
_NOT = ("original/*", "consolidated*", "onnx/*", "openvino/*", "gguf/*")
_ONWARD = "make room, or name another folder: HF_HOME"


def is_on_hub(spec: ModelSpec) -> bool:
    """Whether a model's weights are a repository of the hub: no folder, no endpoint."""
    return bool(entries.HUB_ID.fullmatch(spec.repo)) and spec.backend != "api"


def fetch(spec: ModelSpec, tell: Callable[[str], None]) -> None:
    """Brings a model into the cache, although HF_HUB_OFFLINE may be set; ``tell`` gets the size
    first. Nothing is done for one that isn't on the hub. Raises RegistryError (not pinned, not on
    the hub), Gated, ExpiredToken, HubUnreachable, DiskFull, StoreError."""
    if not is_on_hub(spec):
        return
    if not entries.COMMIT.fullmatch(spec.revision):
        raise RegistryError(f"not pinned; first: sdgbias register-model {spec.repo}")
    cache = _cache()
    with asking_hub(spec.repo, spec.revision, cache, _ONWARD):
        if not download(_where(spec), cache, _ONWARD, spec.name, tell):
            tell(f"{spec.name}: in the cache")
            return
        # offline, vLLM asks the client for the whole snapshot, which is refused while the client
        # knows of files (README.md) that were left out
        folder = cache / f"models--{spec.repo.replace('/', '--')}"
        (folder / "trees" / f"{spec.revision}.json").unlink(missing_ok=True)
        tell(f"{spec.name}: fetched")


@contextmanager
def asking_hub(
    repo: str, revision: str, folder: Path, onward: str, again: str = ""
) -> Iterator[None]:
    """For a block that asks the hub's client, which may use the network whatever HF_HUB_OFFLINE
    says, and writes to ``folder``; ``onward``: what to do where that fails; ``again``: the command
    to give again later (hub.plain). Raises RegistryError (not on the hub), Gated, ExpiredToken,
    HubUnreachable, DiskFull, StoreError."""
    try:
        with _online():
            yield
    except SdgbiasError:
        raise
    except Exception as error:  # of the hub's client, which has no common base
        if isinstance(error, OSError) and error.errno:  # of the disk: the client's have none
            with writable(folder, onward):
                raise
        causes = [error, error.__cause__, error.__context__]
        answered = (e for e in causes if e is not None and hasattr(e, "response"))
        real = next(answered, error.__cause__ or error)
        raise hub.plain(repo, revision, real, again) from None


def download(
    where: Mapping[str, Any], folder: Path, onward: str, name: str, tell: Callable[[str], None]
) -> int:
    """`snapshot_download` of ``where`` into ``folder``, whose size ``tell`` gets first; returns the
    bytes that were lacking. Raises DiskFull, and what the client raises."""
    from huggingface_hub import snapshot_download

    files = snapshot_download(**where, dry_run=True)
    need = sum(int(file.file_size or 0) for file in files if file.will_download)
    if need:
        size = f"{need / 2**30:.1f} GiB"
        tell(f"{name}: {size} to fetch")
        folder.mkdir(parents=True, exist_ok=True)
        if need > (free := shutil.disk_usage(folder).free):
            raise DiskFull(f"{folder}: has {free / 2**30:.1f} GiB left, needs {size}; {onward}")
        snapshot_download(**where)
    return need


def is_cached(spec: ModelSpec) -> bool:
    """Whether the cache has all of a model, as far as that is known without the hub; True for one
    that is no hub model."""
    from huggingface_hub import snapshot_download

    if is_on_hub(spec):
        try:
            snapshot_download(**_where(spec), local_files_only=True)
        except (OSError, ValueError):
            return False
    return True


def _where(spec: ModelSpec) -> dict[str, Any]:
    return {
        "repo_id": spec.repo,
        "revision": spec.revision,
        "allow_patterns": list(weights.THAT_MATTER),
        "ignore_patterns": list(_NOT),
        "etag_timeout": hub.seconds(),
    }


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


@contextmanager
def _online() -> Iterator[None]:
    """The client may use the network: fetching is asked for by name, whatever evaluations do."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, False
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
