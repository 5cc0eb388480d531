"""The nightly: check the benchmark, score every enabled model (each in a process of its own), publish the report.

    python -m flows.nightly                        ephemeral: no server needed
    PREFECT_API_URL=http://127.0.0.1:4200/api python -m flows.nightly

Prefect owns when, where, how often and how long; what is done is the command line of sdgbias. A model that fails is
retried once, then left out of the night; its finished prompts are kept and the others go on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact

SDGBIAS = [sys.executable, "-m", "sdgbias.cli"]
FATAL = {2, 3, 4, 5, 6}  # exit codes of sdgbias/errors.py that another try can't mend


class Failed(RuntimeError):
    """A command of the house that ended with an exit code; `code` is that code."""

    def __init__(self, command: list[str], code: int) -> None:
        super().__init__(f"`sdgbias {' '.join(command)}` ended with exit code {code}")
        self.code = code


def run(*command: str) -> None:
    """One sdgbias command as a process of its own; its output goes where ours goes."""
    done = subprocess.run([*SDGBIAS, *command], check=False)
    if done.returncode:
        raise Failed(list(command), done.returncode)


def worth_retrying(task: object, task_run: object, state: object) -> bool:
    error = state.result(raise_on_failure=False)  # type: ignore[attr-defined]
    return not (isinstance(error, Failed) and error.code in FATAL)


@task(name="gate")
def gate(benchmark: str) -> None:
    run("build", "--stage", "check", "--out", benchmark)


@task(
    name="evaluate",
    task_run_name="evaluate {model}",
    retries=1,
    retry_delay_seconds=5,
    retry_condition_fn=worth_retrying,
    timeout_seconds=6 * 3600,
)
def evaluate(model: str, benchmark: str, results: str) -> None:
    run("evaluate", model, "--benchmark", benchmark, "--results", results)


@task(name="publish")
def publish(results: str, report: str, benchmark: str) -> None:
    run("report", "--results", results, "--out", report, "--benchmark", benchmark, "--wandb")


@flow(name="nightly", log_prints=True)
def nightly(
    benchmark: str = "data/benchmark",
    results: str = "results/sdgbias.duckdb",
    report: str = "reports/latest",
    models: list[str] | None = None,
) -> dict[str, str]:
    """Evaluates `models` (default: every enabled registry entry) one after another; returns model -> 'done' or the reason it failed."""
    from sdgbias import registry

    root = registry.find_root()
    names = models or sorted(registry.enabled(root))
    gate(benchmark)
    outcome: dict[str, str] = {}
    for name in names:
        state = evaluate(name, benchmark, results, return_state=True)
        outcome[name] = "done" if state.is_completed() else str(state.message)
    if "done" in outcome.values():
        publish(results, report, benchmark)
    rows = "\n".join(f"| {name} | {said} |" for name, said in outcome.items())
    create_markdown_artifact(f"| model | outcome |\n|---|---|\n{rows}\n\nReport: {Path(report).resolve() / 'index.html'}", key="nightly")
    failed = [name for name, said in outcome.items() if said != "done"]
    if names and len(failed) == len(names):
        raise RuntimeError(f"no model could be evaluated tonight: {outcome}")
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", default="data/benchmark")
    parser.add_argument("--results", default="results/sdgbias.duckdb")
    parser.add_argument("--report", default="reports/latest")
    parser.add_argument("--model", action="append", help="only this model; may be given several times")
    args = parser.parse_args()
    outcome = nightly(args.benchmark, args.results, args.report, args.model)
    failed = {name: said for name, said in outcome.items() if said != "done"}
    for name, said in failed.items():
        print(f"left out tonight: {name}: {said}", file=sys.stderr)


if __name__ == "__main__":
    main()
