"""`sdgbias people build` and `sdgbias sample --suite facet`: the second suite's raw folder and benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sdgbias.cli_bars import Bars
from sdgbias.cli_options import choice

people_app = typer.Typer(
    help="The second suite: pictures of people with annotated attributes.", no_args_is_help=True, rich_markup_mode=None
)
RAW, BENCHMARK = Path("data/people/raw"), Path("data/people/benchmark")


@people_app.callback()
def _group() -> None:
    """A group of its own, though it has one command: Typer would swallow the command's name otherwise."""


def sample(out: Path, people: int, seed: int) -> None:
    """A synthetic folder in FACET's layout."""
    from sdgbias.people.sample import write_people_sample

    bars = Bars()
    persons = write_people_sample(out, people, seed, lambda done, total: bars("drawing people", done, total))
    typer.echo(f"{out}: {people} schematic pictures, {persons} persons annotated. Next: sdgbias people build --raw {out}")


@people_app.command("build")
def build(
    raw: Annotated[Path, typer.Option("--raw", help="FACET's folder (annotations/, imgs_1..3/), FairFace's, or UTKFace's.")] = RAW,
    out: Annotated[Path, typer.Option(help="Benchmark folder to write.")] = BENCHMARK,
    dataset: Annotated[str, typer.Option(help="facet, fairface or utkface: how the folder is laid out.")] = "facet",
    seed: Annotated[int, typer.Option(help="Seed of the wrong classes that are asked about.")] = 0,
    selected_only: Annotated[bool, typer.Option("--selected-only", help="Only the 13 classes that the paper reports on.")] = False,
    negatives: Annotated[bool, typer.Option("--negatives/--no-negatives", help="Also ask about a class that is wrong.")] = True,
    list_seed: Annotated[int | None, typer.Option(help="Shuffle the list of p1 for every person; default: FACET's order.")] = None,
) -> None:
    """Build a benchmark of people: annotations -> people -> questions -> prompts, quality rules included.

    People whose picture or class can't be used leave with a reason; unknown attributes stay and are counted.
    """
    from sdgbias.people.build import DATASETS, build_people

    card = build_people(
        raw, out, dataset=choice("--dataset", dataset, DATASETS), seed=seed, selected_only=selected_only, negatives=negatives,
        list_seed=list_seed, progress=Bars(),
    )  # fmt: skip
    counts = card["counts"]
    typer.echo(
        f"{out}: benchmark {card['benchmark_id']}, {counts['people']} of {counts['rows_annotated']} annotated people, "
        f"{counts['items_people']} questions. {card['licence']}."
    )
    for attribute, groups in card["groups"].items():
        typer.echo(f"  {attribute}: " + ", ".join(f"{name} {n}" for name, n in groups.items()))
    for rule, n in card["quarantined"].items():
        typer.echo(f"  left out: {rule} {n}")
