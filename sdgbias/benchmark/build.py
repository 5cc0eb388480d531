"""From a raw folder to a benchmark folder, one stage per arrow:

clusters -> images -> series -> items -> prompts -> card (-> the quality check, called by the
command line).

Each stage reads files and writes files, so that DVC can run them one by one and `build` can run
them all. A table's row rules are checked by the stage that builds it: broken rows go to
quarantine/<stage>.parquet with the reason. Tables are written to a temporary file and renamed; rows
are sorted by key; the same inputs give the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sdgbias.benchmark import card, items, prompts, quality
from sdgbias.benchmark.card.figures import counts as counted
from sdgbias.benchmark.draw import TABLE_B
from sdgbias.errors import InputError, UsageError, argument, one_of
from sdgbias.files import (
    is_release,
    json_object,
    reading,
    understood,
    write_atomically,
    write_json,
    writing,
)
from sdgbias.progress import Progress, silent
from sdgbias.raw import clusters as clusters_module
from sdgbias.raw import regions, series
from sdgbias.raw.images import near_duplicates
from sdgbias.raw.images.image_store import ImageSettings, render_store
from sdgbias.raw.images.shards import pending_index, publish
from sdgbias.raw.indicators import Bins, Indicator, bins, load_indicators
from sdgbias.raw.sources import sample_note
from sdgbias.types import QUARANTINE_COLUMNS, SDG, Stage, Task

MAX_ROUNDS = 20
CUTS, QUESTIONS = ("ours", "paper"), ("all", "paper")
#: With fewer clusters than this, starting a worker takes longer than drawing their pictures.
FEW_PICTURES = 64
#: Least rows of a row group of a table that is written in parts; at most as many again are held.
GROUP = 100_000


def refuse_other_suite(out: Path, suite: str) -> None:
    """Raise UsageError where ``out`` holds the benchmark of another suite, an imported release or
    somebody's README.md, which would be lost, or a card that doesn't say what it is of."""
    card, origin, page = (out / n for n in ("benchmark.json", "origin.json", "README.md"))
    content = json_object(card)
    if (content and content.get("suite", SDG) != suite) or is_release(out):
        raise UsageError(f"--out {out}: holds another benchmark; name another folder")
    for path in (card, origin):
        if path.exists() and not json_object(path):
            what = f"{path.name} can't be read, so that it may be another benchmark"
            raise UsageError(f"--out {out}: {what}; name another folder, or delete that file")
    if page.exists() and not any(out.glob("*.parquet")):
        what = f"{page.name} is no benchmark's and would be replaced"
        raise UsageError(f"--out {out}: {what}; name another folder")


def write_table(out: Path, name: str, frame: pd.DataFrame) -> None:
    """One Parquet table, replaced atomically."""
    write_atomically(
        out / f"{name}.parquet",
        lambda part: pq.write_table(
            pa.Table.from_pandas(frame, preserve_index=False), part, compression="zstd"
        ),
    )


def write_parts(path: Path, tables: Iterable[pa.Table]) -> None:
    """A Parquet file of tables that come one by one: GROUP rows are in memory, not all."""
    tables = iter(tables)
    first = next(tables)
    # with the metadata that pandas writes, as write_table does
    schema = pa.Schema.from_pandas(first.slice(0, 0).to_pandas(), preserve_index=False)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        held: list[pa.Table] = []
        for table in chain([first], tables):
            held.append(table.cast(schema))
            if sum(map(len, held)) >= GROUP:
                writer.write_table(pa.concat_tables(held))
                held = []
        if held:
            writer.write_table(pa.concat_tables(held))


def _reading(out: Path, name: str) -> AbstractContextManager[Path]:
    """The path of a table of an earlier stage; InputError when it is absent or can't be read."""
    path = out / f"{name}.parquet"
    return reading(path, card.again(path))


