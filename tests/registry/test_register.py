"""register-model on the command line: probes decide, a person confirms."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sdgbias.cli import register as command
from sdgbias.cli.models import models_app
from sdgbias.engines import Backend
from sdgbias.errors import (
    EnginesDisagree,
    InfrastructureError,
    InputError,
    ModelError,
    UsageError,
)
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import admission, parity, probes
from sdgbias.types import Generated
from tests.builders.families import write_small
from tests.builders.hub_repositories import BIG, VLM, saved

# ----------------------------------------------------------------------
# probes


class Engine(Backend):
    """Scores by a rule of the test's own."""

    fingerprint = "f" * 16

    def __init__(self, rule: Any) -> None:
        self.rule = rule

    def candidate_scores(self, prompts: Any) -> Any:
        return self.rule(prompts)

    def generate(self, prompts: Any, starts: Any, max_new_tokens: int) -> Generated:
        return Generated.whole([])


def test_probes_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from sdgbias.types import Prompt, ScoreBatch

    made = [
        Prompt(
            f"VALID OPTIONS: {'A, B, C' if i % 2 else 'digits'}{'.' * i}",
            "ABC" if i % 2 else "0123456789",
        )
        for i in range(12)
    ]
    found = probes.Probes(made, "made by hand", {})

    def steady(prompts: Any, shift: Any = None) -> ScoreBatch:
        logits = np.full(
            (len(prompts), max(len(p.candidates) for p in prompts)), np.nan, dtype=np.float32
        )
        for at, p in enumerate(prompts):
            logits[at, : len(p.candidates)] = [
                len(p.text) % 7 + k + (0 if shift is None else shift(len(prompts), k))
                for k in range(len(p.candidates))
            ]
        n = len(prompts)
        return ScoreBatch(
            logits, np.ones(n, np.float32), np.zeros(n, np.float32), [""] * n, np.ones(n, np.int32)
        )

    def broken(prompts: Any) -> ScoreBatch:
        raise ModelError("m: no single token for 'A'")

    def sometimes(prompts: Any) -> ScoreBatch:
        if any("digits" in p.text for p in prompts):
            raise ValueError("too long")
        return steady(prompts)

    spec = ModelSpec(
        name="m",
        title="m",
        backend="hf",
        repo="a/b",
        revision="0" * 40,
        state="candidate",
        reason="x",
        batch_size=4,
    )

    def verdict(rule: Any) -> admission.Verdict:
        monkeypatch.setattr(admission, "load", lambda *_: Engine(rule))
        with monkeypatch.context() as patched:
            patched.setattr(probes, "probes", lambda *_: found)
            return admission.probe(spec, Path())

    assert verdict(steady).passed
    differs = verdict(lambda prompts: steady(prompts, lambda n, k: 0.5 * k * (n > 1)))
    assert (
        not differs.passed
        and "probes differ: hf: alone / in batches" in differs.line
        and differs.stored
    )
    assert verdict(broken) == admission.Verdict(False, "ModelError: m: no single token for 'A'")
    some = verdict(sometimes)
    assert (
        not some.passed
        and "6 of 12 probes have no score, the first: ValueError: too long" in some.line
    )
    api = ModelSpec(
        name="m", title="m", backend="api", repo="a/b", revision="1", state="candidate", reason="x"
    )
    assert admission.probe(api, Path()) == admission.Verdict(True, "not probed: backend api")
    with pytest.raises(InputError, match="no benchmark here"):
        admission.probe(spec, Path(), Path("nowhere"))


def test_weights_that_are_none_have_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    from sdgbias.types import Prompt

    monkeypatch.setattr(
        probes, "probes", lambda *_: probes.Probes([Prompt("x", "AB")] * 6, "made by hand", {})
    )
    shutil.copytree(
        Path(__file__).parents[2] / "registry" / "weights" / "tiny-llava", tmp_path / "odd"
    )
    (tmp_path / "odd" / "model.safetensors").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\n"
    )
    spec = ModelSpec(
        name="m",
        title="m",
        backend="hf",
        repo="local:odd",
        revision="local",
        state="candidate",
        reason="x",
    )
    told = admission.probe(spec, tmp_path)
    assert (
        not told.passed
        and told.line.startswith("ModelError: m: can't load")
        and told.stored is None
    )


