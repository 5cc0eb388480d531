"""Progress bars of the command line."""

from __future__ import annotations

import sys
from typing import Any

#: Bars that are shown now, so that an error can begin on a line of its own.
_SHOWN: list[Any] = []


def close_bars() -> None:
    """Ends the line of every bar that is still shown."""
    while _SHOWN:
        _SHOWN.pop().close()


class Bars:
    """progress(what, done, total) as one tqdm bar per `what`, with item counts and ETA, on standard error."""

    def __init__(self) -> None:
        self.bars: dict[str, Any] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        from tqdm import tqdm

        if total <= 0:
            return
        if what not in self.bars:
            self.bars[what] = tqdm(total=total, desc=what, unit="", dynamic_ncols=True, mininterval=0.5, file=sys.stderr)
            _SHOWN.append(self.bars[what])
        bar = self.bars[what]
        bar.total = total
        bar.update(done - bar.n)
        if done >= total:
            bar.close()
            _SHOWN.remove(self.bars.pop(what))
