"""The options of a night, once: the command, the flow and the night itself have this class."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from annotated_types import Ge, Interval
from typer import Option

from sdgbias.errors import UsageError
from sdgbias.nightly import schedule
from sdgbias.types import Generation

Command = TypeVar("Command", bound=Callable[..., Any])

#: Default benchmarks; only those present are used.
BENCHMARKS = (Path("data/benchmark"), Path("data/people/benchmark"))
ENV_BENCHMARK, ENV_TIMEZONE = "SDGBIAS_BENCHMARK", "SDGBIAS_TIMEZONE"


def _usual_zone() -> str:
    return os.environ.get(ENV_TIMEZONE) or schedule.TIMEZONE


def today() -> date:
    """The day by which a night that starts now decides who is due. Raises UsageError."""
    return datetime.now(schedule.zone(_usual_zone())).date()


def _registry() -> Path:
    from sdgbias.registry import entries

    return entries.find_root()


@dataclass(frozen=True)
class NightOptions:
    """The options of a night. A field without an Option is no option: ``root`` is the folder of the
    registry, ``by`` 'cli' or 'prefect'. Make one by `parse`, which refuses in one line."""

    results: Annotated[
        Path, Option(envvar="SDGBIAS_RESULTS", show_envvar=False, help="Results file (DuckDB).")
    ] = Path("results/sdgbias.duckdb")
    report: Annotated[Path, Option(help="Folder of the morning's pages.")] = Path("reports/latest")
    benchmark: Annotated[
        list[Path] | None,
        Option(
            help="Benchmark folder; may be repeated, once for each suite. Default: those of"
            " SDGBIAS_BENCHMARK or the project file, and of data."
        ),
    ] = None
    model: Annotated[list[str] | None, Option(help="Only this model; may be repeated.")] = None
    policy: Annotated[
        Path | None, Option(help="What counts as a breach; default: registry/policy.yaml.")
    ] = None
    jobs: Annotated[
        int, Ge(0), Option(min=0, help="Models at a time; 0: as many as the GPUs hold.")
    ] = 0
    timeout: Annotated[
        float, Ge(0), Option(min=0, help="Seconds for one attempt; 0: no limit.")
    ] = 21600.0
    hours: Annotated[
        float,
        Interval(ge=0, lt=math.inf),
        Option(min=0, help="No model is started after so many; 0: no limit."),
    ] = 0.0
    fetch: Annotated[
        Literal["no", "yes"], Option(help="Missing weights from the hub first: no or yes.")
    ] = "no"
    draws: Annotated[int, Ge(1), Option(min=1, help="Random-search draws for CADE.")] = 10_000
    seed: Annotated[
        int, Interval(ge=0, lt=2**32), Option(min=0, max=2**32 - 1, help="Seed of the search.")
    ] = 0
    passes: Annotated[str, Option(help="Extra prompts, as in `sdgbias evaluate`.")] = "all"
    generated: Annotated[
        Generation,
        Option(
            help="Which multiple-choice answers are also generated as text: T1 (Full at T1), all"
            " (Full at all tests), views (all views) or none."
        ),
    ] = "T1"
    selfcheck: Annotated[
        bool,
        Option("--selfcheck/--no-selfcheck", help="Also the full self-check on planted models."),
    ] = False
    night: Annotated[str | None, Option(help="Continue this night, e.g. 2026-11-21T0130.")] = None
    scheduled_for: Annotated[
        str | None,
        Option(help="When this night was due, e.g. 2026-11-21T01:30:00+00:00."),
    ] = None
    catch_up: Annotated[
        bool, Option("--catch-up", help="Only if the last due night is not done: that night, now.")
    ] = False
    cron: Annotated[str, Option(help="When nights are due, as in crontab.")] = schedule.CRON
    timezone: Annotated[
        str | None, Option(help="Of the schedule; default: SDGBIAS_TIMEZONE, else UTC.")
    ] = None
    webhook_env: Annotated[str, Option(help="NAME of the variable with the webhook's address.")] = (
        ""
    )
    root: Path = field(default_factory=_registry)
    by: str = "cli"

    @property
    def zone(self) -> str:
        return self.timezone or _usual_zone()

    @property
    def due(self) -> datetime | None:
        """The instant at which the night was due; None: it is started by hand."""
        return datetime.fromisoformat(self.scheduled_for) if self.scheduled_for else None

    @property
    def benchmarks(self) -> tuple[Path, ...]:
        """The benchmarks given, at most one per suite; else the default ones."""
        return tuple(self.benchmark or default_benchmarks())


#: Options that say which night it is, not how nights are run.
OF_ONE_NIGHT = frozenset({"model", "night", "scheduled_for", "catch_up"})


def parse(**given: object) -> NightOptions:
    """The options with these values. Raises UsageError for an invalid one, a policy that can't be
    read among them, and for more than one way to say which night it is."""
    from sdgbias import formats

    options = formats.parse(given, NightOptions, "options of the night", UsageError)
    zone = schedule.zone(options.zone)
    if options.policy is not None:  # now, not after the last model
        from sdgbias.nightly.regression import policy

        policy.load(options.policy)
    if options.night is not None:
        schedule.checked(options.night)
    when = options.scheduled_for
    try:
        due = options.due
        valid = due is None or bool(due.tzinfo and due.astimezone(zone))
    except (ValueError, OverflowError):  # of the year 9999, which ends in another zone
        valid = False
    if not valid:
        raise UsageError(
            f"--scheduled-for {when!r}; valid: a time with its offset, e.g."
            " 2026-11-21T01:30:00+00:00"
        )
    if (options.night is not None) + (when is not None) + options.catch_up > 1:
        raise UsageError("give one of --night, --scheduled-for and --catch-up")
    return options


def takes_night_options(
    without: Collection[str] = (), **defaults: object
) -> Callable[[Command], Command]:
    """Give a function with ``**options`` the options of a night after its own parameters, for Typer
    and for Prefect, which read its signature. ``defaults``: those that differ from the class."""
    hints = get_type_hints(NightOptions, include_extras=True)
    shared = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(option.name, option.default),
            annotation=hints[option.name],
        )
        for option in fields(NightOptions)
        if hasattr(hints[option.name], "__metadata__") and option.name not in without
    ]

    def with_them(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        first = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        command.__signature__ = signature.replace(parameters=[*first, *shared])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in (*first, *shared)}
        return command

    return with_them


def default_benchmarks() -> Sequence[Path]:
    """The benchmark that SDGBIAS_BENCHMARK names and those of BENCHMARKS that exist and are of
    another suite; at least one."""
    from sdgbias import suites

    present = [b for b in BENCHMARKS if (b / "benchmark.json").is_file()]
    named = Path(os.environ.get(ENV_BENCHMARK, ""))
    if named == Path():
        return present or BENCHMARKS[:1]
    if not (named / "benchmark.json").is_file():
        return (named,)
    suite = suites.of(named).name
    return (named, *(b for b in present if suites.of(b).name != suite))
