"""Fairness over demographic attributes as a suite (Wu et al.): from free answers and candidate
scores to labels, recall and disparity.

The generated answer is the one that counts, as in the paper (method ``full``). Single-choice
questions also have first-token scores of A, B and C: their argmax with the picture
(``full_argmax``) and without it (``q_only``) is reported beside it. Nothing is tuned here, so every
annotated person enters the results; tuned methods (analysis/studies/fairness.py) are reported on
the test pictures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from sdgbias.benchmark.people_items import CHOICE, CHOICES, DIRECT, view_cells
from sdgbias.errors import InputError
from sdgbias.methods import stats
from sdgbias.methods.answers import TRUNCATED
from sdgbias.methods.labels import OPTIONS, LetterGrams, TextEncoder, encode
from sdgbias.progress import Progress
from sdgbias.raw.facet import CLASSES, SPELLINGS
from sdgbias.suites import facet_groups
from sdgbias.suites.rows import FEWER, NUMBER, numbers
from sdgbias.suites.sdg import read_table
from sdgbias.suites.suite import Abilities, EvalSettings, Images, StoredScores, Suite
from sdgbias.types import FACET, View

NAME = FACET
#: Bumped when the processing of answers changes (parsing an answer by form, a metric), so that
#: older runs are recomputed.
ANALYSIS = "6"
#: Why a prompt has no disparity.
NOT_UNDERSTOOD, NONE_RIGHT = "no answer understood", "no answer right"
#: Metrics that have no value for such a reason, beside the differences between groups.
_OF_ANSWERS = {
    NOT_UNDERSTOOD: ("recall", "no_rate", "unknown_rate", "false_yes_rate"),
    NONE_RIGHT: (),
}
#: Why an engine can't answer a prompt.
BEYOND = "the right answer is not among those this model can give"
LETTERS = "".join(OPTIONS)
ANSWERS = list(OPTIONS.values())
#: Pictures kept beside the results for the report's examples, and their longer side.
PREVIEWS, PREVIEW_SIDE = 60, 320
_RATES: dict[str, Callable[[pd.DataFrame], ArrayLike]] = {
    "unparsed_rate": lambda f: f["how"].isin(["unparsed", "empty", "several"]).to_numpy(),
    "refusal_rate": lambda f: (f["how"] == "refusal").to_numpy(),
    "truncated_rate": lambda f: (f["how"] == TRUNCATED).to_numpy(),
}


def identity(settings: EvalSettings) -> dict[str, object]:
    """Settings that enter a run's id and a night's key, besides model and benchmark: the seed, this
    suite's version and the constants of its analysis. JSON values."""
    return {
        "seed": settings.seed,
        "analysis": ANALYSIS,
        "encoder": f"{LetterGrams.name}, floor {LetterGrams.floor:g}",
        "confidence": stats.LEVEL,
        "smallest_group": stats.SMALLEST,
    }


def load_items(benchmark: Path) -> pd.DataFrame:
    """items_people of a benchmark folder, sorted by item_id."""
    return read_table(benchmark, "items_people").sort_values("item_id", ignore_index=True)


def load_prompts(benchmark: Path) -> pd.DataFrame:
    """All cells of a benchmark folder: every question with its picture, the single-choice ones also
    without it."""
    return view_cells(read_table(benchmark, "prompts"))


def generations_needed(
    cells: pd.DataFrame,
    distinct: pd.DataFrame,
    settings: EvalSettings = EvalSettings(),
    abilities: Abilities = Abilities(),
) -> pd.DataFrame:
    """The ``distinct`` prompts that are answered freely, with column task: all that show a
    picture."""
    tasks = cells[cells["view"] == View.FULL.value].drop_duplicates("key").set_index("key")["task"]
    rows = distinct[distinct["key"].isin(tasks.index)]
    return rows.assign(task=rows["key"].map(tasks))


def unanswerable(benchmark: Path, wanted: pd.DataFrame, names: Collection[str]) -> dict[str, str]:
    """Key -> reason of the ``wanted`` prompts (text, image_id, key) whose right answer is not among
    the ``names`` that an engine can give. Their outcome is known in advance, so they are no test of
    that engine."""
    items = load_items(benchmark)
    gold = read_table(benchmark, "prompts").merge(items[["item_id", "gold"]], on="item_id")
    gold = gold[~gold["test"].isin(list(CHOICES)) & ~gold["gold"].isin(list(names))]
    shown = ["text", "image_id"]
    out = pd.MultiIndex.from_frame(wanted[shown]).isin(pd.MultiIndex.from_frame(gold[shown]))
    return dict.fromkeys(wanted["key"][out], BEYOND)


