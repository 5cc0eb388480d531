"""Daily check for new models on the hub: `sdgbias models watch` as a flow. New models become
candidates; a maintainer enables them, or the rules' `probe` and `enable: when_admitted` do.

python -m flows.watch
"""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

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
    try:  # what asks a model's questions ends with it (sdgbias/nightly/process.py)
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return Failed(message=f"not done within {TIMEOUT} s", data=[])
    findings: list[dict[str, object]] = []
    with suppress(ValueError):
        findings = json.loads(done.stdout)
    news = [f"{one['kind']}: {one['name'] or one['repo']}" for one in findings if one["news"]]
    words = "; ".join(news) or f"nothing new in {len(findings)} repositories"
    create_table_artifact(findings or [{"told": "nothing to watch"}], "watch", words)
    if done.returncode:
        why = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Failed(message=redact(why[-1].removeprefix("error: ")), data=findings)
    return Completed(message=words, data=findings)


if __name__ == "__main__":
    print(watch(return_state=True).message)
