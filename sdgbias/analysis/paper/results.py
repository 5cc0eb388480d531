"""The contents of the results file that the tables need: the newest finished run of each model, its
metrics and its study rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import store, suites
from sdgbias.analysis.asked import gives_scores, language_model
from sdgbias.analysis.paper import printed as paper
from sdgbias.analysis.paper.cells import NOT_ANALYSED, NOT_RUN, Cell, cell
from sdgbias.analysis.paper.printed import Printed
from sdgbias.benchmark.release.records import AUTHORS_REPO
from sdgbias.errors import UsageError, one_of
from sdgbias.methods.stats import Estimate
from sdgbias.types import GENERATED, VIEWS

#: A headline metric over everything that its run was asked.
_HEADLINE: Mapping[str, str | None] = {
    **dict.fromkeys(("test", "pillar", "indicator"), "all"),
    "task": "mcq",
    "method": "full",
}
#: A study's value about everything that its run was asked.
_WHOLE = {**_HEADLINE, **dict.fromkeys(("method", "by", "level"), ""), "x": None}


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
    def label(self) -> str:
        """The paper's name for a measured run of one of its models, else the registry's; plus the
        kind."""
        name = paper.names().get(self.model, self.model) if self.kind == "measured" else self.model
        return f"{name} ({self.kind})"

    @property
    def scored(self) -> bool:
        """Whether its model gave scores of candidates."""
        return gives_scores(self.record.get("config"))

    @property
    def language(self) -> bool:
        """Whether its model was shown no pictures."""
        return language_model(self.record.get("config"))

    @property
    def authors_questions(self) -> bool:
        """Whether its questions are those that the paper's authors publish."""
        return (self.config.get("hub") or {}).get("repo") == AUTHORS_REPO

    @property
    def questions(self) -> str:
        """Whose questions it answered, and how far printed numbers compare with its own."""
        said = "other questions than the authors': the printed numbers aren't directly comparable"
        if self.authors_questions:
            commit = str(self.config["hub"]["commit"])[:12]
            said = (
                f"the authors' questions ({AUTHORS_REPO} at {commit}): the printed numbers are"
                " directly comparable"
            )
        view = self.config.get("text_view")
        return said + (f"; views without the picture are {view}" if view else "")

    @property
    def says(self) -> str:
        """One line for a reader: the scored model, run and benchmark, and the run's settings."""
        r = self.record
        start = (
            f"{self.model} ({self.kind}): run {self.run_id},"
            f" {'synthetic ' if self.synthetic else ''}benchmark {self.benchmark_id}, "
        )
        if not suites.named(str(r["suite"])).held_out:  # nothing is drawn or tuned
            return f"{start}seed {r['seed']}"
        return (
            f"{start}{self.config.get('draws', '?')} draws, seed {r['seed']}, numerics"
            f" {r['numerics']}, regression mode {self.config.get('mode', 'not said')};"
            f" {self.questions}"
        )


@dataclass(frozen=True)
class Subject:
    """One table line about a model. ``of``: what its numbers are read from. ``model`` is set only
    if the paper's numbers belong beside it: the paper shows this model, and ``run`` is None (not
    run here) or a measured run of it."""

    of: PaperResults
    label: str
    run: Run | None
    model: str = ""

    @property
    def status(self) -> str:
        return self.run.kind if self.run else NOT_RUN

    def read_as(self, method: str) -> str:
        """The stored name of a multiple-choice method: of a model that gives text alone, what it
        said stands for the best candidate of a view."""
        said = self.run is not None and not self.run.scored and method in VIEWS
        return method + GENERATED if said else method

    def printed(self, item: str, **where: str) -> Printed | None:
        return paper.find(item, model=self.model, **where) if self.model else None

    def metric(
        self, metric: str, why: str = "", printed: Printed | None = None, **part: str
    ) -> Cell:
        """A cell of the headline metrics (`PaperResults.metric`); ``why``: its status where the run
        has no such number."""
        return cell(self.of.metric(self.run, metric, **part), self.status, why, printed)

    def study(
        self, study: str, metric: str, lacks: str, printed: Printed | None = None, **part: str
    ) -> Cell:
        """A cell of a study (`PaperResults.found`); ``lacks``: as ``otherwise`` of
        `PaperResults.why`."""
        found = self.of.found(self.run, study, metric, **part)
        return cell(found, self.status, self.of.why(self.run, study, lacks), printed)


