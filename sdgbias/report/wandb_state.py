"""What lies in a W&B folder: runs that wait, runs that were sent, artifacts that runs still need. Files only; W&B is not imported.

<folder>/wandb/offline-run-*      one folder per run; sdgbias.json in it says what it is and that it is whole
<folder>/artifacts/<name>         files of benchmarks and scores, shared by the runs that name them
<folder>/sent.jsonl               a line per run that was sent
<folder>/data, cache, config      W&B's own
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sdgbias import locks
from sdgbias.errors import InfrastructureError, StoreError

#: Written last into a run's folder, so that only whole runs are sent.
LABEL = "sdgbias.json"
SENT = "sent.jsonl"
WRITING = "log.lock"
REPORTS = "reports.json"


@dataclass(frozen=True)
class Waiting:
    """A whole run that waits to be sent; ``needs``: folders of ``artifacts/`` that it refers to; ``synced``: W&B's own
    mark says that it has been."""

    folder: Path
    id: str
    run_id: str
    night: str
    small: bool
    needs: tuple[str, ...]
    synced: bool


def folders(folder: Path) -> dict[str, str]:
    """W&B's own folders inside ours, as its environment variables."""
    return {
        "WANDB_DIR": str(folder),
        "WANDB_DATA_DIR": str(folder / "data"),
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_CONFIG_DIR": str(folder / "config"),
        "WANDB_ERROR_REPORTING": "false",
    }


def waiting(folder: Path) -> list[Waiting]:
    """Whole runs of ``folder``, oldest first, those kept after they were sent included."""
    found = []
    for path in sorted(Path(folder).glob("wandb/offline-run-*")):
        label = _json(path / LABEL)
        if label and any(path.glob("*.wandb")):
            found.append(Waiting(path, label["id"], label["run_id"], label["night"], bool(label["small"]), tuple(label["needs"]),
                                 any(path.glob("*.wandb.synced"))))  # fmt: skip
    return found


def unlabelled(folder: Path) -> list[Path]:
    """Run folders that are being written, were cut off, or were not made by `sdgbias wandb log`."""
    return [p for p in sorted(Path(folder).glob("wandb/offline-run-*")) if _json(p / LABEL) is None]


def sent(folder: Path) -> list[dict[str, Any]]:
    """The lines of sent.jsonl; a torn last line is left out."""
    path = Path(folder) / SENT
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def sent_ids(folder: Path) -> set[str]:
    return {str(line["id"]) for line in sent(folder)} | {w.id for w in waiting(folder) if w.synced}


def logged_in_full(folder: Path) -> set[str]:
    """Run ids whose tables and scores stand in a run that waits or was sent."""
    return {str(s["run_id"]) for s in sent(folder) if not s["small"]} | {w.run_id for w in waiting(folder) if not w.small}


def mark_sent(folder: Path, run: Waiting, now: datetime) -> None:
    line = {"id": run.id, "run_id": run.run_id, "night": run.night, "small": run.small, "sent_at": now.isoformat(timespec="seconds")}
    with (Path(folder) / SENT).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, sort_keys=True) + "\n")


def forget(folder: Path) -> None:
    """Removes what no waiting run needs: folders of runs that were sent, files of artifacts, and W&B's own once nothing waits."""
    folder = Path(folder)
    for run in waiting(folder):
        if run.synced:
            shutil.rmtree(run.folder, ignore_errors=True)
    with (folder / WRITING).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # a night is being written; the next sync removes the rest
        left = waiting(folder)
        needed = {name for run in left for name in run.needs}
        for path in folder.glob("artifacts/*"):
            if path.name not in needed:
                shutil.rmtree(path, ignore_errors=True)
        if not left and not unlabelled(folder):
            for name in ("data", "cache", "wandb"):
                shutil.rmtree(folder / name, ignore_errors=True)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Held while a run is written, so that nothing that it refers to is removed meanwhile. Raises OSError."""
    with (Path(folder) / WRITING).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def reports(folder: Path) -> dict[str, str]:
    """'SERVER ENTITY/PROJECT[ draft]' -> id of the Report that was made there."""
    return {str(k): str(v) for k, v in (_json(Path(folder) / REPORTS) or {}).items()}


def keep_reports(folder: Path, known: dict[str, str]) -> None:
    """Raises StoreError when the folder can't be written."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / REPORTS).write_text(json.dumps(known, indent=1, sort_keys=True), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"the Report was made, but can't write {folder}: {error.strerror}; name another --dir") from None


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Holds the folder against a second sync. Raises InfrastructureError when there is one, or when the folder can't be written."""
    with locks.only_one(
        Path(folder) / "sync.lock",
        lambda error: InfrastructureError(f"can't write {folder}: {error.strerror}; name another --dir"),
        lambda _: InfrastructureError(f"{folder}: another `sdgbias wandb sync` is at work here; wait until it has ended"),
    ):
        yield


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
