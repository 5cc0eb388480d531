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
            "upper": [None] * n,
        }
    )


def test_batches_add_up_and_compact(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, "m", "f")
    with cache.exclusive():
        cache.append("scores", batch("b", "a"))
        cache.append("scores", batch("c", "a"))
        before = cache.read("scores")
        merged = cache.compact("scores")
    pd.testing.assert_frame_equal(merged, cache.read("scores", timed=True))
    assert list(before["key"]) == ["a", "b", "c"]
    assert len(list(cache.folder.glob("scores-*.parquet"))) == 1
    pd.testing.assert_frame_equal(before, cache.read("scores"))
    assert cache.read("generations").empty


def test_bounds_come_back_as_written_and_stay_through_compaction(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, "m", "f")
    told = batch("told", "withheld")
    told["logits"] = [np.array([1.0, 2.0], np.float32), np.array([-np.inf, 2.0], np.float32)]
    told["upper"] = [None, np.array([-7.5, np.nan], np.float32)]
    cache.append("scores", told)
    cache.append("scores", batch("third"))
    cache.compact("scores")
    read = cache.read("scores").set_index("key")
    assert read["upper"].isna().to_dict() == {"third": True, "told": True, "withheld": False}
    np.testing.assert_array_equal(
        read.loc["withheld", "upper"], np.array([-7.5, np.nan], np.float32)
    )
    assert read.loc["withheld", "logits"].tolist() == [-np.inf, 2.0]


def test_a_shard_from_before_there_were_bounds_reads_as_exact(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, "m", "f")
    later = ("upper", "seconds", "run")
    old = pa.schema([field for field in SCHEMAS["scores"] if field.name not in later])
    pq.write_table(
        pa.Table.from_pandas(batch("old").drop(columns="upper"), schema=old),
        cache.folder / "scores-0.parquet",
    )
    cache.append("scores", batch("new").assign(upper=[np.array([np.nan, 3.0], np.float32)]))
    for _ in range(2):
        read = cache.read("scores").set_index("key")
        assert read.loc["old", "upper"] is None and read.loc["old", "logits"].tolist() == [1.0, 2.0]
        assert read.loc["new", "upper"][1] == 3.0
        assert cache.read("scores", timed=True)["seconds"].isna().all()
        cache.compact("scores")
    assert not list(cache.folder.glob("*.bad"))


def test_an_unreadable_shard_is_set_aside(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, "m", "f")
    cache.append("scores", batch("a"))
    (cache.folder / "scores-torn.parquet").write_bytes(b"PAR1 half a file")
    assert list(cache.read("scores")["key"]) == ["a"]
    assert (cache.folder / "scores-torn.bad").exists()


def test_a_second_scorer_is_told(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, "m", "f")
    code = (
        "import sys; from pathlib import Path; from sdgbias.scoring.cache import ScoreCache\nwith"
        f" ScoreCache(Path({str(tmp_path)!r}), 'm', 'f').exclusive():\n    print('held',"
        " flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
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


def test_what_a_killed_scorer_left_half_written_is_removed(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, "m", "f")
    cache.append("scores", batch("a"))
    for name in ("scores-0.part", "generations-0.part"):
        (cache.folder / name).write_bytes(b"PAR1 half a file")
    with cache.exclusive():
        assert sorted(p.suffix for p in cache.folder.iterdir() if p.name != ".lock") == [".parquet"]
    assert list(cache.read("scores")["key"]) == ["a"]
