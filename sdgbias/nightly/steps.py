"""The closing steps of a night: analysis, regression check, report, W&B and notification. Each step
is an `sdgbias` command in a separate process with a separate log; a failing step is reported and
does not stop the others."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pandas as pd

from sdgbias import progress, store
from sdgbias.benchmark.quality import has_passed
from sdgbias.errors import RegressionBreach
from sdgbias.nightly import process
from sdgbias.nightly.attempt import CLI, FAILED
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import Night, webhooks
from sdgbias.nightly.records import BREACH, StepResult
from sdgbias.registry.entries import DEFAULT_SUITES

STEPS = ("analyse", "gate", "report", "wandb", "announce")
CHECK, SELFCHECK = "benchmark", "selfcheck"
#: After the end of the night is recorded: its page again, which then says how it ended.
LAST_PAGE = "last page"
DONE = StepResult("done")
#: Steps whose failure does not fail the night.
OPTIONAL_STEPS = ("wandb", "announce")
#: Timeouts of steps, in seconds.
TIMEOUTS = {"analyse": 4 * 3600.0, SELFCHECK: 2 * 3600.0, "announce": 600.0}
TIMEOUT = 3600.0


def command(name: str, options: NightOptions, night: str) -> list[str]:
    """The command line of a step, without the program."""
    results = ["--results", str(options.results)]
    policy = ["--policy", str(options.policy)] if options.policy else []
    webhook = ["--webhook-env", options.webhook_env] if options.webhook_env else []
    benchmarks = [part for b in options.benchmarks for part in ("--benchmark", str(b))]
    report = ["report", *results, "--out", str(options.report)]
    return {
        SELFCHECK: ["selfcheck", "--full", "--out", str(options.report / "selfcheck.html")],
        "analyse": ["analyse", *results],
        "gate": ["gate", *results, "--night", night, *policy],
        "report": [*report, *benchmarks],
        LAST_PAGE: [*report, "--last-night"],
        "wandb": ["wandb", "log", *results, "--night", night],
        "announce": ["gate", "announce", *results, "--night", night, *policy, *webhook],
    }[name]


def do(name: str, options: NightOptions, night: Night) -> StepResult:
    """Run a closing step, or the check of the benchmarks before any model is scored. Its failures
    never raise."""
    if name == CHECK:
        return check_benchmarks(options, night)
    return run_step(name, command(name, options, night.night), options, night)


def run_step(
    name: str, arguments: Sequence[str], options: NightOptions, night: Night
) -> StepResult:
    """Run a command of sdgbias with a log of its own."""
    log = night.folder / "logs" / f"_{name.replace(' ', '-')}.log"
    environment = {"SDGBIAS_REGISTRY": str(options.root), progress.TASK: name}
    end = process.run([*CLI, *arguments], log, TIMEOUTS.get(name, TIMEOUT), environment)
    if not end.kind:
        return DONE
    if name == "gate" and end.kind == RegressionBreach.__name__:
        return StepResult(BREACH, end.message.removeprefix("in breach: "))
    return StepResult(FAILED, f"{end.message}; see {log}")


def check_benchmarks(options: NightOptions, night: Night) -> StepResult:
    """Run the quality check of tonight's benchmarks; return DONE or the first fault. A benchmark
    that passed the check since its last change, or that of its rules, is not checked again."""
    for suite, folder in {job.suite: job.benchmark for job in night.jobs}.items():
        if not has_passed(folder, options.root / "expectations"):
            name = CHECK if suite in DEFAULT_SUITES else f"{CHECK}-{suite}"
            arguments = ["build", "--stage", "check", "--out", str(folder)]
            ended = run_step(name, arguments, options, night)
            if ended != DONE:
                return ended
    return DONE


def not_due(name: str, options: NightOptions, night: Night) -> str:
    """Why a step has nothing to do tonight, '' if it is due. Such a step is not run and not
    recorded."""
    if name == "announce":
        variables = webhooks(options.webhook_env, options.policy, options.root)
        addressed = any(os.environ.get(variable, "").strip() for variable in variables)
        return "" if addressed else f"no webhook address in {' or '.join(variables)}"
    if name != "analyse" or not options.results.exists():
        return ""
    # `sdgbias evaluate` publishes between nights, too, and a clock may have been set back since
    sql = """SELECT (SELECT max(finished_at) FROM runs) AS published, max(finished_at) AS analysed,
                    $night IN (SELECT night FROM night_outcomes WHERE outcome = 'published') AS new
             FROM nights WHERE night <> $night AND step_states->>'analyse' = $done"""
    given = {"night": night.night, "done": DONE.state}
    [row] = store.query(options.results, sql, given).to_dict("records")
    is_due = row["new"] or pd.isna(row["analysed"]) or row["published"] > row["analysed"]
    return "" if is_due else "nothing was published since the last analysis"
