"""The score cache: atomic batches, unreadable shards, compaction, one scorer at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.errors import StoreError
from sdgbias.scores import ScoreCache


def batch(*keys: str) -> pd.DataFrame:
    n = len(keys)
    return pd.DataFrame(
        {
            "key": keys,
            "candidates": ["AB"] * n,
            "logits": [np.array([1.0, 2.0], dtype=np.float32)] * n,
            "mass": np.ones(n, np.float32),
            "minus_logit": np.full(n, np.nan, np.float32),
            "top_token": ["B"] * n,
            "n_tokens": np.ones(n, np.int32),
        }
    )


def test_batches_add_up_and_compact(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, "m", "f")
    with cache.exclusive():
        cache.append("scores", batch("b", "a"))
        cache.append("scores", batch("c", "a"))
        before = cache.read("scores")
        cache.compact("scores")
    assert list(before["key"]) == ["a", "b", "c"]
    assert len(list(cache.folder.glob("scores-*.parquet"))) == 1
    pd.testing.assert_frame_equal(before, cache.read("scores"))
    assert cache.read("generations").empty


def test_an_unreadable_shard_is_set_aside(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, "m", "f")
    cache.append("scores", batch("a"))
    (cache.folder / "scores-torn.parquet").write_bytes(b"PAR1 half a file")
    assert list(cache.read("scores")["key"]) == ["a"]
    assert (cache.folder / "scores-torn.bad").exists()


def test_a_second_scorer_is_told(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, "m", "f")
    code = (
        "import sys; from pathlib import Path; from sdgbias.scores import ScoreCache\n"
        f"with ScoreCache(Path({str(tmp_path)!r}), 'm', 'f').exclusive():\n    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(StoreError, match="another evaluation"), cache.exclusive():
        pass
    holder.kill()
    holder.wait()
    with cache.exclusive():
        pass


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="--results"):
        ScoreCache(tmp_path / "file", "m", "f")
