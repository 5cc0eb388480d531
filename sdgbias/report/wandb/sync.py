"""Sends the pending runs of a W&B folder: one `wandb sync` per run, each with a time limit, in the
order of the nights.

The login and the server are checked first, within seconds, because `wandb sync` itself waits
forever for a server that doesn't answer. The key is read from the environment or from .netrc under
its usual name and never written anywhere.

Also the layout of a W&B folder: pending runs, sent runs, artifacts that runs still need. This part
uses files only; W&B is not imported.

<folder>/wandb/offline-run-*      one folder per run; its sdgbias.json describes it and marks it as
complete
<folder>/artifacts/<name>         files of benchmarks and scores, shared by the runs that name them
<folder>/sent.jsonl               a line per run that was sent
<folder>/data, cache, config      W&B's own
"""

from __future__ import annotations

import fcntl
import json
import netrc
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sdgbias import files
from sdgbias.errors import Hung, InfrastructureError, StoreError, UsageError

DEFAULT_HOST = "https://api.wandb.ai"
#: Seconds until a server that doesn't respond counts as unreachable.
PATIENCE = 10.0
#: After this many consecutive timeouts the remaining runs wait for the next sync.
HANGS = 2


@dataclass(frozen=True)
class Sent:
    """Ids that were sent; id -> reason for those that failed and wait for the next sync; folders
    that are not complete runs of this package."""

    sent: tuple[str, ...]
    failed: dict[str, str]
    strange: tuple[Path, ...]


def host() -> str:
    """The server's address: WANDB_BASE_URL, else W&B's default. Raises UsageError for an invalid
    address."""
    address = os.environ.get("WANDB_BASE_URL", "").rstrip("/") or DEFAULT_HOST
    parts = urlsplit(address)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.username
        or parts.password
    ):
        raise UsageError(
            "WANDB_BASE_URL is no plain http(s) address of a server; unset it for W&B's own, or set"
            " https://HOST"
        )
    return address


def logged_in(address: str) -> str:
    """The key for a server: WANDB_API_KEY, else .netrc. Raises InfrastructureError if there is
    none."""
    key = os.environ.get("WANDB_API_KEY", "").strip()
    if not key:
        for name in (os.environ.get("NETRC", ""), "~/.netrc", "~/_netrc"):
            path = Path(name).expanduser() if name else None
            try:
                found = (
                    netrc.netrc(str(path)).authenticators(urlsplit(address).hostname or "")
                    if path and path.is_file()
                    else None
                )
            except (OSError, netrc.NetrcParseError):
                continue
            if found and found[2]:
                key = found[2]
                break
    if not key:
        raise InfrastructureError(
            f"not logged in to {address}: set WANDB_API_KEY (or run `wandb login`), then again"
        )
    return key


def reach(address: str, key: str, patience: float = PATIENCE) -> None:
    """Query the server for the logged-in user. Raises InfrastructureError if it doesn't answer
    within ``patience`` seconds or refuses the key."""
    import httpx

    query = {"query": "query Viewer { viewer { username } }"}
    try:
        answer = httpx.post(f"{address}/graphql", json=query, auth=("api", key), timeout=patience)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        said = (
            "no answer in time"
            if isinstance(error, httpx.TimeoutException)
            else type(error).__name__
        )
        raise InfrastructureError(
            f"{address} doesn't answer ({said}); nothing is lost, run this again later"
        ) from None
    refused = answer.status_code in (401, 403)
    if answer.status_code == 200:
        try:
            refused = (answer.json().get("data") or {}).get("viewer") is None
        except (ValueError, AttributeError):
            raise InfrastructureError(
                f"{address} answers, but not as W&B does; look at WANDB_BASE_URL"
            ) from None
    if refused:
        raise InfrastructureError(
            f"{address} refuses the key (status {answer.status_code}): set WANDB_API_KEY to a valid"
            " one, then again"
        )
    if answer.status_code != 200:
        raise InfrastructureError(
            f"{address} answers with status {answer.status_code}; nothing is lost, run this again"
            " later"
        )