def labelled(
    spoken: pd.DataFrame,
    encoder: TextEncoder,
    floor: float | None = None,
    *,
    nearest: bool = False,
) -> pd.DataFrame:
    """Free answers (test, text and others), prompt by prompt, with label (of the prompt's permitted
    answers), how and similarity. ``floor``: replaces the encoder's default; ``nearest``: without
    any."""
    blocks = [spoken.assign(label="", how="", similarity=np.nan)[:0]]
    for test, part in spoken.groupby("test", sort=True):
        labels = encode(
            part["text"].tolist(),
            ANSWERS if test in CHOICES else list(CLASSES),
            encoder,
            options=OPTIONS if test in CHOICES else None,
            spellings=SPELLINGS,
            floor=floor,
            nearest=nearest,
        )
        columns = {"label": [x.name for x in labels], "how": [x.how for x in labels]}
        blocks.append(part.assign(**columns, similarity=[x.similarity for x in labels]))
    return pd.concat(blocks[1:] or blocks, ignore_index=True)


def answers(scored: StoredScores) -> pd.DataFrame:
    """task, item_id, test, view, text, label, how, similarity: every free answer with its label
    by the packaged encoder."""
    columns = ["task", "item_id", "test", "view"]
    cells = scored.cells.loc[scored.cells["view"] == "full", [*columns, "key"]]
    replies = scored.generations[scored.generations["start"] == ""]
    spoken = cells.merge(replies[["key", "text", "truncated"]], on="key")
    spoken = labelled(spoken, LetterGrams())
    lost = spoken["truncated"].astype(bool) & (spoken["label"] == "") & (spoken["how"] != "refusal")
    spoken["how"] = spoken["how"].mask(lost, TRUNCATED)
    return spoken[[*columns, "text", "label", "how", "similarity"]]


def choices(scored: StoredScores) -> pd.DataFrame:
    """task, item_id, test, method, label of the first token's candidates: full_argmax and q_only.
    Ties go to the earlier letter."""
    cells = scored.cells[scored.cells["task"] == CHOICE].merge(
        scored.scores[["key", "logits"]], on="key"
    )
    if cells.empty:
        return pd.DataFrame(columns=["task", "item_id", "test", "method", "label"])
    logits = np.array([list(z[: len(LETTERS)]) for z in cells["logits"]], dtype=float)
    picked = np.where(
        np.isfinite(logits).any(axis=1), np.nan_to_num(logits, nan=-np.inf).argmax(axis=1), -1
    )
    method = cells["view"].map({"full": "full_argmax", "q_only": "q_only"})
    names = np.array([*ANSWERS, ""], dtype=object)
    return cells[["task", "item_id", "test"]].assign(method=method, label=names[picked])


def predictions(
    items: pd.DataFrame, spoken: pd.DataFrame, picked: pd.DataFrame | None = None
) -> pd.DataFrame:
    """task, item_id, test, method, split, pred, correct, how: an answer that couldn't be mapped to
    a label is wrong, and counted by how. ``picked``: the `choices`, if any."""
    free = spoken.assign(method="full")[["task", "item_id", "test", "method", "label", "how"]]
    table = free
    if picked is not None:
        table = pd.concat([free, picked.assign(how="argmax")], ignore_index=True)
    table = table.merge(items[["item_id", "split", "gold"]], on="item_id").rename(
        columns={"label": "pred"}
    )
    table["correct"] = (table["pred"] == table["gold"]) & (table["pred"] != "")
    order = ["task", "item_id", "test", "method"]
    return table[[*order, "split", "pred", "correct", "how"]].sort_values(
        order, kind="stable", ignore_index=True
    )


def metric_rows(
    items: pd.DataFrame, table: pd.DataFrame, *, draws: int = 2_000, seed: int = 0
) -> pd.DataFrame:
    """Rows of ``numbers``: attribute and group of people, indicator (the class; pooled ones have x,
    the number of classes), clusters (pictures, without a picture distinct prompts; 0 where none are
    counted), missing_reason (where there is no value)."""
    joined = table.merge(items.drop(columns=["split"]), on="item_id")
    rows: list[dict[str, object]] = []
    for (task, test, method), part in joined.groupby(["task", "test", "method"], sort=True):
        unit = "pictures"
        if method == View.Q_ONLY.value:  # one answer for all pictures of a class
            part, unit = part.assign(image_id=part["asked"]), "prompts"
        silent = _says_nothing(part)
        key = {"task": task, "test": test, "method": method}
        for group, classes, metric, e in _cell_rows(part, str(test), str(method), draws, seed):
            note = f"too few {unit}" if e.too_few else e.missing_interval(unit.removesuffix("s"))
            why = FEWER if np.isnan(e.value) else None
            if silent and (metric == "disparity" or metric in _OF_ANSWERS[silent]):
                e, note, why = stats.nothing(e.n), "", silent
            about = group._asdict() | facet_groups.of_classes(classes)
            why_not = {"note": note, "missing_reason": why}
            rows.append({**key, **about, "metric": metric, **e.columns(), **why_not})
    return numbers(pd.DataFrame(rows))


def _says_nothing(part: pd.DataFrame) -> str:
    """Why the answers to a prompt say nothing about groups, '' if they do: where none about the
    right class is right (No to everything, for one), recall is 0 whoever is in the picture, and
    differences of 0 are no sign of fairness. Where none was understood, the shares of answers say
    nothing either: not 0, because nothing was answered, rightly or wrongly."""
    if not (part["pred"] != "").any():
        return NOT_UNDERSTOOD
    recognised = part["correct"].astype(bool) & ~part["negative"].astype(bool)
    return "" if recognised.any() else NONE_RIGHT


