"""The exit door (`sdgbias publish`): what a run and its benchmark are in the formats that others
read. Nothing here opens a network but ``upload``.

Every format is a list of PublishedFile whose bytes come when they are asked for, so that a dry run
and a write share them. Files are written into a folder beside the wanted one, which is renamed at
the end: a run that is stopped leaves nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sdgbias.errors import InfrastructureError, StoreError, UsageError, first_line

Chunks = Callable[[], Iterator[bytes]]
DATASET = "dataset"


@dataclass(frozen=True)
class PublishedFile:
    """``path``: relative, with '/'. ``estimate``: bytes, for files that take long to make; 0 where
    a dry run makes the file to know its size."""

    path: str
    chunks: Chunks
    estimate: int = 0

    def size(self) -> int:
        return self.estimate or sum(map(len, self.chunks()))


def write(files: Sequence[PublishedFile], out: Path) -> list[tuple[str, int]]:
    """(path, bytes) of every file, written below ``out``, which must be new or empty. Raises
    UsageError, StoreError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: not an empty folder; name a new one with --write")
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    written = []
    try:
        for file in files:
            path = part / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            size = 0
            with path.open("wb") as target:
                for chunk in file.chunks():
                    size += target.write(chunk)
            written.append((file.path, size))
        if files:
            part.replace(out)
    except OSError as error:
        raise StoreError(
            f"{out}: can't be written ({error.strerror or error}); free the disk or name another"
            " folder with --write"
        ) from None
    finally:
        with suppress(OSError):
            shutil.rmtree(part, ignore_errors=True)
    return written


def upload(folder: Path, repo: str) -> str:
    """Commit a written dataset folder to a dataset repository of the hub and return the address of
    the commit; a repository that isn't there is created private. The token is the environment's
    (HF_TOKEN). Raises InfrastructureError."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    api = HfApi()
    try:
        api.create_repo(repo, repo_type="dataset", private=True, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo,
            repo_type="dataset",
            folder_path=folder,
            commit_message="Benchmark written by sdgbias publish",
        )
    except HFValidationError as error:
        raise UsageError(f"--upload {repo}: {str(error).splitlines()[0]}") from None
    except (HfHubHTTPError, OfflineModeIsEnabled, httpx.HTTPError, OSError) as error:
        raise InfrastructureError(
            f"--upload {repo}: {first_line(error)}; {folder}"
            " is complete: check HF_TOKEN and upload it again, or: hf upload"
        ) from None
    return str(done.commit_url)
