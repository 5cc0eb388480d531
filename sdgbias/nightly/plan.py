"""The plan of a night: one job per model and suite, fixed before anything starts, so that edits
made during the night have no effect on it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml
from pydantic import TypeAdapter

from sdgbias import files, suites
from sdgbias.errors import (
    InputError,
    RegistryError,
    SdgbiasError,
    StoreError,
    UsageError,
    one_of,
)
from sdgbias.nightly import schedule
from sdgbias.nightly.night_options import NightOptions
from sdgbias.registry import entries, machine
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.run_id import run_id
from sdgbias.suites import EvalSettings
from sdgbias.types import NEEDS_PICTURES, QUARANTINED

#: Default environment variable with the webhook's address; policy and options may name another.
WEBHOOK = "SDGBIAS_WEBHOOK"
#: State of a Skipped whose registry file can't be read.
BROKEN = "broken"
#: Options of a night that are those of `sdgbias evaluate`.
PASSED_ON = ("passes", "generated", "draws", "seed")
_ONWARD = "make room or give a writable folder with --results"


@dataclass(frozen=True)
class Job:
    """One model on one suite. entry: snapshot of its registry file from the start of the night.
    gpu: machine type it needs (entry option `gpu`). key: the id of its run, '' where that can't be
    known. threads: CPU threads, 0: no limit. run_id: the finished run of that key, '' if none.
    options: further options of `sdgbias evaluate`. withheld: NAMES of the variables with the team's
    address, which its processes must not see. gpus: how many it takes."""

    night: str
    model: str
    suite: str
    benchmark: Path
    entry: Path
    gpu: str
    timeout_s: float
    key: str
    log: Path
    root: Path
    batch_size: int = 8
    threads: int = 0
    options: tuple[str, ...] = ()
    run_id: str = ""
    withheld: tuple[str, ...] = ()
    gpus: int = 0

    @property
    def name(self) -> str:
        """Display name, as used in logs and messages."""
        usual = self.suite in entries.DEFAULT_SUITES
        return self.model if usual else f"{self.model} ({self.suite})"


@dataclass(frozen=True)
class Skipped:
    """A model and suite not scored tonight, and the reason. state: the registry's state, 'broken'
    for an unreadable file, 'no benchmark', or 'needs pictures' (a language model)."""

    model: str
    suite: str
    reason: str
    state: str = ""


@dataclass(frozen=True)
class Night:
    """The plan of one night. folder: beside the results file, holds snapshots and logs (also every
    job's log). benchmarks: suite -> benchmark_id, for the suites that have a job."""

    night: str
    folder: Path
    jobs: tuple[Job, ...]
    skipped: tuple[Skipped, ...]
    scheduled_for: datetime | None = None
    benchmarks: dict[str, str] = field(default_factory=dict)


def folder_of(results: Path, night: str) -> Path:
    """The night's folder of snapshots, logs and outcomes."""
    from sdgbias.store import night_files

    return night_files.home(results) / schedule.checked(night)


def name_of(options: NightOptions, now: datetime) -> str:
    """The night's name: as set in the options, else from the due time, else (started by hand) from
    the current minute, with a suffix if that name is taken. Raises UsageError."""
    if options.night is not None:
        return schedule.checked(options.night)
    if options.due is None:
        minute = schedule.night_id(now, options.zone)
        return schedule.next_free(minute, _done(options.results, minute))
    return schedule.night_id(options.due, options.zone, options.cron)


def tonight(options: NightOptions, now: datetime, write: bool = True) -> Night:
    """Plan the night's jobs: new models first, then the one whose last run is oldest. With
    ``write``, each registry entry is copied into the night's folder, and that copy is what is
    scored.

    A broken registry file becomes a Skipped with state 'broken', a suite without a benchmark one
    with state 'no benchmark', a language model on a suite of pictures one with 'needs pictures'.
    Raises UsageError (two benchmarks of one suite, unknown extra prompts), RegistryError (an
    unknown name in ``model``), InputError (a folder that is not a benchmark).
    """
    name = name_of(options, now)
    folder = folder_of(options.results, name)
    today = now.astimezone(schedule.zone(options.zone)).date()
    chosen, skipped = _chosen(options, today)
    runs = _runs(options.results)
    newest = runs.groupby("model")["finished_at"].max()
    complete = set(runs.loc[runs["n_failed"] == 0, "run_id"])
    chosen.sort(key=lambda spec: newest.get(spec.name, pd.Timestamp.min))
    benchmarks = _benchmarks(options.benchmarks) if chosen else {}
    evaluation = _evaluation(options)
    passed_on = [f"--{of}={getattr(options, of)}" for of in PASSED_ON]
    withheld = webhooks(options.webhook_env, options.policy, options.root)
    at_once = options.jobs or max(1, len(machine.visible()))
    threads = max(1, (os.cpu_count() or 1) // at_once) if at_once > 1 else 0
    jobs: list[Job] = []
    for spec, suite in ((one, suite) for one in chosen for suite in entries.suites(one)):
        benchmark = benchmarks.get(suite)
        if benchmark is None:
            why = "no benchmark of this suite; name its folder with --benchmark"
            skipped.append(Skipped(spec.name, suite, why, "no benchmark"))
            continue
        if benchmark.suite.needs_pictures and not spec.pictured:
            why = f"{NEEDS_PICTURES}: this model is asked {', '.join(spec.views)} alone"
            skipped.append(Skipped(spec.name, suite, why, NEEDS_PICTURES))
            continue
        key = ""
        with suppress(SdgbiasError):  # such as without the weights: the job's process says so
            key = run_id(spec, options.root, benchmark.id, benchmark.suite, evaluation)
        # an endpoint may change behind its name
        is_done = key in complete and spec.backend != "api"
        job = Job(
            night=name,
            model=spec.name,
            suite=suite,
            benchmark=benchmark.folder,
            entry=folder / "registry" / f"{spec.name}.yaml",
            gpu=str(spec.options.get("gpu", "cpu")),
            timeout_s=options.timeout,
            key=key,
            log=folder / "logs" / f"{spec.name}-{suite}.log",
            root=options.root,
            batch_size=spec.batch_size,
            threads=threads,
            options=tuple(passed_on),
            run_id=key if is_done else "",
            withheld=withheld,
            gpus=machine.gpus_of(spec),
        )
        jobs.append(job)
    due = options.due and options.due.astimezone(UTC)
    ids = {job.suite: benchmarks[job.suite].id for job in jobs}
    night = Night(name, folder, tuple(jobs), tuple(skipped), due, ids)
    if write:
        for spec in chosen:
            entry = folder / "registry" / f"{spec.name}.yaml"
            files.write_atomically(entry, entries.to_yaml(spec), _ONWARD)
        plan = json.dumps(asdict(night), default=str, indent=1)
        files.write_atomically(folder / "plan.json", plan, _ONWARD)
    return night


def _evaluation(options: NightOptions) -> EvalSettings:
    """The evaluation settings that a job's options give in `sdgbias evaluate`. Raises UsageError
    for unknown extra prompts: once, before any model is evaluated."""
    from sdgbias.suites.extra_prompts import choose

    given = {of: getattr(options, of) for of in PASSED_ON}
    return EvalSettings(**given | {"passes": tuple(choose(options.passes))})


def webhooks(webhook_env: str, policy: Path | None, root: Path) -> tuple[str, ...]:
    """NAMES of the environment variables with the address of the team: the one given, the policy's,
    the default one. An invalid policy is searched as plain text, so that the secret is withheld
    from models all the same; the regression check reports what is wrong with it."""
    names = [webhook_env]
    with suppress(OSError, ValueError, yaml.YAMLError, InputError):
        path = policy or root / "registry" / "policy.yaml"
        text = files.read_small(path, errors="replace")
        names += re.findall(r"\bwebhook\b[\"']?\s*:\s*[\"']?([A-Za-z_]\w*)", text)
        content = files.load_yaml(text)
        names += [str(content.get("webhook", ""))] if isinstance(content, dict) else []
    return tuple(dict.fromkeys([*filter(None, names), WEBHOOK]))


def load(results: Path, night: str) -> Night:
    """Read the plan that `tonight` wrote, for a process that runs one of its jobs. Raises
    StoreError."""
    path = folder_of(results, night) / "plan.json"
    try:
        return TypeAdapter(Night).validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path}: no plan of a night ({type(error).__name__}); start the night again: sdgbias"
            f" nightly --night {night}"
        ) from None


