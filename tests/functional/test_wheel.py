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

pytestmark = pytest.mark.slow
CHECKOUT = Path(__file__).resolve().parents[2]
SOURCES = (
    *("pyproject.toml", "setup.py", "README.md", "LICENSE", "dvc.yaml", "params.yaml"),
    *("sdgbias", "expectations", "registry"),
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that has the wheel; the packages that it needs are those
    of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    tree.mkdir()
    for name in SOURCES:
        source = CHECKOUT / name
        if source.is_dir():
            left = shutil.ignore_patterns("__pycache__", "weights")
            shutil.copytree(source, tree / name, ignore=left)
        else:
            shutil.copyfile(source, tree / name)
    wheel = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"]
    subprocess.run([*wheel, "-q", "-w", folder], cwd=tree, check=True)
    shutil.rmtree(tree)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "new"], check=True)
    [packages] = (folder / "new").glob("lib/python*/site-packages")
    [built] = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(packages)
    others = [p for p in (*site.getsitepackages(), *sys.path) if p.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(dict.fromkeys(others)), encoding="utf-8")
    return folder / "new" / "bin" / "python"


def call(python: Path, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SDGBIAS_", "PYTHONPATH"))}
    command = [str(python), *map(str, words)]
    return subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)


def run(python: Path, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return call(python, folder, "-m", "sdgbias.cli", *words)


def done(python: Path, folder: Path, *words: object) -> str:
    finished = run(python, folder, *words)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_it_builds_evaluates_and_reports_without_a_project(python: Path, tmp_path: Path) -> None:
    place = call(python, tmp_path, "-c", "import sdgbias; print(sdgbias.__file__)").stdout
    assert str(python.parents[1]) in place
    done(python, tmp_path, "sample", "--clusters", 12)
    done(python, tmp_path, "build", "--mcq", 12, "--regression", 6)
    assert (tmp_path / "data" / "benchmark" / "quality.html").is_file()
    model = CHECKOUT / "registry" / "weights" / "tiny-llava"
    done(python, tmp_path, "evaluate", model)
    assert "tiny-llava" in done(python, tmp_path, "results")
    done(python, tmp_path, "report")
    assert (tmp_path / "reports" / "latest" / "index.html").is_file()
    refused = run(python, tmp_path, "register-model", model, "--name", "mine")
    assert refused.returncode != 0 and "sdgbias init" in refused.stderr


def test_init_writes_a_project_whose_own_copies_win(python: Path, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("mine: 1\n", encoding="utf-8")
    assert "1 left unchanged" in done(python, tmp_path, "init", tmp_path)
    assert (tmp_path / "params.yaml").read_text(encoding="utf-8") == "mine: 1\n"
    for name in ("sdgbias.toml", "expectations/clusters.sql", "registry/policy.yaml", ".gitignore"):
        assert (tmp_path / name).is_file(), name
    stages = yaml.safe_load((tmp_path / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    assert stages["check"]["deps"] and "sdgbias/" not in str(
        [stage.get("deps") for stage in stages.values()]
    )
    assert done(python, tmp_path, "models", "list") is not None
    rules = tmp_path / "expectations" / "clusters.sql"
    rules.write_text("-- never-held (gate): nothing holds\nfalse;\n", encoding="utf-8")
    done(python, tmp_path, "sample", "--clusters", 12)
    stopped = run(python, tmp_path, "build", "--mcq", 12, "--regression", 6)
    assert stopped.returncode == 10 and "never-held" in stopped.stderr


def test_stages_without_code_are_the_same_stages() -> None:
    text = (CHECKOUT / "dvc.yaml").read_text(encoding="utf-8")
    before, after = yaml.safe_load(text), yaml.safe_load(without_code(text))
    assert list(before["stages"]) == list(after["stages"])
    for name, stage in before["stages"].items():
        kept = [path for path in stage.get("deps", []) if not path.startswith("sdgbias/")]
        assert after["stages"][name].get("deps", []) == kept
        assert after["stages"][name]["cmd"] == stage["cmd"]
