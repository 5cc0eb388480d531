"""What the tables read of a results file: the newest finished run of each model, its numbers, and
why it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.paper import numbers
from sdgbias.benchmark.release.authors import AUTHORS_REPO
from sdgbias.errors import UsageError, one_of
from sdgbias.types import SDG

NOT_RUN, NOT_ANALYSED = "not run", "not analysed: sdgbias analyse"
#: Studies that `sdgbias analyse` makes; all other numbers need only the run.
ANALYSED = (
    *("methods", "ablation", "streams", "perturbation", "directions", "regression", "sweep"),
    "fairness",
)


@dataclass(frozen=True)
class Run:
    """A run and how it was made (query 'runs'). kind: 'measured', 'planted' or 'embedded'.
    questions, commit: where its questions were fetched, '' if they were built."""

    run_id: str
    model: str
    suite: str
    benchmark_id: str
    seed: int
    numerics: str
    kind: str
    synthetic: bool
    draws: str
    mode: str
    text_view: str
    questions: str
    commit: str

    @property
    def authors_questions(self) -> bool:
        """Whether its questions are those that the paper's authors publish."""
        return self.questions == AUTHORS_REPO

    @property
    def says(self) -> str:
        """One line for a reader: the scored model, run and benchmark, the run's settings, and how
        far printed numbers compare with its own."""
        start = (
            f"{self.model} ({self.kind}): run {self.run_id},"
            f" {'synthetic ' if self.synthetic else ''}benchmark {self.benchmark_id}, "
        )
        if not suites.named(self.suite).held_out:  # nothing is drawn or tuned
            return f"{start}seed {self.seed}"
        whose = "other questions than the authors': the printed numbers aren't directly comparable"
        if self.authors_questions:
            whose = (
                f"the authors' questions ({AUTHORS_REPO} at {self.commit}): the printed numbers"
                " are directly comparable"
            )
        return (
            f"{start}{self.draws} draws, seed {self.seed}, numerics {self.numerics}, regression"
            f" mode {self.mode}; {whose}"
            + (f"; views without the picture are {self.text_view}" if self.text_view else "")
        )


@dataclass(frozen=True)
class Subject:
    """What a line of a table is about: a run, a benchmark or this program. key: its numbers'
    run_id. kind: what they are, 'not run' if there are none. model: whose printed numbers belong
    beside them ('' those of no model), None if none do."""

    label: str
    key: str
    kind: str
    model: str | None = None


