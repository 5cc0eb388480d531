"""A synthetic raw folder in SustainBench's exact layout whose images contain the signal.

``write_sample`` is the public function: it writes labels, satellite tiles, street photos and
indicator series, all functions of one hidden wealth per cluster (latent.py). For trials of the
pipeline, teaching and tests; all data are invented. Photos are deliberately more frequent than in
SustainBench: 97 % of the clusters have some, against 18.7 %.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from sdgbias import templates
from sdgbias.errors import InfrastructureError, UsageError
from sdgbias.files import writable
from sdgbias.progress import Progress, silent
from sdgbias.raw.clusters import COLUMNS
from sdgbias.raw.images.composite import encode_jpeg
from sdgbias.raw.synthetic.latent import (
    DEFAULT_COUNTRIES,
    SyntheticCluster,
    check_countries,
    draw_cluster,
    plan_clusters,
)
from sdgbias.raw.synthetic.photos import JPEG_QUALITY, photo_records, render_photo
from sdgbias.raw.synthetic.series import write_csv, write_series
from sdgbias.raw.synthetic.tiles import render_tile, tile_bytes

__all__ = ["DEFAULT_COUNTRIES", "write_sample"]

_CHUNK = 8  # clusters that a process draws at a time
_NO_PICTURES = (
    "Empty on purpose: this sample was made with --no-images. Build it with: sdgbias build"
    " --no-images\n"
)


def write_sample(
    out: Path,
    clusters: int,
    seed: int,
    countries: Sequence[str] | None = None,
    images: bool = True,
    progress: Progress = silent,
    workers: int | None = None,
) -> dict[str, object]:
    """Write a raw folder with that many clusters; the same arguments give the same bytes with any
    number of workers.

    ``countries``: DHS codes (default DEFAULT_COUNTRIES); the clusters are split evenly over them
    and a country's k-th cluster never depends on the others. ``images`` False leaves out tiles,
    photos and the photos' metadata (their folders hold a note). ``progress`` is called
    from this process as cluster images are finished. ``workers``: processes, default one per
    available CPU. Returns counts: out, seed, clusters, countries, tiles, photos, missing_tile,
    missing_photo, series_files. About 2 % of the clusters lack the tile and 3 % the photos, so that
    the rules about missing images are exercised. Raises UsageError for an unknown country, a bad
    number, or a folder that contains anything but this sample, StoreError when the disk is full or
    read-only, InfrastructureError when a worker is killed.
    """
    codes = check_countries(countries)
    if clusters < 1:
        raise UsageError(f"clusters {clusters}: write at least 1, e.g. --clusters 300")
    if workers is not None and workers < 1:
        raise UsageError(f"workers {workers}: use at least 1, or none for one per CPU")
    out = Path(out)
    plan = plan_clusters(clusters, codes)
    rows = [draw_cluster(seed, cc, k) for cc, k in plan]
    try:
        with writable(out, "free space or name another folder"):
            readme = templates.render(
                "data/texts/sample_readme.txt.j2",
                **{"seed": seed, "clusters": clusters, "countries": codes, "images": images},
            )
            _claim(out, readme)
            series_files = write_series(out / "indicators", seed, codes)
            if images:
                _metadata(out / "mapillary" / "metadata", rows)
                _pictures(out, seed, plan, progress, workers)
            else:
                # keep the complete layout, so that the pipeline finds its folders
                for folder in ("dhs_npzs", "mapillary"):
                    (out / folder).mkdir(exist_ok=True)
                    (out / folder / "README.txt").write_text(_NO_PICTURES, encoding="utf-8")
            labels = out / "dhs_final_labels.csv"  # last: it marks the folder as complete
            write_csv(labels, ",".join(COLUMNS), (c.row() for c in rows))
    except BrokenProcessPool as error:
        raise InfrastructureError(
            f"a process drawing {out} was killed (out of memory?); run the same command again to"
            " complete the folder"
        ) from error
    return {
        "out": str(out),
        "seed": seed,
        "clusters": clusters,
        "countries": list(codes),
        "tiles": sum(c.tile for c in rows) if images else 0,
        "photos": sum(c.photos for c in rows) if images else 0,
        "missing_tile": sum(not c.tile for c in rows) if images else clusters,
        "missing_photo": sum(not c.photos for c in rows) if images else clusters,
        "series_files": series_files,
    }


def _claim(out: Path, readme: str) -> None:
    """Create the folder; reject one with other contents. An interrupted sample is completed in
    place."""
    note = out / "README.txt"
    taken = any(out.iterdir()) if out.is_dir() else out.exists()
    if taken and not (note.is_file() and note.read_bytes() == readme.encode()):
        raise UsageError(
            f"{out} already holds something else; name a new folder or remove this one"
        )
    out.mkdir(parents=True, exist_ok=True)
    note.write_bytes(readme.encode())


def _metadata(folder: Path, rows: Sequence[SyntheticCluster]) -> None:
    for cc in dict.fromkeys(c.cname for c in rows):
        photos = (photo for c in rows if c.cname == cc for photo in photo_records(c))
        header = "id,DHSID_EA,path,captured_at,lat,lon"
        write_csv(folder / f"{cc}.csv", header, (tuple(photo.values()) for photo in photos))


def _draw_files(out: Path, seed: int, key: tuple[str, int]) -> None:
    """Write the tile and the photos of a cluster."""
    cluster = draw_cluster(seed, *key)
    if cluster.tile:
        folder = out / "dhs_npzs" / cluster.dhsid[:10]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{cluster.dhsid}.npz").write_bytes(tile_bytes(render_tile(cluster)))
    for i, record in enumerate(photo_records(cluster)):
        path = out / "mapillary" / "imagery" / str(record["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_jpeg(render_photo(cluster, i), JPEG_QUALITY))


def _pictures(
    out: Path,
    seed: int,
    plan: Sequence[tuple[str, int]],
    progress: Progress,
    workers: int | None,
) -> None:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    n = min(math.ceil(len(plan) / _CHUNK), workers or cpus)
    draw = partial(_draw_files, out, seed)
    with ProcessPoolExecutor(n) if n > 1 else nullcontext() as pool:
        drawn = pool.map(draw, plan, chunksize=_CHUNK) if pool else map(draw, plan)
        for done, _ in enumerate(drawn, 1):
            progress("drawing clusters", done, len(plan))
