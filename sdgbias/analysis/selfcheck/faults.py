"""The parts of the pipeline under test in the self-check, and how to break them on purpose.

A self-check that can't fail proves nothing. `in_pipeline` and `instrument` inject one known fault;
the tests confirm that each is detected.

sign    the prior term of Eq. 9 enters with the wrong sign
leak    CADE is tuned on all rows, test rows included
order   the views CTX+Q and IMG+Q are swapped
narrow  intervals treat questions about one place as independent (seeds only: planted items are
        independent)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from sdgbias.errors import UsageError, one_of
from sdgbias.methods import cade, search
from sdgbias.suites import sdg
from sdgbias.types import CadeParams, Task, View

BREAKS = ("sign", "leak", "order", "narrow")


@dataclass(frozen=True)
class Instrument:
    """streams: as `cade.streams`. tune(streams, payoff (N, K), val (N,), draws, seed) ->
    parameters. clusters: (N,) places -> (N,) clusters that intervals treat as dependent. fault: one
    of BREAKS, or ''."""

    streams: Callable[..., cade.Streams]
    tune: Callable[..., CadeParams]
    clusters: Callable[[np.ndarray], np.ndarray]
    fault: str = ""


def _tune(
    s: cade.Streams, payoff: np.ndarray, val: np.ndarray, draws: int, seed: int
) -> CadeParams:
    return search.random_search(
        search.take(s, val), payoff[val], Task.MCQ, draws=draws, seed=seed
    ).params


def _tune_on_all(
    s: cade.Streams, payoff: np.ndarray, val: np.ndarray, draws: int, seed: int
) -> CadeParams:
    return _tune(s, payoff, np.ones_like(val), draws, seed)


def _every_row(places: np.ndarray) -> np.ndarray:
    return np.arange(len(places))


def _wrong_sign(
    full: np.ndarray, ctx: np.ndarray, img: np.ndarray, q: np.ndarray, *rest: Any, **more: Any
) -> cade.Streams:
    s = cade.streams(full, ctx, img, q, *rest, **more)
    return replace(s, log_q=-s.log_q)


def _wrong_order(
    full: np.ndarray, ctx: np.ndarray, img: np.ndarray, q: np.ndarray, *rest: Any, **more: Any
) -> cade.Streams:
    return cade.streams(full, img, ctx, q, *rest, **more)


def instrument(fault: str = "") -> Instrument:
    """The instrument, unchanged or with one fault of BREAKS."""
    if fault and fault not in BREAKS:
        raise UsageError(f"--break: {one_of('fault', fault, BREAKS)}")
    streams = {"sign": _wrong_sign, "order": _wrong_order}.get(fault, cade.streams)
    return Instrument(
        streams,
        _tune_on_all if fault == "leak" else _tune,
        _every_row if fault == "narrow" else np.asarray,
        fault,
    )


@contextmanager
def in_pipeline(found: Instrument) -> Iterator[None]:
    """Inject the fault into the suite within the block; does nothing without a fault, or for
    'narrow'."""
    swap = {v: v for v in View} | {View.CTX_Q: View.IMG_Q, View.IMG_Q: View.CTX_Q}
    read, run = sdg.view_logits, sdg.run_test

    def swapped(s: Any, items: Any, task: Task, test: Any, view: View) -> Any:
        return read(s, items, task, test, swap[view])

    def leaking(s: Any, items: Any, *rest: Any, **more: Any) -> Any:
        return run(s, items.assign(split="val"), *rest, **more)

    broken = {
        "sign": ("streams", found.streams),
        "order": ("view_logits", swapped),
        "leak": ("run_test", leaking),
    }
    if found.fault in broken:
        with patch.object(sdg, *broken[found.fault]):
            yield
    else:
        yield