# ----------------------------------------------------------------------
# the commands


@pytest.fixture
def commands(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry with a folder to register, on a machine that can do everything."""
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    monkeypatch.setattr(admission, "here", lambda root: BIG)
    saved(root / "w", VLM)
    return root


APP = typer.Typer()
APP.command("register-model")(command.register_model)
APP.add_typer(models_app, name="models")


def ask(verdict: admission.Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "probe", lambda *_, **__: verdict)


def test_enabled_only_when_its_probes_pass(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner()
    where = ["--results", str(commands / "r.duckdb")]
    ask(admission.Verdict(True, "all agree"), monkeypatch)
    dry = run.invoke(APP, ["register-model", "local:w", "--dry-run", *where])
    assert "Nothing is written (--dry-run)." in dry.output and "state: enabled" in dry.output
    assert not list((commands / "registry" / "models").iterdir())
    good = run.invoke(APP, ["register-model", "local:w", "--name", "good", *where])
    assert "Next: sdgbias evaluate good" in good.output and entries.load(commands, "good").enabled
    ask(admission.Verdict(False, "ModelError: no single token for 'A'"), monkeypatch)
    bad = run.invoke(APP, ["register-model", "local:w", "--name", "bad", *where])
    made = entries.load(commands, "bad")
    assert bad.exit_code == 0 and (made.state, made.reason) == (
        "candidate",
        "ModelError: no single token for 'A'",
    )
    write_small(commands / "real", "llava")
    shy = run.invoke(APP, ["register-model", "local:real", "--name", "shy", "--candidate", *where])
    assert (
        "not probed: --candidate; its processor loads (LlavaProcessor)" in shy.output
        and "models enable shy" in entries.load(commands, "shy").reason
    )
    none = run.invoke(APP, ["register-model", "local:w", "--name", "none", "--candidate", *where])
    assert isinstance(none.exception, ModelError) and "can't load the processor" in str(
        none.exception
    )
    assert not (commands / "registry" / "models" / "none.yaml").exists()
    huge = run.invoke(
        APP, ["register-model", "local:w", "--name", "none", "--suites", "sdg,peoples"]
    )
    assert isinstance(huge.exception, UsageError)
    assert "unknown suite 'peoples'" in str(huge.exception)

    no = run.invoke(APP, ["models", "enable", "bad", *where])
    assert isinstance(
        no.exception, InfrastructureError
    ) and "bad is not enabled: ModelError" in str(no.exception)
    assert entries.load(commands, "bad").state == "candidate"
    ask(admission.Verdict(False, "probes differ: hf", {"model": "bad"}), monkeypatch)
    monkeypatch.setattr(parity, "save", lambda *_: None)
    assert isinstance(
        run.invoke(APP, ["models", "enable", "bad", *where]).exception, EnginesDisagree
    )
    ask(admission.Verdict(True, "all agree"), monkeypatch)
    assert (
        run.invoke(APP, ["models", "enable", "bad", *where]).exit_code == 0
        and entries.load(commands, "bad").enabled
    )


def test_a_person_is_asked_before_it_is_written(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("sdgbias.cli.options.sys", terminal)
    write_small(commands / "real", "llava")
    words = ["register-model", "local:real", "--candidate", "--results", str(commands / "r.duckdb")]
    entry, question = commands / "registry" / "models" / "real.yaml", "Write registry/models/real"

    no = CliRunner().invoke(APP, words, input="n\n")
    assert question in no.output and not entry.exists()
    yes = CliRunner().invoke(APP, words, input="y\n")
    assert question in yes.output and entry.exists()
    unasked = CliRunner().invoke(APP, [*words, "--yes", "--overwrite"])
    assert unasked.exit_code == 0 and question not in unasked.output
