"""The big tables of a run, as Parquet files that are never changed.

    <results without its suffix>.runs/run_id=<run>/<table>-<first 16 digits of the sha256>.parquet

A file is written beside its final name and renamed into place, before the results file is opened for writing: the lock that keeps
readers out is held for the rows of the catalogue only (table ``details`` of the results file). What no row of the catalogue names is
an orphan: never read, and cleared away by `sdgbias store compact`.
"""

from __future__ import annotations

#: Table -> what its files are sorted by, which is also what identifies a row within its run.
TABLES: dict[str, tuple[str, ...]] = {
    "scores": ("task", "item_id", "test", "view"),
    "predictions": ("task", "item_id", "test", "method"),
    "decoded": ("item_id", "test", "view"),
    "spoken": ("task", "item_id", "test", "view"),
}
