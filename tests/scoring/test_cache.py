"""The score cache: atomic batches, unreadable shards, compaction, one scorer at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sdgbias.errors import StoreError
from sdgbias.scoring.cache import SCHEMAS, ScoreCache


@pytest.fixture
def cache(tmp_path: Path) -> ScoreCache:
    return ScoreCache(tmp_path, "m", "f")


def batch(*keys: str, upper: object = None) -> pd.DataFrame:
    row = {"candidates": "AB", "mass": 1.0, "minus_logit": np.nan, "top_token": "B", "n_tokens": 1}
    rows = [{"key": key, "logits": [1.0, 2.0], "upper": upper, **row} for key in keys]
    return pd.DataFrame(rows)


def test_batches_add_up_and_become_one_shard(cache: ScoreCache) -> None:
    with cache.exclusive():
        cache.append("scores", batch("b", "a"))
        cache.append("scores", batch("c", "a"))
        before = cache.read("scores")
        merged = cache.compact("scores")
    pd.testing.assert_frame_equal(merged, cache.read("scores", timed=True))
    pd.testing.assert_frame_equal(before, cache.read("scores"))
    assert list(before["key"]) == ["a", "b", "c"]
    assert len(list(cache.folder.glob("scores-*.parquet"))) == 1
    assert cache.read("generations").empty
    assert cache.lacks("scores", pd.Series(["c", "d"])).tolist() == [False, True]
    assert cache.lengths(pd.Series(["c", "d"])).tolist() == [1, 0]


def test_bounds_stay_and_a_shard_from_before_there_were_any_is_exact(cache: ScoreCache) -> None:
    later = ("upper", "seconds", "run")
    schema = pa.schema([field for field in SCHEMAS["scores"] if field.name not in later])
    old = pa.Table.from_pandas(batch("old").drop(columns="upper"), schema=schema)
    pq.write_table(old, cache.folder / "scores-0.parquet")
    cache.append("scores", batch("new", upper=[-7.5, np.nan]))
    for _ in range(2):
        read = cache.read("scores", timed=True).set_index("key")
        assert read.loc["old", "upper"] is None and read.loc["old", "logits"].tolist() == [1.0, 2.0]
        np.testing.assert_array_equal(read.loc["new", "upper"], np.float32([-7.5, np.nan]))
        assert read["seconds"].isna().all()
        cache.compact("scores")
    assert not list(cache.folder.glob("*.bad"))


def test_half_written_files_are_removed_and_unreadable_shards_set_aside(cache: ScoreCache) -> None:
    cache.append("scores", batch("a"))
    for name in ("scores-0.part", "generations-0.part", "scores-torn.parquet"):
        (cache.folder / name).write_bytes(b"PAR1 half a file")
    with cache.exclusive():
        assert not list(cache.folder.glob("*.part"))
    assert list(cache.read("scores")["key"]) == ["a"]
    assert (cache.folder / "scores-torn.bad").exists()


def test_a_second_scorer_is_refused_until_the_first_one_ends(
    cache: ScoreCache, tmp_path: Path
) -> None:
    code = (
        "import sys; from pathlib import Path; from sdgbias.scoring.cache import ScoreCache\nwith"
        f" ScoreCache(Path({str(tmp_path)!r}), 'm', 'f').exclusive():\n    print('held',"
        " flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="another evaluation"), cache.exclusive():
            pass
        other.kill()
    with cache.exclusive():
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="--results"):
        ScoreCache(tmp_path / "file", "m", "f")
