"""The laboratory's commands: analyse, reproduce, selfcheck. None of them needs a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sdgbias.cli.options import DEFAULT_RESULTS, JsonOption, ResultsOption, say_json
from sdgbias.progress import update

RunsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--run", help="Run id; may be given several times. Default: the newest of each model."
    ),
]


def analyse(
    results: ResultsOption = DEFAULT_RESULTS,
    run: RunsOption = None,
    draws: Annotated[
        int, typer.Option(min=1, help="Draws of every random search (paper: 10,000).")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of searches and resampling.")] = 0,
    bootstrap: Annotated[
        int, typer.Option(min=100, help="Draws of every bootstrap over places.")
    ] = 2_000,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Also for runs that were analysed with these settings before."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Every table and figure beyond the headline, from stored scores: baselines, ablations, groups,
    harm, calibration, transfer."""
    from sdgbias.analysis import analyse as lab
    from sdgbias.analysis.rows import AnalysisSettings

    made = lab.analyse(
        Path(results), run, AnalysisSettings(draws, seed, bootstrap), again=again, progress=update
    )
    if as_json:
        say_json([{"run_id": run_id, "rows": rows} for run_id, rows in made.items()])
        return
    for run_id, rows in made.items():
        typer.echo(
            f"{run_id}: {f'{rows:,} rows' if rows else 'analysed before with these settings'}"
        )
    typer.echo(f"Next: sdgbias reproduce --results {results}")


def reproduce(
    results: ResultsOption = DEFAULT_RESULTS,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            help=(
                "A to L, 1 to 3, fig3, claims, ...; may be given several times; all: every study's"
                " rows."
            ),
        ),
    ] = None,
    paper: Annotated[
        str,
        typer.Option(
            "--paper", help="sdg, or fairness (tables 1, 2, 3, gender, classes, rates, ...)."
        ),
    ] = "sdg",
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="Registry name; may be given several times. Default: all."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Comma-separated, one line a number, instead of tables.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for a Markdown and a CSV file per table, instead of printing."
        ),
    ] = None,
) -> None:
    """Every table and figure of the paper from stored results: ours beside the printed value where
    the same model was scored."""
    from sdgbias import store
    from sdgbias.analysis import paper as tables
    from sdgbias.analysis.paper import fairness, formats
    from sdgbias.cli.options import choice
    from sdgbias.errors import UsageError

    items = {"sdg": tables, "fairness": fairness}[choice("--paper", paper, ("sdg", "fairness"))]
    if as_json + as_csv + (out is not None) > 1:
        raise UsageError("give one of --json, --csv and --out DIR")
    items.chosen(table or [])
    with store.held_open(results):
        evidence = items.load(results, model or [])
        made = items.build(evidence, table or [])
    if out is not None:
        typer.echo(f"wrote {len(formats.write(made, out))} files to {out}")
    elif as_json:
        typer.echo(formats.as_json(made, evidence.runs), nl=False)
    else:
        typer.echo(
            formats.as_csv(made) if as_csv else formats.text(made, evidence.runs, items.HEAD),
            nl=False,
        )
    typer.echo(formats.summary(made), err=as_json or as_csv)


def selfcheck(
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Every planted model and many seeds (some minutes) instead of a small selection.",
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the planted models and of the synthetic benchmark.")
    ] = 0,
    benchmark: Annotated[
        Path | None,
        typer.Option(
            "--benchmark", help="Benchmark folder; default: a synthetic one, built for it."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Every check as JSON instead of one page.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Also write the page: FILE.html, FILE.json or FILE.txt."),
    ] = None,
    fault: Annotated[
        str,
        typer.Option(
            "--break",
            hidden=True,
            help="Break the instrument on purpose: sign, leak, order, narrow.",
        ),
    ] = "",
) -> None:
    """The instrument proves itself: planted models go through the whole pipeline, and what was
    planted must come out."""
    from sdgbias.analysis import selfcheck as instrument
    from sdgbias.analysis.selfcheck import report

    if out is not None:
        report.check_name(out)
    verdict = instrument.run(
        full=full, seed=seed, benchmark=benchmark, fault=fault, progress=update
    )
    typer.echo(report.as_json(verdict) if as_json else report.text(verdict))
    if out is not None:
        report.write(verdict, out)
    instrument.gate(verdict)
