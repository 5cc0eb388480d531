"""The commands of the laboratory: analyse, reproduce, selfcheck. None of them needs a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from sdgbias.cli.application import MAINTENANCE, RESULTS, app
from sdgbias.cli.options import (
    DEFAULT_RESULTS,
    DrawsOption,
    JsonOption,
    ResultsOption,
    RunsOption,
    SeedOption,
    print_findings,
    print_json,
    registered,
)
from sdgbias.errors import UsageError, argument
from sdgbias.progress import each, update


@app.command(rich_help_panel=RESULTS, epilog="Example: sdgbias analyse --draws 2000")
def analyse(
    results: ResultsOption = DEFAULT_RESULTS,
    run: RunsOption = None,
    draws: DrawsOption = 10_000,
    seed: SeedOption = 0,
    bootstrap: Annotated[
        int, Option(min=100, help="Resamples of every bootstrap over places.")
    ] = 2_000,
    again: Annotated[
        bool, Option("--again", help="Also analyse runs that were analysed with these settings.")
    ] = False,
    encoder: Annotated[
        str,
        Option(
            help=(
                "Instead, map the stored answers about people to classes with this registered text"
                " encoder, e.g. clip-text-vit-b32."
            )
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Compute every study beyond the headline from stored scores.

    The studies are baselines, ablations, groups, harm and calibration; `sdgbias report` shows them.
    Answers that another --encoder has read stand beside the packaged encoder's in `sdgbias
    reproduce --paper fairness --table encoders`.
    """
    if encoder:
        _read_answers(results, encoder)
        return
    from sdgbias.analysis import analyse as lab
    from sdgbias.analysis.rows import AnalysisSettings
    from sdgbias.wording import many

    settings = AnalysisSettings(draws, seed, bootstrap)
    rows_of = lab.analyse(Path(results), run, settings, again=again, progress=update)
    if as_json:
        print_json([{"run_id": run_id, "rows": rows or 0} for run_id, rows in rows_of.items()])
        return
    for run_id, rows in rows_of.items():
        before = "analysed before with these settings"
        typer.echo(f"{run_id}: {before if rows is None else many(rows, 'row')}")
    onward = f"sdgbias report --results {argument(results)}; beside the papers: sdgbias reproduce"
    print_findings(results, rows_of, onward)


def _read_answers(results: Path, name: str) -> None:
    """Reads the answers of the newest runs on people again with a registered encoder, whose floor
    is calibrated where its entry gives none."""
    from sdgbias import store
    from sdgbias.analysis.studies.rereading import read_again
    from sdgbias.engines.hf.zero_shot import text_encoder
    from sdgbias.suites.facet_floor import calibrate
    from sdgbias.types import FACET
    from sdgbias.wording import many

    root, spec = registered(name)
    encoder = text_encoder(spec, root)
    floor = calibrate(encoder).floor if encoder.floor is None else encoder.floor
    runs = store.latest_runs(results, FACET, per_benchmark=True)
    for run in each(update, "reading answers", runs):
        read_again(results, run, encoder, floor)
    typer.echo(
        f"{results}: answers of {many(len(runs), 'run')} read by {encoder.name}, floor"
        f" {floor:g}. Next: sdgbias reproduce --paper fairness --table encoders --results"
        f" {argument(results)}"
    )


@app.command(rich_help_panel=RESULTS, epilog="Example: sdgbias reproduce --table 2")
def reproduce(
    results: ResultsOption = DEFAULT_RESULTS,
    table: Annotated[
        list[str] | None,
        Option(
            "--table",
            help=(
                "A to L, 1 to 3, fig3, claims, ...; may be repeated. all: the rows of every study."
            ),
        ),
    ] = None,
    paper: Annotated[
        Literal["sdg", "fairness"],
        Option(
            "--paper", help="Which paper; fairness has the tables 1, 2, 3, gender, classes, rates."
        ),
    ] = "sdg",
    model: Annotated[
        list[str] | None,
        Option("--model", help="Registered model; may be repeated. Default: all."),
    ] = None,
    as_json: JsonOption = False,
    as_csv: Annotated[
        bool, Option("--csv", help="Comma-separated values, one number on each line.")
    ] = False,
    out: Annotated[
        Path | None,
        Option("--out", help="Write a Markdown and a CSV file for each table to this folder."),
    ] = None,
) -> None:
    """Print the tables and figures of the papers, ours beside theirs.

    They are computed from stored results. Where the paper scored the same model, our value stands
    beside the printed one.
    """
    from sdgbias import store
    from sdgbias.analysis import paper as tables
    from sdgbias.analysis.paper import formats
    from sdgbias.types import FACET, SDG

    suite = {"sdg": SDG, "fairness": FACET}[paper]
    if as_json + as_csv + (out is not None) > 1:
        raise UsageError("give one of --json, --csv and --out DIR")
    tables.chosen(table or [], suite)
    with store.held_open(results):
        evidence = tables.load(results, model or [], suite=suite)
        built = tables.build(evidence, table or [])
    if out is not None:
        typer.echo(f"wrote {len(formats.write(built, out))} files to {out}")
    elif as_json:
        typer.echo(formats.as_json(built, evidence.runs), nl=False)
    else:
        text = formats.as_csv(built) if as_csv else formats.text(built, evidence.runs)
        typer.echo(text, nl=False)
    typer.echo(formats.summary(built), err=as_json or as_csv)


@app.command(rich_help_panel=MAINTENANCE, epilog="Example: sdgbias selfcheck --out selfcheck.html")
def selfcheck(
    full: Annotated[
        bool,
        Option("--full", help="Test every planted model, on more questions (takes minutes)."),
    ] = False,
    seed: Annotated[
        int, Option(min=0, help="Seed of the planted models and of the synthetic benchmark.")
    ] = 0,
    benchmark: Annotated[
        Path | None,
        Option(
            "--benchmark", help="Benchmark folder. Default: a synthetic one made for the check."
        ),
    ] = None,
    as_json: JsonOption = False,
    out: Annotated[
        Path | None, Option("--out", help="Also write the result to FILE.html, .json or .txt.")
    ] = None,
) -> None:
    """Check that planted biases are measured as they were planted.

    Planted models go through the whole pipeline. The exit code is 12 if a result differs from the
    truth.
    """
    from sdgbias.analysis import selfcheck as instrument
    from sdgbias.analysis.selfcheck import report

    if out is not None:
        report.check_name(out)
    verdict = instrument.run(full=full, seed=seed, benchmark=benchmark, progress=update)
    typer.echo(report.as_json(verdict) if as_json else report.text(verdict))
    if out is not None:
        report.write(verdict, out)
    instrument.gate(verdict)
