"""Images, compose, Kubernetes, Slurm: no engine runs them here, so what can be checked of the files
is checked."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from prefect.server.schemas.actions import WorkPoolCreate
from prefect.utilities.templating import apply_values

from sdgbias import cli

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
DOCKERFILES = sorted(INFRA.glob("Dockerfile.*"))
SCRIPTS = sorted(INFRA.glob("*.sbatch"))
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text(encoding="utf-8"))
TABLE = (INFRA / "README.md").read_text(encoding="utf-8").split("## Environment variables")[1]
#: Names of variables look like this; every one that the code writes as text of its own counts.
OURS = re.compile(
    r"(?:SDGBIAS|WANDB|PREFECT|HF|VLLM|CUDA|DVC|GX|OPENAI|ANTHROPIC|GEMINI|OMP|NUMBA)_[A-Z0-9_]*[A-Z0-9]|DO_NOT_TRACK|NETRC"
)
#: Set by a scheduler or between Prefect's own processes, never by a person.
NOT_OURS = re.compile(r"SLURM_\w+|PREFECT__\w*")


@cache
def python_names() -> list[tuple[str, str]]:
    return list(_python_names())


def _python_names() -> Iterator[tuple[str, str]]:
    """(file, variable) of sdgbias/ and flows/: what os.environ or getenv is asked for, and texts
    that are such names."""
    for path in [*(ROOT / "sdgbias").rglob("*.py"), *(ROOT / "flows").rglob("*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and OURS.fullmatch(node.value)
            ):
                yield path.name, node.value
            asked: ast.expr | None = None
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
                asked = node.slice
            elif (
                isinstance(node, ast.Call)
                and node.args
                and re.fullmatch(
                    r"os\.(?:environ\.(?:get|pop|setdefault)|getenv)", ast.unparse(node.func)
                )
            ):
                asked = node.args[0]
            if isinstance(asked, ast.Constant) and isinstance(asked.value, str):
                yield path.name, asked.value


def infra_names() -> Iterator[tuple[str, str]]:
    for path in DOCKERFILES:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE):
            yield from (
                (path.name, name)
                for name in re.findall(r"(\w+)=", line)
                if not name.startswith("PIP_")
            )
    for service in COMPOSE["services"].values():
        yield from (("compose.yaml", name) for name in service.get("environment", {}))
    yield from (
        ("compose.yaml", name)
        for name in re.findall(
            r"(?<!\$)\$\{(\w+)", (INFRA / "compose.yaml").read_text(encoding="utf-8")
        )
    )
    yield from (
        ("compose.env.example", n)
        for n in re.findall(
            r"^(\w+)=", (INFRA / "compose.env.example").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    for path in SCRIPTS:
        text = path.read_text(encoding="utf-8")
        yield from ((path.name, n) for n in re.findall(r"\$\{([A-Z_]+):", text))
        for line in re.findall(r"^export (.*)$", text, re.MULTILINE):
            yield from (
                (path.name, n)
                for n in re.findall(r"\b([A-Z][A-Z_]+)(?==|\s|$)", re.sub(r"=\S+", "=", line))
            )


@pytest.mark.parametrize("names", [python_names, infra_names])
def test_every_variable_stands_in_the_one_table(names: Any) -> None:
    found = {(place, name) for place, name in names() if not NOT_OURS.fullmatch(name)}
    assert len({name for _, name in found}) > 10
    missing = sorted(f"{name} ({place})" for place, name in found if f"`{name}`" not in TABLE)
    assert not missing, f"infra/README.md, Environment variables, lacks: {', '.join(missing)}"


def test_the_table_names_no_variable_that_nobody_reads() -> None:
    known = {name for names in (python_names, infra_names) for _, name in names()}
    text = "\n".join(
        p.read_text(encoding="utf-8")
        for folder in ("infra", "tests", "docs", "sdgbias/data")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in (".py", ".yaml", ".sbatch", ".md") and p.name != "README.md"
    )
    for name in re.findall(
        r"`([A-Z][A-Z0-9_]+)`",
        "\n".join(line.split("|")[1] for line in TABLE.splitlines() if line.startswith("| `")),
    ):
        assert name in known or name in text, f"{name} is in the table, but nothing reads it"


# -- compose and Kubernetes
# ----------------------------------------------------------------------


def check_command(words: list[str]) -> None:
    """A command of a container: one of ours with options that exist, or a tool of its image that is
    known here."""
    words = words[2:] if words[:2] == ["tini", "--"] else words
    tree = typer.main.get_command(cli.app)
    if words[0] in tree.commands:  # type: ignore[attr-defined]
        tree.commands[words[0]].make_context(words[0], words[1:])  # type: ignore[attr-defined]
    elif words[0] == "sdgbias":
        check_command(words[1:])
    elif words[0] == "prefect":
        assert tuple(words[1:3]) in {("server", "start"), ("worker", "start")}, words
    else:
        assert words[0] in ("sh", "python"), words


def pools() -> set[str]:
    deployments = yaml.safe_load((INFRA / "prefect.yaml").read_text(encoding="utf-8"))[
        "deployments"
    ]
    return {d["work_pool"]["name"] for d in deployments}


def test_compose_publishes_on_loopback_only_and_names_what_exists() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} publishes {port} to the network"
        for given in (
            [service.get("env_file", [])] if name != "worker" and name != "worker-gpu" else []
        ):
            assert not given, f"{name} has no business with the tokens"
        for network in service["networks"]:
            assert network in COMPOSE["networks"]
        for needed in service.get("depends_on", {}):
            assert needed in services
        build = service.get("build")
        if build:
            assert (INFRA / build["context"] / build["dockerfile"]).resolve() in DOCKERFILES
            assert service["read_only"] and service["cap_drop"] == ["ALL"]
            check_command([*service.get("entrypoint", []), *(service.get("command") or [])])
        else:
            assert re.search(r":\d+\.\d+", service["image"])
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert source in COMPOSE["volumes"] or source in {
                f"../{f}" for f in ("data", "results", "reports", "registry")
            }, mount
    assert COMPOSE["networks"]["inside"]["internal"]
    assert {
        w for s in services.values() for w in s.get("command", []) if str(w).startswith("sdgbias-")
    } == pools()


def test_compose_is_valid_by_its_published_schema() -> None:
    schema = json.loads((ROOT / "tests/schemas/compose_spec.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(COMPOSE)] == []
    assert not validator.is_valid({**COMPOSE, "services": {"a": {"prots": []}}})


def test_the_compose_example_holds_no_secret() -> None:
    for line in (INFRA / "compose.env.example").read_text(encoding="utf-8").splitlines():
        if re.search(r"(?i)(token|key|password|url)=", line):
            assert line.endswith("="), line
    assert "/infra/compose.env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_a_kubernetes_job_is_a_user_without_rights_and_with_limits() -> None:
    """The template of a pool, filled in as a worker does it for the deployment of one kind."""
    template = json.loads((INFRA / "kubernetes-pool.json").read_text(encoding="utf-8"))
    WorkPoolCreate(name="sdgbias-h100", type="kubernetes", base_job_template=template)
    variables = template["variables"]["properties"]
    deployments = yaml.safe_load((INFRA / "prefect.yaml").read_text(encoding="utf-8"))
    [given] = [
        d["work_pool"]["job_variables"]
        for d in deployments["deployments"]
        if d["name"] == "score-h100"
    ]
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
    named = {mount["name"] for mount in container["volumeMounts"]}
    assert named == {volume["name"] for volume in pod["volumes"]}


# -- Slurm
# ----------------------------------------------------------------------


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_a_slurm_job_is_a_script_whose_commands_exist(path: Path) -> None:
    assert (
        subprocess.run(["bash", "-n", str(path)], capture_output=True, check=False).returncode == 0
    )
    text = path.read_text(encoding="utf-8")
    assert "\npython -m sdgbias.engines.vllm_support" in text.split("\nsdgbias ")[0], "smoke test"
    [call] = re.findall(r"^sdgbias (\w+) (.*?)(?: &)?$", text, re.MULTILINE)
    tree: Any = typer.main.get_command(cli.app)
    options = {o for parameter in tree.commands[call[0]].params for o in parameter.opts}
    for option in re.findall(r"--[a-z-]+", call[1]):
        assert option in options, option


def test_the_slurm_night_passes_the_signal_on_and_keeps_the_exit_code(tmp_path: Path) -> None:
    """The script itself, with a stand-in for sdgbias: TERM reaches the night, whose own exit code
    is the job's."""
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tools / "activate").write_text(f'PATH="{tools}:$PATH"\n')
    fake = tools / "sdgbias"
    fake.write_text(
        '#!/bin/bash\necho "$@" > said\ntrap "echo ended >> said; exit 6" TERM\ntouch ready\nwhile'
        " :; do sleep 0.05; done\n"
    )
    fake.chmod(0o755)
    job = subprocess.Popen(
        ["bash", str(INFRA / "slurm-nightly.sbatch"), "--model", "x"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    try:
        for _ in range(2400):
            if (tmp_path / "ready").exists():
                break
            subprocess.run(["sleep", "0.05"], check=True)
        job.terminate()
        assert job.wait(timeout=600) == 6
    finally:
        job.kill()
    assert (tmp_path / "said").read_text().splitlines() == [
        "nightly --catch-up --timezone UTC --model x",
        "ended",
    ]
