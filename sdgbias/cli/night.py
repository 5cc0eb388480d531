"""`sdgbias nightly`: one night, without a server."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sdgbias.cli.options import (
    DEFAULT_RESULTS,
    GENERATIONS,
    BenchmarksOption,
    GeneratedOption,
    JsonOption,
    ResultsOption,
    choice,
    say_json,
)
from sdgbias.errors import UsageError

if TYPE_CHECKING:
    from sdgbias.nightly.plan import Settings
    from sdgbias.nightly.run import NightSummary

ENV_TIMEZONE = "SDGBIAS_TIMEZONE"


def add_to(app: typer.Typer) -> None:
    """Adds this command to the command line."""
    app.command()(nightly)


def nightly(
    results: ResultsOption = DEFAULT_RESULTS,
    report: Annotated[
        Path, typer.Option(help="Folder of the pages that the team reads in the morning.")
    ] = Path("reports/latest"),
    benchmark: BenchmarksOption = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", help="Only this model; may be given several times. Default: whoever is due."
        ),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="What counts as a breach; default: registry/policy.yaml.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Models at a time, one accelerator each.")] = 1,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds for one attempt on one model; 0: no limit.")
    ] = 6 * 3600.0,
    draws: Annotated[
        int, typer.Option(min=1, help="Random-search draws for CADE (paper: 10,000).")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    passes: Annotated[str, typer.Option(help="Extra passes, as in `sdgbias evaluate`.")] = "cheap",
    generated: GeneratedOption = "T1",
    selfcheck: Annotated[
        bool,
        typer.Option(
            "--selfcheck", help="Also the full self-check on planted models (some minutes)."
        ),
    ] = False,
    night: Annotated[
        str | None,
        typer.Option(
            help="Name of the night, e.g. 2026-11-21T0130: goes on with one that was interrupted."
        ),
    ] = None,
    scheduled_for: Annotated[
        str | None,
        typer.Option(
            help=(
                "When this night was due, with its offset, e.g. 2026-11-21T01:30:00+00:00. Default:"
                " started manually."
            )
        ),
    ] = None,
    catch_up: Annotated[
        bool,
        typer.Option("--catch-up", help="Only if the last due night is not done: that night, now."),
    ] = False,
    cron: Annotated[
        str, typer.Option(help="When nights are due: minute hour day month weekday.")
    ] = "30 1 * * *",
    timezone: Annotated[
        str | None,
        typer.Option(
            help=(
                f"Time zone of the schedule, e.g. Africa/Nairobi. Default: {ENV_TIMEZONE}, else"
                " UTC."
            )
        ),
    ] = None,
    webhook_env: Annotated[
        str,
        typer.Option(
            help=(
                "NAME of the environment variable with the webhook's address; default: the"
                " policy's."
            )
        ),
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only list the models that would be evaluated, and those that would not and why.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """One night: score every model that is due, compare and judge its runs, publish the report and
    notify the team. A model that fails stops no other.

    Run it from cron, from a systemd timer or manually; `sdgbias stack up` starts a server that
    does it by a schedule. A model that did not change costs nothing. Exit code 0: every model was
    tried; 6: the gate found a breach; 8: no model could be scored, or nothing could be shown.
    """
    from sdgbias.nightly import plan, schedule
    from sdgbias.registry import entries

    if (night is not None) + (scheduled_for is not None) + catch_up > 1:
        raise UsageError("give one of --night, --scheduled-for and --catch-up")
    settings = plan.Settings(
        root=entries.find_root(),
        results=results,
        benchmarks=plan.benchmarks_of(benchmark),
        report=report,
        models=tuple(model) if model else None,
        policy=policy,
        webhook_env=webhook_env,
        jobs=jobs,
        timeout_s=timeout,
        selfcheck=selfcheck,
        scheduled_for=_instant(scheduled_for),
        night=night,
        cron=cron,
        timezone=timezone or os.environ.get(ENV_TIMEZONE) or schedule.TIMEZONE,
        passes=passes,
        generated=choice("--generated", generated, GENERATIONS),
        draws=draws,
        seed=seed,
    )
    plan.check(settings)
    if catch_up:
        from sdgbias.nightly import ledger

        due = schedule.missed(
            cron, settings.timezone, ledger.last_finished(results), datetime.now(UTC)
        )
        if due is None:
            (
                say_json({"night": "", "status": "", "note": "the last due night is done"})
                if as_json
                else typer.echo("the last due night is done; nothing to do")
            )
            return
        settings = replace(settings, scheduled_for=due)
    if dry_run:
        _dry_run(settings, as_json)
        return
    from sdgbias.nightly import run as nights

    signal.signal(signal.SIGTERM, _stop)
    done = nights.run(
        settings, tell=lambda text: typer.echo(f"{datetime.now(UTC):%H:%M:%S} {text}", err=True)
    )
    say_json(_as_dict(done)) if as_json else typer.echo("\n".join(lines(done)))
    raise typer.Exit(done.exit_code)


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _instant(text: str | None) -> datetime | None:
    """An ISO time with an offset. Raises UsageError."""
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise UsageError(
            f"--scheduled-for {text!r}; valid: a time with its offset, e.g."
            " 2026-11-21T01:30:00+00:00"
        )
    return when


def _dry_run(settings: Settings, as_json: bool) -> None:
    from sdgbias.nightly import plan, steps

    night = plan.tonight(settings, datetime.now(UTC), write=False)
    there = plan.finished(settings, night)
    wanted = [*steps.STEPS[:1], *[steps.SELFCHECK] * settings.selfcheck, *steps.STEPS[1:]]
    idle = {name: steps.not_due(name, settings, night) for name in wanted}
    if any(not job.run_id for job in night.jobs):
        idle["analyse"] = ""  # whatever is published tonight is analysed
    if as_json:
        say_json(
            {
                "night": night.night,
                "jobs": [
                    {
                        "model": j.model,
                        "suite": j.suite,
                        "gpu": j.gpu,
                        "key": j.key,
                        "unchanged": j.run_id,
                        "checked": there.get((j.model, j.suite), ""),
                    }
                    for j in night.jobs
                ],
                "skipped": [asdict(s) for s in night.skipped],
                "steps": [name for name, why in idle.items() if not why],
                "not_due": {name: why for name, why in idle.items() if why},
            }
        )
        return
    typer.echo(f"night {night.night}: {len(night.jobs)} jobs")
    for job in night.jobs:
        run = there.get((job.model, job.suite))
        what = (
            f"unchanged: {job.run_id}"
            if job.run_id
            else f"will be started ({job.gpu}): unchanged if {run} still stands, else scored"
            if run
            else f"will be scored ({job.gpu})"
        )
        typer.echo(f"  {job.model:24} {job.suite:6} {what}")
    for skipped in night.skipped:
        typer.echo(f"  {skipped.model:24} {skipped.suite:6} skipped: {skipped.reason}")
    typer.echo(f"then: {', '.join(name for name, why in idle.items() if not why)}")
    for name, why in idle.items():
        if why:
            typer.echo(f"  {name}: not due: {why}")


def lines(done: NightSummary) -> list[str]:
    """The summary: a table of models, the steps, where to look."""
    if done.note:
        return [done.note]
    made = [f"night {done.night}: {done.status}, {done.seconds:.0f} s"]
    if done.outcomes:
        made.append(
            f"  {'model':24} {'suite':6} {'outcome':10} {'tries':>5} {'seconds':>8}  reason"
        )
    for o in done.outcomes:
        why = f"{o.kind}: {o.message}" if o.kind else o.message
        aside = f"quarantined until {o.quarantined_until}" if o.quarantined_until else ""
        reason = "; ".join(part for part in (aside, why[:160]) if part)
        line = (
            f"  {o.model:24} {o.suite:6} {o.outcome:10} {o.attempts:5} {o.seconds:8.1f}  {reason}"
        )
        made.append(line.rstrip())
    if not done.outcomes:
        made.append("  no model is due: sdgbias models list")
    made += [f"  {name}: {e}" for name, e in (done.steps or {}).items() if e.state != "done"]
    if done.unsaved:
        made.append(f"  not in the results file yet, the next night brings it in: {done.unsaved}")
    return [*made, f"report: {done.report}"]


def _as_dict(done: NightSummary) -> dict[str, Any]:
    steps = {name: str(ended) for name, ended in (done.steps or {}).items()}
    return asdict(done) | {"steps": steps, "exit_code": done.exit_code}
