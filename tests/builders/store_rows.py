"""Small tables of one run, and a second process that publishes or reads them."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from sdgbias import store
from tests.builders.numbers import numbers_of

REPOSITORY = Path(__file__).resolve().parents[2]
EARLIER = REPOSITORY / "tests" / "store"


def run(run_id: str = "r1", **more: object) -> dict[str, object]:
    return {
        "run_id": run_id,
        "model": "m",
        "benchmark_id": "b",
        "finished_at": "2026-11-20T02:00:00+02:00",
    } | more


def tables(value: float = 0.5, items: int = 3) -> dict[str, pd.DataFrame]:
    ids = list(range(items))
    asked = {"task": "mcq", "item_id": ids}
    options = {"options": [["a", "b"]] * items}
    context = {"context": [{"asset_index": 1.5, "urban": "U"}] * items}
    scores = {"test": "T1", "view": "full", "logits": [np.array([1.0, np.nan])] * items}
    cell = {"task": ["mcq"], "test": "T1", "method": "full", "pillar": "all", "indicator": "all"}
    fault = {"table": ["clusters"], "key": "k", "rule": "missing-tile", "detail": "d"}
    return {
        "items": pd.DataFrame(asked | options | context),
        "scores": pd.DataFrame(asked | scores | {"mass": value}),
        "numbers": numbers_of(cell | {"metric": "accuracy", "value": value, "n": items}),
        "previews": pd.DataFrame({"image_id": ["i"], "png": [b"\x89PNG\x00"]}),
        "quarantine": pd.DataFrame(fault),
    }


def contents(path: Path) -> dict[str, tuple[int, int]]:
    """Table -> number and hash of its rows, whatever their order."""
    names = ("runs", *store.RUN_TABLES, *store.BENCHMARK_TABLES)
    rows = [f"SELECT '{n}' AS name, count(*) AS n, bit_xor(hash(t)) AS h FROM {n} t" for n in names]
    found = store.query(path, " UNION ALL ".join(rows))
    return {name: (n, h) for name, n, h in found.itertuples(index=False, name=None) if n}


def publish_again(path: Path, run_id: str, changed: dict[str, pd.DataFrame]) -> None:
    """Publishes a stored run as it is but for some of its tables."""
    run = store.query(path, "FROM runs WHERE run_id = ?", [run_id]).iloc[0].to_dict()
    sql = "SELECT * EXCLUDE (run_id) FROM {} WHERE run_id = ?"
    stored = {name: store.query(path, sql.format(name), [run_id]) for name in store.RUN_TABLES}
    store.publish(path, run, stored | changed)


def unpacked_earlier(folder: Path, schema: int = 15) -> Path:
    """A file of tests/store/test_migrate.py. Schema 15: six runs of three suites; 19: three runs
    and all their studies, without questions."""
    stored = EARLIER / f"schema{schema}"
    if (stored / "results.runs").is_dir():
        shutil.copytree(stored / "results.runs", folder / "results.runs")
    path = folder / "results.duckdb"
    path.write_bytes(gzip.decompress((stored / "results.duckdb.gz").read_bytes()))
    return path


def child(code: str, **options: object) -> subprocess.Popen[str]:
    """A second process that has sdgbias.store and this test's helpers at hand."""
    head = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
    head += (
        "import os, time, signal, duckdb\nfrom sdgbias import store\nfrom tests.builders.store_rows"
        " import run, tables\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", head + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )  # type: ignore[call-overload]


def holding(path: Path) -> subprocess.Popen[str]:
    """A second process that has a DuckDB file open until its standard input is closed."""
    code = f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print('held', flush=True)"
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{code}; sys.stdin.read()"], text=True, **pipe
    )  # type: ignore[call-overload]
    assert holder.stdout.readline() == "held\n"
    return holder
