"""`sdgbias suite`: a folder of your own questions, from its check to a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sdgbias.cli.options import JsonOption, check_quality, group, say, tell
from sdgbias.progress import update

suite_app = group("Your own questions: a folder with suite.yaml and a table of items.")
FolderArgument = Annotated[
    Path, typer.Argument(help="Folder with suite.yaml and the table of items.")
]


@suite_app.command("example")
def example(
    out: Annotated[Path, typer.Argument()],
    seed: int = 0,
) -> None:
    """Write an example folder: 100 questions about pictures of the sample.

    Args:
        out: New folder to write.
        seed: Same seed, same bytes.
    """
    from sdgbias.raw.synthetic.own_questions import write_example

    n = write_example(out, seed, update)
    typer.echo(f"{out}: {n} questions. Next: sdgbias suite check {out}")


@suite_app.command("check")
def check(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """List every fault of a folder with file, line and what to do; exit code 9 when there is
    one."""
    from sdgbias.benchmark.own import read_folder
    from sdgbias.errors import SuiteError

    source = read_folder(folder, update)
    shown = {"faults": source.faults, "notes": source.notes, "questions": len(source.questions)}
    about: dict[str, Any] = {"folder": folder, "spec": source.suite, "views": [], "options": []}
    if not source.faults:
        about["views"] = [view.value for view in source.views]
        about["options"] = source.n_options.tolist()
    say(shown, as_json, "suite_check", **shown | about)
    if source.faults or source.suite is None:
        n = len(source.faults)
        raise SuiteError(
            f"{folder}: {n} fault{'s' if n > 1 else ''}; fix the folder, then: sdgbias suite check"
            f" {folder}"
        )


@suite_app.command("build")
def build(
    folder: FolderArgument,
    out: Annotated[Path, typer.Option("--out")],
) -> None:
    """Build a benchmark: check, questions, image store, prompts, card, then the quality gate.

    Args:
        out: Benchmark folder to write.
    """
    from sdgbias.benchmark.own import build_own, summary

    card = build_own(folder, out, update)
    check_quality(out)
    tell("suite_build", out=out, summary=summary(card), **card)
