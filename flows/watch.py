"""Daily check for new models on the hub: `sdgbias models watch` as a flow. New models become
candidates; a maintainer enables them.

python -m flows.watch
"""

from __future__ import annotations

import json
import subprocess

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.states import Completed, Failed, State

from sdgbias.nightly.attempt import CLI
from sdgbias.nightly.process import redact

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
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Failed(message=f"not done within {TIMEOUT} s", data=[])
    try:
        found: list[dict[str, object]] = json.loads(done.stdout)
    except ValueError:
        found = []
    new = [one for one in found if one["written"]]
    words = f"{len(new)} of {len(found)} new" + (
        f": {', '.join(str(one['name']) for one in new)}" if new else ""
    )
    create_table_artifact(found or [{"told": "nothing to watch"}], key="watch", description=words)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [
            f"exit code {done.returncode}"
        ]
        return Failed(message=redact(lines[-1].removeprefix("error: ")), data=found)
    return Completed(message=words, data=found)


if __name__ == "__main__":
    print(watch(return_state=True).message)
