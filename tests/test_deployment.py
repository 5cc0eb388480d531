"""The deployment and the hooks of the repository."""

from __future__ import annotations

from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]


def test_deployment_is_one_that_prefect_takes() -> None:
    from prefect.client.schemas.schedules import CronSchedule

    from flows.night import nightly

    deployment = yaml.safe_load(
        (REPOSITORY / "infra" / "prefect.yaml").read_text(encoding="utf-8")
    )["deployments"][0]
    path, _, name = deployment["entrypoint"].partition(":")
    assert (REPOSITORY / path).is_file() and name == nightly.fn.__name__
    nightly.validate_parameters(deployment["parameters"])
    for schedule in deployment["schedules"]:
        CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
    page = (REPOSITORY / "infra" / "README.md").read_text(encoding="utf-8")
    assert deployment["work_pool"]["name"] in page


def test_hooks_are_local_and_their_tools_installed() -> None:
    config = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for hook in config["repos"][0]["hooks"]:
        tool = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert f"$(BIN)/{tool}" in makefile, f"{tool} isn't part of make test"