@dataclass(frozen=True)
class PaperResults:
    """All data that the tables are built from. ``chosen``: registry names selected by the user;
    empty: all."""

    path: Path
    runs: tuple[Run, ...]
    chosen: tuple[str, ...] = ()
    _memory: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def subjects(self, item: str = "") -> list[Subject]:
        """The paper's models of an item that were run, in its order, then every other run, then
        those that were not run. A planted or embedded run never stands for a model of the paper,
        whatever its name."""
        measured = {r.model: r for r in self.runs if r.kind == "measured"}
        models = paper.models(item) if item else ()
        named = [m for m in models if not self.chosen or m in self.chosen]
        found = []
        for m in named:
            label = f"{paper.names()[m]} ({'measured' if m in measured else NOT_RUN})"
            found.append(Subject(self, label, measured.get(m), m))
        others = [r for r in self.runs if r.kind != "measured" or r.model not in named]
        made = [s for s in found if s.run is not None]
        rest = [s for s in found if s.run is None]
        return [*made, *(Subject(self, r.label, r) for r in others), *rest]

    def metric(self, run: Run | None, metric: str, **part: str) -> Estimate | None:
        """One estimate of the headline metrics, None if the run has none. ``part``: the columns
        that say what it is about, where they aren't ``_HEADLINE``."""
        sql = "FROM metric_rows WHERE list_contains($runs, run_id)"
        return self._one(
            "metrics", lambda: self.ask(sql), run, {**_HEADLINE, "metric": metric}, part
        )

    def missing_reason(self, run: Run, metric: str, **part: str) -> str:
        """Why a headline metric (`metric`) has no value; '' where it has one or no row."""
        names = ("run_id", "metric", *_HEADLINE)

        def read() -> dict[tuple[str, ...], str]:
            frame = self.ask(
                f"SELECT {', '.join(names)}, missing_reason FROM metric_rows WHERE"
                " list_contains($runs, run_id) AND missing_reason IS NOT NULL"
            )
            return {tuple(key): why for *key, why in frame.itertuples(index=False, name=None)}

        where = {**_HEADLINE, **part, "run_id": run.run_id, "metric": metric}
        reasons: dict[tuple[Any, ...], str] = self._kept("reasons", read)
        return reasons.get(tuple(where[name] for name in names), "")

    def found(self, run: Run | None, study: str, metric: str, **part: str) -> Estimate | None:
        """One estimate of a study, None if the run has none. ``part``: as in ``metric``, where they
        aren't ``_WHOLE``."""
        at = {**_WHOLE, "metric": metric}
        return self._one(f"study {study}", lambda: self.study(study), run, at, part)

    def _one(
        self,
        table: str,
        rows: Callable[[], pd.DataFrame],
        run: Run | None,
        whole: Mapping[str, str | None],
        part: Mapping[str, str],
    ) -> Estimate | None:
        if unknown := part.keys() - whole.keys():
            raise TypeError(f"no such column: {min(unknown)}")
        if run is None:
            return None
        at = {"run_id": run.run_id, **whole, **part}
        index: dict[tuple[Any, ...], Estimate] = self._kept(table, lambda: _index(rows(), list(at)))
        return index.get(tuple(at.values()))

    def study(self, study: str) -> pd.DataFrame:
        """All rows of one study, sorted; text columns without NULLs."""

        def read() -> pd.DataFrame:
            sql = """FROM study_rows WHERE list_contains($runs, run_id) AND study = $study
                     ORDER BY ALL"""
            frame = self.ask(sql, study=study)
            for name in (*(_WHOLE.keys() - {"x"}), "metric", "note"):
                frame[name] = frame[name].fillna("").astype(str)
            return frame

        found: pd.DataFrame = self._kept(("rows", study), read)
        return found

    def why(
        self, run: Run | None, study: str, otherwise: str, *, method: str = "", task: str = "mcq"
    ) -> str:
        """The status of a cell that a study should have filled: not analysed, or the reason in the
        study's row not_run."""

        def read() -> tuple[set[str], dict[tuple[str, str, str], str]]:
            frame = self.study(study)
            notes = {
                (r["run_id"], r["task"], m): r["note"]
                for r in frame[frame["metric"] == "not_run"].to_dict("records")
                for m in ("", r["method"])
            }
            analysed = self.ask("SELECT run_id FROM analyses WHERE list_contains($runs, run_id)")
            return {*frame["run_id"], *analysed["run_id"]}, notes

        runs, notes = self._kept(("notes", study), read)
        if run is None or run.run_id not in runs:
            return NOT_ANALYSED
        return f"not in store: {notes.get((run.run_id, task, method), otherwise)}"

    def _kept(self, key: object, make: Callable[[], Any]) -> Any:
        """What ``make`` gives, made once."""
        if key not in self._memory:
            self._memory[key] = make()
        return self._memory[key]

    def ask(self, sql: str, **params: object) -> pd.DataFrame:
        """A query over the chosen runs ($runs) and their benchmarks ($benchmarks), where the SQL
        refers to them."""
        known: dict[str, object] = {
            "runs": [r.run_id for r in self.runs],
            "benchmarks": sorted({r.benchmark_id for r in self.runs}),
        }
        used = {name: value for name, value in {**known, **params}.items() if f"${name}" in sql}
        return store.query(self.path, sql, used, runs=[r.run_id for r in self.runs])


