"""Sends the runs that wait in a W&B folder: one real `wandb sync` per run, each with a time limit, in the order of the nights.

Whether somebody is logged in and the server answers is asked first, in seconds, because `wandb sync` itself waits for a server that
doesn't answer without end. The key is read from the environment or from .netrc by its usual name and never written anywhere.
"""

from __future__ import annotations

import netrc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from sdgbias.errors import InfrastructureError, UsageError
from sdgbias.report import wandb_state

DEFAULT_HOST = "https://api.wandb.ai"
#: Seconds until a server that says nothing counts as not there.
PATIENCE = 10.0
#: After so many runs in a row that took too long the rest waits for the next time.
HANGS = 2


@dataclass(frozen=True)
class Sent:
    """ids that were sent; id -> reason of those that were not and wait for the next time; folders that are not whole runs of ours."""

    sent: tuple[str, ...]
    failed: dict[str, str]
    strange: tuple[Path, ...]


def host() -> str:
    """The server's address: WANDB_BASE_URL, else W&B's own. Raises UsageError for what is no address."""
    address = os.environ.get("WANDB_BASE_URL", "").rstrip("/") or DEFAULT_HOST
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise UsageError("WANDB_BASE_URL is no plain http(s) address of a server; unset it for W&B's own, or set https://HOST")
    return address


def logged_in(address: str) -> str:
    """The key for a server: WANDB_API_KEY, else .netrc. Raises InfrastructureError when there is none."""
    key = os.environ.get("WANDB_API_KEY", "").strip()
    if not key:
        for name in (os.environ.get("NETRC", ""), "~/.netrc", "~/_netrc"):
            path = Path(name).expanduser() if name else None
            try:
                found = netrc.netrc(str(path)).authenticators(urlsplit(address).hostname or "") if path and path.is_file() else None
            except (OSError, netrc.NetrcParseError):
                continue
            if found and found[2]:
                key = found[2]
                break
    if not key:
        raise InfrastructureError(f"not logged in to {address}: set WANDB_API_KEY (or run `wandb login`), then again")
    return key


def reach(address: str, key: str, patience: float = PATIENCE) -> None:
    """Asks the server who we are. Raises InfrastructureError when it doesn't answer within ``patience`` seconds or refuses the key."""
    import httpx

    query = {"query": "query Viewer { viewer { username } }"}
    try:
        answer = httpx.post(f"{address}/graphql", json=query, auth=("api", key), timeout=patience)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        said = "no answer in time" if isinstance(error, httpx.TimeoutException) else type(error).__name__
        raise InfrastructureError(f"{address} doesn't answer ({said}); nothing is lost, run this again later") from None
    refused = answer.status_code in (401, 403)
    if answer.status_code == 200:
        try:
            refused = (answer.json().get("data") or {}).get("viewer") is None
        except (ValueError, AttributeError):
            raise InfrastructureError(f"{address} answers, but not as W&B does; look at WANDB_BASE_URL") from None
    if refused:
        raise InfrastructureError(f"{address} refuses the key (status {answer.status_code}): set WANDB_API_KEY to a valid one, then again")
    if answer.status_code != 200:
        raise InfrastructureError(f"{address} answers with status {answer.status_code}; nothing is lost, run this again later")


def sync(
    folder: Path, now: Callable[[], datetime], *, timeout: float = 120.0, keep: bool = False,
    patience: float = PATIENCE, progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Sent:  # fmt: skip
    """Sends what waits in ``folder``, oldest first, at most ``timeout`` seconds a run. What was sent is noted in sent.jsonl and removed
    unless ``keep``; what was not stays as it is for the next time.

    Raises InfrastructureError when nobody is logged in, the server doesn't answer or refuses the key, or another sync is at work.
    """
    folder = Path(folder).resolve()
    runs = [run for run in wandb_state.waiting(folder) if not run.synced]
    strange = tuple(wandb_state.unlabelled(folder))
    if not runs:
        return Sent((), {}, strange)
    address = host()
    key = logged_in(address)
    with wandb_state.only_one(folder):
        reach(address, key, patience)
        done: list[str] = []
        failed: dict[str, str] = {}
        hung = 0
        for at, run in enumerate(runs, 1):
            said = _send(run, folder, timeout, key)
            if not said:
                wandb_state.mark_sent(folder, run, now())
                done.append(run.id)
                hung = 0
            else:
                failed[run.id] = said
                hung = hung + 1 if said.startswith(_SLOW) else 0
                stop = _gone(address, key, patience) or (f"{HANGS} runs in a row took too long" if hung >= HANGS else "")
                if stop:
                    failed |= {r.id: f"not tried: {stop}" for r in runs[at:]}
                    break
            progress("sync", at, len(runs))
        if not keep:
            wandb_state.forget(folder)
    return Sent(tuple(done), failed, strange)


_SLOW = "took longer than"


def _gone(address: str, key: str, patience: float) -> str:
    try:
        reach(address, key, patience)
    except InfrastructureError as error:
        return str(error)
    return ""


def _send(run: wandb_state.Waiting, folder: Path, timeout: float, key: str) -> str:
    """'' when W&B itself marked the run as synced; else why not, in one line."""
    environment = {k: v for k, v in os.environ.items() if k not in ("WANDB_MODE", "WANDB_SILENT")} | wandb_state.folders(folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "wandb", "sync", str(run.folder)], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"{_SLOW} {timeout:g} s; ended, waits for the next time"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if any(run.folder.glob("*.wandb.synced")):
        return ""
    return _reason(said, process.returncode).replace(key, "(key)")


def _reason(said: str, code: int) -> str:
    """The line of `wandb sync` that says most; a crash of its helper is a panic with a stack behind it."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in said.splitlines() if line.strip()]
    for sign in ("ERROR", "panic:", "Error", "error"):
        for line in reversed(lines):
            if sign in line:
                return line.removeprefix("wandb: ").removeprefix("ERROR ")[:200]
    return f"`wandb sync` ended with exit code {code} and did not mark the run as synced"
