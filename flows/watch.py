"""Daily check for new models on the hub: `sdgbias models watch` as a flow."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed

from sdgbias.nightly import watch as looks


@flow(name="watch", persist_result=False, timeout_seconds=3600)
def watch(rules: str = "", webhook_env: str = "") -> State[None]:
    """Query the hub for new commits of registered models and new repositories of watched owners,
    register them as candidates and try them, as the rules say.

    Args:
        rules: The rules; empty: registry/watch.yaml.
        webhook_env: NAME of the environment variable with the webhook's address, which gets the
            news of a look; empty: nobody is told.
    """
    news: list[str] = []

    def show(releases: list[looks.Release]) -> None:
        news.extend(one.line() for one in releases if one.news)
        create_table_artifact([asdict(one) for one in releases], "watch", "; ".join(news))

    looks.run(Path(rules) if rules else None, webhook_env, False, show)
    return Completed(message="; ".join(news) or "nothing new")
