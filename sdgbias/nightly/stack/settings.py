"""Configuration of a local stack: its settings, the environment of its processes, and its
deployments in the format of `prefect deploy`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sdgbias.errors import InputError, UsageError
from sdgbias.files import packaged_yaml, replacing
from sdgbias.nightly.schedule import CRON, TIMEZONE

_SET: dict[str, dict[str, str]] = packaged_yaml("prefect.yaml")
FLOWS = _SET["flows"]
QUIET = FLOWS | _SET["quiet"]
LIVELY = _SET["lively"]
SOURCE = Path("infra/prefect.yaml")
CPU = "cpu"


@dataclass(frozen=True)
class Stack:
    """One local stack. `pools`: machine type -> models in parallel; `parameters`: of a scheduled
    night; `watch`: also check the hub every day."""

    home: str
    project: str
    port: int = 4200
    cron: str = CRON
    timezone: str = TIMEZONE
    schedule: bool = True
    pools: dict[str, int] = field(default_factory=lambda: {CPU: 1})
    parameters: dict[str, object] = field(default_factory=dict)
    watch: bool = False

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> str:
        return f"{self.page}/api"

    @property
    def results(self) -> Path:
        """The results file of its nights."""
        return Path(self.project) / str(self.parameters.get("results", "results/sdgbias.duckdb"))

    @property
    def parts(self) -> list[str]:
        """Names of the processes that the launcher keeps running."""
        return ["server", *self.workers]

    @property
    def workers(self) -> dict[str, str]:
        """Worker -> machine type of its pool: one worker for all CPU models, and one per
        accelerator of every other type."""
        found = {f"worker-{CPU}": CPU}
        for kind, count in self.pools.items():
            found |= {f"worker-{kind}-{i}": kind for i in range(count)} if kind != CPU else {}
        return found


def load(home: Path) -> Stack | None:
    """The settings of the stack in `home`; None if it never had one."""
    path = home / "stack.json"
    try:
        return Stack(**json.loads(path.read_text(encoding="utf-8")))
    except OSError:
        return None
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path}: {error}; written by another version: sdgbias stack down,"
            " remove the file, sdgbias stack up"
        ) from error


def save(stack: Stack) -> None:
    with replacing(Path(stack.home) / "stack.json") as part:
        part.write_text(json.dumps(asdict(stack), indent=1, sort_keys=True), encoding="utf-8")


def pools_of(text: str) -> dict[str, int]:
    """'cpu=1,h100=8' -> {'cpu': 1, 'h100': 8}. A CPU pool is always included, because the night
    itself runs in it."""
    pools: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        kind, _, count = part.partition("=")
        if (
            not (kind.isalnum() and kind.islower() and count.isdecimal() and int(count) > 0)
            or kind in pools
        ):
            raise UsageError(
                f"--pools {text!r}: {part!r}; write KIND=MODELS_AT_A_TIME once per kind, e.g."
                " --pools cpu=1,h100=8"
            )
        pools[kind] = int(count)
    return {CPU: 1, **pools}


def environment(stack: Stack) -> dict[str, str]:
    """The environment of every process of the stack. Variables already set in the shell of `sdgbias
    up` override QUIET and LIVELY, except for the server's address; tokens are inherited and never
    written to disk."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
    own = {
        "PREFECT_API_URL": stack.api,
        "PREFECT_UI_API_URL": stack.api,
        "PREFECT_HOME": str(Path(stack.home) / "prefect"),
        # Prefect looks for it in the user's own folder otherwise
        "PREFECT_SERVER_MEMO_STORE_PATH": str(Path(stack.home) / "prefect" / "memo_store.toml"),
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(stack.port),
        # pages of other sites must not start flows
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{stack.page},http://localhost:{stack.port}",
        "SDGBIAS_HOME": stack.project,
        "PYTHONUNBUFFERED": "1",
        # tools of this environment are found even if it is not activated
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    return {**QUIET, **LIVELY, **given, **own}


def deployments(stack: Stack, source: Mapping[str, Any]) -> dict[str, Any]:
    """`infra/prefect.yaml` for this stack: with its schedule and parameters, one deployment of
    `score` per pool, and `watch` if enabled."""
    by_name = {str(entry["name"]): entry for entry in source["deployments"]}
    schedule = {
        "cron": stack.cron,
        "timezone": stack.timezone,
        "slug": "every-night",
        "active": True,
    }
    night = by_name["nightly"] | {
        "parameters": {**by_name["nightly"]["parameters"], **stack.parameters},
        "schedules": [schedule] if stack.schedule else [],
    }
    look = by_name["watch"]  # at its own hour, on the clock of the nights
    look |= {"schedules": [one | {"timezone": stack.timezone} for one in look["schedules"]]}
    pattern = by_name[f"score-{CPU}"]
    scores = [
        by_name.get(f"score-{kind}")
        or pattern
        | {
            "name": f"score-{kind}",
            "work_pool": {**pattern["work_pool"], "name": f"sdgbias-{kind}"},
        }
        for kind in stack.pools
    ]
    return {
        **{key: value for key, value in source.items() if key != "definitions"},
        "deployments": [night, *([look] if stack.watch else []), *scores],
    }


def write_deployments(stack: Stack) -> Path:
    """Write the deployments to HOME/prefect.yaml for `prefect deploy`; return the path."""
    source = Path(stack.project) / SOURCE
    try:
        made = deployments(stack, yaml.safe_load(source.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise InputError(
            f"{source}: {error!r}; it must hold the deployments nightly and score-cpu: git checkout"
            f" {SOURCE}"
        ) from error
    path = Path(stack.home) / "prefect.yaml"
    path.write_text(
        "# written by `sdgbias stack up` from infra/prefect.yaml\n"
        + yaml.safe_dump(made, sort_keys=False),
        encoding="utf-8",
    )
    return path
