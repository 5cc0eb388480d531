"""From a raw folder to a benchmark folder, one stage per arrow: clusters -> images -> items (with prompts) -> card.

Each stage reads files and writes files, so that DVC can run them one by one and `build` can run them all. Tables are
written beside their final name and renamed; rows are sorted by key; the same inputs give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias import clusters as clusters_module
from sdgbias import imagery, items, series, views
from sdgbias.errors import InputError, StoreError
from sdgbias.types import Task

LICENCE = "CC BY-SA 4.0"
SOURCES = [
    "SustainBench (Yeh et al. 2021), DHS cluster labels and Mapillary imagery as packaged there, CC BY-SA 4.0",
    "The DHS Program, aggregated at cluster level; Landsat and DMSP/VIIRS imagery, public domain",
    "UNSD Global SDG Indicators Database; Global Data Lab Subnational Human Development Index (repackages CC BY 4.0)",
    "WHO Global Health Observatory (CC BY-NC-SA) and IHME HAQ (non-commercial) where the user supplied them",
]
SYNTHETIC = ["Synthetic sample of `sdgbias sample` in SustainBench's layout (Yeh et al. 2021); nothing in it is real; CC0 1.0"]
TABLES = ("clusters", "images", "items_mcq", "items_regression", "prompts")
#: progress(what, done, total)
Progress = Callable[[str, int, int], None]


def _silent(what: str, done: int, total: int) -> None:
    return None


def write_table(out: Path, name: str, frame: pd.DataFrame) -> None:
    """One Parquet table, replaced atomically."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        part = out / f".{name}.parquet.part"
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), part, compression="zstd")
        part.replace(out / f"{name}.parquet")
    except OSError as error:
        raise StoreError(f"{out}: can't be written ({error.strerror or error}); give a writable folder with --out") from None


def _read(out: Path, name: str) -> pd.DataFrame:
    path = out / f"{name}.parquet"
    if not path.is_file():
        raise InputError(f"{path}: not there; run the stage that makes it: sdgbias build --stage {name.split('_')[0]}")
    return pd.read_parquet(path)


def _write_quarantine(out: Path, stage: str, rows: pd.DataFrame) -> None:
    folder = out / "quarantine"
    frame = rows[["table", "key", "rule", "detail"]].astype(str)
    write_table(folder, stage, frame.sort_values(["table", "key", "rule"], kind="stable", ignore_index=True))


def build_clusters(raw: Path, out: Path) -> None:
    """Stage 1: labels -> clusters.parquet."""
    table, lost = clusters_module.read_clusters(raw)
    write_table(out, "clusters", table)
    _write_quarantine(out, "clusters", lost)
    readme = raw / "README.txt"
    synthetic = readme.is_file() and readme.read_text(encoding="utf-8", errors="replace").startswith("Synthetic sample")
    (out / "origin.json").write_text(json.dumps({"synthetic": synthetic}) + "\n", encoding="utf-8")


def build_images(raw: Path, out: Path, workers: int | None = None, progress: Progress = _silent) -> None:
    """Stage 2: tiles and photos -> images.parquet (one composite per cluster that has both)."""
    table = _read(out, "clusters")
    count = workers or os.cpu_count() or 1
    images, lost = imagery.render_images(raw, table, count, lambda done, total: progress("rendering images", done, total))
    write_table(out, "images", images)
    _write_quarantine(out, "images", lost)


def build_items(indicators: Path, out: Path, mcq: int | None = None, regression: int | None = None, seed: int = 0) -> None:
    """Stage 3: clusters x images x indicator series -> items_mcq, items_regression, prompts."""
    known, absent = series.read_series(indicators)
    regions = series.read_gdl_regions(indicators)
    built = items.build_items(_read(out, "clusters"), _read(out, "images"), known, regions, mcq=mcq, regression=regression, seed=seed)
    write_table(out, "items_mcq", built.items_mcq)
    write_table(out, "items_regression", built.items_regression)
    blocks = [
        views.build_prompts(t, task) for task, t in ((Task.MCQ, built.items_mcq), (Task.REGRESSION, built.items_regression)) if len(t)
    ]
    if not blocks:
        raise InputError(
            f"{indicators}: no cluster got a question: none has an image pair and a value of an indicator near its survey year; "
            "look into quarantine/*.parquet for the reasons"
        )
    write_table(out, "prompts", pd.concat(blocks, ignore_index=True))
    _write_quarantine(out, "items", built.quarantine)
    notes = {**built.notes, "series_not_found": absent, "mcq": mcq, "regression": regression, "seed": seed}
    (out / "items_notes.json").write_text(json.dumps(notes, indent=2, sort_keys=True, default=str) + "\n", encoding="utf-8")


