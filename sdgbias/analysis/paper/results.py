"""The contents of the results file that the tables need: the newest finished run of each model, and
its numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.cells import NOT_ANALYSED, NOT_RUN
from sdgbias.benchmark.release.authors import AUTHORS_REPO
from sdgbias.errors import UsageError, one_of
from sdgbias.suites.rows import HEADLINE
from sdgbias.types import NEEDS_PICTURES, NEEDS_SCORES, SDG

#: What identifies a number of a run, and which one is meant where nothing else is said; headline
#: metrics have no study.
KEY: Mapping[str, str] = {
    **{"study": "", "task": "mcq", "test": "all", "method": "full", "pillar": "all"},
    **{"indicator": "all", "versus": "", "parameter": "", "metric": "accuracy"},
}
#: Studies that hold the headline metrics, and tables made from the results (numbers.py): whether a
#: run was analysed doesn't matter to them.
WITHOUT_ANALYSIS = ("", "leans", "letters", "costs")
#: Those that tell the numbers of one study apart.
NAMES = tuple(KEY)[1:]


@dataclass(frozen=True)
class Run:
    """kind: 'measured'; 'planted' (a formula, no weights); 'embedded' (a small model trained here
    and shipped with the repository)."""

    run_id: str
    model: str
    kind: str
    benchmark_id: str
    synthetic: bool
    record: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def suite(self) -> str:
        return str(self.record["suite"])

    @property
    def authors_questions(self) -> bool:
        """Whether its questions are those that the paper's authors publish."""
        return (self.config.get("hub") or {}).get("repo") == AUTHORS_REPO

    @property
    def says(self) -> str:
        """One line for a reader: the scored model, run and benchmark, the run's settings, and how
        far printed numbers compare with its own."""
        r, view = self.record, self.config.get("text_view")
        start = (
            f"{self.model} ({self.kind}): run {self.run_id},"
            f" {'synthetic ' if self.synthetic else ''}benchmark {self.benchmark_id}, "
        )
        if not suites.named(self.suite).held_out:  # nothing is drawn or tuned
            return f"{start}seed {r['seed']}"
        whose = "other questions than the authors': the printed numbers aren't directly comparable"
        if self.authors_questions:
            commit = str(self.config["hub"]["commit"])[:12]
            whose = (
                f"the authors' questions ({AUTHORS_REPO} at {commit}): the printed numbers are"
                " directly comparable"
            )
        return (
            f"{start}{self.config.get('draws', '?')} draws, seed {r['seed']}, numerics"
            f" {r['numerics']}, regression mode {self.config.get('mode', 'not said')}; {whose}"
            + (f"; views without the picture are {view}" if view else "")
        )


@dataclass(frozen=True)
class Subject:
    """One table line about a model. ``model`` is set only if the paper's numbers belong beside it:
    the paper shows this model, and ``run`` is None (not run here) or a measured run of it."""

    label: str
    run: Run | None
    model: str = ""


