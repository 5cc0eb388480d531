"""`sdgbias suite`: a folder of your own questions, from its check to a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sdgbias.cli.options import Bars, JsonOption, say_json

suite_app = typer.Typer(
    help="Your own questions: a folder with suite.yaml and a table of items.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
FolderArgument = Annotated[
    Path, typer.Argument(help="Folder with suite.yaml and the table of items.")
]


@suite_app.command("example")
def example(
    out: Annotated[Path, typer.Argument(help="New folder to write.")],
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 0,
) -> None:
    """Write an example folder: 100 questions about pictures of the sample."""
    from sdgbias.raw.synthetic.own_questions import write_example

    n = write_example(out, seed, Bars())
    typer.echo(f"{out}: {n} questions. Next: sdgbias suite check {out}")


@suite_app.command("check")
def check(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """List every fault of a folder with file, line and what to do; exit code 9 when there is
    one."""
    from sdgbias.benchmark.own import read_folder
    from sdgbias.errors import SuiteError

    found = read_folder(folder, Bars())
    if as_json:
        say_json({"faults": found.faults, "notes": found.notes, "questions": len(found.questions)})
    for fault in () if as_json else found.faults:
        typer.echo(str(fault))
    if found.faults or found.spec is None:
        n = len(found.faults)
        raise SuiteError(
            f"{folder}: {n} fault{'s' if n > 1 else ''}; fix the folder, then: sdgbias suite check"
            f" {folder}"
        )
    if as_json:
        return
    counts = sorted({len(q.options) for q in found.questions})
    span = "" if len(counts) == 1 else f" to {counts[-1]}"
    typer.echo(
        f"{folder}: suite {found.spec.name}, version {found.spec.version}: {len(found.questions)}"
        f" questions with {counts[0]}{span} options, views"
        f" {', '.join(view.value for view in found.views)}. No faults."
    )
    for note in found.notes:
        typer.echo(f"  note: {note}")
    typer.echo(f"Next: sdgbias suite build {folder} --out BENCHMARK")


@suite_app.command("build")
def build(
    folder: FolderArgument,
    out: Annotated[Path, typer.Option("--out", help="Benchmark folder to write.")],
) -> None:
    """Build a benchmark: check, questions, image store, prompts, card, then the quality gate."""
    from sdgbias.benchmark import quality
    from sdgbias.benchmark.own_build import build_own, summary

    card = build_own(folder, out, Bars())
    for warning in quality.run_gate(out, docs=True).warnings:
        typer.echo(f"  warning: {warning}", err=True)
    typer.echo(
        f"{out}: benchmark {card['benchmark_id']} of suite {card['suite']}: {summary(card)}; passed"
        " the quality gate"
    )
    for note in card["notes"]:
        typer.echo(f"  note: {note}")
    typer.echo(f"Next: sdgbias evaluate MODEL --benchmark {out}")
