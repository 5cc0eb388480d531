"""register-model on the command line: probes decide, a person confirms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from sdgbias.cli import register as command
from sdgbias.cli.models import models_app
from sdgbias.errors import EnginesDisagree, InfrastructureError, ModelError, UsageError
from sdgbias.registry import entries
from sdgbias.scoring import admission, parity
from tests.builders.hub_repositories import BIG, VLM, saved

APP = typer.Typer()
APP.command("register-model")(command.register_model)
APP.add_typer(models_app, name="models")
PASSED = admission.Verdict(True, "all agree")
FAILED = admission.Verdict(False, "ModelError: no single token for 'A'")


@pytest.fixture
def commands(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry with a folder to register, on a machine that can do everything."""
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    monkeypatch.setenv("SDGBIAS_RESULTS", str(root / "r.duckdb"))
    monkeypatch.setattr(admission, "here", lambda root: BIG)
    saved(root / "w", VLM)
    return root


def run(words: str, input: str = "") -> Result:
    return CliRunner().invoke(APP, words.split(), input=input)


@pytest.mark.parametrize(
    ("verdict", "state", "reason", "onward"),
    [
        (PASSED, "enabled", "", "Next: sdgbias evaluate new"),
        (FAILED, "candidate", FAILED.line, "Next: sdgbias models show new"),
    ],
)
def test_a_model_is_registered_as_enabled_only_when_its_probes_pass(
    verdict: admission.Verdict,
    state: str,
    reason: str,
    onward: str,
    commands: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "probe", lambda *_, **__: verdict)
    dry = run("register-model local:w --name new --dry-run")
    assert "Nothing is written (--dry-run)." in dry.output and f"state: {state}" in dry.output
    assert not list((commands / "registry/models").iterdir())
    done = run("register-model local:w --name new")
    assert done.exit_code == 0 and onward in done.output
    entry = entries.load(commands, "new")
    assert (entry.state, entry.reason) == (state, reason)


@pytest.mark.slow  # torch
def test_a_candidate_is_not_probed_but_its_processor_is_loaded(commands: Path) -> None:
    from tests.builders.families import write_small

    write_small(commands / "real", "llava")
    shy = run("register-model local:real --name shy --candidate")
    assert "not probed: --candidate; its processor loads (LlavaProcessor)" in shy.output
    assert "models enable shy" in entries.load(commands, "shy").reason
    none = run("register-model local:w --name none --candidate")
    assert isinstance(none.exception, ModelError)
    assert "can't load the processor" in str(none.exception)
    assert not (commands / "registry/models/none.yaml").exists()
    typo = run("register-model local:w --name none --suites sdg,peoples")
    assert isinstance(typo.exception, UsageError)
    assert "unknown suite 'peoples'" in str(typo.exception)


def test_a_candidate_is_enabled_only_when_its_probes_pass(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "save", lambda *_: None)
    verdict = FAILED
    monkeypatch.setattr(admission, "probe", lambda *_, **__: verdict)
    run("register-model local:w --name m")
    for kind in (InfrastructureError, ModelError, EnginesDisagree):
        verdict = replace(FAILED, kind=kind)
        refused = run("models enable m").exception
        assert type(refused) is kind and f"m is not enabled: {verdict.line}" in str(refused)
        assert entries.load(commands, "m").state == "candidate"
    verdict = PASSED
    assert run("models enable m").exit_code == 0 and entries.load(commands, "m").enabled


def test_a_person_is_asked_before_it_is_written(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("sdgbias.cli.options.sys", terminal)
    monkeypatch.setattr(admission, "probe", lambda *_, **__: PASSED)
    words = "register-model local:w"
    entry, question = commands / "registry/models/w.yaml", "Write registry/models/w"

    no = run(words, "n\n")
    assert question in no.output and not entry.exists()
    yes = run(words, "y\n")
    assert question in yes.output and entry.exists()
    unasked = run(f"{words} --yes --overwrite")
    assert unasked.exit_code == 0 and question not in unasked.output
