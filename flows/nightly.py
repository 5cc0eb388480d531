"""One night as a Prefect flow, or one every night.

    python -m flows.nightly                        one night, now; with a server of its own
    python -m flows.nightly serve                  every night, on this machine (flows/serve.py)

The flow is flows/night.py. It is imported while the server starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

from flows import run_command, server
from sdgbias import progress
from sdgbias.errors import InfrastructureError, RegressionBreach
from sdgbias.nightly.night_options import parse, takes_night_options


@takes_night_options()
def main(**options: Any) -> None:
    log = parse(**options).results.parent / ".prefect" / "server.log"
    below = progress.ADDRESS in os.environ  # the models and steps write to its line themselves
    with ExitStack() as started:
        with progress.shown("nightly"):
            wait = started.enter_context(server.of_one_night(log))
            from flows.night import BREACH, nightly  # as long as the server needs

            wait()
        with nullcontext() if below else progress.shown("nightly"):
            state = nightly(**options, return_state=True)
    print(state.message, file=sys.stderr if state.is_failed() else sys.stdout)
    if not state.is_completed():
        sys.exit(InfrastructureError.exit_code)
    sys.exit(RegressionBreach.exit_code if state.name == BREACH else 0)


if __name__ == "__main__":
    command: Callable[..., None] = main
    if sys.argv[1:2] == ["serve"]:
        from flows.serve import serve as command

        del sys.argv[1]
    main.__doc__ = __doc__
    run_command(command)
