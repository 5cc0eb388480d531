"""Questions beyond this machine: human review, and the authors' release format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from sdgbias import templates
from sdgbias.cli.application import DATA, group
from sdgbias.cli.options import DEFAULT_BENCHMARK, BenchmarkOption, OutOption, comma_list
from sdgbias.progress import update

TextViewOption = Annotated[
    Literal["none", "blank-image"],
    Option(help="Text-only views: no image, as in the paper, or the authors' blank image."),
]
ReviewersOption = Annotated[
    str, Option("--reviewers", help="Comma-separated names; each reviewer gets a CSV.")
]
review_app = group("review", DATA, "Human review of questions by two people and an adjudicator.")
FirstCsv = Annotated[Path, Argument(metavar="A.csv", help="Verdicts of the first reviewer.")]
SecondCsv = Annotated[Path, Argument(metavar="B.csv", help="Verdicts of the second reviewer.")]


@review_app.command(
    "sample",
    epilog="Example: sdgbias review sample --out my/review --share 0.05",
)
def sample_for_review(
    out: Annotated[
        Path,
        Option(
            help="Folder for the sheet and the CSVs. It shows people's streets: give it only"
            " to the reviewers."
        ),
    ],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    share: Annotated[
        float, Option(min=0.0, max=1.0, help="Share of the questions to draw.")
    ] = 0.05,
    seed: Annotated[int, Option(help="Seed of the stratified draw.")] = 0,
    reviewers: ReviewersOption = "one,two",
) -> None:
    """Draw a stratified sample of questions for review.

    It writes a review sheet (HTML) and a CSV for each reviewer.
    """
    from sdgbias.benchmark.review.sheet import write_sheets

    sheets = write_sheets(benchmark, out, share, seed, comma_list(reviewers), progress=update)
    typer.echo("\n".join(templates.lines("sheets", **sheets)))


@review_app.command(
    "import",
    epilog="Example: sdgbias review import one.csv two.csv --out reviews.parquet",
)
def import_review(
    first: FirstCsv,
    second: SecondCsv,
    out: Annotated[
        Path, Option(help="File of verdicts for `sdgbias build --review`; a JSON has the figures.")
    ] = Path("reviews.parquet"),
    adjudicator: Annotated[
        Path | None, Option(help="CSV of the adjudicator, where the two reviewers disagree.")
    ] = None,
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
) -> None:
    """Join the reviewers' verdicts for the next build.

    It prints the agreement of the two reviewers (Cohen's kappa) and the share of rejected questions
    in each stratum.
    """
    from sdgbias.benchmark.review.verdicts import import_reviews
    from sdgbias.files import is_release

    figures = import_reviews(first, second, benchmark, out, adjudicator)
    released = is_release(benchmark)
    typer.echo("\n".join(templates.lines("reviews", f=figures, out=out, released=released)))


@review_app.command(
    "templates",
    epilog="Example: sdgbias review templates --out my/templates",
)
def write_templates(
    out: Annotated[Path, Option(help="Folder for the CSVs.")],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    reviewers: ReviewersOption = "one,two",
) -> None:
    """Write a CSV of every question template for each reviewer.

    A row has the question, its options, the evidence and the reasoning target; the verdict is
    accept or reject.
    """
    from sdgbias.benchmark.review.question_templates import write_template_sheets

    for path in write_template_sheets(benchmark, out, comma_list(reviewers)):
        typer.echo(path)


@review_app.command(
    "template-agreement",
    epilog="Example: sdgbias review template-agreement templates-one.csv templates-two.csv",
)
def print_template_agreement(first: FirstCsv, second: SecondCsv) -> None:
    """Print the agreement of two reviewers on the templates, as JSON.

    Templates on which they disagree need an adjudicator.
    """
    from sdgbias.benchmark.review.question_templates import template_agreement

    typer.echo(json.dumps(template_agreement(first, second), indent=1))


release_app = group("release", DATA, "Benchmarks in the authors' format: JSONL and images.")


@release_app.command("export", epilog="Example: sdgbias release export --out my/release")
def export_release(
    out: Annotated[Path, Option(help="Folder to write: data/, views/, images/.")],
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
    text_view: TextViewOption = "none",
) -> None:
    """Write a benchmark in the format of the authors' release.

    It has 7 data files, 14 view files and the images.
    """
    from sdgbias.benchmark.release.export import export

    lines = export(benchmark, out, text_view, progress=update)
    typer.echo("\n".join(lines))


@release_app.command(
    "fetch",
    epilog="Example: sdgbias release fetch --out data/sdgbiasbench",
)
def fetch_release(
    out: Annotated[Path, Option(help="Folder to write.")],
    repo: Annotated[str, Option(help="Dataset on the hub.")] = "jeffreylin1222/SDGBiasBench",
    revision: Annotated[
        str,
        Option(help="Branch, tag or commit. Default: the commit fetched before, else the newest."),
    ] = "",
) -> None:
    """Download the authors' SDGBiasBench from the hub.

    It is licensed CC BY-SA 4.0 and pinned to one commit. The size is printed first. An interrupted
    download continues when the command is run again.
    """
    from sdgbias.benchmark.release.authors import fetch

    fetch(out, repo, revision, typer.echo)


@release_app.command(
    "import",
    epilog="Example: sdgbias release import my/release --out my/benchmark",
)
def import_release(
    folder: Annotated[
        Path, Argument(metavar="DIR", help="Folder of a release: data/*.jsonl and images/.")
    ],
    out: OutOption,
    text_view: TextViewOption = "none",
) -> None:
    """Turn a release into a benchmark for `sdgbias evaluate`."""
    from sdgbias.benchmark.release.import_ import import_

    lines = import_(folder, out, text_view, progress=update)
    typer.echo("\n".join(lines))