@dataclass(frozen=True)
class PaperResults:
    """All data that the tables are built from. ``chosen``: registry names selected by the user;
    empty: all."""

    path: Path
    runs: tuple[Run, ...]
    chosen: tuple[str, ...] = ()
    suite: str = SDG
    _memory: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def subjects(self, item: str = "") -> list[Subject]:
        """The paper's models of an item that were run, in its order, then every other run, then
        those that were not run. A planted or embedded run never stands for a model of the paper,
        whatever its name; of several benchmarks, one of annotated people does first."""
        data = self.datasets()
        ranked = sorted(self.runs, key=lambda r: data.get(r.benchmark_id) == "facet")
        measured = {r.model: r for r in ranked if r.kind == "measured"}
        shown = [m for m in paper.models(item) if not self.chosen or m in self.chosen]
        ran = [Subject(self.label(measured[m]), measured[m], m) for m in shown if m in measured]
        taken = {s.run.run_id for s in ran if s.run}
        others = [Subject(self.label(r), r) for r in self.runs if r.run_id not in taken]
        names = {m: paper.names(self.suite)[m] for m in shown if m not in measured}
        return [*ran, *others, *(Subject(f"{names[m]} ({NOT_RUN})", None, m) for m in names)]

    def label(self, run: Run) -> str:
        """The paper's name for a measured run of one of its models, else the registry's; if people
        are of several benchmarks, of which; and the kind."""
        names, data = paper.names(self.suite), self.datasets()
        kinds = [data.get(b, "") for b in {r.benchmark_id for r in self.runs}]
        name = names.get(run.model, run.model) if run.kind == "measured" else run.model
        kind = data.get(run.benchmark_id, "")
        which = f" {run.benchmark_id[:8]}" if kinds.count(kind) > 1 else ""
        return f"{name}{f' on {kind}{which}' if kind and len(kinds) > 1 else ''} ({run.kind})"

    def datasets(self) -> dict[str, str]:
        """benchmark_id -> dataset, for the benchmarks of people that the runs were scored on."""
        sql = """SELECT DISTINCT benchmark_id, dataset FROM people
                 WHERE list_contains($benchmarks, benchmark_id) ORDER BY ALL"""
        frame = self.kept("datasets", lambda: self.ask(sql))
        return {str(b): str(d) for b, d in frame.itertuples(index=False, name=None)}

    def row(self, run: Run | None, key: Mapping[str, str]) -> Mapping[Any, Any] | None:
        """The row of a run's number at a key (``KEY``): value, n (NaN: not counted), ci_low,
        ci_high, and status, why there is no value, '' where the results don't say; None if it has
        none."""
        from sdgbias.analysis.paper import numbers

        def index() -> dict[tuple[Any, ...], Mapping[Any, Any]]:
            frame = numbers.of_study(self, key["study"])[::-1]  # so that the first of a key stays
            keys = frame[["run_id", *NAMES]].itertuples(index=False, name=None)
            rows = frame[["value", "n", "ci_low", "ci_high", "status"]].to_dict("records")
            return dict(zip(keys, rows, strict=True))

        if run is None:
            return None
        rows: Mapping[Any, Mapping[Any, Any]] = self.kept(("index", key["study"]), index)
        return rows.get((run.run_id, *(key[name] for name in NAMES)))

    def study(self, study: str) -> pd.DataFrame:
        """All stored numbers of one study, sorted, with the questions of each as one name."""
        sql = f"""FROM {store.NUMBERS} WHERE list_contains($runs, run_id) AND study = $study
                  ORDER BY ALL"""
        rows: pd.DataFrame = self.kept(("rows", study), lambda: self.ask(sql, study=study))
        return rows

    def missing(self, run: Run) -> Mapping[tuple[str, str], str]:
        """(task, method) -> what the run's model lacks for its numbers, as the run was published:
        pictures, or scores of candidates."""

        def read() -> dict[str, dict[tuple[str, str], str]]:
            stored = self.study(HEADLINE)
            lacking = stored[stored["missing_reason"].isin([NEEDS_PICTURES, NEEDS_SCORES])]
            reasons: dict[str, dict[tuple[str, str], str]] = {}
            for r in lacking.to_dict("records"):
                reasons.setdefault(r["run_id"], {})[r["task"], r["method"]] = r["missing_reason"]
            return reasons

        by_run: Mapping[str, Mapping[tuple[str, str], str]] = self.kept("missing", read)
        return by_run.get(run.run_id, {})

    def why(self, run: Run, key: Mapping[str, str], otherwise: str) -> str:
        """Why a run has no number at a key: what its model lacks, that it wasn't analysed, the
        reason in the study's row not_run, or ``otherwise``."""
        study, task, method = key["study"], key["task"], key["method"]

        def read() -> tuple[set[str], dict[tuple[Any, ...], str]]:
            frame = self.study(study)
            missing = frame.loc[frame["metric"] == "not_run", ["run_id", "task", "method", "note"]]
            rows = [*missing.itertuples(index=False, name=None)]
            sql = "SELECT run_id FROM analyses WHERE list_contains($runs, run_id)"
            runs = {*frame["run_id"], *self.ask(sql)["run_id"]}
            notes = {(run, task, m): note for run, task, method, note in rows for m in ("", method)}
            return runs, notes

        if lacks := self.missing(run).get((task, method)):
            return f"not in store: {lacks}"
        if study in WITHOUT_ANALYSIS:
            return f"not in store: {otherwise}"
        runs, notes = self.kept(("notes", study), read)
        if run.run_id not in runs:
            return NOT_ANALYSED
        reason = notes.get((run.run_id, task, method))
        if not reason and study != "methods":  # of other studies one row tells of all methods
            reason = notes.get((run.run_id, task, ""))
        return f"not in store: {reason or otherwise}"

    def kept(self, key: object, make: Callable[[], Any]) -> Any:
        """What ``make`` gives, made once."""
        if key not in self._memory:
            self._memory[key] = make()
        return self._memory[key]

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
    chosen = store.latest_runs(path, suite, per_benchmark=each, among=among)
    sql = "FROM runs WHERE list_contains($runs, run_id) ORDER BY model, benchmark_id"
    runs = [_run(r) for r in store.query(path, sql, {"runs": chosen}).to_dict("records")]
    valid = {*paper.names(suite), *(r.model for r in runs)}
    for name in models:
        if name not in valid:
            raise UsageError("--model: " + one_of("model", name, valid))
    selected = tuple(r for r in runs if not models or r.model in models)
    return PaperResults(Path(path), selected, tuple(models), suite)


def _run(record: Mapping[Any, Any]) -> Run:
    config: Mapping[str, Any] = json.loads(record["config"] or "{}")
    repo = str((config.get("spec") or {}).get("repo", ""))
    kind = "embedded" if repo.startswith("local:") else "measured"
    return Run(
        str(record["run_id"]),
        str(record["model"]),
        "planted" if record["provenance"] == "planted" else kind,
        str(record["benchmark_id"]),
        bool(config.get("synthetic", False)),
        record,
        config,
    )
