"""The laboratory's commands: analyse, reproduce, selfcheck. None of them needs a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sdgbias.cli.options import DEFAULT_RESULTS, JsonOption, ResultsOption, print_findings, say_json
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
    draws: Annotated[int, typer.Option(min=1)] = 10_000,
    seed: int = 0,
    bootstrap: Annotated[int, typer.Option(min=100)] = 2_000,
    again: Annotated[bool, typer.Option("--again")] = False,
    as_json: JsonOption = False,
) -> None:
    """Every table and figure beyond the headline, from stored scores: baselines, ablations, groups,
    harm, calibration.

    Args:
        draws: Draws of every random search (paper: 10,000).
        seed: Seed of searches and resampling.
        bootstrap: Draws of every bootstrap over places.
        again: Also for runs that were analysed with these settings before.
    """
    from sdgbias.analysis import analyse as lab
    from sdgbias.analysis.rows import AnalysisSettings

    made = lab.analyse(
        Path(results), run, AnalysisSettings(draws, seed, bootstrap), again=again, progress=update
    )
    if as_json:
        say_json([{"run_id": run_id, "rows": rows or 0} for run_id, rows in made.items()])
        return
    for run_id, rows in made.items():
        known = "analysed before with these settings"
        typer.echo(f"{run_id}: {known if rows is None else f'{rows:,} rows'}")
    onward = f"sdgbias report --results {results}; beside the papers: sdgbias reproduce"
    print_findings(results, made, onward)


def reproduce(
    results: ResultsOption = DEFAULT_RESULTS,
    table: Annotated[list[str] | None, typer.Option("--table")] = None,
    paper: Annotated[str, typer.Option("--paper")] = "sdg",
    model: Annotated[list[str] | None, typer.Option("--model")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    as_csv: Annotated[bool, typer.Option("--csv")] = False,
    out: Annotated[Path | None, typer.Option("--out")] = None,
) -> None:
    """Every table and figure of the paper from stored results: ours beside the printed value where
    the same model was scored.

    Args:
        table: A to L, 1 to 3, fig3, claims, ...; may be given several times; all: every study's
            rows.
        paper: sdg, or fairness (tables 1, 2, 3, gender, classes, rates, ...).
        model: Registry name; may be given several times. Default: all.
        as_json: JSON instead of tables.
        as_csv: Comma-separated, one line a number, instead of tables.
        out: Folder for a Markdown and a CSV file per table, instead of printing.
    """
    from sdgbias import store
    from sdgbias.analysis import paper as tables
    from sdgbias.analysis.paper import formats
    from sdgbias.cli.options import choice
    from sdgbias.errors import UsageError
    from sdgbias.types import FACET, SDG

    suite = {"sdg": SDG, "fairness": FACET}[choice("--paper", paper, ("sdg", "fairness"))]
    if as_json + as_csv + (out is not None) > 1:
        raise UsageError("give one of --json, --csv and --out DIR")
    tables.chosen(table or [], suite)
    with store.held_open(results):
        evidence = tables.load(results, model or [], suite=suite)
        made = tables.build(evidence, table or [])
    if out is not None:
        typer.echo(f"wrote {len(formats.write(made, out))} files to {out}")
    elif as_json:
        typer.echo(formats.as_json(made, evidence.runs), nl=False)
    else:
        typer.echo(
            formats.as_csv(made) if as_csv else formats.text(made, evidence.runs),
            nl=False,
        )
    typer.echo(formats.summary(made), err=as_json or as_csv)


def selfcheck(
    full: Annotated[bool, typer.Option("--full")] = False,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    benchmark: Annotated[Path | None, typer.Option("--benchmark")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    out: Annotated[Path | None, typer.Option("--out")] = None,
) -> None:
    """The instrument proves itself: planted models go through the whole pipeline, and what was
    planted must come out.

    Args:
        full: Every planted model, on more questions, instead of a small selection (some minutes).
        seed: Seed of the planted models and of the synthetic benchmark.
        benchmark: Benchmark folder; default: a synthetic one, built for it.
        as_json: Every check as JSON instead of one page.
        out: Also write the page: FILE.html, FILE.json or FILE.txt.
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