def _read(out: Path, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    with _reading(out, name) as path:
        return pd.read_parquet(path, columns=list(columns) if columns else None)


def _write_quarantine(out: Path, stage: str, *parts: pd.DataFrame) -> None:
    """The rows in the order of their columns. DuckDB sorts them: of all possible questions a full
    raw folder leaves out a million."""
    tables = [
        pa.Table.from_pandas(part[QUARANTINE_COLUMNS].astype("str"), preserve_index=False)
        for part in parts
    ]
    with card.database(out) as con:
        con.register("rows", pa.concat_tables(tables, promote_options="permissive"))
        write_atomically(
            out / "quarantine" / f"{stage}.parquet",
            lambda part: con.sql("FROM rows ORDER BY ALL").write_parquet(
                str(part), compression="zstd"
            ),
        )


def build_clusters(raw: Path, out: Path) -> None:
    """Stage 1: labels, and names of survey regions where there are any -> clusters.parquet,
    origin.json."""
    table, lost = clusters_module.read_clusters(raw)
    named = regions.read_cluster_regions(raw).set_index("dhs_id")["region_name"]
    table["region_name"] = regions.dhs_ids(table["cluster_id"]).map(named).fillna("").astype("str")
    table, sifted = quality.sift("clusters", table)
    write_table(out, "clusters", table)
    _write_quarantine(out, "clusters", lost, sifted)
    write_json(out / "origin.json", {"synthetic": bool(sample_note(raw))})


def made_without_images(raw: Path) -> bool:
    """Whether this is a sample of `sdgbias sample --no-images`: then missing images are no
    error."""
    return "\nimages: no\n" in sample_note(raw)


def build_images(
    raw: Path,
    out: Path,
    settings: ImageSettings | None,
    workers: int | None = None,
    progress: Progress = silent,
) -> tuple[int, int]:
    """Stage 2: tiles and photos -> images/ (shards) and images.parquet (their index). ``settings``
    None: no images.

    Returns (rendered now, reused): a shard of pictures whose tiles, photos and settings are
    unchanged is kept.
    """
    table = _read(out, "clusters")
    if settings is None:
        publish(out, ())  # no shard; DVC requires the folder, even empty
        index, counts = pending_index(table), (0, 0)
        lost = pd.DataFrame(columns=QUARANTINE_COLUMNS)
    else:
        count = workers or (1 if len(table) < FEW_PICTURES else os.cpu_count() or 1)
        stored = render_store(raw, table, out, settings, count, progress)
        index, lost, counts = stored.index, stored.quarantine, (stored.rendered, stored.reused)
        index["image_group"] = _image_groups(index)
    index, sifted = quality.sift("images", index, {"clusters": table})
    write_table(out, "images", index)
    _write_quarantine(out, "images", lost, sifted)
    return counts


def _image_groups(index: pd.DataFrame) -> pd.Series:
    """image_id of the image that leads each row's group of near-duplicates: tile and photo are
    near, or only the tile where both rows show no photo."""
    leader = index.set_index("cluster_id")["image_id"]
    group = index["image_id"].copy()
    alone = index["photo_hash"] == ""
    for rows, hashes in ((~alone, ["tile_hash", "photo_hash"]), (alone, ["tile_hash"])):
        ids, marks = index.loc[rows, "cluster_id"], index.loc[rows, hashes]
        first = near_duplicates.groups(ids.tolist(), marks.to_numpy().tolist())
        group[rows] = leader.loc[first].to_numpy()
    return group


def build_series(indicators: Path, out: Path) -> None:
    """Stage 3: the dumps of an indicators folder -> series.parquet, gdl_regions.parquet (the
    hand-written map) and gdl_region_names.parquet, for the 56 countries."""
    table, _ = series.read_series(indicators)
    given = series.read_gdl_regions(indicators)
    names = series.read_region_names(indicators)
    table, sifted = quality.sift("series", table)
    write_table(out, "series", table)
    write_table(out, "gdl_regions", given)
    write_table(out, "gdl_region_names", names)
    _write_quarantine(out, "series", sifted)


@dataclass(frozen=True)
class Draw:
    """Which questions are drawn. mcq, regression: how many; None: the paper's number where the raw
    folder fills the paper's quota of every pillar, else all. every: None is all. max_gap: most
    years between a value and the survey. split: id (the authors' rule) or place. keep_bins:
    options of an earlier benchmark, by indicator (`earlier_bins`). cuts: how answer options are
    cut, ours (established thresholds, else terciles) or paper (quantiles at Table B's shares).
    questions: all indicators, or those that carry the paper's SDG codes (paper)."""

    mcq: int | None = None
    regression: int | None = None
    seed: int = 0
    max_gap: int = items.MAX_GAP
    split: str = "id"
    keep_bins: Mapping[str, Bins] | None = None
    every: bool = False
    cuts: str = "ours"
    questions: str = "all"

    def options(self) -> Callable[[Indicator, np.ndarray], Bins]:
        """What gives an indicator its answer options. Raises UsageError."""
        if self.cuts not in CUTS:
            raise UsageError(f"--cuts: {one_of('way to cut', self.cuts, CUTS)}")

        def cut(entry: Indicator, values: np.ndarray) -> Bins:
            kept = (self.keep_bins or {}).get(entry.slug)
            if kept and kept.labels:
                return kept
            if self.cuts == "ours":
                return bins(entry, values)
            a, b, c = (share / sum(TABLE_B[entry.pillar]) for share in TABLE_B[entry.pillar])
            return bins(entry, values, (a, b, c))

        return cut

    def indicators(self) -> list[Indicator]:
        """The indicators that are asked about. Raises UsageError."""
        if self.questions not in QUESTIONS:
            raise UsageError(
                f"--questions: {one_of('set of questions', self.questions, QUESTIONS)}"
            )
        return [e for e in load_indicators() if e.in_paper or self.questions == "all"]


@dataclass(frozen=True)
class Reviewed:
    """A human review of earlier questions. verdicts: review.load_verdicts; figures: the JSON beside
    them; action: what happens to rejected items, drop or mark."""

    verdicts: pd.DataFrame
    figures: Path | None = None
    action: str = "drop"


def build_items(out: Path, draw: Draw = Draw(), reviewed: Reviewed | None = None) -> None:
    """Stage 4: clusters x images x series -> items_mcq, items_regression, regions_review.csv.

    An item that breaks a row rule is removed and replaced by the draw, until all items satisfy
    every rule.
    """
    clusters, values = _read(out, "clusters"), _read(out, "series")
    images = _read(out, "images", ["cluster_id", "image_id", "image_group", "modalities"])
    clusters["gdl_region"], review = regions.match_regions(
        clusters, _read(out, "gdl_regions"), _read(out, "gdl_region_names")
    )
    text = review.to_csv(index=False, lineterminator="\n")
    write_atomically(out / "regions_review.csv", text)
    by_status = review.groupby("status")["clusters"].sum()
    candidates = items.find_candidates(
        clusters,
        images,
        values,
        seed=draw.seed,
        max_gap=draw.max_gap,
        options=draw.options(),
        indicators=draw.indicators(),
    )
    given = {Task.MCQ: draw.mcq, Task.REGRESSION: draw.regression}
    free = [task for task, n in given.items() if n is None and not draw.every]
    numbers = given | {task: items.papers_number(candidates, task) for task in free}
    paths = [out / f"items_{task}.parquet" for task in Task]
    with writing(paths[0]) as first, writing(paths[1]) as second:
        parts = dict(zip(Task, (first, second), strict=True))
        tables = {"clusters": clusters, "images": images}
        built, sifted = _until_clean(out, candidates, numbers, parts, draw.split, reviewed, tables)
    _write_quarantine(out, "items", *built.lost, *sifted)
    absent = sorted(set(series.SERIES) - set(values["series"]))
    settings: dict[str, Any] = {
        **{name: getattr(draw, name) for name in ("mcq", "regression", "seed", "max_gap")},
        "kept_bins": draw.keep_bins is not None,
        **({"cuts": draw.cuts} if draw.cuts != "ours" else {}),
        **({"questions": draw.questions} if draw.questions != "all" else {}),
    }
    if free:
        every = "every question, as the raw folder can't fill the paper's quotas"
        settings["by_default"] = {
            task.value: every if numbers[task] is None else "the paper's quotas" for task in free
        }
    counts: dict[str, Any] = {}
    if reviewed is not None:
        counts = {"action": reviewed.action, **counted(reviewed.verdicts["verdict"])}
    _keep_figures(reviewed.figures if reviewed else None, out / "reviews.json")
    notes = {
        **built.notes,
        "series_not_found": absent,
        "asked": settings,
        "review": counts,
        "survey_regions": {str(name): int(n) for name, n in by_status.items()},
    }
    write_json(out / "items_notes.json", notes)


def _until_clean(
    out: Path,
    candidates: items.Candidates,
    numbers: Mapping[Task, int | None],
    parts: Mapping[Task, Path],
    split: str,
    reviewed: Reviewed | None,
    tables: Mapping[str, pd.DataFrame],
) -> tuple[items.Built, list[pd.DataFrame]]:
    """Draw and write the item tables again and again, until no row rule takes an item out. Returns
    the last draw and the quarantined items of the earlier ones."""
    without: dict[Task, set[int]] = {task: set() for task in Task}
    sifted: list[pd.DataFrame] = []
    for _ in range(MAX_ROUNDS):
        built = items.choose_items(
            candidates,
            mcq=numbers[Task.MCQ],
            regression=numbers[Task.REGRESSION],
            without=without,
            review=reviewed.verdicts if reviewed else None,
            review_action=reviewed.action if reviewed else "drop",
            split=split,
        )
        if not any(map(len, built.chosen.values())) and tuple(numbers.values()) != (0, 0):
            raise InputError(
                f"{out}: no cluster got a question: none has an image pair and a value of an"
                " indicator near its survey year; look into quarantine/*.parquet for the reasons"
            )
        again = False
        for task, part in parts.items():
            blocks = (pa.Table.from_pandas(b, preserve_index=False) for b in built.blocks(task))
            write_parts(part, blocks)
            gone, lost = quality.sift_file(f"items_{task}", part, tables, split=split)
            if len(lost):
                again = True
                without[task] |= gone
                sifted.append(lost)
        if not again:
            return built, sifted
    raise InputError(
        f"{out}: row rules still take items out after {MAX_ROUNDS} draws; look into the raw data:"
        " sdgbias raw check"
    )


def _keep_figures(source: Path | None, target: Path) -> None:
    """Copy the figures of a review (agreement, rates) to the path that the card reads; without a
    review remove the file."""
    if source is not None and source.is_file():
        write_atomically(target, source.read_bytes())
    else:
        target.unlink(missing_ok=True)


def earlier_bins(benchmark: Path) -> dict[str, Bins]:
    """The options of an earlier benchmark by indicator. Raises InputError."""
    path = benchmark / "items_notes.json"
    onward = "name a folder made by sdgbias build"
    with understood(path, "no options of an earlier benchmark", onward):
        entries = json.loads(path.read_text(encoding="utf-8"))["bins"]
        return {
            slug: Bins(
                tuple(map(float, b["edges"])), tuple(map(str, b["labels"])), str(b["source"])
            )
            for slug, b in entries.items()
        }


def build_prompts(out: Path) -> None:
    """Stage 5: items -> prompts.parquet, one row per item x context test; items are read, and
    prompts written, in parts."""
    tables = _prompt_tables(out)
    if (first := next(tables, None)) is None:
        raise InputError(
            f"{out}: the item tables are empty; make them again: sdgbias build --stage items --out"
            f" {argument(out)}"
        )
    write_atomically(
        out / "prompts.parquet", lambda part: write_parts(part, chain([first], tables))
    )


def _prompt_tables(out: Path) -> Iterator[pa.Table]:
    for task in Task:
        with _reading(out, f"items_{task}") as path, pq.ParquetFile(path) as file:
            wanted = [c for c in file.schema_arrow.names if c in prompts.READ]
            for batch in file.iter_batches(items.BLOCK // 2, columns=wanted):
                if len(batch):
                    yield prompts.prompt_table(batch.to_pandas(), task)


@dataclass(frozen=True)
class Build:
    """What a benchmark is built from, and into which folder. images: None for no pictures; workers:
    processes that draw them (None: one per CPU)."""

    raw: Path
    indicators: Path
    out: Path
    draw: Draw = Draw()
    reviewed: Reviewed | None = None
    images: ImageSettings | None = None
    workers: int | None = None

    def run(self, stage: Stage, progress: Progress = silent) -> str:
        """One stage; returns what there is to say of it, else ''. Stage card writes benchmark.json,
        README.md and quarantine.parquet; stage check is the command line's (quality.run_gate)."""
        out = self.out
        match stage:
            case Stage.CLUSTERS:
                build_clusters(self.raw, out)
            case Stage.IMAGES:
                drawn, kept = build_images(self.raw, out, self.images, self.workers, progress)
                return f"images: {drawn} drawn, {kept} unchanged and kept" if drawn or kept else ""
            case Stage.SERIES:
                build_series(self.indicators, out)
            case Stage.ITEMS:
                build_items(out, self.draw, self.reviewed)
            case Stage.PROMPTS:
                build_prompts(out)
            case Stage.CARD:
                card.build_card(out)
        return ""


def build(
    raw: Path, indicators: Path, out: Path, draw: Draw = Draw(), progress: Progress = silent
) -> dict[str, Any]:
    """All stages but check, with pictures unless the raw folder is a sample without; returns the
    card."""
    images = None if made_without_images(raw) else ImageSettings()
    for stage in Stage:
        Build(raw, indicators, out, draw, images=images).run(stage, progress)
    return json_object(out / "benchmark.json")
