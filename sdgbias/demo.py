"""`sdgbias demo`: the tour. It only strings public commands together: dvc repro, the Prefect flow, the headline table."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import typer

from sdgbias import store
from sdgbias.errors import InfrastructureError, UsageError

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "DVC_NO_ANALYTICS": "1",
    "WANDB_MODE": "offline",
    "HF_HUB_OFFLINE": "1",
    "GX_ANALYTICS_ENABLED": "false",
}
HEADLINE = (
    "SELECT model, method, round(value, 3) AS accuracy, round(ci_low, 3) AS low, round(ci_high, 3) AS high, n FROM metrics "
    "WHERE task = 'mcq' AND test = 'all' AND pillar = 'all' AND indicator = 'all' AND metric = 'accuracy' "
    "AND method IN ('q_only', 'ctx_q', 'img_q', 'full', 'cade') AND run_id IN (SELECT unnest(?)) ORDER BY model, CASE method WHEN 'q_only' THEN 0 WHEN 'ctx_q' THEN 1 WHEN 'img_q' THEN 2 "
    "WHEN 'full' THEN 3 ELSE 4 END"
)


PEOPLE = (
    "SELECT model, test, pillar AS groups, round(value, 3) AS disparity, round(ci_low, 3) AS low, round(ci_high, 3) AS high, n FROM metrics "
    "WHERE method = 'full' AND metric = 'disparity' AND indicator = 'all-52' AND pillar NOT LIKE '%max-min' AND run_id IN (SELECT unnest(?)) "
    "ORDER BY model, test, pillar"
)


def _step(title: str, command: list[str]) -> None:
    typer.echo(f"\n== {title}: {' '.join(Path(c).name if c == sys.executable else c for c in command)}")
    environment = {**QUIET, **os.environ}
    home = Path(environment.setdefault("PREFECT_HOME", str(Path("results/.prefect").resolve())))
    home.mkdir(parents=True, exist_ok=True)
    # tools of the same environment (dvc calls sdgbias) must be found even when it is not activated
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        raise InfrastructureError(f"{title} ended with exit code {done.returncode}; what is finished is kept: run the same command again")


def run(results: Path, report: Path) -> None:
    """Raw sample -> benchmark (DVC) -> every enabled model (Prefect) -> report and headline table."""
    if not Path("dvc.yaml").is_file():
        raise UsageError("no dvc.yaml here; run `sdgbias demo` in the folder of the project")
    began = time.monotonic()
    _step("data", [sys.executable, "-m", "dvc", "repro", "--quiet"])
    _step("nightly", [sys.executable, "-m", "flows.nightly", "--results", str(results), "--report", str(report)])
    table = store.query(results, HEADLINE, [store.latest_runs(results)])
    typer.echo("\nAccuracy on the test split, all context tests pooled, 95 % interval clustered by place (measured here):\n")
    typer.echo(table.to_string(index=False))
    people = store.query(results, PEOPLE, [store.latest_runs(results, "facet")])
    if len(people):
        typer.echo("\nSecond suite, schematic people: difference of recall between groups, all classes pooled, 95 % interval:\n")
        typer.echo(people.to_string(index=False))
    typer.echo(f"\nreport: {report / 'index.html'}   ({time.monotonic() - began:.0f} s)")
