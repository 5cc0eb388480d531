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


def sample(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = DEFAULT_RAW,
    clusters: Annotated[
        int, typer.Option(min=1, help="Number of survey clusters over all countries.")
    ] = 300,
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 0,
    countries: Annotated[
        str, typer.Option(help="DHS country codes, comma-separated; empty: eight default ones.")
    ] = "",
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Draw tiles and photos.")
    ] = True,
) -> None:
    """Write a synthetic raw folder of places, whose images truly carry the signal, in
    SustainBench's layout. Of people: sdgbias people sample."""
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
    indicators: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Indicator series folder. Default: RAW/indicators if it exists, else"
                " data/indicators."
            )
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(envvar="SDGBIAS_BENCHMARK", help="Benchmark folder to write.")
    ] = DEFAULT_BENCHMARK,
    mcq: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=(
                "Number of distinct multiple-choice questions; default: the paper's 100000 where"
                " the raw folder fills its quota of every pillar, else all."
            ),
        ),
    ] = None,
    regression: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of regression questions; default: the paper's 50000, else all."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every possible question, where no number is given.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the stratified draw.")] = 0,
    max_gap: Annotated[
        int,
        typer.Option(
            min=0,
            help="Most years between a value and the survey, where an indicator sets no limit.",
        ),
    ] = 10,
    split: Annotated[
        str, typer.Option(help="id: the authors' rule; place: no country in both val and test.")
    ] = "id",
    keep_bins: Annotated[
        Path | None,
        typer.Option(help="Earlier benchmark folder whose answer options are used again."),
    ] = None,
    review: Annotated[
        Path | None, typer.Option(help="Verdicts of `sdgbias review import` (reviews.parquet).")
    ] = None,
    review_action: Annotated[
        str, typer.Option(help="What happens to rejected items: drop (others are drawn) or mark.")
    ] = "drop",
    images: Annotated[
        bool | None,
        typer.Option(
            "--images/--no-images",
            help=(
                "Draw the pictures (default, except for a sample without); nothing can be evaluated"
                " without."
            ),
        ),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            help="composite: one picture per place; several: photo, tile and night lights apart."
        ),
    ] = "composite",
    stretch: Annotated[
        str, typer.Option(help="Contrast of the tile: authors or percentile.")
    ] = "authors",
    stretch_for: Annotated[
        str,
        typer.Option(help="Another stretch for some countries, e.g. KH=percentile,NP=percentile."),
    ] = "",
    bands: Annotated[
        str,
        typer.Option(
            help="Colours of the tile: true-colour, false-colour (NIR, red, green) or swir."
        ),
    ] = "true-colour",
    nightlights: Annotated[str, typer.Option(help="Night lights: log, linear or none.")] = "log",
    photo: Annotated[
        str,
        typer.Option(
            help=(
                "when_available: the tile alone where a place has no street photo; required: no"
                " picture and no question there."
            )
        ),
    ] = "when_available",
    photos: Annotated[
        int, typer.Option(min=1, help="Street photos per place (layout several only).")
    ] = 1,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes that draw pictures; default: one per CPU, one for few places."
        ),
    ] = None,
    stage: Annotated[
        str,
        typer.Option(
            help=(
                "One stage only: clusters, images, series, items, prompts, card, check (used by"
                " dvc.yaml)."
            )
        ),
    ] = "",
) -> None:
    """Build a benchmark: clusters -> images -> series -> questions -> prompts, then the quality
    gate.

    Everything is resumable: run the same command again after an interruption.
    """
    from sdgbias.benchmark import build as stages
    from sdgbias.benchmark.review import load_verdicts
    from sdgbias.raw.images.image_store import ImageSettings

    if indicators is None:
        indicators = (
            raw / "indicators" if (raw / "indicators").is_dir() else Path("data/indicators")
        )
    source = indicators
    if stage:
        update(f"stage {stage}")
    if images is None and (images := not stages.made_without_images(raw)) is False:
        typer.echo(
            f"{raw}: a sample without pictures; questions are built without them and can't be"
            " evaluated",
            err=True,
        )
    settings = (
        ImageSettings(
            layout, stretch, _pairs("--stretch-for", stretch_for), bands, nightlights, photos, photo
        )
        if images
        else None
    )
    steps: dict[str, Callable[[], object]] = {
        "clusters": lambda: stages.build_clusters(raw, out),
        "images": lambda: _said_of_images(
            *stages.build_images(raw, out, settings, workers, update)
        ),
        "series": lambda: stages.build_series(source, out),
        "items": lambda: stages.build_items(
            out,
            stages.Draw(mcq, regression, seed, max_gap, split, keep_bins, every),
            stages.Reviewed(load_verdicts(review), review.with_suffix(".json"), review_action)
            if review
            else None,
        ),
        "prompts": lambda: stages.build_prompts(out),
        "card": lambda: stages.build_card(out),
        "check": lambda: check_quality(out),
    }
    if stage and stage not in steps:
        raise UsageError(f"--stage: {one_of('stage', stage, steps)}")
    if stage in ("", "items"):
        _say_how_many(mcq, regression, every)
    for name in [stage] if stage else list(steps):
        steps[name]()
    if not stage or stage == "check":
        card = json.loads((out / "benchmark.json").read_text(encoding="utf-8"))
        tell("benchmark", out=out, **card)


def _say_how_many(mcq: int | None, regression: int | None, every: bool) -> None:
    asked = {"multiple-choice": mcq, "regression": regression}
    paper = {"multiple-choice": 100_000, "regression": 50_000}
    for kind in (kind for kind, n in asked.items() if n is None):
        usual = f"the paper's {paper[kind]:,} where the raw folder can fill its quotas, else all"
        typer.echo(f"{kind} questions: {'all' if every else usual + ' (--all: all)'}", err=True)


def _pairs(option: str, text: str) -> tuple[tuple[str, str], ...]:
    """'KH=percentile,NP=percentile' -> pairs."""
    parts = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    for name, equals, value in parts:
        if not (name and equals and value):
            raise UsageError(
                f"{option} {text!r}: write COUNTRY=VALUE, several separated by commas, e.g."
                " KH=percentile"
            )
    return tuple((name, value) for name, _, value in parts)


def _said_of_images(rendered: int, reused: int) -> None:
    if rendered or reused:
        typer.echo(f"images: {rendered} drawn, {reused} unchanged and kept")
