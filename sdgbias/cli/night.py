"""`sdgbias nightly`: one night, without a server."""

from __future__ import annotations

import re
import signal
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sdgbias.cli.night_options import NightOptions, takes_night_options
from sdgbias.cli.options import JsonOption, say
from sdgbias.types import CANDIDATE

if TYPE_CHECKING:
    from sdgbias.nightly.plan import Settings


@takes_night_options()
def nightly(
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """One night: score every model that is due, compare and judge its runs, publish the report and
    notify the team. A model that fails stops no other.

    Run it from cron, from a systemd timer or manually; `python -m flows.nightly serve` does it by
    a schedule, with Prefect's page. A model that did not change costs nothing. Exit code 0: every
    model was tried; 6: the gate found a breach; 8: nothing could be scored.

    Args:
        dry_run: Only list who would be evaluated, and who not and why.
    """
    settings = NightOptions(**options).settings("cli")
    if settings is None:
        found = {"night": "", "status": "", "note": "the last due night is done"}
        say(found, as_json, "night_summary", note=f"{found['note']}; nothing to do")
        return
    if dry_run:
        _dry_run(settings, as_json)
        return
    from sdgbias.nightly import run as nights

    signal.signal(signal.SIGTERM, _stop)
    done = nights.run(
        settings, tell=lambda text: typer.echo(f"{datetime.now(UTC):%H:%M:%S} {text}", err=True)
    )
    steps = done.steps or {}
    ended = asdict(done) | {"exit_code": done.exit_code}
    said = {name: str(step) for name, step in steps.items()}
    say(ended | {"steps": said}, as_json, "night_summary", **ended | {"steps": steps})
    raise typer.Exit(done.exit_code)


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _dry_run(settings: Settings, as_json: bool) -> None:
    from sdgbias.nightly import gpus, plan, steps

    night = plan.tonight(settings, datetime.now(UTC), write=False)
    wanted = [*steps.STEPS[:1], *[steps.SELFCHECK] * settings.selfcheck, *steps.STEPS[1:]]
    idle = {name: steps.not_due(name, settings, night) for name in wanted}
    if any(not job.run_id for job in night.jobs):
        idle["analyse"] = ""  # whatever is published tonight is analysed
    host = gpus.here(settings.jobs)
    found = {
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
        "probed_next": _probed(settings),
        "steps": [name for name, why in idle.items() if not why],
        "not_due": {name: why for name, why in idle.items() if why},
    }
    # candidates have a reason each, which would hide those of the enabled models
    candidates = {one.model for one in night.skipped if one.state == CANDIDATE}
    apart: dict[str, list[str]] = {}
    for one in night.skipped:
        if one.model not in candidates:
            reason = re.sub(rf"(?<![\w.-]){re.escape(one.model)}(?![\w.-])", "NAME", one.reason)
            apart.setdefault(reason, []).append(one.model)
    more = {"host": len(host.gpus), "candidates": len(candidates), "apart": apart}
    say(found, as_json, "night_plan", **found | more)


def _probed(settings: Settings) -> list[str]:
    """The candidates that the next look at the hub would ask a few questions."""
    from sdgbias.nightly import watch, watch_rules

    rules = settings.root / "registry" / "watch.yaml"
    return watch.next_tried(settings.root, watch_rules.read(rules)) if rules.is_file() else []
