"""From raw data to a benchmark: synthetic samples, and builds of places, of people and of one's own
questions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from sdgbias.cli.application import DATA, app, group
from sdgbias.cli.options import (
    DEFAULT_BENCHMARK,
    DEFAULT_RAW,
    DataDocsOption,
    JsonOption,
    OutOption,
    RawOption,
    SameBytesSeed,
    check_quality,
    comma_list,
    print_json,
    print_next_evaluation,
    show,
)
from sdgbias.errors import InputError, SuiteError, argument
from sdgbias.progress import update
from sdgbias.types import SDG, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

PEOPLE_RAW, PEOPLE = Path("data/people/raw"), Path("data/people/benchmark")
QUESTIONS = Path("data/questions")
#: (folder or None, seed) -> (folder, what was written, next command)
SampleWriter = Callable[[Path | None, int], tuple[Path, str, str]]


@app.command(rich_help_panel=DATA, epilog="Example: sdgbias sample --out my/raw --clusters 40")
def sample(
    out: Annotated[
        Path | None,
        Option(
            help=f"Folder to write. Default: {DEFAULT_RAW}; {PEOPLE_RAW}; {QUESTIONS}, by suite."
        ),
    ] = None,
    suite: Annotated[
        Literal["places", "people", "questions"],
        Option(help="Places, people in FACET's layout, or 100 questions of your own."),
    ] = "places",
    clusters: Annotated[int, Option(min=1, help="Survey clusters over all countries.")] = 300,
    people: Annotated[int, Option(min=1, help="Pictures of people.")] = 600,
    seed: SameBytesSeed = 0,
    countries: Annotated[
        str, Option(help="Comma-separated DHS country codes of places. Default: eight countries.")
    ] = "",
    images: Annotated[
        bool, Option("--images/--no-images", help="Draw satellite tiles and street photos.")
    ] = True,
) -> None:
    """Write synthetic raw data of places, of people, or questions of your own.

    Places have SustainBench's layout, and their images carry the signal that is asked about.
    """
    writers: dict[str, SampleWriter] = {
        "places": partial(_sample_places, clusters, comma_list(countries) or None, images),
        "people": partial(_sample_people, people),
        "questions": _sample_questions,
    }
    folder, written, onward = writers[suite](out, seed)
    typer.echo(f"{folder}: {written}. Next: sdgbias {onward}")


def _sample_places(
    clusters: int, countries: list[str] | None, images: bool, out: Path | None, seed: int
) -> tuple[Path, str, str]:
    from sdgbias.raw.synthetic import write_sample
    from sdgbias.wording import many

    out = out or DEFAULT_RAW
    write_sample(out, clusters, seed, countries, images, update)
    more = "" if images else " --no-images"
    raw, series = argument(out), argument(out / "indicators")
    onward = f"build --raw {raw} --indicators {series}{more}"
    return out, many(clusters, "synthetic cluster"), onward


def _sample_people(people: int, out: Path | None, seed: int) -> tuple[Path, str, str]:
    from sdgbias.raw.synthetic.schematic_people import write_people_sample

    out = out or PEOPLE_RAW
    persons = write_people_sample(out, people, seed, update)
    written = f"{people} schematic pictures, {persons} persons annotated"
    return out, written, f"people build --raw {argument(out)}"


def _sample_questions(out: Path | None, seed: int) -> tuple[Path, str, str]:
    from sdgbias.raw.synthetic.own_questions import write_example

    out = out or QUESTIONS
    return out, f"{write_example(out, seed, update)} questions", f"suite check {argument(out)}"


@app.command(
    rich_help_panel=DATA,
    epilog="Example: sdgbias build --raw my/raw --out my/benchmark --mcq 500",
)
def build(
    raw: RawOption = DEFAULT_RAW,
    indicators: Annotated[
        Path | None,
        Option(help="Folder of indicator series. Default: RAW/indicators, else data/indicators."),
    ] = None,
    out: Annotated[
        Path, Option(envvar="SDGBIAS_BENCHMARK", help="Benchmark folder to write.")
    ] = DEFAULT_BENCHMARK,
    mcq: Annotated[
        int | None,
        Option(min=0, help="Multiple-choice questions. Default: 100,000, else all."),
    ] = None,
    regression: Annotated[
        int | None,
        Option(min=0, help="Regression questions. Default: 50,000, else all."),
    ] = None,
    every: Annotated[
        bool, Option("--all", help="Every possible question, unless a number is given.")
    ] = False,
    seed: Annotated[int, Option(help="Seed of the stratified draw.")] = 0,
    max_gap: Annotated[
        int, Option(min=0, help="Largest gap between value and survey, in years.")
    ] = 10,
    split: Annotated[
        Literal["id", "place"],
        Option(help="id: as the authors split; place: no country is in both val and test."),
    ] = "id",
    keep_bins: Annotated[
        Path | None, Option(help="Earlier benchmark folder whose answer options are kept.")
    ] = None,
    cuts: Annotated[
        Literal["ours", "paper"],
        Option(help="Cut points: ours (thresholds or terciles) or the paper's (Table B)."),
    ] = "ours",
    questions: Annotated[
        Literal["all", "paper"],
        Option(help="All indicators, or those with the paper's SDG codes."),
    ] = "all",
    review: Annotated[
        Path | None, Option(help="Verdicts of `sdgbias review import` (reviews.parquet).")
    ] = None,
    review_action: Annotated[
        Literal["drop", "mark"],
        Option(help="What becomes of rejected questions: drop (others are drawn) or mark."),
    ] = "drop",
    images: Annotated[
        bool | None,
        Option("--images/--no-images", help="Draw the pictures, which an evaluation needs."),
    ] = None,
    layout: Annotated[
        Literal["composite", "several"],
        Option(help="composite: one picture of each place; several: its parts."),
    ] = "composite",
    photo: Annotated[
        Literal["when_available", "required"], Option(help="Whether a place needs a street photo.")
    ] = "when_available",
    photos: Annotated[
        int, Option(min=1, help="Street photos per place, with --layout several.")
    ] = 1,
    workers: Annotated[
        int | None, Option(min=1, help="Number of drawing processes. Default: one per CPU.")
    ] = None,
    stage: Annotated[Stage | None, Option(help="Run this stage alone.")] = None,
    data_docs: DataDocsOption = False,
) -> None:
    """Build a benchmark of places from raw data.

    The stages are clusters, images, series, questions and prompts, then the quality gate. After an
    interruption, run the same command again: finished work is kept.
    """
    from sdgbias.benchmark import build as stages
    from sdgbias.benchmark.review import load_verdicts
    from sdgbias.files import json_file
    from sdgbias.raw.images.image_store import ImageSettings

    if indicators is None:
        beside = raw / "indicators"
        indicators = beside if beside.is_dir() else Path("data/indicators")
    if images is None and (images := not stages.made_without_images(raw)) is False:
        typer.echo(
            f"{raw}: a sample without pictures; questions are built without them and can't be"
            " evaluated",
            err=True,
        )
    if stage in (None, Stage.ITEMS):
        for kind, n, most in (
            ("multiple-choice", mcq, 100_000),
            ("regression", regression, 50_000),
        ):
            quota = f"the paper's {most:,} if the raw folder can fill its quotas, else all"
            if n is None:
                amount = "all" if every else f"{quota} (--all: all)"
                typer.echo(f"{kind} questions: {amount}", err=True)
    if stage is not Stage.CHECK:
        stages.refuse_other_suite(out, SDG)
    earlier = stages.earlier_bins(keep_bins) if keep_bins and stage in (None, Stage.ITEMS) else None
    job = stages.Build(
        raw,
        indicators,
        out,
        stages.Draw(mcq, regression, seed, max_gap, split, earlier, every, cuts, questions),
        stages.Reviewed(load_verdicts(review), review.with_suffix(".json"), review_action)
        if review and stage in (None, Stage.ITEMS)
        else None,
        ImageSettings(layout, photos, photo) if images else None,
        workers,
    )
    for step in [stage] if stage else Stage:
        update(step.doing)
        if step is Stage.CHECK:
            onward = f"write it: sdgbias build --stage card --out {argument(out)}"
            card = json_file(out / "benchmark.json", "no card of a benchmark", onward)
            check_quality(out, data_docs)
            _print_card(out, card)
            print_next_evaluation(out)
        elif message := job.run(step, update):
            typer.echo(message)


def _print_card(out: Path, card: Mapping[str, Any]) -> None:
    """What a benchmark of places holds, and what was left out of it."""
    counts, name = card["counts"], f"{out}: benchmark {card['benchmark_id']}"
    if "items_mcq" not in counts:
        n = counts.get("people")
        people = f" of {n} people" if n is not None else ""
        typer.echo(f"{name}{people}, passed the quality gate")
        return
    typer.echo(
        f"{name}, {counts['items_mcq']} MCQs x T1-T5, {counts['items_regression']} regression"
        f" questions, {counts['clusters_used']} of {counts['clusters']} clusters."
        f" {card['licence']}."
    )
    for rule, n in card["quarantined"].items():
        typer.echo(f"  left out: {rule} {n}")
    for kind in ("mcq", "regression"):
        for line in card["notes"].get(kind, {}).get("short", []):
            typer.echo(f"  quota not filled: {kind}: {line}")


raw_app = group("raw", DATA, "Check which raw data are present, missing or broken.")


@raw_app.command("check", epilog="Example: sdgbias raw check /data/dhs")
def check_raw_folder(
    folder: Annotated[Path, Argument(metavar="DIR", help="Raw folder in SustainBench's layout.")],
    indicators: Annotated[
        Path | None,
        Option(help="Folder of indicator series. Default: DIR/indicators, if it exists."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Report which raw sources are present, partial, missing or broken.

    It also says what can't be built without them, and where to get them.
    """
    from sdgbias.raw.check import check_raw

    report = check_raw(folder, indicators, update)
    show(report, as_json, report.lines())
    if report.exit_code:
        raise typer.Exit(report.exit_code)


