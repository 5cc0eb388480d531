"""Daily check for new models on the hub: `sdgbias models watch` as a flow. New models become
candidates; a maintainer enables them, or the rules' `probe` and `enable: when_admitted` do.

python -m flows.watch
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from sdgbias.nightly.attempt import CLI
from sdgbias.nightly.process import redact, run_captured

TIMEOUT = 3600  # seconds


@flow(name="watch", persist_result=False)
def watch(rules: str = "", webhook_env: str = "") -> State[list[dict[str, object]]]:
    """Query the hub for new commits of registered models and new repositories of watched owners,
    and register them as candidates.

    Args:
        rules: The rules; empty: registry/watch.yaml.
        webhook_env: NAME of the environment variable with the webhook's address, which gets the
            news of a look; empty: nobody is told.
    """
    given = {"--rules": rules, "--webhook-env": webhook_env}
    options = [part for name, value in given.items() if value for part in (name, value)]
    command = [*CLI, "models", "watch", "--json", *options]
    try:
        code, text, why = run_captured(command, TIMEOUT)
    except subprocess.TimeoutExpired:
        return Failed(message=f"not done within {TIMEOUT} s", data=[])
    try:
        found: list[dict[str, object]] = json.loads(text)
    except ValueError:
        found = []
    words = summed(found)
    create_table_artifact(found or [{"told": "nothing to watch"}], key="watch", description=words)
    if code:
        return Failed(message=redact(why), data=found)
    return Completed(message=words, data=found)


def summed(found: Sequence[Mapping[str, object]]) -> str:
    """'1 of 3 new: name; admitted: name', of the command's answer: repositories that were looked
    at, and after them candidates that were tried."""
    looked = [one for one in found if one["repo"]]
    new = [str(one["name"]) for one in looked if one["written"]]
    tried = [f"; {one['kind']}: {one['name']}" for one in found if not one["repo"]]
    return f"{len(new)} of {len(looked)} new{': ' if new else ''}{', '.join(new)}{''.join(tried)}"


if __name__ == "__main__":
    print(watch(return_state=True).message)