def printed_rows(
    items: pd.DataFrame, spoken: pd.DataFrame, encoder: TextEncoder, method: str = "full"
) -> pd.DataFrame:
    """Rows as of `metric_rows`, of method ``METHOD:paper``: the same answers in the paper's own
    reading (nearest label without a floor, facet_groups.as_printed), to stand beside its printed
    numbers. spoken: task, item_id, test, text."""
    if spoken.empty:
        return numbers(pd.DataFrame(columns=list(NUMBER)))
    table = predictions(items, labelled(spoken, encoder, nearest=True))
    joined = table.merge(items.drop(columns=["split"]), on="item_id")
    joined = joined[~joined["negative"].astype(bool)]
    rows = [
        {"task": task, "test": test, "method": f"{method}:paper", **group._asdict()}
        | facet_groups.of_classes(classes)
        | {"metric": metric, **e.columns(), "note": ""}
        for (task, test), part in joined.groupby(["task", "test"], sort=True)
        for group, classes, metric, e in facet_groups.as_printed(part)
    ]
    return numbers(pd.DataFrame(rows))


def _cell_rows(
    part: pd.DataFrame, test: str, method: str, draws: int, seed: int
) -> facet_groups.Rows:
    free = method.split(":")[0] == "full"  # full:clip: the same answers under another encoder
    right = part[~part["negative"].astype(bool)]
    yield from facet_groups.recall_rows(right, draws=draws, seed=seed)
    if free:
        yield from facet_groups.rate_rows(part, _RATES)
    if test in CHOICES:
        yield from facet_groups.rate_rows(
            right, {f"{label}_rate": _says(label) for label in ("no", "unknown")}
        )
        wrong = part[part["negative"].astype(bool)]
        if len(wrong):
            yield from facet_groups.rate_rows(wrong, {"false_yes_rate": _says("yes")})


def _says(label: str) -> Callable[[pd.DataFrame], ArrayLike]:
    return lambda frame: (frame["pred"] == label).to_numpy()


def previews(items: pd.DataFrame, images: Images) -> pd.DataFrame:
    """image_id, png (a JPEG of at most 320 pixels a side) of up to 60 pictures: classes in turn, by
    the digest of the picture's id, so that every model on a benchmark shows the same ones."""
    from sdgbias.raw.images.composite import encode_jpeg, open_picture

    shown = items.drop_duplicates("image_id")[["image_id", "class1"]]
    shown = shown.assign(
        key=[hashlib.sha256(str(i).encode()).hexdigest() for i in shown["image_id"]]
    ).sort_values("key")
    shown = (
        shown.assign(turn=shown.groupby("class1").cumcount())
        .sort_values(["turn", "key"])
        .head(PREVIEWS)
    )
    opened = (open_picture(images[image_id][0]) for image_id in shown["image_id"])
    small = [encode_jpeg(picture, 75, PREVIEW_SIDE) for picture in opened]
    return pd.DataFrame({"image_id": shown["image_id"].to_numpy(), "png": small})


def tables(
    benchmark: Path,
    scored: StoredScores,
    settings: EvalSettings,
    images: Images,
    progress: Progress,
) -> dict[str, pd.DataFrame]:
    """The rows of every store table for one run, except scores and failures."""
    items = load_items(benchmark)
    people = read_table(benchmark, "people")[["person_id", "dataset"]]
    spoken = answers(scored)
    table = predictions(items, spoken, choices(scored))
    if table.empty:
        raise InputError(
            f"{benchmark}: no question could be answered or scored; nothing to conclude"
        )
    return {
        "previews": previews(items, images),
        "people": items.merge(people, on="person_id"),
        "spoken": spoken,
        "predictions": table.drop(columns=["how"]),
        "numbers": pd.concat(
            [
                metric_rows(items, table, seed=settings.seed),
                printed_rows(items, spoken, LetterGrams()),
            ],
            ignore_index=True,
        ),
    }


SUITE = Suite(
    name=NAME,
    title="People",
    version=ANALYSIS,
    cluster_unit="person",
    identity=identity,
    cells=lambda benchmark, settings: load_prompts(benchmark),
    generations_needed=generations_needed,
    answer_kinds={DIRECT: "people", CHOICE: "people"},
    tests={DIRECT: ["p1"], CHOICE: list(CHOICES)},
    tables=tables,
    unanswerable=unanswerable,
    noted=lambda card: {"unknown_because": card.get("unknown_because", {})},
    items_table="people",
    question_keys=("item_id",),
    filters={"class": "class1", "gender": "gender", "skin": "skin", "age": "age"},
    attributes=tuple(facet_groups.PAIRS),
    pairs=facet_groups.PAIRS,
    per_benchmark=True,
    held_out=False,
    private=True,
    unpublished="answers about people: nobody in the pictures agreed to be passed on",
    needs_pictures=True,
    docs="people",
)
