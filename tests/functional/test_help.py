"""What the command line tells about itself: sections, versions, the contents of a results file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from sdgbias import __version__, store
from sdgbias.cli import app
from sdgbias.cli.sections import SECTIONS, _teach, arguments
from sdgbias.files import packaged_yaml
from tests.builders.commands import REPOSITORY, sdgbias
from tests.builders.results import publish_fake


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_fake(tmp_path_factory.mktemp("results") / "sdgbias.duckdb")


def test_every_command_stands_in_one_section() -> None:
    listed = [name for section in SECTIONS.values() for name in section]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert sorted(listed) == sorted(commands)
    assert [commands[name].name for name in listed] == listed
    help_page = sdgbias("-h").stdout
    assert help_page == sdgbias("--help").stdout
    for title, section in SECTIONS.items():
        assert f"{title}:\n" in help_page
        for text in section.values():
            assert text in help_page, "no line is cut"


def test_the_help_of_every_command_is_one_screen_with_an_example() -> None:
    pages = {}

    def visit(commands: dict[str, Any], path: tuple[str, ...] = ()) -> None:
        for name, command in commands.items():
            if not getattr(command, "commands", {}):
                shown = CliRunner().invoke(app, [*path, name, "--help"], terminal_width=100)
                pages[" ".join((*path, name))] = shown.output
            visit(getattr(command, "commands", {}), (*path, name))

    visit(dict(typer.main.get_command(app).commands))  # type: ignore[attr-defined]
    assert {name: page.count("\n") for name, page in pages.items() if page.count("\n") > 40} == {}
    assert [name for name, page in pages.items() if "\n  Example: sdgbias" not in page] == []


def test_every_option_says_what_it_is_for() -> None:
    def silent(commands: dict[str, Any]) -> list[str]:
        found = []
        for name, command in commands.items():
            found += [f"{name}: {p.name}" for p in command.params if not getattr(p, "help", None)]
            assert "Args:" not in (command.help or ""), name
            found += silent(getattr(command, "commands", {}))
        return found

    assert silent(dict(typer.main.get_command(app).commands)) == []  # type: ignore[attr-defined]


def test_a_docstring_names_no_option_that_is_not_there() -> None:
    def command(seed: int = 0) -> None:
        """Draw.

        Args:
            sead: Seed of the draw,
                in two lines.
        """

    assert arguments(command.__doc__) == {"sead": "Seed of the draw, in two lines."}
    alone = typer.Typer()
    alone.command("draw")(command)
    with pytest.raises(KeyError, match="draw: no option is called sead"):
        _teach({"draw": typer.main.get_command(alone)})


def test_a_command_imports_no_other() -> None:
    code = (
        "import sys; from sdgbias.cli import main; sys.argv[1:] = ['plan', '-h']\n"
        "try: main()\n"
        "finally: print(*sorted(n for n in sys.modules if n.startswith('sdgbias.cli.')))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    modules = [f"sdgbias.cli.{name}" for name in ("options", "project", "scoring", "sections")]
    assert found.stdout.splitlines()[-1].split() == modules


def test_the_version() -> None:
    assert sdgbias("--version").stdout == f"sdgbias {__version__}\n"


def test_tables_metrics_and_methods_are_listed(results: Path) -> None:
    page = sdgbias("results", "tables", "--results", results).stdout
    names = store.query(results, "SELECT DISTINCT table_name FROM information_schema.columns")
    tables = packaged_yaml("comments.yaml")["tables"]
    assert set(names["table_name"]) == {*tables} - {"answers"}  # made where a query names it
    for name, about in tables.items():
        assert f"\n{name}: {about}\n" in page
    assert "\n  accuracy: Accuracy (sdg)\n" in page and "\n  cade: CADE (sdg)" in page


def test_results_and_benchmark_from_the_environment(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDGBIAS_RESULTS", str(results))
    assert sdgbias("results").stdout == sdgbias("results", "--results", results).stdout != ""


def test_an_unknown_word_is_a_usage_error(results: Path) -> None:
    done = sdgbias("results", "tablez", "--results", results)
    assert done.returncode == 2 and "'tablez'" in done.stderr and "tables" in done.stderr


def test_the_notebook_of_the_how_to_runs(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "docs/how-to/query.md").read_text(encoding="utf-8")
    monkeypatch.setenv("SDGBIAS_RESULTS", str(results))
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    assert len(names["table"]) and ("accuracy", "full") in names["wide"].columns
