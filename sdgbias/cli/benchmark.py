"""`sdgbias sample` and `sdgbias build`: a synthetic raw folder, and the benchmark of raw data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdgbias.cli.options import DEFAULT_BENCHMARK, DEFAULT_RAW, RawOption, check_quality, tell
from sdgbias.errors import UsageError, one_of
from sdgbias.progress import update

if TYPE_CHECKING:
    from collections.abc import Callable


#: Stage of a build -> what it does, while it does it.
_STAGES = {
    "clusters": "reading clusters",
    "images": "drawing pictures",
    "series": "reading indicator series",
    "items": "drawing questions",
    "prompts": "writing prompts",
    "card": "writing the card",
    "check": "checking the benchmark",
}


def sample(
    out: Path = DEFAULT_RAW,
    clusters: Annotated[int, typer.Option(min=1)] = 300,
    seed: int = 0,
    countries: str = "",
    images: Annotated[bool, typer.Option("--images/--no-images")] = True,
) -> None:
    """Write a synthetic raw folder of places, whose images truly carry the signal, in
    SustainBench's layout. Of people: sdgbias people sample.

    Args:
        out: Folder to write.
        clusters: Number of survey clusters over all countries.
        seed: Same seed, same bytes.
        countries: DHS country codes, comma-separated; empty: eight default ones.
        images: Draw tiles and photos.
    """
    from sdgbias.raw.synthetic import write_sample

    chosen = [c.strip() for c in countries.split(",") if c.strip()] or None
    write_sample(out, clusters, seed, chosen, images, update)
    more = "" if images else " --no-images"
    typer.echo(
        f"{out}: {clusters} synthetic clusters. Next: sdgbias build --raw {out} --indicators"
        f" {out}/indicators{more}"
    )


def build(
    raw: RawOption = DEFAULT_RAW,
    indicators: Path | None = None,
    out: Annotated[Path, typer.Option(envvar="SDGBIAS_BENCHMARK")] = DEFAULT_BENCHMARK,
    mcq: Annotated[int | None, typer.Option(min=0)] = None,
    regression: Annotated[int | None, typer.Option(min=0)] = None,
    every: Annotated[bool, typer.Option("--all")] = False,
    seed: int = 0,
    max_gap: Annotated[int, typer.Option(min=0)] = 10,
    split: str = "id",
    keep_bins: Path | None = None,
    cuts: str = "ours",
    questions: str = "all",
    review: Path | None = None,
    review_action: str = "drop",
    images: Annotated[bool | None, typer.Option("--images/--no-images")] = None,
    layout: str = "composite",
    photo: str = "when_available",
    photos: Annotated[int, typer.Option(min=1)] = 1,
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    stage: str = "",
    data_docs: bool = False,
) -> None:
    """Build a benchmark: clusters -> images -> series -> questions -> prompts, then the quality
    gate.

    Everything is resumable: run the same command again after an interruption.

    Args:
        indicators: Indicator series. Default: RAW/indicators, else data/indicators.
        out: Benchmark folder to write.
        mcq: Multiple-choice questions; default: 100000, else all.
        regression: Regression questions; default: 50000, else all.
        every: Every possible question, where no number is given.
        seed: Seed of the stratified draw.
        max_gap: Most years between value and survey.
        split: id: as the authors; place: no country in both val and test.
        keep_bins: Earlier benchmark folder whose answer options are used again.
        cuts: Cut points: ours (thresholds, else terciles) or paper (Table B).
        questions: all, or paper: indicators with the paper's SDG codes.
        review: Verdicts of `sdgbias review import` (reviews.parquet).
        review_action: Rejected items: drop (others are drawn) or mark.
        images: Draw the pictures, which an evaluation needs.
        layout: composite (one picture a place) or several (its parts).
        photo: when_available or required.
        photos: Street photos per place (layout several).
        workers: Processes that draw; default: one per CPU.
        stage: One of clusters, images, series, items, prompts, card, check.
        data_docs: Also Great Expectations' own pages, in OUT/data_docs.
    """
    from sdgbias.benchmark import build as stages
    from sdgbias.benchmark.review import load_verdicts
    from sdgbias.raw.images.image_store import ImageSettings

    if indicators is None:
        indicators = (
            raw / "indicators" if (raw / "indicators").is_dir() else Path("data/indicators")
        )
    source = indicators
    if images is None and (images := not stages.made_without_images(raw)) is False:
        typer.echo(
            f"{raw}: a sample without pictures; questions are built without them and can't be"
            " evaluated",
            err=True,
        )
    settings = ImageSettings(layout, photos, photo) if images else None
    steps: dict[str, Callable[[], object]] = {
        "clusters": lambda: stages.build_clusters(raw, out),
        "images": lambda: _said_of_images(
            *stages.build_images(raw, out, settings, workers, update)
        ),
        "series": lambda: stages.build_series(source, out),
        "items": lambda: stages.build_items(
            out,
            stages.Draw(mcq, regression, seed, max_gap, split, keep_bins, every, cuts, questions),
            stages.Reviewed(load_verdicts(review), review.with_suffix(".json"), review_action)
            if review
            else None,
        ),
        "prompts": lambda: stages.build_prompts(out),
        "card": lambda: stages.build_card(out),
        "check": lambda: check_quality(out, data_docs),
    }
    if stage and stage not in steps:
        raise UsageError(f"--stage: {one_of('stage', stage, steps)}")
    if stage in ("", "items"):
        _say_how_many(mcq, regression, every)
    for name in [stage] if stage else list(steps):
        update(_STAGES[name])
        steps[name]()
    if not stage or stage == "check":
        card = json.loads((out / "benchmark.json").read_text(encoding="utf-8"))
        tell("benchmark", out=out, **card)
        typer.echo(f"Next: sdgbias evaluate MODEL --benchmark {out} (sdgbias models lists them)")


def _say_how_many(mcq: int | None, regression: int | None, every: bool) -> None:
    asked = {"multiple-choice": mcq, "regression": regression}
    paper = {"multiple-choice": 100_000, "regression": 50_000}
    for kind in (kind for kind, n in asked.items() if n is None):
        usual = f"the paper's {paper[kind]:,} where the raw folder can fill its quotas, else all"
        typer.echo(f"{kind} questions: {'all' if every else usual + ' (--all: all)'}", err=True)


def _said_of_images(rendered: int, reused: int) -> None:
    if rendered or reused:
        typer.echo(f"images: {rendered} drawn, {reused} unchanged and kept")
