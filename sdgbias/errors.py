"""The exception tree: every message a person can meet, and the exit code that goes with it.

    SdgbiasError                exit 1   anything below
    +-- UsageError              exit 2   an option or argument makes no sense
    +-- InputError              exit 3   raw data, tables or images that can't be read as what they
    should be
    +-- RegistryError           exit 4   a model entry that is unknown, invalid or a duplicate
    +-- ModelError              exit 5   a model that loads but can't be scored (no token for a
    candidate, ...)
    |   +-- KeyRefused                   an endpoint refuses its key or the account behind it
    +-- GateError               exit 6   a table rule of the quality gate failed
    +-- StoreError              exit 7   results can't be written or read (read-only, full disk,
    locked)
    |   +-- Busy                         another process holds the file: wait, then again
    |   +-- DiskFull                     no room: nothing is torn, make room, then again
    +-- SuiteError              exit 9   a folder of own questions (suite.yaml) that has faults
    +-- InfrastructureError     exit 8   out of memory, timeout, gated model: recorded apart,
    retried, never scored
        +-- OutOfMemory                  of the accelerator or of the machine; half a batch may fit
        +-- Hung                         the engine didn't answer in time
        +-- Gated                        the hub wants its conditions accepted, or shows the
        repository to nobody of this token
        +-- ExpiredToken                 the hub or the endpoint doesn't accept the token (any more)
        +-- HubUnreachable               no answer from the hub, and not everything is in the local
        cache

A message is one line. It names the file and the value at fault and ends with the next command or
the valid names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar


class SdgbiasError(Exception):
    """Base of all errors that a person can mend; printed as one line without a traceback."""

    exit_code = 1


class UsageError(SdgbiasError):
    exit_code = 2


class InputError(SdgbiasError):
    exit_code = 3


class RegistryError(SdgbiasError):
    exit_code = 4


class ModelError(SdgbiasError):
    exit_code = 5


class KeyRefused(ModelError):
    """An endpoint refuses the key or the account behind it, whatever is asked."""


class GateError(SdgbiasError):
    exit_code = 6


class StoreError(SdgbiasError):
    exit_code = 7


class Busy(StoreError):
    """Another process holds the results file or the scores of this model."""


class DiskFull(StoreError):
    """No room left, or a file may not grow. What was there before is as it was."""


class SuiteError(SdgbiasError):
    """A folder of own questions that can't become a benchmark as it is."""

    exit_code = 9


class InfrastructureError(SdgbiasError):
    exit_code = 8


class NotAnswerable(ModelError):
    """A prompt that this kind of engine can't answer, however often it is asked. Says nothing about
    the other prompts; counted apart from failures, because asking again is of no use."""

    kind = "NotAnswerable"
    of_prompt = True


class OutOfMemory(InfrastructureError):
    """The engine had too little memory for a chunk; half of it may fit."""


class Hung(InfrastructureError):
    """The engine did not answer in time."""


class Gated(InfrastructureError):
    """The hub hands a repository out only to those who accepted its conditions, or not to the owner
    of this token."""


class ExpiredToken(InfrastructureError):
    """The hub or an endpoint refuses the token itself, whatever is asked for."""


class HubUnreachable(InfrastructureError):
    """The hub does not answer (or may not be asked), and the local cache lacks a file."""


#: Receives the error of a process that ends without raising it: the watchdog of an engine that hangs
#: in a C library can only end the process. Set where an outcome is written (nightly/process.py).
BEFORE_EXIT: ContextVar[Callable[[SdgbiasError], None] | None] = ContextVar(
    "BEFORE_EXIT", default=None
)


def one_of(what: str, value: object, valid: Iterable[str]) -> str:
    """The standard sentence for an unknown name: it lists the valid ones."""
    return f"unknown {what} {value!r}; valid: {', '.join(sorted(valid))}"
