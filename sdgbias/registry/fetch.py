"""Brings the pinned revisions of registered models from the hub into its client's cache, so that an
evaluation, which stays offline, finds them: the files that can change a score
(weights.THAT_MATTER), by the client's own `snapshot_download`, which goes on where it was
stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdgbias.errors import DiskFull, RegistryError, SdgbiasError
from sdgbias.files import writable
from sdgbias.registry import entries, hub, weights
from sdgbias.types import ModelSpec

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
    try:
        with _online():
            _download(spec, tell)
    except SdgbiasError:
        raise
    except Exception as error:  # of the hub's client, which has no common base
        if isinstance(error, OSError) and error.errno:  # of the disk: the client's have none
            with writable(_cache(), _ONWARD):
                raise
        causes = [error, error.__cause__, error.__context__]
        answered = (e for e in causes if e is not None and hasattr(e, "response"))
        real = next(answered, error.__cause__ or error)
        raise hub.plain(spec.repo, spec.revision, real) from None


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


def _download(spec: ModelSpec, tell: Callable[[str], None]) -> None:
    from huggingface_hub import snapshot_download

    files = snapshot_download(**_where(spec), dry_run=True)
    need = sum(int(file.file_size or 0) for file in files if file.will_download)
    if not need:
        tell(f"{spec.name}: in the cache")
        return
    size, cache = f"{need / 2**30:.1f} GiB", _cache()
    tell(f"{spec.name}: {size} to fetch")
    cache.mkdir(parents=True, exist_ok=True)
    if need > (free := shutil.disk_usage(cache).free):
        raise DiskFull(f"{cache}: has {free / 2**30:.1f} GiB left, needs {size}; {_ONWARD}")
    snapshot_download(**_where(spec))
    # offline, vLLM asks the client for the whole snapshot, which is refused while the client knows
    # of files (README.md) that were left out
    folder = cache / f"models--{spec.repo.replace('/', '--')}"
    (folder / "trees" / f"{spec.revision}.json").unlink(missing_ok=True)
    tell(f"{spec.name}: fetched")


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
