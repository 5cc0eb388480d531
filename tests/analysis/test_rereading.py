"""Stored answers read again by another encoder: beside the first reading, from the results file
alone, in place of an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias.analysis.studies.rereading import read_again
from sdgbias.errors import InputError
from sdgbias.suites import facet

N = 60


class Medical:
    """Everything French is a nurse."""

    name, floor = "clip", None

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.array(
            [[1.0, 0.0] if "nurse" in t or "infirm" in t else [0.0, 1.0] for t in texts],
            dtype=np.float32,
        )


def record(run_id: str) -> dict[str, str]:
    """A run of people, of one model and benchmark."""
    days = {"started_at": "2026-01-01", "finished_at": f"2026-01-0{run_id[-1]}"}
    return {"run_id": run_id, "model": "m", "benchmark_id": "b" * 16, "suite": "people"} | days


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """60 nurses, half of them women; about women the model answers in French."""
    items = pd.DataFrame(
        {
            "item_id": range(N),
            "person_id": [f"p{i}" for i in range(N)],
            "image_id": [f"i{i}" for i in range(N)],
            "prompt": "p1",
        }
    )
    items = items.assign(
        class1="nurse",
        asked="",
        negative=False,
        gold="nurse",
        gender=["male", "female"] * (N // 2),
        skin="unknown",
        age="young",
    )
    items = items.assign(race="", split="test", dataset="synthetic")
    said = pd.DataFrame(
        {
            "task": "direct",
            "item_id": range(N),
            "test": "p1",
            "view": "full",
            "text": ["nurse", "infirmière"] * (N // 2),
        }
    )
    said = facet.labelled(said, facet.LetterGrams()).assign(similarity=np.nan)
    table = facet.predictions(
        items, said, pd.DataFrame(columns=["task", "item_id", "test", "method", "label"])
    )
    path = tmp_path / "r.duckdb"
    store.publish(
        path,
        record("m-1"),
        {"people": items, "spoken": said, "numbers": facet.metric_rows(items, table, draws=20)},
    )
    return path


def disparity(results: Path, method: str) -> float:
    sql = (
        "SELECT value FROM metrics WHERE method = ? AND metric = 'disparity' AND pillar ="
        " 'gender:male-female' AND indicator = 'all'"
    )
    [value] = store.query(results, sql, [method])["value"]
    return float(value)


def test_what_one_encoder_cannot_read_another_may(results: Path) -> None:
    assert disparity(results, "full") == 1.0  # no infirmière is read
    made = read_again(results, "m-1", Medical(), 0.9, draws=20)
    assert set(made["method"]) == {"full:clip", "full:clip:paper"}
    assert (disparity(results, "full"), disparity(results, "full:clip")) == (1.0, 0.0)
    floors = store.query(
        results, "SELECT method, test, value, n FROM metrics WHERE metric = 'floor'"
    ).to_dict("records")
    assert floors == [{"method": "full:clip", "test": "p1", "value": 0.9, "n": N}]
    count = len(store.query(results, "FROM metrics"))
    read_again(results, "m-1", Medical(), 1.1, draws=20)  # nothing is as similar as that
    assert (
        disparity(results, "full:clip") == 1.0
        and len(store.query(results, "FROM metrics")) == count
    )
    assert len(store.query(results, "FROM spoken WHERE how = 'unparsed'")) == N // 2, (
        "what was read first stays"
    )


def test_a_run_without_answers_is_told(results: Path) -> None:
    store.publish(results, record("m-2"), {})
    with pytest.raises(InputError, match="run m-2 has no free answers to read"):
        read_again(results, "m-2", Medical(), 0.9)