people_app = group("people", DATA, "The second suite: pictures of people with attributes.")


@people_app.command("build", epilog="Example: sdgbias people build --raw my/faces --out my/people")
def build_people_benchmark(
    raw: Annotated[
        Path, Option("--raw", help="FACET's folder (annotations/, imgs_1..3/).")
    ] = PEOPLE_RAW,
    out: OutOption = PEOPLE,
    seed: Annotated[int, Option(help="Seed of the draw of wrong classes to ask about.")] = 0,
    selected_only: Annotated[
        bool, Option("--selected-only", help="Only the 13 classes that the paper reports.")
    ] = False,
    negatives: Annotated[
        bool, Option("--negatives/--no-negatives", help="Also ask about a wrong class.")
    ] = True,
    list_seed: Annotated[
        int | None,
        Option(help="Shuffle the list of prompt p1 for every person. Default: FACET's order."),
    ] = None,
    stage: Annotated[
        Literal["check"] | None,
        Option(help="Only check the folder OUT. Default: build, then check."),
    ] = None,
    data_docs: DataDocsOption = False,
) -> None:
    """Build a benchmark of people from annotated pictures.

    The stages are annotations, questions and prompts, then the quality gate, which writes
    quality.json, quality.html and validation/. People whose picture or class can't be used are left
    out with a reason; unknown attributes stay and are counted.
    """
    from sdgbias.benchmark.people import PeopleDraw, build_people
    from sdgbias.raw.facet import REASONS

    if stage:
        if not (out / "people.parquet").is_file():
            raise InputError(
                f"{out}: no benchmark of people; make it: sdgbias people build --out"
                f" {argument(out)}"
            )
        check_quality(out, data_docs)
        typer.echo(f"{out}: passed the quality gate; see {out / 'quality.html'}")
        print_next_evaluation(out)
        return
    card = build_people(
        raw, out, draw=PeopleDraw(seed, selected_only, negatives, list_seed), progress=update
    )
    counts = card["counts"]
    typer.echo(
        f"{out}: benchmark {card['benchmark_id']}, {counts['people']} of"
        f" {counts['rows_annotated']} annotated people, {counts['items_people']} questions."
        f" {card['licence']}."
    )
    for attribute, groups in card["groups"].items():
        line = ", ".join(f"{name} {n}" for name, n in groups.items())
        unknown = card["unknown_because"].get(attribute) or {}
        reasons = ", ".join(f"{REASONS.get(name, name)} {n}" for name, n in unknown.items())
        typer.echo(f"  {attribute}: {line}" + (f" ({reasons})" if reasons else ""))
    for rule, n in card["quarantined"].items():
        typer.echo(f"  left out: {rule} {n}")
    check_quality(out, data_docs)
    print_next_evaluation(out)


