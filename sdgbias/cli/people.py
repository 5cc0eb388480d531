"""`sdgbias people`: the raw folder and the benchmark of suite people, and how answers are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdgbias.cli.options import (
    DEFAULT_RESULTS,
    JsonOption,
    ResultsOption,
    check_quality,
    choice,
    group,
    say,
    tell,
)
from sdgbias.errors import InputError
from sdgbias.progress import each, update

if TYPE_CHECKING:
    from sdgbias.methods.labels import TextEncoder

people_app = group("Suite people, the second one: pictures of people with annotated attributes.")
RAW, BENCHMARK = Path("data/people/raw"), Path("data/people/benchmark")


@people_app.command("sample")
def sample(
    out: Path = RAW,
    people: Annotated[int, typer.Option(min=1)] = 600,
    seed: int = 0,
) -> None:
    """Write a synthetic raw folder of schematic people, in FACET's layout.

    Args:
        out: Folder to write.
        people: Number of pictures of people.
        seed: Same seed, same bytes.
    """
    from sdgbias.raw.synthetic.schematic_people import write_people_sample

    persons = write_people_sample(out, people, seed, update)
    typer.echo(
        f"{out}: {people} schematic pictures, {persons} persons annotated. Next: sdgbias people"
        f" build --raw {out}"
    )


@people_app.command("build")
def build(
    raw: Annotated[Path, typer.Option("--raw")] = RAW,
    out: Path = BENCHMARK,
    seed: int = 0,
    selected_only: Annotated[bool, typer.Option("--selected-only")] = False,
    negatives: Annotated[bool, typer.Option("--negatives/--no-negatives")] = True,
    list_seed: int | None = None,
    stage: str = "",
    data_docs: bool = False,
) -> None:
    """Build a benchmark of people: annotations -> people -> questions -> prompts, then the quality
    gate.

    People whose picture or class can't be used leave with a reason; unknown attributes stay and are
    counted. With --stage check only the gate judges a folder that is there: quality.json,
    quality.html and validation/ in it.

    Args:
        raw: FACET's folder (annotations/, imgs_1..3/).
        out: Benchmark folder to write.
        seed: Seed of the wrong classes that are asked about.
        selected_only: Only the 13 classes that the paper reports on.
        negatives: Also ask about a class that is wrong.
        list_seed: Shuffle the list of p1 for every person; default: FACET's order.
        stage: check: only judge the folder OUT that is there. Default: build, then check.
        data_docs: Great Expectations' own pages, too, in OUT/data_docs (they load styles from the
            net).
    """
    from sdgbias.benchmark.people import Asked, build_people
    from sdgbias.raw.facet import REASONS

    chosen = choice("--stage", stage, ("", "check"))
    if chosen == "check":
        if not (out / "people.parquet").is_file():
            raise InputError(
                f"{out}: no benchmark of people; make it: sdgbias people build --out {out}"
            )
        check_quality(out, data_docs)
        typer.echo(
            f"{out}: passed the quality gate; see {out / 'quality.html'}. Next: sdgbias evaluate"
            f" MODEL --benchmark {out}"
        )
        return
    card = build_people(
        raw,
        out,
        asked=Asked(seed, selected_only, negatives, list_seed),
        progress=update,
    )
    tell("benchmark_people", out=out, reasons=REASONS, **card)
    check_quality(out, data_docs)
    typer.echo(f"Next: sdgbias evaluate MODEL --benchmark {out} (sdgbias models lists them)")


@people_app.command("calibrate")
def calibrate(
    encoder: Annotated[str, typer.Argument(metavar="[ENCODER]")] = "",
    as_json: JsonOption = False,
) -> None:
    """How similar an answer must be to a class to be read as it: what each floor reads wrong and
    what it costs, on answers that are known.

    Args:
        encoder: Registered text encoder; default: the packaged one.
    """
    from sdgbias.suites import facet_floor as calibration

    chosen, _ = _encoder(encoder)
    curve = calibration.calibrate(chosen)
    found = {"encoder": chosen.name, "in_use": chosen.floor, "lowest": curve.floor, "curve": curve}
    say(found, as_json, "calibrate", **found)


@people_app.command("read")
def read(
    encoder: Annotated[str, typer.Argument()],
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Read the stored answers of the newest runs again with a text encoder of the registry, beside
    the packaged one.

    No model is evaluated again. `sdgbias reproduce --paper fairness --table encoders` shows the
    readings beside each other.

    Args:
        encoder: Registered text encoder, e.g. clip-text-vit-b32.
    """
    from sdgbias import store
    from sdgbias.analysis.studies.rereading import read_again
    from sdgbias.types import FACET

    chosen, floor = _encoder(encoder)
    runs = store.latest_runs(results, FACET, per_benchmark=True)
    for run in each(update, "reading answers", runs):
        read_again(results, run, chosen, floor)
    typer.echo(
        f"{results}: answers of {len(runs)} runs read by {chosen.name}, floor {floor:g}. Next:"
        f" sdgbias reproduce --paper fairness --table encoders --results {results}"
    )


def _encoder(name: str) -> tuple[TextEncoder, float]:
    """The packaged encoder ('') or one of the registry, and its floor: calibrated where its entry
    says none."""
    from sdgbias.methods.labels import LetterGrams
    from sdgbias.suites.facet_floor import calibrate as find

    if not name:
        return LetterGrams(), LetterGrams.floor
    from sdgbias.engines.hf import text_encoders
    from sdgbias.registry import entries

    root = entries.find_root()
    encoder = text_encoders.load(entries.load(root, name), root)
    return encoder, find(encoder).floor if encoder.floor is None else encoder.floor