def build_card(out: Path) -> dict[str, Any]:
    """Stage 4: benchmark.json, quarantine.parquet and README.md: what is in the folder, under which licence, from where."""
    tables = {name: _read(out, name) for name in TABLES}
    lost = [pd.read_parquet(p) for p in sorted((out / "quarantine").glob("*.parquet"))]
    quarantine = pd.concat(lost, ignore_index=True) if lost else pd.DataFrame(columns=["table", "key", "rule", "detail"])
    write_table(out, "quarantine", quarantine)
    synthetic = bool(json.loads((out / "origin.json").read_text(encoding="utf-8"))["synthetic"])
    digest = hashlib.sha256()
    for name in TABLES:
        digest.update(content_digest(tables[name]).encode())
    mcq, regression = tables["items_mcq"], tables["items_regression"]
    shares = {
        str(pillar): {k: round(100 * float(v), 2) for k, v in part["answer"].value_counts(normalize=True).sort_index().items()}
        for pillar, part in mcq.groupby("pillar", sort=True)
    }
    card: dict[str, Any] = {
        "benchmark_id": digest.hexdigest()[:16],
        "licence": LICENCE,
        "synthetic": synthetic,
        "sources": SYNTHETIC if synthetic else SOURCES,
        "counts": {
            **{name: len(table) for name, table in tables.items()},
            "clusters_used": int(pd.concat([mcq["cluster_id"], regression["cluster_id"]]).nunique()),
            "countries_used": int(pd.concat([mcq["cname"], regression["cname"]]).nunique()),
            "mcq_by_pillar": {str(k): int(v) for k, v in mcq["pillar"].value_counts().sort_index().items()},
            "mcq_by_indicator": {str(k): int(v) for k, v in mcq["indicator"].value_counts().sort_index().items()},
            "regression_by_task": {str(k): int(v) for k, v in regression["indicator"].value_counts().sort_index().items()},
        },
        "label_shares_percent": shares,
        "quarantined": {str(k): int(v) for k, v in quarantine["rule"].value_counts().sort_index().items()},
        "notes": json.loads((out / "items_notes.json").read_text(encoding="utf-8")),
    }
    (out / "benchmark.json").write_text(json.dumps(card, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (out / "README.md").write_text(_readme(card), encoding="utf-8")
    return card


def content_digest(frame: pd.DataFrame) -> str:
    """sha256 over the values of a table, independent of how Parquet packs them (image bytes count through image_id)."""
    columns = [c for c in frame.columns if c != "png"]
    hashes = pd.util.hash_pandas_object(frame[columns], index=False)
    return hashlib.sha256("|".join(columns).encode() + hashes.to_numpy().tobytes()).hexdigest()


def _readme(card: dict[str, Any]) -> str:
    counts = card["counts"]
    lines = [
        f"# Benchmark {card['benchmark_id']}",
        "",
        f"{counts['items_mcq']:,} multiple-choice questions x T1-T5 and {counts['items_regression']:,} regression questions over "
        f"{counts['clusters_used']:,} clusters in {counts['countries_used']} countries.",
        "",
        f"Licence: {card['licence']}. Sources:",
        *(f"- {s}" for s in card["sources"]),
        "",
        "Left out, by rule: " + (", ".join(f"{k} {v}" for k, v in card["quarantined"].items()) or "nothing") + ".",
        "",
    ]
    return "\n".join(lines)


def build(
    raw: Path,
    indicators: Path,
    out: Path,
    *,
    mcq: int | None = None,
    regression: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress = _silent,
) -> dict[str, Any]:
    """All stages in order; returns the card. The quality gate is quality.run_gate, called by the CLI afterwards."""
    build_clusters(raw, out)
    build_images(raw, out, workers, progress)
    build_items(indicators, out, mcq, regression, seed)
    return build_card(out)
