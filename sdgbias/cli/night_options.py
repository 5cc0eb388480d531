"""The options of a night, declared once: `sdgbias nightly`, `python -m flows.nightly` and its flow
derive theirs from this class."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

from typer import Option

from sdgbias.cli.options import (
    DEFAULT_RESULTS,
    BenchmarksOption,
    Generated,
    GeneratedOption,
    ResultsOption,
    choice,
)
from sdgbias.errors import UsageError

if TYPE_CHECKING:
    from sdgbias.nightly.plan import Settings

ENV_TIMEZONE = "SDGBIAS_TIMEZONE"
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class NightOptions:
    """The options of a night as a user gives them."""

    results: ResultsOption = DEFAULT_RESULTS
    report: Annotated[Path, Option(help="Folder of the morning's pages.")] = Path("reports/latest")
    benchmark: BenchmarksOption = None
    model: Annotated[
        list[str] | None, Option(help="Only this model; may be given several times.")
    ] = None
    policy: Annotated[
        Path | None, Option(help="What counts as a breach; default: registry/policy.yaml.")
    ] = None
    jobs: Annotated[int, Option(min=0, help="Models at a time; 0: as many as the GPUs hold.")] = 0
    timeout: Annotated[float, Option(min=0, help="Seconds for one attempt; 0: no limit.")] = 21600.0
    hours: Annotated[
        float, Option(min=0, help="No model is started after so many; 0: no limit.")
    ] = 0.0
    fetch: Annotated[str, Option(help="Missing weights from the hub first: no or yes.")] = "no"
    draws: Annotated[int, Option(min=1, help="Random-search draws for CADE.")] = 10_000
    seed: Annotated[int, Option(help="Seed of the search.")] = 0
    passes: Annotated[str, Option(help="Extra prompts, as in `sdgbias evaluate`.")] = "all"
    generated: GeneratedOption = "T1"
    selfcheck: Annotated[
        bool,
        Option("--selfcheck/--no-selfcheck", help="Also the full self-check on planted models."),
    ] = False
    night: Annotated[str | None, Option(help="Continue this night, e.g. 2026-11-21T0130.")] = None
    scheduled_for: Annotated[
        str | None, Option(help="When this night was due, e.g. 2026-11-21T01:30:00+00:00.")
    ] = None
    catch_up: Annotated[
        bool, Option("--catch-up", help="Only if the last due night is not done: that night, now.")
    ] = False
    cron: Annotated[str, Option(help="When nights are due, as in crontab.")] = "30 1 * * *"
    timezone: Annotated[
        str | None, Option(help="Of the schedule; default: SDGBIAS_TIMEZONE, else UTC.")
    ] = None
    webhook_env: Annotated[str, Option(help="NAME of the variable with the webhook's address.")] = (
        ""
    )

    @property
    def zone(self) -> str:
        return self.timezone or os.environ.get(ENV_TIMEZONE) or "UTC"

    def settings(self, by: str, due: datetime | None = None) -> Settings | None:
        """The settings of the night; None if --catch-up finds the last due night done. ``due``:
        when it was due, where its schedule says so. Raises UsageError."""
        from sdgbias.nightly import plan, records, schedule
        from sdgbias.registry import entries

        if (self.night is not None) + (self.scheduled_for is not None) + self.catch_up > 1:
            raise UsageError("give one of --night, --scheduled-for and --catch-up")
        if self.catch_up:
            last = records.last_finished(self.results)
            due = schedule.missed(self.cron, self.zone, last, datetime.now(UTC))
            if due is None:
                return None
        # an option and a setting of the same name are the same thing
        same = {
            f.name: getattr(self, f.name) for f in fields(plan.Settings) if hasattr(self, f.name)
        }
        given: dict[str, Any] = same | {
            "root": entries.find_root(),
            "benchmarks": plan.benchmarks_of(self.benchmark),
            "models": tuple(self.model) if self.model else None,
            "timeout_s": self.timeout,
            "fetch": choice("--fetch", self.fetch, ("no", "yes")),
            "scheduled_for": due or _instant(self.scheduled_for),
            "by": by,
            "timezone": self.zone,
            "generated": choice("--generated", self.generated, get_args(Generated)),
        }
        settings = plan.Settings(**given)
        plan.check(settings)
        return settings


#: Options that say which night it is, not how nights are run.
OF_ONE_NIGHT = frozenset({"model", "night", "scheduled_for", "catch_up"})


def signed(command: Command, shared: Mapping[str, tuple[Any, object]]) -> Command:
    """``command``, which has ``**options``, with these after its own: name -> (type, default)."""
    own = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    after = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in shared.items()
    ]
    command.__signature__ = inspect.Signature([*own, *after])  # type: ignore[attr-defined]
    return command


def takes_night_options(
    without: Collection[str] = (), **defaults: object
) -> Callable[[Command], Command]:
    """Give a command with ``**options`` the options of a night after its own. ``defaults``: those
    that differ from the class."""
    hints = get_type_hints(NightOptions, include_extras=True)
    shared = {
        option.name: (hints[option.name], defaults.get(option.name, option.default))
        for option in fields(NightOptions)
        if option.name not in without
    }

    def with_them(command: Command) -> Command:
        made = signed(command, shared)
        parameters = inspect.signature(made).parameters
        made.__annotations__ = {name: p.annotation for name, p in parameters.items()}
        return made

    return with_them


def described() -> Mapping[str, tuple[type, object, str]]:
    """Name -> (type, default, help) of every option, for a front end other than this one."""
    options = {option.name: option.default for option in fields(NightOptions)}
    hints = {
        name: get_args(hint)
        for name, hint in get_type_hints(NightOptions, include_extras=True).items()
    }
    return {
        name: (hints[name][0], default, str(hints[name][1].help))
        for name, default in options.items()
    }


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
