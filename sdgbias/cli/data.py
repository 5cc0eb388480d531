"""The command groups around a benchmark's data: raw inputs, human review, the authors' release
format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sdgbias.cli.options import (
    DEFAULT_BENCHMARK,
    BenchmarkOption,
    JsonOption,
    group,
    say_json,
)
from sdgbias.progress import update

raw_app = group("Raw inputs: what is present, what is missing, where to get it.")
review_app = group("Human review of a benchmark by two people and an adjudicator.")
release_app = group("Benchmarks in the authors' release format (JSONL and images).")

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Raw folder in SustainBench's layout.")
]


def _say(lines: list[str]) -> None:
    for line in lines:
        typer.echo(line)


@raw_app.command("check")
def raw_check(
    folder: FolderArgument,
    indicators: Path | None = None,
    as_json: JsonOption = False,
) -> None:
    """Report which raw sources are present, partial, missing or broken, what can't be built without
    them, and where to get them.

    Args:
        indicators: Indicator series folder. Default: DIR/indicators if it exists.
    """
    from sdgbias.raw.check import check_raw

    report = check_raw(folder, indicators, update)
    say_json(report) if as_json else _say(report.lines())
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@review_app.command("sample")
def review_sample(
    out: Annotated[Path, typer.Option()],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    share: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.05,
    seed: int = 0,
    reviewers: str = "one,two",
) -> None:
    """Draw a stratified sample and write a review sheet (HTML) and a CSV per reviewer.

    Args:
        out: Folder for the sheet and the CSVs; give it to reviewers only, it shows people's
            streets.
        share: Share of the items to draw.
        seed: Seed of the stratified draw.
        reviewers: Names, comma-separated: one CSV each.
    """
    from sdgbias.benchmark.review.sheet import write_sheets

    names = [name.strip() for name in reviewers.split(",") if name.strip()]
    _say(write_sheets(benchmark, out, share, seed, names, progress=update).lines())


@review_app.command("import")
def review_import(
    first: Annotated[Path, typer.Argument(metavar="A.csv")],
    second: Annotated[Path, typer.Argument(metavar="B.csv")],
    out: Path = Path("reviews.parquet"),
    adjudicator: Path | None = None,
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
) -> None:
    """Join two reviewers and the adjudicator: agreement (Cohen's kappa), verdict rates per stratum,
    verdicts for the next build.

    Args:
        first: Verdicts of the first reviewer.
        second: Verdicts of the second reviewer.
        out: Verdicts for `sdgbias build --review`; figures lie beside it as JSON.
        adjudicator: Verdicts of the adjudicator on what the two disagree about.
    """
    from sdgbias.benchmark.review import import_reviews

    _say(import_reviews(first, second, benchmark, out, adjudicator).lines())


@review_app.command("templates")
def review_templates(
    out: Annotated[Path, typer.Option()],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    reviewers: str = "one,two",
) -> None:
    """Write a CSV per reviewer with every question template: question, options, evidence, reasoning
    target; verdicts are accept or reject.

    Args:
        out: Folder for the CSVs.
        reviewers: Names, comma-separated: one CSV each.
    """
    from sdgbias.benchmark.review.template_sheets import write_template_sheets

    names = [name.strip() for name in reviewers.split(",") if name.strip()]
    _say([str(path) for path in write_template_sheets(benchmark, out, names)])


@review_app.command("template-agreement")
def review_template_agreement(
    first: Annotated[Path, typer.Argument(metavar="A.csv")],
    second: Annotated[Path, typer.Argument(metavar="B.csv")],
) -> None:
    """Print, as JSON, how far two reviewers agree on the templates, and which need an adjudicator.

    Args:
        first: CSV of the first reviewer.
        second: CSV of the second reviewer.
    """
    from sdgbias.benchmark.review.template_sheets import template_agreement

    typer.echo(json.dumps(template_agreement(first, second), indent=1))


@release_app.command("export")
def release_export(
    out: Annotated[Path, typer.Option()],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    text_view: str = "none",
) -> None:
    """Write a benchmark as the authors publish theirs: 7 data files, 14 view files, images.

    Args:
        out: Folder to write: data/, views/, images/.
        text_view: Text-only views: none (no image) or blank-image (the authors' way).
    """
    from sdgbias.benchmark.release.export import export

    _say(export(benchmark, out, text_view, progress=update).lines())


@release_app.command("fetch")
def release_fetch(
    out: Annotated[Path, typer.Option()],
    repo: str = "jeffreylin1222/SDGBiasBench",
    revision: str = "",
) -> None:
    """Download the authors' SDGBiasBench (CC BY-SA 4.0) from the hub, pinned to one commit. Says
    first how much that is; stopped, it goes on where it was when it is run again.

    Args:
        out: Folder to write.
        repo: Dataset on the hub.
        revision: Branch, tag or commit; default: the commit fetched before, else the newest.
    """
    from sdgbias.benchmark.release.authors import fetch

    fetch(out, repo, revision, typer.echo)


@release_app.command("import")
def release_import(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    out: Annotated[Path, typer.Option()],
    text_view: str = "none",
) -> None:
    """Turn a release into a benchmark folder that `sdgbias evaluate` takes like our own.

    Args:
        folder: Folder of a release: data/*.jsonl and images/.
        out: Benchmark folder to write.
        text_view: Text-only views: none (no image, as the paper writes) or blank-image (the
            authors' code: a blank picture, and "Ignore the image.").
    """
    from sdgbias.benchmark.release.import_ import import_

    _say(import_(folder, out, text_view, progress=update).lines())
