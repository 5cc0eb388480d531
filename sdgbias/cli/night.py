"""`sdgbias nightly`: one night, without a server."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from sdgbias.cli.application import NIGHTS, app
from sdgbias.cli.options import JsonOption, print_json, show
from sdgbias.nightly.night_options import NightOptions, parse, takes_night_options
from sdgbias.types import CANDIDATE

if TYPE_CHECKING:
    from sdgbias.nightly.plan import Skipped
    from sdgbias.nightly.run import NightSummary


@app.command(rich_help_panel=NIGHTS, epilog="Example: sdgbias nightly --dry-run")
@takes_night_options()
def nightly(
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only list who would be evaluated, and who not and why.")
    ] = False,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Run one night: score, compare, publish, notify.

    Every model that is due is scored, its runs are compared and judged, the report is written and
    the team notified. A model that fails stops no other.

    Run it from cron, from a systemd timer or manually; `python -m flows.nightly serve` does it by
    a schedule, with Prefect's page. A model that did not change costs nothing. Exit code 0: every
    model was tried; 6: the gate found a breach; 8: nothing could be scored.
    """
    from sdgbias.nightly import run as nights

    chosen = nights.due_now(parse(**options), datetime.now(UTC))
    if chosen is None:
        note = "the last due night is done"
        show({"night": "", "status": "", "note": note}, as_json, [f"{note}; nothing to do"])
        return
    if dry_run:
        print_plan(chosen, as_json)
        return
    signal.signal(signal.SIGTERM, _stop)
    done = nights.run(
        chosen, tell=lambda text: typer.echo(f"{datetime.now(UTC):%H:%M:%S} {text}", err=True)
    )
    if as_json:
        steps = {name: str(step) for name, step in (done.steps or {}).items()}
        print_json({**asdict(done), "exit_code": done.exit_code, "steps": steps})
    else:
        _print_summary(done)
    raise typer.Exit(done.exit_code)


def _print_summary(done: NightSummary) -> None:
    """A line per model, the steps that weren't done, where to look."""
    from sdgbias.nightly.attempt import SKIPPED

    if done.note:
        typer.echo(done.note)
        return
    typer.echo(f"night {done.night}: {done.status}, {done.seconds:.0f} s")
    heads = f"  {'model':24} {'suite':6} {'outcome':10} tries  seconds  reason"
    if all(o.outcome == SKIPPED for o in done.outcomes):
        typer.echo("  no model is due: sdgbias models")
    if done.outcomes:
        typer.echo(heads)
    for o in done.outcomes:
        aside = f"quarantined until {o.quarantined_until}; " if o.quarantined_until else ""
        reason = (f"{o.kind}: {o.message}" if o.kind else o.message)[:160]
        numbers = f"{o.outcome:10} {o.attempts:5} {o.seconds:8.1f}"
        line = f"  {o.model:24} {o.suite:6} {numbers}  {aside}{reason}"
        typer.echo(line.rstrip("; "))
    for name, step in (done.steps or {}).items():
        if step.state != "done":
            typer.echo(f"  {name}: {step}")
    if done.unsaved:
        typer.echo(f"  not in the results file yet, the next night brings it in: {done.unsaved}")
    typer.echo(f"report: {done.report}")


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def print_plan(options: NightOptions, as_json: bool) -> None:
    from sdgbias.nightly import gpus, plan, steps

    night = plan.tonight(options, datetime.now(UTC), write=False)
    wanted = [*steps.STEPS[:1], *[steps.SELFCHECK] * options.selfcheck, *steps.STEPS[1:]]
    idle = {name: steps.not_due(name, options, night) for name in wanted}
    if any(not job.run_id for job in night.jobs):
        idle["analyse"] = ""  # whatever is published tonight is analysed
    host = gpus.here(options.jobs)
    summary = {
        "night": night.night,
        "jobs": [
            {
                "model": j.model,
                "suite": j.suite,
                "gpu": j.gpu,
                "gpus": j.gpus if host.gpus and not j.run_id else 0,
                "key": j.key,
                "unchanged": j.run_id,
            }
            for j in night.jobs
        ],
        "skipped": [asdict(s) for s in night.skipped],
        "steps": [name for name, why in idle.items() if not why],
        "not_due": {name: why for name, why in idle.items() if why},
    }
    show(summary, as_json, _plan_lines(summary, night.skipped, len(host.gpus)))


def _plan_lines(summary: Mapping[str, Any], skipped: Sequence[Skipped], host: int) -> Iterator[str]:
    """Who would be scored, who not and why, and what follows. ``host``: GPUs of this machine."""
    n = len(summary["jobs"])
    yield f"night {summary['night']}: {n} job{'' if n == 1 else 's'}"
    for job in summary["jobs"]:
        place = f"; on {job['gpus']} of {host} GPUs" if job["gpus"] else ""
        if job["gpus"] > host:
            place = f"; NOT RUN: takes {job['gpus']} GPUs, there are {host} here"
        outcome = f"will be scored ({job['gpu']}{place})"
        if job["unchanged"]:
            outcome = f"unchanged: {job['unchanged']}"
        yield f"  {job['model']:24} {job['suite']:6} {outcome}"
    # candidates have a reason each, which would hide those of the enabled models
    candidates = {one.model for one in skipped if one.state == CANDIDATE}
    if candidates:
        s = "" if len(candidates) == 1 else "s"
        yield (
            f"  skipped: {len(candidates)} candidate{s}, scored only when enabled: sdgbias models"
            " --state candidate"
        )
    by_reason: dict[str, dict[str, str]] = {}
    for one in skipped:
        if one.model not in candidates:
            reason = re.sub(rf"(?<![\w.-]){re.escape(one.model)}(?![\w.-])", "NAME", one.reason)
            by_reason.setdefault(reason, {})[one.model] = one.reason
    for reason, models in by_reason.items():
        reason = reason if len(models) > 1 else "".join(models.values())
        yield f"  skipped: {reason}: {', '.join(models)}"
    yield f"then: {', '.join(summary['steps'])}"
    for name, why in summary["not_due"].items():
        yield f"  {name}: not due: {why}"
