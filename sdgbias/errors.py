"""The exception tree: every message a person can meet, and the exit code that goes with it.

    SdgbiasError                exit 1   anything below
    +-- UsageError              exit 2   an option or argument makes no sense
    +-- InputError              exit 3   raw data, tables or images that can't be read as what they should be
    +-- RegistryError           exit 4   a model entry that is unknown, invalid or a duplicate
    +-- ModelError              exit 5   a model that loads but can't be scored (no token for a candidate, ...)
    +-- GateError               exit 6   a table rule of the quality gate failed
    +-- StoreError              exit 7   results can't be written or read (read-only, full disk, locked)
    +-- InfrastructureError     exit 8   out of memory, timeout, gated model: recorded apart, retried, never scored

A message is one line. It names the file and the value at fault and ends with the next command or the valid names.
"""

from __future__ import annotations

from collections.abc import Iterable


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


class GateError(SdgbiasError):
    exit_code = 6


class StoreError(SdgbiasError):
    exit_code = 7


class InfrastructureError(SdgbiasError):
    exit_code = 8


class OutOfMemory(InfrastructureError):
    """The engine had too little memory for a chunk; half of it may fit."""


def one_of(what: str, value: object, valid: Iterable[str]) -> str:
    """The standard sentence for an unknown name: it lists the valid ones."""
    return f"unknown {what} {value!r}; valid: {', '.join(sorted(valid))}"
