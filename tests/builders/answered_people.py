"""Questions about people, and a model's answers to them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdgbias.raw.facet import GROUPS, SELECTED

PEOPLE = 1_300


def items() -> pd.DataFrame:
    """People of the 13 classes, each asked p1, and p2 and p3 about the right and about a wrong
    class. The old are only skateboarders."""
    rng = np.random.default_rng(0)
    name = np.array(SELECTED)[np.arange(PEOPLE) % 13]
    frame = pd.DataFrame(
        {"person_id": [f"x{i}" for i in range(PEOPLE)], "class1": name, "race": "", "split": "test"}
    )
    frame["image_id"] = "i-" + frame["person_id"]
    for attribute, groups in GROUPS.items():
        frame[attribute] = np.array([*groups, "unknown"])[rng.integers(0, len(groups) + 1, PEOPLE)]
    frame.loc[frame["age"] == "old", "age"] = "young"
    frame.loc[(name == "skateboarder") & (np.arange(PEOPLE) % 2 == 0), "age"] = "old"
    asked = [
        ("p1", "", False),
        *((p, c, c == "wrong") for p in ("p2", "p3") for c in ("right", "wrong")),
    ]
    parts = [
        frame.assign(
            prompt=p,
            asked=c,
            negative=wrong,
            gold=frame["class1"] if p == "p1" else "no" if wrong else "yes",
        )
        for p, c, wrong in asked
    ]
    return pd.concat(parts, ignore_index=True).assign(item_id=lambda t: np.arange(len(t)))


def answered(asked: pd.DataFrame, seed: int, choices: bool = True) -> pd.DataFrame:
    """Predictions: half of all answers right, every tenth unparsed; free answers, first tokens, and
    first tokens without picture."""
    rng = np.random.default_rng(seed)
    parts = []
    for method, kept in (
        ("full", asked),
        ("full_argmax", asked[asked["prompt"] != "p1"]),
        ("q_only", asked[asked["prompt"] != "p1"]),
    ):
        right = rng.random(len(kept)) < 0.5
        how = (
            np.where(rng.random(len(kept)) < 0.1, "unparsed", "exact")
            if method == "full"
            else "argmax"
        )
        pred = np.where(right, kept["gold"], np.where(kept["gold"] == "yes", "no", "yes"))
        pred = np.where(how == "unparsed", "", pred)
        task = np.where(kept["prompt"] == "p1", "direct", "choice")
        parts.append(
            pd.DataFrame(
                {
                    "task": task,
                    "item_id": kept["item_id"],
                    "test": kept["prompt"],
                    "method": method,
                    "split": "test",
                    "pred": pred,
                    "correct": right & (pred != ""),
                    "how": how,
                }
            )
        )
    found = pd.concat(parts, ignore_index=True)
    return found if choices else found[found["task"] == "direct"]
