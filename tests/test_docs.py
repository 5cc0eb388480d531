"""The docs say what is true today: their commands exist and run, and everything a person can meet
is written down."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from sdgbias import cli
from sdgbias.raw.indicators import load_indicators, load_regression_tasks
from sdgbias.registry.spec import ModelSpec

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        REPOSITORY / f"{name}.md"
        for name in ["README", "GLOSSARY", "CONTRIBUTING", "infra/README", "registry/README"]
    ]
    + list((REPOSITORY / "docs").rglob("*.md"))
)
TEXT = {page.relative_to(REPOSITORY).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(sdgbias [^`\n]+)`")
#: What a line of a shell block may begin with besides sdgbias, make and python; blocks of the
#: README with only the former run.
RUN = {"mkdir", "for", "IFS=:", "done", "sed", "export"}
TOOLS = {".", "cd", "cp", "rsync", "dvc", "git", "pip", "tar", "unzip", "prefect", "pre-commit"}
TOOLS |= {"pytest", "python3.11", "wandb"}
#: The core's words that the glossary must have.
WORDS = ("cluster", "indicator", "item", "view", "context test", "stream", "CADE", "suite", "run")


def blocks(page: str) -> list[str]:
    return [body for language, body in FENCE.findall(TEXT[page]) if language == "sh"]


def lines(block: str) -> list[str]:
    """Commands of a block, continuation lines joined, comments left out."""
    joined = map(str.strip, block.replace("\\\n", " ").splitlines())
    return [line for line in joined if line and not line.startswith("#")]


def words(command: str) -> list[str]:
    """The words of one command without redirections and leading assignments."""
    parts = shlex.split(command, comments=True)
    if ">" in parts:
        parts = parts[: parts.index(">")]
    while parts and re.fullmatch(r"[A-Z_]+=.*", parts[0]):
        parts = parts[1:]
    return parts


def tree(command: Any = None, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """('cade', 'search') -> command, for every leaf of the command line and every group that does
    something by itself."""
    command = command or typer.main.get_command(cli.app)
    if not hasattr(command, "commands"):
        return {path: command}
    found: dict[tuple[str, ...], Any] = {path: command} if command.invoke_without_command else {}
    for name, child in command.commands.items():
        found |= tree(child, (*path, name))
    return found


COMMANDS = tree()


def check_sdgbias(command: str, complete: bool) -> None:
    """The subcommand and every option exist; a complete command also parses, with its arguments and
    their types."""
    parts = words(command)[1:]
    if not parts or parts == ["--help"] or parts[0].isupper():
        return
    if not complete and len(parts) == 1 and parts[0] in {path[0] for path in COMMANDS}:
        return  # a group of commands, by name
    depth = next((n for n in (2, 1) if len(parts) >= n and tuple(parts[:n]) in COMMANDS), 0)
    assert depth, f"no such command: {command}"
    leaf, rest = COMMANDS[tuple(parts[:depth])], parts[depth:]
    known = {
        option
        for parameter in leaf.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help"}
    for part in rest:
        assert not part.startswith("--") or part.split("=")[0] in known, (
            f"{command}: no option {part}; valid: {sorted(known)}"
        )
    if complete:
        leaf.make_context(parts[depth - 1], list(rest))  # raises UsageError


@pytest.mark.parametrize("page", list(TEXT))
def test_shell_blocks_hold_commands_that_exist(page: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([\w.-]+):", makefile, re.MULTILINE)
    others = [body for language, body in FENCE.findall(TEXT[page]) if language != "sh"]
    shown = re.findall(r"^sdgbias .*$", "\n".join(others), re.MULTILINE)
    for block in (*blocks(page), "\n".join(shown)):
        for line in lines(block):
            first = (words(line) or [line])[0]
            if first == "make":
                assert words(line)[1] in targets, f"{page}: `{line}`: the Makefile has {targets}"
            elif first == "sdgbias":
                check_sdgbias(line, complete=True)
            elif first in ("python", "sh"):
                script = words(line)[1]
                path = words(line)[2].replace(".", "/") + ".py" if script == "-m" else script
                assert (REPOSITORY / path).is_file(), f"{page}: `{line}`: no {path}"
            else:
                assert {first, line.split()[0]} & (RUN | TOOLS), f"{page}: `{line}`: {first!r}?"


@pytest.mark.parametrize("page", list(TEXT))
def test_inline_commands_exist(page: str) -> None:
    prose = FENCE.sub("", TEXT[page])
    for command in INLINE.findall(prose):
        check_sdgbias(command.split(":")[0] if command.endswith(":") else command, complete=False)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_has_an_example_that_parses(path: tuple[str, ...]) -> None:
    example = COMMANDS[path].epilog.removeprefix("Example: ")
    assert example.startswith(f"sdgbias {' '.join(path)}")
    check_sdgbias(example, complete=True)


def test_the_two_commands_of_the_readme_are_make_targets() -> None:
    commands = [line for block in blocks("README.md") for line in lines(block)]
    assert {"make demo", "make test"} <= set(commands)
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo:.*\n\t\$\(BIN\)/sdgbias demo$", makefile, re.MULTILINE)
    for tool in ("ruff check", "ruff format --check", "mypy", "lint-imports", "pytest"):
        assert re.search(rf"^\t.*\$\(BIN\)/{tool}", makefile, re.MULTILINE), tool


def test_the_reference_of_commands_is_the_commands_own_help(tmp_path: Path) -> None:
    """docs/reference/commands.md is generated by typer: make docs."""
    written = tmp_path / "commands.md"
    tool = Path(sys.executable).parent / "typer"
    command = [tool, "sdgbias.cli", "utils", "docs", "--name", "sdgbias", "--output", written]
    subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY)
    current = (REPOSITORY / "docs/reference/commands.md").read_text(encoding="utf-8")
    assert written.read_text(encoding="utf-8") == current, "run: make docs"


def test_tables_of_options_are_the_engines_own() -> None:
    from scripts import option_tables

    for text in (TEXT[f"docs/how-to/{name}.md"] for name in ("api-models", "vllm")):
        edited = text.replace("| `", "| `x", 1)
        assert edited != option_tables.filled(edited) == text, "run: make docs"


def test_every_indicator_is_documented() -> None:
    rows = TEXT["docs/how-to/data.md"].splitlines()
    for entry in load_indicators():
        [row] = [line for line in rows if line.startswith(f"| `{entry.slug}` |")]
        for value in (entry.polarity, entry.pillar, entry.sdg):
            assert f"| {value} |" in row, row
        assert ("terciles" in row) != bool(entry.thresholds), row
    for task in load_regression_tasks():
        row = next(line for line in rows if f"`{task.slug}`" in line)
        assert f"| {task.target} |" in row and row.endswith(f"| {task.tolerance} |"), row


def test_every_quarantine_rule_is_documented() -> None:
    rooms = [REPOSITORY / "sdgbias" / name for name in ("raw", "benchmark")]
    files = [path for room in rooms for path in room.rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    section = TEXT["docs/how-to/data.md"].split("## What is left out, and why")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z]+-[a-z-]+)`", section))
    for rule in named:
        assert f'"{rule}"' in code, f"docs/how-to/data.md: the code knows no rule {rule}"
    raised = re.findall(
        r"(?:TileError|PhotoError|fault = )\(\s*\"([a-z-]+)\"|Task\.\w+, \w+(?:\[\w+\])?,"
        r" \"([a-z-]+)\"",
        code,
    )
    assert {a or b for a, b in raised} <= named, "missing in docs/how-to/data.md"


def test_every_model_field_is_documented() -> None:
    page = TEXT["registry/README.md"]
    missing = {f.name for f in dataclasses.fields(ModelSpec) if f"`{f.name}`" not in page}
    assert not missing, "missing in registry/README.md"


def test_every_metric_is_documented() -> None:
    from sdgbias.suites import sdg_metrics

    names = {metric.name for table in sdg_metrics.METRICS.values() for metric in table}
    missing = {name for name in names if f"`{name}`" not in TEXT["docs/reference/methods.md"]}
    assert len(names) > 12 and not missing, "missing in docs/reference/methods.md"


def test_the_glossary_has_every_word_of_the_core() -> None:
    for term in WORDS:
        assert f"| **{term}** |" in TEXT["GLOSSARY.md"]


def test_every_page_says_first_for_whom_it_is() -> None:
    written = ("reference/commands.md", "reference/models.md", "reference/benchmarks.md")
    lacking = [
        name
        for name, text in TEXT.items()
        if name.startswith("docs/") and not name.endswith(written)
        if not re.match(r"# .+\n\n\*For .+\.\*\n\n", text)
    ]
    assert lacking == []


def test_links_lead_somewhere() -> None:
    for page, text in TEXT.items():
        for target in re.findall(r"\]\(([^)#\s]+)\)", FENCE.sub("", text)):
            if not re.match(r"https?:|mailto:", target):
                assert ((REPOSITORY / page).parent / target).exists(), f"{page}: {target}"


#: Names of modules in text that are none of the project's.
OF_OTHERS = {"utils.py"}


def test_named_files_exist() -> None:
    """Paths in backticks that look like files of the project are files of the project."""
    pattern = re.compile(
        r"`((?:sdgbias|flows|docs|tests|bench|scripts|infra|expectations|registry)/[\w/.-]+\.(?:py|md|yaml|json|sql))`"
    )
    for page, text in TEXT.items():
        for name in pattern.findall(text):
            assert (REPOSITORY / name).is_file(), f"{page}: {name} doesn't exist"
    sources = [*TEXT.items()]
    for folder in ("sdgbias", "flows"):
        paths = sorted((REPOSITORY / folder).rglob("*.py"))
        sources += [(str(p.relative_to(REPOSITORY)), p.read_text("utf-8")) for p in paths]
    folders = ("sdgbias", "flows", "tests", "bench", "scripts")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    known = {path.relative_to(REPOSITORY).as_posix() for path in files}
    ends = {"/".join(p.split("/")[at:]) for p in known for at in range(p.count("/") + 1)}
    for page, text in sources:
        for name in re.findall(r"[\w/]+\.py\b", text):
            assert name.lstrip("/") in ends or name in OF_OTHERS, f"{page}: {name} doesn't exist"


def test_no_machine_paths() -> None:
    for page, text in TEXT.items():
        assert not re.search(r"/(?:work|tmp|home|root)/\w", text), f"{page}: a machine's path"


def test_the_example_in_the_architecture_is_the_demo() -> None:
    """The followed question: its raw line and its prompt are what the demo's sample and today's
    code give."""
    import numpy as np
    import pandas as pd

    from sdgbias.benchmark.prompts import prompt_texts
    from sdgbias.raw.synthetic.latent import draw_cluster
    from sdgbias.types import ContextTest, Task, View

    page = TEXT["docs/explanation/architecture.md"]
    seed = yaml.safe_load((REPOSITORY / "params.yaml").read_text())["sample"]["seed"]
    cluster = draw_cluster(seed, "PE", 23)
    line = ",".join("" if value is None else str(value) for value in cluster.row())
    assert line in page.splitlines()
    entry = next(i for i in load_indicators() if i.slug == "electricity")
    labels = {name: np.nan if value is None else value for name, value in cluster.labels.items()}
    options = dict(re.findall(r"(option_[abc]) '(.*?)'", page))
    item = {**labels, **options, "question": entry.question, "urban": cluster.urban}
    [text] = prompt_texts(pd.DataFrame([item]), Task.MCQ, ContextTest.T1, View.FULL)
    assert text in page


def test_no_banned_turn_is_read_by_people() -> None:
    """CONTRIBUTING lists them; pages, texts, words, help and docs don't have them."""
    table = TEXT["CONTRIBUTING.md"].partition("## Words")[2].partition("## Commits")[0]
    banned = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][
        1:
    ]
    assert len(banned) >= 8
    package = REPOSITORY / "sdgbias"
    read = [
        *(package / "report/templates").glob("*"),
        *(package / "data").glob("*.yaml"),
        *(package / "data").glob("*.toml"),
        *(package / "data/texts").glob("*"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "docs").rglob("*.ipynb"),
        *(REPOSITORY / f"{name}.md" for name in ("README", "GLOSSARY", "infra/README")),
        REPOSITORY / "registry/README.md",
    ]
    found = [
        f"{path.relative_to(REPOSITORY)}: {turn}"
        for path in read
        for text in (" ".join(path.read_text(encoding="utf-8").split()),)
        for turn in banned
        if turn in text
    ]
    assert found == []
