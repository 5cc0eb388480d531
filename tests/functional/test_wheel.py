"""A wheel in an empty environment, far from any checkout: it builds, evaluates and reports."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from sdgbias.cli.start import without_code
from tests.builders.commands import REPOSITORY

SOURCES = "pyproject.toml setup.py README.md LICENSE dvc.yaml params.yaml .dvcignore"
FOLDERS = ("sdgbias", "expectations", "registry", ".dvc")
#: One process for several commands, each of which would spend most of its time importing.
RUN = """
import shlex, sys
from sdgbias.cli import main
for line in sys.argv[1:]:
    sys.argv = ["sdgbias", *shlex.split(line)]
    try:
        main()
    except SystemExit as done:
        print("exit", done.code, line, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that has the wheel; the packages that it needs are those
    of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    tree.mkdir()
    for name in SOURCES.split():
        shutil.copyfile(REPOSITORY / name, tree / name)
    left = shutil.ignore_patterns("__pycache__", "weights", "cache", "tmp")
    for name in FOLDERS:
        shutil.copytree(REPOSITORY / name, tree / name, ignore=left)
    wheel = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"]
    subprocess.run([*wheel, "-q", "-w", folder], cwd=tree, check=True)
    shutil.rmtree(tree)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "new"], check=True)
    [packages] = (folder / "new").glob("lib/python*/site-packages")
    [built] = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(packages)
    for kernel in REPOSITORY.glob("sdgbias/**/__pycache__/*.nb*"):  # else compiled for ten seconds
        (packages / kernel.parent.relative_to(REPOSITORY)).mkdir(exist_ok=True)
        shutil.copy(kernel, packages / kernel.relative_to(REPOSITORY))
        source = kernel.parents[1] / f"{kernel.name.partition('.')[0]}.py"
        shutil.copystat(source, packages / source.relative_to(REPOSITORY))
    others = [p for p in (*site.getsitepackages(), *sys.path) if p.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(dict.fromkeys(others)), encoding="utf-8")
    return folder / "new" / "bin" / "python"


def call(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SDGBIAS_", "PYTHONPATH"))}
    command = [str(python), "-c", *words]
    return subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)


def exits(done: subprocess.CompletedProcess[str]) -> list[str]:
    """'CODE COMMAND' of every command, as it ended."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("exit ")]
    return [" ".join(line.split()[1:3]) for line in lines]


def test_without_a_project_it_evaluates_and_reports(
    python: Path, tiny_benchmark: Path, tmp_path: Path
) -> None:
    place = call(python, tmp_path, "import sdgbias; print(sdgbias.__file__)").stdout
    assert str(python.parents[1]) in place
    model = REPOSITORY / "registry" / "weights" / "tiny-llava"
    few = "--limit 5 --passes none --generated none --draws 20"
    first_look = "--results results/first-look.duckdb"

    done = call(
        python,
        tmp_path,
        RUN,
        f"evaluate {model} --benchmark {tiny_benchmark} {few}",
        f"results {first_look}",
        f"report {first_look}",
        f"register-model {model} --name mine",
    )

    assert exits(done) == ["0 evaluate", "0 results", "0 report", "4 register-model"], done.stderr
    assert "sdgbias init" in done.stderr and "tiny-llava" in done.stdout
    assert (tmp_path / "reports" / "latest" / "index.html").is_file()


def test_init_writes_a_project_whose_own_copies_win(python: Path, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("mine: 1\n", encoding="utf-8")
    rule = "-- never-held (gate): nothing holds\nfalse;\n"

    first = call(python, tmp_path, RUN, "init .", "models", "sample --clusters 12")
    (tmp_path / "expectations" / "clusters.sql").write_text(rule, encoding="utf-8")
    second = call(python, tmp_path, RUN, "build --mcq 12 --regression 6")

    assert exits(first) == ["0 init", "0 models", "0 sample"], first.stderr
    assert "1 left unchanged" in first.stdout
    assert (tmp_path / "params.yaml").read_text(encoding="utf-8") == "mine: 1\n"
    for name in ("sdgbias.toml", "registry/policy.yaml", ".gitignore"):
        assert (tmp_path / name).is_file(), name
    for name in (".dvc/config", ".dvc/.gitignore", ".dvcignore"):  # that `images: false` counts
        assert (tmp_path / name).read_bytes() == (REPOSITORY / name).read_bytes()
    stages = yaml.safe_load((tmp_path / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    assert "sdgbias/" not in str([stage.get("deps") for stage in stages.values()])
    assert exits(second) == ["10 build"] and "never-held" in second.stderr


def test_stages_without_code_are_the_same_stages() -> None:
    text = (REPOSITORY / "dvc.yaml").read_text(encoding="utf-8")
    before, after = yaml.safe_load(text)["stages"], yaml.safe_load(without_code(text))["stages"]
    assert list(before) == list(after)
    for name, stage in before.items():
        kept = [path for path in stage.get("deps", []) if not path.startswith("sdgbias/")]
        assert after[name].get("deps", []) == kept
        assert after[name]["cmd"] == stage["cmd"]
