"""`sdgbias init`: a project of one's own, wherever the package is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

_SETTINGS = """# Paths that the commands of this project share; options and variables win.
results = "results/sdgbias.duckdb"
# benchmark = "data/benchmark"  # once it is built
raw = "data/raw"
registry = "."
"""
_IGNORED = "/results/\n/reports/\n/data/raw/\n/data/benchmark/\n/data/people/\n/.sdgbias/\n"


def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]")] = Path(),
) -> None:
    """Write a project: sdgbias.toml, registry/ without models, the quality rules in expectations/,
    dvc.yaml, params.yaml and .gitignore. Files that are there stay as they are.

    Args:
        folder: Folder of the project.
    """
    from sdgbias.files import project_file, write_atomically

    again = "name a folder that can be written"
    texts = {"sdgbias.toml": _SETTINGS, ".gitignore": _IGNORED}
    sources = [*project_file("expectations").iterdir(), *project_file("registry").glob("*.*")]
    sources += [project_file("dvc.yaml"), project_file("params.yaml")]
    top = project_file()
    for source in (path for path in sources if path.is_file()):
        texts[source.relative_to(top).as_posix()] = source.read_text(encoding="utf-8")
    texts["dvc.yaml"] = without_code(texts["dvc.yaml"])
    new = [name for name in sorted(texts) if not (folder / name).exists()]
    for name in new:
        write_atomically(folder / name, texts[name], again)
    (folder / "registry" / "models").mkdir(parents=True, exist_ok=True)
    kept = len(texts) - len(new)
    typer.echo(
        f"{folder}: {len(new)} files written" + (f", {kept} kept as they are" if kept else "")
    )


def without_code(stages: str) -> str:
    """dvc.yaml without the stages' dependencies on this package's source, which a project without a
    checkout doesn't have."""
    stages = re.sub(r"^ +- sdgbias/\S+\n", "", stages, flags=re.MULTILINE)
    stages = re.sub(r"^ +deps: \[sdgbias/[^\]]*\]\n", "", stages, flags=re.MULTILINE)
    return re.sub(r", sdgbias/[^,\]\s]+(?=[,\]])", "", stages)
