"""The process of the launcher: `python -m sdgbias.nightly.stack HOME`, started by `stack up`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sdgbias.nightly.stack import launcher, settings


def main() -> None:
    stack = settings.load(Path(sys.argv[1]))
    if stack is None:
        sys.exit(f"error: {sys.argv[1]}/stack.json is not there; run: sdgbias stack up")
    os.environ.update(settings.environment(stack))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        launcher.keep(stack, {})
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        launcher.end(stack)


if __name__ == "__main__":
    main()