def _index(frame: pd.DataFrame, key: Sequence[str]) -> dict[tuple[Any, ...], Estimate]:
    keys = frame[list(key)].round(9).astype(object)
    keys = keys.where(keys.notna(), None)
    rows = frame[["value", "n", "ci_low", "ci_high"]].to_dict("records")
    at = keys.itertuples(index=False, name=None)
    return {k: Estimate.of_row(r) for k, r in zip(at, rows, strict=True)}


def load(
    path: Path,
    models: Sequence[str] = (),
    *,
    suite: str = "sdg",
    known: Collection[str] = (),
    among: Sequence[str] | None = None,
) -> PaperResults:
    """The newest finished run of each model (of ``models``, if given) in one suite. In the people
    suite, one per model and benchmark, because runs on different benchmarks answer different
    questions. ``known``: names of the paper's models. ``among``: restrict to these runs.

    Raises UsageError for a model that neither the file nor the paper has, StoreError if the file
    can't be read.
    """
    each = suites.named(suite).per_benchmark
    chosen = store.latest_runs(path, suite, per_benchmark=each, among=among)
    sql = "FROM runs WHERE list_contains($runs, run_id) ORDER BY model, benchmark_id"
    records = store.query(path, sql, {"runs": chosen}).to_dict("records")
    runs = tuple(_run({str(k): v for k, v in record.items()}) for record in records)
    valid = {*(known or paper.names()), *(r.model for r in runs)}
    for name in models:
        if name not in valid:
            raise UsageError("--model: " + one_of("model", name, valid))
    mine = tuple(r for r in runs if not models or r.model in models)
    return PaperResults(Path(path), mine, tuple(models))


def _run(record: Mapping[str, Any]) -> Run:
    config: Mapping[str, Any] = json.loads(record["config"] or "{}")
    repo = str((config.get("spec") or {}).get("repo", ""))
    kind = "embedded" if repo.startswith("local:") else "measured"
    if record["provenance"] == "planted":
        kind = "planted"
    return Run(
        str(record["run_id"]),
        str(record["model"]),
        kind,
        str(record["benchmark_id"]),
        bool(config.get("synthetic", False)),
        record,
        config,
    )