suite_app = group("suite", DATA, "Your own questions: a folder with suite.yaml and a table.")
SuiteFolder = Annotated[Path, Argument(help="Folder with suite.yaml and the table of questions.")]


@suite_app.command("check", epilog="Example: sdgbias suite check my/questions")
def check_suite(folder: SuiteFolder, as_json: JsonOption = False) -> None:
    """List every fault of a folder with its file, its line and its remedy.

    The exit code is 9 if there is one.
    """
    from sdgbias.benchmark.own import card_of, read_folder, summary
    from sdgbias.benchmark.own_spec import FolderFaults

    try:
        suite, items = read_folder(folder, update)
    except FolderFaults as error:
        if as_json:
            print_json({"faults": error.faults, "notes": [], "questions": 0})
        else:
            typer.echo("\n".join(map(str, error.faults)))
        n = len(error.faults)
        raise SuiteError(
            f"{folder}: {n} fault{'s' if n > 1 else ''}; fix the folder, then: sdgbias suite check"
            f" {argument(folder)}"
        ) from None
    card = card_of(suite, items)
    if as_json:
        print_json({"faults": [], "notes": card["notes"], "questions": len(items)})
        return
    typer.echo(
        f"{folder}: suite {suite.name}, version {suite.version}: {summary(card)}. No faults."
    )
    for note in card["notes"]:
        typer.echo(f"  note: {note}")
    typer.echo(f"Next: sdgbias suite build {argument(folder)} --out BENCHMARK")


@suite_app.command("build", epilog="Example: sdgbias suite build my/questions --out my/suite")
def build_suite(folder: SuiteFolder, out: OutOption) -> None:
    """Build a benchmark from a folder of questions.

    The folder is checked, then questions, images, prompts and the card are written, then the
    quality gate runs.
    """
    from sdgbias.benchmark.own import build_own, summary

    card = build_own(folder, out, update)
    check_quality(out)
    typer.echo(
        f"{out}: benchmark {card['benchmark_id']} of suite {card['suite']}: {summary(card)};"
        " passed the quality gate"
    )
    for note in card["notes"]:
        typer.echo(f"  note: {note}")
    print_next_evaluation(out)
