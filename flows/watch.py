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
    try:
        code, text, why = run_captured([*CLI, "models", "watch", "--json", *options], TIMEOUT)
    except subprocess.TimeoutExpired:
        return Failed(message=f"not done within {TIMEOUT} s", data=[])
    findings: list[dict[str, object]] = []
    with suppress(ValueError):
        findings = json.loads(text)
    news = [f"{one['kind']}: {one['name'] or one['repo']}" for one in findings if one["news"]]
    words = "; ".join(news) or f"nothing new in {len(findings)} repositories"
    create_table_artifact(findings or [{"told": "nothing to watch"}], "watch", words)
    state = Failed if code else Completed
    return state(message=redact(why) if code else words, data=findings)


if __name__ == "__main__":
    print(watch(return_state=True).message)
