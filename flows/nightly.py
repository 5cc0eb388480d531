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
    task_run_name="evaluate {model} on {benchmark}",
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


@task(name="selfcheck", timeout_seconds=2 * 3600)
def check_the_instrument(report: str) -> None:
    run("selfcheck", "--full", "--out", f"{report}/selfcheck.html")


@task(name="analyse")
def analyse(results: str) -> None:
    run("analyse", "--results", results)


@flow(name="nightly", log_prints=True)
def nightly(
    benchmark: str = "data/benchmark",
    people: str = "data/people/benchmark",
    results: str = "results/sdgbias.duckdb",
    report: str = "reports/latest",
    models: list[str] | None = None,
    selfcheck: bool = False,
) -> dict[str, str]:
    """Evaluates `models` (default: every enabled registry entry) on the suites that its entry names, one after another; returns
    model -> 'done' or the reason it failed.

    selfcheck: afterwards `sdgbias selfcheck --full`; its failure is told, and the night's results stay.
    """
    from sdgbias import registry

    root = registry.find_root()
    names = models or sorted(registry.enabled(root))
    gate(benchmark)
    folders = {"sdg": benchmark, "facet": people}
    there = {suite for suite, folder in folders.items() if suite == "sdg" or (Path(folder) / "benchmark.json").is_file()}
    if "facet" not in there:
        print(f"no benchmark of people at {people}: the suite facet is left out tonight")
    outcome: dict[str, str] = {}
    for name in names:
        for suite in (s for s in registry.suites(registry.load(root, name)) if s in there):
            state = evaluate(name, folders[suite], results, return_state=True)
            said = "done" if state.is_completed() else str(state.message)
            outcome[name if suite == "sdg" else f"{name} ({suite})"] = said
    if "done" in outcome.values():
        analyse(results, return_state=True)  # its failure is told by Prefect; the headline is published all the same
        publish(results, report, benchmark)
    rows = "\n".join(f"| {name} | {said} |" for name, said in outcome.items())
    if selfcheck:
        state = check_the_instrument(report, return_state=True)
        said = "passed" if state.is_completed() else f"FAILED, trust no figure of tonight: {state.message}"
        print(f"self-check: {said}")
        rows += f"\n\nSelf-check: {said}"
    create_markdown_artifact(f"| model | outcome |\n|---|---|\n{rows}\n\nReport: {Path(report).resolve() / 'index.html'}", key="nightly")
    failed = [name for name, said in outcome.items() if said != "done"]
    if outcome and len(failed) == len(outcome):
        raise RuntimeError(f"no model could be evaluated tonight: {outcome}")
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", default="data/benchmark")
    parser.add_argument("--people", default="data/people/benchmark", help="benchmark of the second suite; left out where there is none")
    parser.add_argument("--results", default="results/sdgbias.duckdb")
    parser.add_argument("--report", default="reports/latest")
    parser.add_argument("--model", action="append", help="only this model; may be given several times")
    parser.add_argument("--selfcheck", action="store_true", help="afterwards the full self-check on planted models")
    args = parser.parse_args()
    outcome = nightly(args.benchmark, args.people, args.results, args.report, args.model, args.selfcheck)
    failed = {name: said for name, said in outcome.items() if said != "done"}
    for name, said in failed.items():
        print(f"left out tonight: {name}: {said}", file=sys.stderr)


if __name__ == "__main__":
    main()