def sync(
    folder: Path,
    now: Callable[[], datetime],
    *,
    timeout: float = 120.0,
    keep: bool = False,
    patience: float = PATIENCE,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Sent:
    """Send the pending runs of ``folder``, oldest first, at most ``timeout`` seconds each. Sent
    runs are recorded in sent.jsonl and removed unless ``keep``; the others stay unchanged for the
    next sync.

    Raises InfrastructureError if there is no login, the server doesn't answer or refuses the key,
    or another sync is running.
    """
    folder = Path(folder).resolve()
    runs = [run for run in waiting(folder) if not run.synced]
    strange = tuple(unlabelled(folder))
    if not runs:
        return Sent((), {}, strange)
    address = host()
    key = logged_in(address)
    with only_one(folder):
        reach(address, key, patience)
        done: list[str] = []
        failed: dict[str, str] = {}
        hung = 0
        for at, run in enumerate(runs, 1):
            try:
                said, slow = _send(run, folder, timeout, key), False
            except Hung as error:
                said, slow = str(error), True
            if not said:
                mark_sent(folder, run, now())
                done.append(run.id)
                hung = 0
            else:
                failed[run.id] = said
                hung = hung + 1 if slow else 0
                stop = _gone(address, key, patience) or (
                    f"{HANGS} runs in a row took too long" if hung >= HANGS else ""
                )
                if stop:
                    failed |= {r.id: f"not tried: {stop}" for r in runs[at:]}
                    break
            progress("sync", at, len(runs))
        if not keep:
            forget(folder)
    return Sent(tuple(done), failed, strange)


def _gone(address: str, key: str, patience: float) -> str:
    try:
        reach(address, key, patience)
    except InfrastructureError as error:
        return str(error)
    return ""


def _send(run: Waiting, folder: Path, timeout: float, key: str) -> str:
    """'' if W&B marked the run as synced; else the reason in one line. Raises Hung after
    ``timeout`` seconds."""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("WANDB_MODE", "WANDB_SILENT")
    } | folders(folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "wandb", "sync", str(run.folder)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Hung(f"took longer than {timeout:g} s; ended, waits for the next time") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if any(run.folder.glob("*.wandb.synced")):
        return ""
    return _reason(said, process.returncode).replace(key, "(key)")


def _reason(said: str, code: int) -> str:
    """The most informative line of `wandb sync`'s output; a crash of its helper is a panic followed
    by a stack trace."""
    lines = [
        re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in said.splitlines() if line.strip()
    ]
    for sign in ("ERROR", "panic:", "Error", "error"):
        for line in reversed(lines):
            if sign in line:
                return line.removeprefix("wandb: ").removeprefix("ERROR ")[:200]
    return f"`wandb sync` ended with exit code {code} and did not mark the run as synced"


#: Written last into a run's folder, so that only complete runs are sent.
LABEL = "sdgbias.json"
SENT = "sent.jsonl"
WRITING = "log.lock"
REPORTS = "reports.json"


@dataclass(frozen=True)
class Waiting:
    """A complete run that is pending; ``needs``: folders of ``artifacts/`` that it refers to;
    ``synced``: W&B has marked it as synced."""

    folder: Path
    id: str
    run_id: str
    night: str
    small: bool
    needs: tuple[str, ...]
    synced: bool


def folders(folder: Path) -> dict[str, str]:
    """W&B's folders inside ``folder``, as its environment variables."""
    return {
        "WANDB_DIR": str(folder),
        "WANDB_DATA_DIR": str(folder / "data"),
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_CONFIG_DIR": str(folder / "config"),
        "WANDB_ERROR_REPORTING": "false",
    }


def waiting(folder: Path) -> list[Waiting]:
    """Complete runs of ``folder``, oldest first, including those kept after they were sent."""
    found = []
    for path in sorted(Path(folder).glob("wandb/offline-run-*")):
        label = _json(path / LABEL)
        if label and any(path.glob("*.wandb")):
            found.append(
                Waiting(
                    path,
                    label["id"],
                    label["run_id"],
                    label["night"],
                    bool(label["small"]),
                    tuple(label["needs"]),
                    any(path.glob("*.wandb.synced")),
                )
            )
    return found


def unlabelled(folder: Path) -> list[Path]:
    """Run folders that are incomplete (still being written, or interrupted) or were not created by
    `sdgbias wandb log`."""
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
    """Ids of runs whose tables and scores are in a pending or sent W&B run."""
    return {str(s["run_id"]) for s in sent(folder) if not s["small"]} | {
        w.run_id for w in waiting(folder) if not w.small
    }


def mark_sent(folder: Path, run: Waiting, now: datetime) -> None:
    line = {
        "id": run.id,
        "run_id": run.run_id,
        "night": run.night,
        "small": run.small,
        "sent_at": now.isoformat(timespec="seconds"),
    }
    with (Path(folder) / SENT).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, sort_keys=True) + "\n")


def forget(folder: Path) -> None:
    """Remove everything that no pending run needs: folders of sent runs, artifact files, and W&B's
    own folders once nothing is pending."""
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
    """Lock held while a run is written, so that nothing it refers to is removed meanwhile. Raises
    OSError."""
    with (Path(folder) / WRITING).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def reports(folder: Path) -> dict[str, str]:
    """'SERVER ENTITY/PROJECT[ draft]' -> id of the Report created there."""
    return {str(k): str(v) for k, v in (_json(Path(folder) / REPORTS) or {}).items()}


def keep_reports(folder: Path, known: dict[str, str]) -> None:
    """Store the ids of the Reports. Raises StoreError if the folder can't be written."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / REPORTS).write_text(
            json.dumps(known, indent=1, sort_keys=True), encoding="utf-8"
        )
    except OSError as error:
        raise StoreError(
            f"the Report was made, but can't write {folder}: {error.strerror}; name another --dir"
        ) from None


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Lock the folder against a second sync. Raises InfrastructureError if another one is running
    or the folder can't be written."""
    with files.only_one(
        Path(folder) / "sync.lock",
        lambda error: InfrastructureError(
            f"can't write {folder}: {error.strerror}; name another --dir"
        ),
        lambda _: InfrastructureError(
            f"{folder}: another `sdgbias wandb sync` is at work here; wait until it has ended"
        ),
    ):
        yield


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