def _chosen(options: NightOptions, today: date) -> tuple[list[ModelSpec], list[Skipped]]:
    readable, broken = entries.load_readable(options.root)
    if options.model is not None:
        for name in options.model:
            if name not in readable and name not in broken:
                raise RegistryError(
                    one_of("model", name, [*readable, *broken])
                    + "; add one: sdgbias register-model REPO"
                )
        readable = {name: spec for name, spec in readable.items() if name in options.model}
        broken = {name: why for name, why in broken.items() if name in options.model}
    usual = entries.DEFAULT_SUITES[0]
    skipped = [Skipped(name, usual, why, BROKEN) for name, why in broken.items()]
    chosen: list[ModelSpec] = []
    for spec in readable.values():
        if options.model is not None or entries.is_due(spec, today):
            chosen.append(spec)
        else:
            until = f"until {spec.until or 'a person enables it'}: "
            why = f"{spec.state} {until * (spec.state == QUARANTINED)}{spec.reason}"
            skipped += [Skipped(spec.name, s, why, spec.state) for s in entries.suites(spec)]
    return chosen, skipped


class _Benchmark(NamedTuple):
    suite: suites.Suite
    folder: Path
    id: str


def _benchmarks(folders: Sequence[Path]) -> dict[str, _Benchmark]:
    """Benchmarks by the names of their suites. Raises InputError for a folder that is not one,
    UsageError for two of one suite."""
    by_suite: dict[str, _Benchmark] = {}
    for folder in folders:
        suite, card = suites.of(folder), suites.benchmark_card(folder)
        if suite.name in by_suite:
            raise UsageError(
                f"--benchmark {by_suite[suite.name].folder} and {folder} are both of suite"
                f" {suite.name}; name one of each suite"
            )
        by_suite[suite.name] = _Benchmark(suite, folder, str(card["benchmark_id"]))
    return by_suite


def _runs(results: Path) -> pd.DataFrame:
    """The finished runs; none where the results file is not there yet or can't be read: the night
    itself reports that, and the jobs find finished runs themselves."""
    from sdgbias import store

    columns = ["run_id", "model", "finished_at", "n_failed"]
    with suppress(StoreError):
        if results.exists():
            sql = f"SELECT {', '.join(columns)} FROM runs WHERE finished_at IS NOT NULL"
            return store.query(results, sql)
    return pd.DataFrame(columns=columns)


def _done(results: Path, minute: str) -> set[str]:
    """Completed nights that began in this minute (including the same wall-clock minute of a
    repeated hour)."""
    from sdgbias.store import night_files

    sql = "SELECT night FROM nights WHERE status = 'done' AND starts_with(night, ?)"
    return set(night_files.query(results, sql, [minute])["night"])
