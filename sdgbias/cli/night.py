"""`sdgbias nightly`: one night, without a server."""

from __future__ import annotations

import re
import signal
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sdgbias.cli.night_options import NightOptions, takes_night_options
from sdgbias.cli.options import JsonOption, say_json
from sdgbias.types import CANDIDATE

if TYPE_CHECKING:
    from sdgbias.nightly.gpus import GpuHost, Need, Place
    from sdgbias.nightly.plan import Settings
    from sdgbias.nightly.run import NightSummary


@takes_night_options()
def nightly(
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only list the models that would be evaluated, and those that would not and why.",
        ),
    ] = False,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """One night: score every model that is due, compare and judge its runs, publish the report and
    notify the team. A model that fails stops no other.

    Run it from cron, from a systemd timer or manually; `sdgbias stack up` starts a server that
    does it by a schedule. A model that did not change costs nothing. Exit code 0: every model was
    tried; 6: the gate found a breach; 8: no model could be scored, or nothing could be shown.
    """
    settings = NightOptions(**options).settings("cli")
    if settings is None:
        (
            say_json({"night": "", "status": "", "note": "the last due night is done"})
            if as_json
            else typer.echo("the last due night is done; nothing to do")
        )
        return
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


def _dry_run(settings: Settings, as_json: bool) -> None:
    from sdgbias.nightly import budget, gpus, plan, steps

    night = plan.tonight(settings, datetime.now(UTC), write=False)
    there = plan.finished(settings, night)
    wanted = [*steps.STEPS[:1], *[steps.SELFCHECK] * settings.selfcheck, *steps.STEPS[1:]]
    idle = {name: steps.not_due(name, settings, night) for name in wanted}
    if any(not job.run_id for job in night.jobs):
        idle["analyse"] = ""  # whatever is published tonight is analysed
    host = gpus.here(settings.jobs)
    needs = {job.model: job.need for job in night.jobs if not job.run_id}
    first = {place.model: place for place in gpus.starts(host, needs, {})}
    stored = budget.stored(settings.results)
    waits = budget.waiting(settings.results, night.jobs, settings.gpu_hours)
    if as_json:
        say_json(
            {
                "night": night.night,
                "jobs": [
                    {
                        "model": j.model,
                        "suite": j.suite,
                        "gpu": j.gpu,
                        "gpus": j.need.gpus if host.gpus and not j.run_id else 0,
                        "starts_on": list(first[j.model].gpus) if j.model in first else [],
                        "key": j.key,
                        "unchanged": j.run_id,
                        "checked": there.get((j.model, j.suite), ""),
                        "stored": stored.get((j.model, j.suite), ""),
                        "may_wait": waits.get((j.model, j.suite), ""),
                    }
                    for j in night.jobs
                ],
                "skipped": [asdict(s) for s in night.skipped],
                "probed_next": _probed(settings),
                "steps": [name for name, why in idle.items() if not why],
                "not_due": {name: why for name, why in idle.items() if why},
            }
        )
        return
    typer.echo(f"night {night.night}: {len(night.jobs)} jobs")
    for job in night.jobs:
        run = there.get((job.model, job.suite))
        kind = f"{job.gpu}{_when(job.need, first.get(job.model), host)}"
        what = (
            f"unchanged: {job.run_id}"
            if job.run_id
            else f"will be started ({kind}): unchanged if {run} still stands, else scored"
            if run
            else f"will be scored ({kind})"
        )
        notes = [found.get((job.model, job.suite), "") for found in (stored, waits)]
        typer.echo(f"  {job.model:24} {job.suite:6} {'; '.join(filter(None, (what, *notes)))}")
    apart: dict[str, list[str]] = {}
    candidates = {one.model for one in night.skipped if one.state == CANDIDATE}
    if candidates:
        # each of them has a reason of its own, which would hide those of the enabled models
        typer.echo(
            f"  skipped: {len(candidates)} candidate{'' if len(candidates) == 1 else 's'},"
            " scored only when enabled: sdgbias models list --state candidate"
        )
        probed = _probed(settings)
        if probed:
            typer.echo(f"  the next `sdgbias models watch` probes {len(probed)} of them")
    for one in night.skipped:
        if one.model in candidates:
            continue
        reason = re.sub(rf"(?<![\w.-]){re.escape(one.model)}(?![\w.-])", "NAME", one.reason)
        apart.setdefault(reason, []).append(one.model)
    for reason, models in apart.items():
        typer.echo(f"  skipped: {reason}: {', '.join(dict.fromkeys(models))}")
    typer.echo(f"then: {', '.join(name for name, why in idle.items() if not why)}")
    for name, why in idle.items():
        if why:
            typer.echo(f"  {name}: not due: {why}")


def _probed(settings: Settings) -> list[str]:
    """The candidates that the next look at the hub would ask a few questions."""
    from sdgbias.nightly import admit
    from sdgbias.registry import watch

    rules = settings.root / "registry" / "watch.yaml"
    return admit.next_tried(settings.root, watch.read(rules)) if rules.is_file() else []


def _when(need: Need, place: Place | None, host: GpuHost) -> str:
    """When and on which GPUs a model starts, as far as that is known before the night."""
    if not host.gpus or not need.gpus:
        return ""
    if need.gpus > len(host.gpus):
        return f"; NOT RUN: takes {need.gpus} GPUs, there are {len(host.gpus)} here"
    if place is None:
        return f"; when {need.gpus} of {len(host.gpus)} GPUs are free"
    several = f", {place.engines} engines" if place.engines > 1 else ""
    return f"; first, on GPU {','.join(place.gpus)}{several}"


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