class PaperResults:
    """All data that the tables are built from. ``chosen``: registry names selected by the user;
    empty: all."""

    def __init__(self, path: Path, runs: Sequence[Run], chosen: Sequence[str], suite: str) -> None:
        self.path, self.runs, self.chosen, self.suite = path, tuple(runs), chosen, suite
        self._studies: dict[str, pd.DataFrame] = {}
        self._rows: dict[str, dict[tuple[Any, ...], Mapping[Any, Any]]] = {}

    # -- subjects

    def subjects(self, of: str, item: str) -> list[Subject]:
        """The subjects of a table ``of`` 'models', 'benchmarks' or 'code'; ``item``: what the paper
        prints of it."""
        if of == "code":
            return [Subject("", "", "code", "")]
        return self._benchmarks() if of == "benchmarks" else self._models(item)

    def _models(self, item: str) -> list[Subject]:
        """The paper's models of an item that were run, in its order, then every other run, then
        those that were not run. A planted or embedded run never stands for a model of the paper,
        whatever its name; of several benchmarks, one of annotated people does first."""
        ranked = sorted(self.runs, key=lambda r: self._datasets.get(r.benchmark_id) == "facet")
        measured = {r.model: r for r in ranked if r.kind == "measured"}
        printed = dict.fromkeys(r["model"] for r in numbers.rows(item))
        shown = [m for m in printed if not m or not self.chosen or m in self.chosen]
        beside = {measured[m]: m for m in shown if m in measured}
        ordered = [*beside, *(r for r in self.runs if r not in beside)]
        titles = {m: f"{name} ({NOT_RUN})" for m, name in numbers.names(self.suite).items()}
        missing = [m for m in shown if m not in measured]
        return [
            *(Subject(self._label(r), r.run_id, r.kind, beside.get(r)) for r in ordered),
            *(Subject(titles.get(m, "not stated"), "", NOT_RUN, m) for m in missing),
        ]

    def _label(self, run: Run) -> str:
        """The paper's name for a measured run of one of its models, else the registry's; if people
        are of several benchmarks, of which; and the kind."""
        kinds = [self._datasets.get(b, "") for b in {r.benchmark_id for r in self.runs}]
        titles = numbers.names(self.suite) if run.kind == "measured" else {}
        dataset = self._datasets.get(run.benchmark_id, "")
        which = f" {run.benchmark_id[:8]}" if kinds.count(dataset) > 1 else ""
        on = f" on {dataset}{which}" if dataset and len(kinds) > 1 else ""
        return f"{titles.get(run.model, run.model)}{on} ({run.kind})"

    def _benchmarks(self) -> list[Subject]:
        """The benchmarks of the runs; of people, FACET first, whose numbers the paper prints, not
        run if no run was scored on it."""
        if not suites.named(self.suite).per_benchmark:
            kinds = {r.benchmark_id: "synthetic" if r.synthetic else "counted" for r in self.runs}
            each = [Subject(b, b, kind, "") for b, kind in sorted(kinds.items())]
            return each or [Subject("-", "", NOT_RUN, "")]
        facet: list[Subject] = []
        others: list[Subject] = []
        for b, dataset in self._datasets.items():
            kind = "synthetic" if dataset == "synthetic" else "counted"
            model, subjects = ("", facet) if dataset == "facet" else (None, others)
            subjects.append(Subject(f"{dataset} {b[:8]}", b, kind, model))
        return [*(facet or [Subject("facet", "", NOT_RUN, "")]), *others]

    @cached_property
    def _datasets(self) -> dict[str, str]:
        """benchmark_id -> dataset, for the benchmarks of people that the runs were scored on."""
        sql = """SELECT DISTINCT benchmark_id, dataset FROM people
                 WHERE list_contains($benchmarks, benchmark_id) ORDER BY ALL"""
        return dict(self.ask(sql).itertuples(index=False, name=None))

    # -- numbers

    def study(self, study: str) -> pd.DataFrame:
        """`numbers.of_study` of the chosen runs."""
        if study not in self._studies:
            self._studies[study] = numbers.of_study(self.ask, study)
        return self._studies[study]

    def row(self, subject: str, key: Mapping[str, str]) -> Mapping[Any, Any] | None:
        """The row of a subject's number at a key (``KEY``), None if it has none."""
        study = key["study"]
        if study not in self._rows:
            frame = self.study(study)[::-1]  # so that the first of a key stays
            names = [*numbers.VALUES, "status", "kind"]
            # whole arrays of objects: strings kept by Arrow take a microsecond for each one alone
            keys, rows = (
                frame[columns].to_numpy(dtype=object).tolist()
                for columns in (["run_id", *numbers.NAMES], names)
            )
            each = (dict(zip(names, row, strict=True)) for row in rows)
            self._rows[study] = dict(zip(map(tuple, keys), each, strict=True))
        return self._rows[study].get((subject, *(key[name] for name in numbers.NAMES)))

    def lacks(self, subject: str, key: Mapping[str, str]) -> str:
        """What the model of a run lacks for a task and method, as the run was published: pictures,
        or scores of candidates; '' if nothing."""
        return self._reasons.get((subject, "", key["task"], key["method"]), "")

    def why(self, subject: str, key: Mapping[str, str], otherwise: str) -> str:
        """Why a run has no number at a key: what its model lacks, that it wasn't analysed, the
        reason in the study's row not_run, or ``otherwise``."""
        study, task, method = key["study"], key["task"], key["method"]
        reason = self.lacks(subject, key)
        if study in ANALYSED and not reason:
            if not {(subject, at, "", "") for at in (study, "analyses")} & self._reasons.keys():
                return NOT_ANALYSED
            # one row tells of all methods, but in the study of methods
            for at in (method,) if study == "methods" else ("", method):
                reason = self._reasons.get((subject, study, task, at), "") or reason
        return f"not in store: {reason or otherwise}"

    @cached_property
    def _reasons(self) -> dict[tuple[str, ...], str]:
        """(run_id, study, task, method) -> why there are no numbers (query 'reasons')."""
        frame = self.ask(f"{numbers.WITH} FROM ({numbers.SQL['reasons']}) ORDER BY ALL")
        return {tuple(at): reason for *at, reason in frame.itertuples(index=False, name=None)}

    def ask(self, sql: str, **params: object) -> pd.DataFrame:
        """A query over the chosen runs ($runs) and their benchmarks ($benchmarks), where the SQL
        refers to them."""
        runs = [r.run_id for r in self.runs]
        benchmarks = sorted({r.benchmark_id for r in self.runs})
        given = {"runs": runs, "benchmarks": benchmarks, **params}
        used = {name: value for name, value in given.items() if f"${name}" in sql}
        return store.query(self.path, sql, used, runs=runs)


def load(
    path: Path,
    models: Sequence[str] = (),
    *,
    suite: str = SDG,
    among: Sequence[str] | None = None,
) -> PaperResults:
    """The newest finished run of each model (of ``models``, if given) in one suite. In the people
    suite, one per model and benchmark, because runs on different benchmarks answer different
    questions. ``among``: restrict to these runs.

    Raises UsageError for a model that neither the file nor the paper has, StoreError if the file
    can't be read.
    """
    each = suites.named(suite).per_benchmark
    newest = store.latest_runs(path, suite, per_benchmark=each, among=among)
    records = store.query(path, numbers.SQL["runs"], {"runs": newest}).to_dict("records")
    runs = [Run(**{str(name): value for name, value in r.items()}) for r in records]
    valid = {*numbers.names(suite), *(r.model for r in runs)}
    for name in models:
        if name not in valid:
            raise UsageError("--model: " + one_of("model", name, valid))
    return PaperResults(path, [r for r in runs if not models or r.model in models], models, suite)
