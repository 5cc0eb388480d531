"""Processes as tests look at them: who was started by whom, and who is still there. One that ends
while it is looked at is none, and no error."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

import psutil


def children(pid: int, part: str = "") -> list[int]:
    """The processes that a process has started, oldest first. ``part``: only those with it in their
    command line."""
    found = []
    for child in sorted(psutil.Process(pid).children(), key=psutil.Process.create_time):
        with suppress(psutil.NoSuchProcess):
            if any(part in word for word in child.cmdline()):
                found.append(child.pid)
    return found


def below(pid: int, *words: str, **variables: str) -> list[psutil.Process]:
    """The processes below one, of any depth, with these words in their command line and these
    variables in their environment."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            command, environment = child.cmdline(), child.environ()
            if {*words} <= {*command} and variables.items() <= environment.items():
                found.append(child)
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie: an orphan's is left where nobody reaps it."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end(pids: Iterable[int], within: float = 600) -> bool:
    """Whether they all end within so many seconds."""
    deadline = time.monotonic() + within
    while any(map(alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
