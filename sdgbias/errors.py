"""The exception tree: every error a user can meet, and its exit code.

    SdgbiasError                exit 1   anything below
    +-- UsageError              exit 2   an option or argument makes no sense
    +-- InputError              exit 3   unreadable or malformed raw data, tables or images
    +-- RegistryError           exit 4   a model entry that is unknown, invalid or a duplicate
    +-- ModelError              exit 5   a model that loads but can't be scored (no token for a
    |   |                                candidate, ...)
    |   +-- KeyRefused                   an endpoint refuses its key or the account behind it
    +-- RegressionBreach        exit 6   the regression check found that a run is worse than before
    +-- StoreError              exit 7   results can't be written or read (read-only, full disk,
    |   |                                locked)
    |   +-- Busy                         another process holds the file: wait and retry
    |   +-- DiskFull                     no room: nothing is torn, free some space and retry
    +-- SuiteError              exit 9   a folder of custom questions (suite.yaml) with faults
    +-- InfrastructureError     exit 8   out of memory, timeout, gated model: recorded apart,
    |   |                                retried, never scored
    |   +-- OutOfMemory                  of the accelerator or the machine; half a batch may fit
    |   +-- Gated                        the hub requires accepting its conditions, or this token
    |   |                                has no access to the repository
    |   +-- ExpiredToken                 the hub or the endpoint rejects the token
    |   +-- HubUnreachable               no answer from the hub, and the local cache is incomplete
    |   +-- EndpointUnavailable          no answer from an endpoint, or none that may be paid
    +-- DataValidationError     exit 10  rows of a table break a rule of expectations/
    +-- EnginesDisagree         exit 11  the parity check: two engines score one model differently
    +-- SelfcheckFailed         exit 12  a planted bias was not recovered

A message is one line. It names the file and the value at fault and ends with the next command or
the valid names.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Iterable


class SdgbiasError(Exception):
    """Base of all errors that a user can fix; printed as one line without a traceback."""

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
    """An endpoint refuses the key or the account behind it, whatever the request."""


class RegressionBreach(SdgbiasError):
    exit_code = 6


class StoreError(SdgbiasError):
    exit_code = 7


class Busy(StoreError):
    """Another process holds the results file or the scores of this model."""


class DiskFull(StoreError):
    """No room left, or a file may not grow. Existing data are unchanged."""


class SuiteError(SdgbiasError):
    """A folder of custom questions that can't become a benchmark as it is."""

    exit_code = 9


class InfrastructureError(SdgbiasError):
    exit_code = 8


class DataValidationError(SdgbiasError):
    exit_code = 10


class EnginesDisagree(SdgbiasError):
    exit_code = 11


class SelfcheckFailed(SdgbiasError):
    exit_code = 12


class NotAnswerable(ModelError):
    """A prompt that this kind of engine can never answer. Implies nothing about other prompts;
    counted apart from failures, because retrying is useless."""

    kind = "NotAnswerable"
    of_prompt = True


class NonFiniteLogits(ModelError):
    """A model overflowed on the way to an answer: its likeliest token has no finite logit, so that
    any token would be as good. Other prompts may be short enough."""

    kind = "NonFiniteLogits"
    of_prompt = True


class OutOfRange(ModelError):
    """A prompt has more tokens than the model has positions, or a token that the model lacks."""

    kind = "OutOfRange"
    of_prompt = True


class NoScores(ModelError):
    """An endpoint gives text only: no log-probabilities of tokens."""

    kind = "NoScores"


class OutOfMemory(InfrastructureError):
    """The engine had too little memory for a chunk; half of it may fit."""


class EngineDied(InfrastructureError):
    """The child process of an engine ended."""


class Gated(InfrastructureError):
    """The hub serves a repository only to accounts that accepted its conditions, or not to this
    token."""


class ExpiredToken(InfrastructureError):
    """The hub or an endpoint refuses the token itself, whatever the request."""


class HubUnreachable(InfrastructureError):
    """The hub does not answer (or network access is disabled), and the local cache lacks a file."""


class EndpointUnavailable(InfrastructureError):
    """An endpoint doesn't answer, whatever the model behind it, or may not be asked any more."""


def one_of(what: str, value: object, valid: Iterable[str]) -> str:
    """The standard sentence for an unknown name: the valid ones, and the one that is nearly it."""
    from difflib import get_close_matches  # only where something is wrong

    names, text, shown = sorted(valid), str(value), repr(value)
    if len(text) == 1 and not text.isascii():  # it may look like a valid one
        shown += f" ({unicodedata.name(text, ascii(text))})"
    if not names:
        return f"unknown {what} {shown}; there is none yet"
    near = get_close_matches(text, names, 1)
    nearly = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {shown}; valid: {', '.join(names)}{nearly}"


def argument(path: object) -> str:
    """A path as it stands in a command of a message: quoted where a shell would divide it."""
    return shlex.quote(str(path))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, with the second where it ends in a colon; without any, the
    name of its class."""
    first, *more = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {more[0].strip()}" if first.endswith(":") and more else first
