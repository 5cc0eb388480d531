"""Everything that differs between suites, as one value: all other code takes a `Suite` and is the
same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sdgbias.progress import Progress
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import ANSWER_TOKENS, Generation

if TYPE_CHECKING:
    from sdgbias.methods.cade import Numerics
    from sdgbias.methods.search import Kind

#: image_id -> the encoded bytes of its pictures.
Images = Mapping[str, tuple[bytes, ...]]


@dataclass(frozen=True)
class EvalSettings:
    """How one run is evaluated. The suite decides which of the settings enter a run's id
    (`identity`).

    generated: which multiple-choice answers are also generated and read (method
    `full_generated`): those of the Full view at T1 or at all tests, of all views at all tests, or
    none. draws, search: of CADE's search on val. numerics: `exact`, or `reference` (the authors'
    floors). mode: regression answers, `replace` (the free answer with CADE's digit in place of
    its first one, as the authors' code) or `continue` (decode after each of ten digits).
    passes: prompts beyond the suite's views (extra_prompts.py).
    """

    draws: int = 10_000
    seed: int = 0
    numerics: Numerics = "exact"
    mode: str = "replace"
    passes: tuple[str, ...] = ()
    search: Kind = "random"
    generated: Generation = "T1"


@dataclass(frozen=True)
class Abilities:
    """What an engine can do: score candidates, continue an answer that begins with given text."""

    gives_scores: bool = True
    forces_starts: bool = True


@dataclass(frozen=True)
class StoredScores:
    """cells: task, item_id, test, view, key. scores and generations as read from the cache. near:
    largest margin between the best two candidates, in nats, that counts as a near tie."""

    cells: pd.DataFrame
    scores: pd.DataFrame
    generations: pd.DataFrame
    near: float = 1e-3

    @cached_property
    def _views(self) -> Mapping[tuple[str, str, str], NDArray[np.int64]]:
        """(task, test, view) -> its rows of ``cells``."""
        indices: Any = self.cells.groupby(["task", "test", "view"]).indices
        return dict(indices)

    def cells_of(self, view: tuple[str, str, str], items: pd.Series) -> NDArray[np.int64]:
        """(N,) the row of ``cells`` of N item ids in one (task, test, view), -1 for none."""
        at = self._views.get(view, np.zeros(0, dtype=np.int64))
        positions = pd.Series(at, index=self.cells["item_id"].to_numpy()[at], dtype="int64")
        return np.asarray(positions.reindex(items, fill_value=-1))

    @cached_property
    def prompt_of(self) -> NDArray[np.int64]:
        """(C + 1,) the distinct prompt of each of C cells by its rank; -1, the last, of no cell."""
        return np.append(pd.factorize(self.cells["key"], sort=True)[0], -1)

    @cached_property
    def score_of(self) -> NDArray[np.int64]:
        """(C + 1,) the row of ``scores`` of each of C cells, -1 for none; -1, the last, of no
        cell."""
        return np.append(pd.Index(self.scores["key"]).get_indexer(self.cells["key"]), -1)

    @cached_property
    def logits(self) -> NDArray[np.float64]:
        """(S + 1, K) of S scores: NaN beyond a prompt's candidates. The last row, all NaN, is that
        of no score."""
        return _matrix(self.scores["logits"])

    @cached_property
    def upper(self) -> NDArray[np.float64]:
        """(S + 1, K) upper bounds of withheld logits, NaN where the logit is exact."""
        return _matrix(self.scores["upper"])

    @cached_property
    def spoken(self) -> Mapping[str, Mapping[str, str]]:
        """Start of an answer -> key of a prompt -> the text generated after it."""
        g = self.generations
        # a few texts and keys stand in millions of rows
        (key, keys), (text, texts) = (
            (code, np.asarray(names, dtype=object))
            for code, names in (pd.factorize(g[name]) for name in ("key", "text"))
        )
        return {
            str(start): dict(zip(keys[key[at]], texts[text[at]], strict=True))
            for start, at in g.groupby("start").indices.items()
        }

    @cached_property
    def cut(self) -> frozenset[str]:
        """Keys of the prompts whose free answer the limit of tokens ended."""
        g = self.generations
        return frozenset(g.loc[(g["start"] == "") & g["truncated"].astype(bool), "key"])


def _matrix(lists: pd.Series) -> NDArray[np.float64]:
    """(S + 1, K) of S arrays of at most K numbers, filled with NaN; what is no array is all NaN."""
    arrays = [x if isinstance(x, np.ndarray) else np.zeros(0) for x in lists]
    sizes = np.array([*map(len, arrays), 0])
    matrix = np.full((len(sizes), sizes.max()), np.nan)
    matrix[np.arange(matrix.shape[1]) < sizes[:, None]] = np.concatenate([*arrays, np.zeros(0)])
    return matrix


#: (benchmark, scored, settings, images, progress) -> the rows of every store table of one run,
#: except scores and failures: items (or people), predictions, numbers and the suite's others.
#: Raises InputError where no result can be computed, DataValidationError where the predictions
#: break a quality rule.
Tables = Callable[[Path, StoredScores, EvalSettings, Images, Progress], dict[str, pd.DataFrame]]


@dataclass(frozen=True)
class Suite:
    """The differences between suites.

    name: in results, commands and files. title: on pages. version: bumped when the processing of
    answers changes, so that older runs are recomputed. cluster_unit: what errors are clustered by,
    in words.

    items_table: where its questions are stored. question_keys: the columns of that table that
    identify a question of a benchmark. filters: name -> column of that table by which pages filter;
    none: by the group columns.

    tests: task -> its tests (prompts, of people). attributes: of its questions, whose groups are
    compared; none: its author's group columns. pairs: attribute -> the two groups whose difference
    counts, where it isn't that of the best and the worst.

    identity: the settings that enter a run's id. cells: task, item_id, test, view, text, image_id,
    candidates of every prompt. generations_needed(cells, distinct, settings, abilities): the
    distinct prompts to answer freely, with column task. starts_needed(benchmark, scored, settings,
    split): key -> the starts after which answers of a split are still to be decoded; asked for
    'val', then for 'test'. answer_kinds: task -> kind of
    question (ANSWER_TOKENS), which limits the length of its answers. unanswerable(benchmark,
    wanted, names): key -> reason, of prompts whose right answer is not among the ``names`` that an
    engine can give. tables: see `Tables`. noted: the part of the benchmark's card that a run's
    config keeps.

    per_benchmark: runs on different benchmarks are different results (data sets); the newer does
    not replace the older. held_out: only split 'test' is reported, because CADE is tuned on the
    rest; so draws, extra prompts and searches matter. signatures: answers lean in a direction (bias
    signatures). needs_pictures: a language model can't answer it. private: pictures show people;
    they are blurred until a reader reveals them. unpublished: why its answers aren't passed on.
    """

    name: str
    title: str
    version: str
    cluster_unit: str
    identity: Callable[[EvalSettings], dict[str, object]]
    cells: Callable[[Path, EvalSettings], pd.DataFrame]
    generations_needed: Callable[
        [pd.DataFrame, pd.DataFrame, EvalSettings, Abilities], pd.DataFrame
    ]
    answer_kinds: Mapping[str, str]
    tests: Mapping[str, Sequence[str]]
    tables: Tables
    starts_needed: Callable[[Path, StoredScores, EvalSettings, str], dict[str, list[str]]] = (
        lambda benchmark, scored, settings, split: {}
    )
    unanswerable: Callable[[Path, pd.DataFrame, Collection[str]], dict[str, str]] = (
        lambda benchmark, wanted, names: {}
    )
    noted: Callable[[Mapping[str, object]], dict[str, object]] = lambda card: {}
    items_table: str = "items"
    question_keys: tuple[str, ...] = ("task", "item_id")
    filters: Mapping[str, str] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    pairs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    per_benchmark: bool = False
    held_out: bool = True
    signatures: bool = False
    needs_pictures: bool = False
    private: bool = False
    unpublished: str = ""
    docs: str = ""

    def to_decode(
        self,
        spec: ModelSpec,
        cells: pd.DataFrame,
        distinct: pd.DataFrame,
        settings: EvalSettings = EvalSettings(),
        abilities: Abilities = Abilities(),
    ) -> pd.DataFrame:
        """The ``distinct`` prompts whose answer a model generates, with columns task,
        forced (the starts that answers are forced to have, separated by commas: none) and limit
        (most new tokens)."""
        rows = self.generations_needed(cells, distinct, settings, abilities)
        return rows.assign(
            forced="", limit=rows["task"].map(self.token_limits(spec)).astype("int32")
        )

    def token_limits(self, spec: ModelSpec) -> dict[str, int]:
        """task -> longest answer of a model, in tokens."""
        limits = {**ANSWER_TOKENS, **spec.max_new_tokens}
        return {task: limits[kind] for task, kind in self.answer_kinds.items()}

    @property
    def docs_folder(self) -> str:
        """Folder beside a report's pages for the docs of the quality check and the benchmark's
        card."""
        return self.docs or f"benchmark-{self.name}"

    def reported(self, *answers: str) -> str:
        """SQL, beginning with AND: the answers (by their aliases) are among the reported ones; ''
        where all are."""
        return "".join(f" AND {a}.split = 'test'" for a in answers) if self.held_out else ""
