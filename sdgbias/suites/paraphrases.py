"""The extra prompts `paraphrases`: other wordings of each multiple-choice question
(data/paraphrases.yaml).

Q-only has one prompt per indicator, so that the measured direction of a model's answers rests on a
handful of prompts. Eight further wordings each give a larger sample. Text without picture and
context, under T1; one item represents all items of its indicator and options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import pandas as pd

from sdgbias.errors import InputError
from sdgbias.files import packaged_yaml
from sdgbias.raw.indicators import load_indicators

#: The fewest further wordings of an indicator, and the names of their cells.
FEWEST = 8
VIEWS = tuple(f"wording:{k}" for k in range(FEWEST))
_FILE = "paraphrases.yaml"
_QUESTION = "Question: "


@cache
def wordings() -> Mapping[str, tuple[str, ...]]:
    """Indicator -> its further wordings, each on one line. Raises InputError where the packaged
    table lacks an indicator of indicators.yaml or has fewer than ``FEWEST`` for one."""
    table = packaged_yaml(_FILE)
    by_slug = {
        slug: tuple(" ".join(text.split()) for text in texts) for slug, texts in table.items()
    }
    for entry in load_indicators():
        others = set(by_slug.get(entry.slug, ())) - {entry.question}
        if len(others) < FEWEST:
            raise InputError(
                f"sdgbias/data/{_FILE}: {entry.slug} has {len(others)} wordings of its own, wants"
                f" {FEWEST} or more; install sdgbias again"
            )
    return by_slug


def has_wordings(items: pd.DataFrame) -> pd.Series:
    """(N,) whether the further wordings apply to an item's question: an imported benchmark may use
    the name of an indicator for another question."""
    reference = {entry.slug: entry.question for entry in load_indicators()}
    return items["indicator"].map(reference) == items["question"]


def texts(items: pd.DataFrame, rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """(view, rows with paraphrased text) of each wording. items: multiple-choice items; rows: the
    prompts to reword, of T5.

    None where no question is worded as in indicators.yaml. Raises InputError where a prompt doesn't
    begin with its question.
    """
    of_rows = items.set_index("item_id").loc[rows["item_id"]]
    use = has_wordings(of_rows).to_numpy()
    rows, of_rows = rows[use], of_rows[use]
    if rows.empty:
        return
    for k, view in enumerate(VIEWS):
        changed = []
        for item, text, slug, question in zip(
            rows["item_id"], rows["text"], of_rows["indicator"], of_rows["question"], strict=True
        ):
            begin = _QUESTION + question
            if not text.startswith(begin):
                raise InputError(
                    f"prompts: item {item} doesn't begin with its question, which this pass"
                    " rewords; leave it out: --passes table_j"
                )
            changed.append(_QUESTION + wordings()[slug][k] + text[len(begin) :])
        yield view, rows.assign(text=changed)
