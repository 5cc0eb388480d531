"""An engine in another process: the same scores, the same errors, and an end whenever the other
side ends."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.engines import load
from sdgbias.engines import subprocess as elsewhere
from sdgbias.engines.subprocess import ChildEngine, interpreter
from sdgbias.errors import InfrastructureError, ModelError, RegistryError
from sdgbias.registry import entries
from sdgbias.types import DIGITS, ModelSpec, Prompt
from tests.builders.commands import REPOSITORY, add_model, environment, metrics, ok, refused
from tests.builders.processes import end
from tests.builders.sample_prompts import picture, sample_prompts

PLANTED = ModelSpec("planted", "P", "planted", "planted", "local", True, options={"noise": 0.7})
THERE = replace(PLANTED, options={**PLANTED.options, "python": sys.executable})
PROMPTS = [
    Prompt("Question: how high?\nOptions: A. low; B. high", "AB"),
    Prompt("Question: asset_index=1.5", "ABC", (picture(1), picture(2)), "two"),
    Prompt("How many? é\u2028", DIGITS, (picture(1),), "one"),
]
VLLM_PYTHON = REPOSITORY / elsewhere.OWN_ENVIRONMENT


def wrapped(folder: Path, code: str) -> Path:
    """An interpreter whose engine process first runs `code`."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(code))
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_the_same_engine_here_and_there() -> None:
    here, there = load(PLANTED, REPOSITORY), load(THERE, REPOSITORY)
    assert isinstance(there, ChildEngine) and there.fingerprint == here.fingerprint
    for prompts in (PROMPTS, PROMPTS[::-1], PROMPTS[:1], []):
        one, two = here.candidate_scores(prompts), there.candidate_scores(prompts)
        for field in dataclasses.fields(one):
            a, b = getattr(one, field.name), getattr(two, field.name)
            assert (
                (a.tobytes() == b.tobytes() and a.dtype == b.dtype)
                if isinstance(a, np.ndarray)
                else a == b
            ), field.name
    assert here.generate(PROMPTS, ["", "7", "-2"], 8) == there.generate(PROMPTS, ["", "7", "-2"], 8)
    there.close()
    assert there.child.returncode == 0


@pytest.mark.long  # tests/engines/test_subprocess.py looks at the imports
def test_the_transformers_engine_where_little_else_is_installed(tmp_path: Path) -> None:
    python = wrapped(
        tmp_path,
        """
        import sys
        absent = ("pandas", "duckdb", "pyarrow", "scipy", "numba", "typer")
        sys.modules.update(dict.fromkeys(absent))
        import sdgbias.engines.vllm
        from sdgbias.engines import subprocess as serve
        serve.main()
        """,
    )
    spec = entries.load(REPOSITORY, "tiny-llava")
    here, there = (
        load(spec, REPOSITORY),
        load(replace(spec, options={"python": str(python)}), REPOSITORY),
    )
    assert isinstance(there, ChildEngine)
    np.testing.assert_allclose(
        there.candidate_scores(PROMPTS).logits, here.candidate_scores(PROMPTS).logits, atol=1e-5
    )
    assert there.counts == here.counts and there.counts["images_encoded"] == 3  # type: ignore[attr-defined]
    assert there.fingerprint == here.fingerprint
    with pytest.raises(ModelError, match="a forced start may hold digits"):
        there.generate(PROMPTS, ["7x"], 8)
    assert len(there.generate(PROMPTS[2:], ["", "7"], 8).texts[0]) == 2, "an error ends nothing"
    there.close()


@pytest.mark.long
def test_evaluate_publishes_the_same_run(tiny_benchmark: Path, tmp_path: Path) -> None:
    for name, options in (("here", {}), ("there", {"python": sys.executable})):
        add_model(tmp_path, name, options=options)
        ok(
            "evaluate",
            name,
            "--benchmark",
            tiny_benchmark,
            "--results",
            tmp_path / f"{name}.duckdb",
            "--draws",
            50,
            "--passes",
            "none",
            registry=tmp_path,
        )
    a, b = (
        metrics(tmp_path / f"{n}.duckdb").drop(columns=["run_id", "model"])
        for n in ("here", "there")
    )
    order = [c for c in a.columns if c not in ("value", "ci_low", "ci_high")]
    pd.testing.assert_frame_equal(
        a.sort_values(order, ignore_index=True), b.sort_values(order, ignore_index=True)
    )


def test_errors_keep_their_exit_codes(tiny_benchmark: Path, tmp_path: Path) -> None:
    add_model(
        tmp_path,
        "no-weights",
        backend="hf",
        repo="local:weights/none",
        options={"python": sys.executable},
    )
    add_model(tmp_path, "no-python", options={"python": ".venv-none/bin/python"})
    add_model(
        tmp_path,
        "bad-option",
        backend="vllm",
        repo="local:weights/none",
        options={"python": sys.executable, "max_len": 5},
    )
    more = ("--benchmark", tiny_benchmark, "--results", tmp_path / "r.duckdb")
    assert "no config.json" in refused(5, "evaluate", "no-weights", *more, registry=tmp_path)
    said = refused(4, "evaluate", "no-python", *more, registry=tmp_path)
    assert (
        "no-python.yaml: python is '.venv-none/bin/python': no interpreter there; valid: " in said
    )
    assert "bad-option.yaml: unknown option 'max_len'; valid: block_size" in refused(
        4, "evaluate", "bad-option", *more, registry=tmp_path
    )


def test_a_child_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    python = wrapped(
        tmp_path,
        "import sys; print('loading', file=sys.stderr); sys.exit('CUDA driver is too old\\n')",
    )
    with pytest.raises(InfrastructureError) as told:
        ChildEngine(PLANTED, REPOSITORY, python)
    assert (
        str(told.value)
        == f"planted: the engine's process ({python}) ended with exit code 1: CUDA driver is"
        " too old"
    )


def test_a_child_that_is_killed(tmp_path: Path) -> None:
    engine = ChildEngine(PLANTED, REPOSITORY, Path(sys.executable))
    os.kill(engine.child.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(
            InfrastructureError, match=r"^planted: the engine's process .* was killed by SIGKILL$"
        ):
            engine.candidate_scores(PROMPTS)
    engine.close()


def test_a_child_that_dies_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    python = wrapped(
        tmp_path,
        """
        import os, sys
        from sdgbias.engines import planted, subprocess as serve
        def candidate_scores(self, prompts):
            print("killed for memory", file=sys.stderr, flush=True)
            os._exit(137)
        planted.Planted.candidate_scores = candidate_scores
        serve.main()
        """,
    )
    engine = ChildEngine(PLANTED, REPOSITORY, python)
    with pytest.raises(InfrastructureError, match="ended with exit code 137: killed for memory"):
        engine.candidate_scores(PROMPTS)
    engine.close()


def test_what_a_library_prints_or_reads_never_meets_the_pipe(tmp_path: Path) -> None:
    python = wrapped(
        tmp_path,
        """
        import os, subprocess, sys
        from sdgbias.engines import planted, subprocess as serve
        real = planted.Planted.candidate_scores
        def candidate_scores(self, prompts):
            print("INFO loading", flush=True)
            os.write(1, b"from C")
            subprocess.run(["echo", "from a child"])
            assert sys.stdin.read() == ""
            return real(self, prompts)
        planted.Planted.candidate_scores = candidate_scores
        serve.main()
        """,
    )
    engine = ChildEngine(PLANTED, REPOSITORY, python)
    wanted = load(PLANTED, REPOSITORY).candidate_scores(PROMPTS)
    for _ in range(2):
        np.testing.assert_array_equal(engine.candidate_scores(PROMPTS).logits, wanted.logits)
    engine.close()
    assert {"INFO loading", "from Cfrom a child"} <= set(engine.last_words)


def test_noise_in_place_of_an_engine(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="answered with what is no frame"):
        ChildEngine(
            PLANTED,
            REPOSITORY,
            wrapped(tmp_path, "import sys; print('x' * 99, flush=True); sys.stdin.read()"),
        )


def test_another_version_of_the_package(tmp_path: Path) -> None:
    python = wrapped(
        tmp_path,
        "from sdgbias.engines import subprocess as serve; serve.__version__ = '0.0.9';"
        " serve.main()",
    )
    with pytest.raises(
        InfrastructureError,
        match=r"has sdgbias 0\.0\.9, here it is .*; install the same there: make vllm",
    ):
        ChildEngine(PLANTED, REPOSITORY, python)


def test_an_engine_that_nobody_needs_any_more_ends() -> None:
    engine = ChildEngine(PLANTED, REPOSITORY, Path(sys.executable))
    pid = engine.child.pid
    del engine
    gc.collect()
    assert end([pid])


def test_an_engine_that_hangs_ends_with_its_parent(tmp_path: Path) -> None:
    """The watchdog, or kill -9, ends the process that asks; the engine must not go on for ever on
    its own."""
    python = wrapped(
        tmp_path,
        """
        import time
        from sdgbias.engines import planted, subprocess as serve
        planted.Planted.candidate_scores = lambda self, prompts: time.sleep(600)
        serve.main()
        """,
    )
    asks = f"""
        import sys
        from pathlib import Path
        from sdgbias.engines.subprocess import ChildEngine
        from sdgbias.types import ModelSpec, Prompt
        spec = ModelSpec("m", "M", "planted", "planted", "local", True)
        engine = ChildEngine(spec, Path(), Path({str(python)!r}))
        print(engine.child.pid, flush=True)
        engine.candidate_scores([Prompt("x", "AB")])
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(asks)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert end([pid])


def test_which_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(PLANTED, backend="vllm", options={})
    monkeypatch.delenv(elsewhere.ENV_PYTHON, raising=False)
    monkeypatch.setattr(elsewhere, "has_vllm", lambda: False)
    with pytest.raises(
        InfrastructureError,
        match=r"no vLLM here: .* build it: make vllm, or .*export SDGBIAS_VLLM_PYTHON=",
    ):
        interpreter(spec, tmp_path)
    own = tmp_path / elsewhere.OWN_ENVIRONMENT
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    assert interpreter(spec, tmp_path) == own
    monkeypatch.setattr(elsewhere, "has_vllm", lambda: True)
    assert interpreter(spec, tmp_path) is None
    monkeypatch.setenv(elsewhere.ENV_PYTHON, sys.executable)
    assert interpreter(spec, tmp_path) == Path(sys.executable)
    assert interpreter(replace(spec, backend="hf"), tmp_path) is None, "the variable is vLLM's"
    named = replace(spec, options={"python": ".venv-vllm/bin/python"})
    assert interpreter(named, tmp_path) == own
    for value in ("", 3, "nowhere/python", ".venv-vllm/bin"):
        with pytest.raises(
            RegistryError, match=r"planted\.yaml: python is .*: no interpreter there; valid: "
        ):
            interpreter(replace(spec, options={"python": value}), tmp_path)
    monkeypatch.setenv(elsewhere.ENV_PYTHON, "/nowhere/python")
    with pytest.raises(
        InfrastructureError, match="SDGBIAS_VLLM_PYTHON=/nowhere/python: no interpreter there"
    ):
        interpreter(spec, tmp_path)


# ------------------------------------------------------------------------------------ vLLM, from
# the environment without it


@pytest.fixture(scope="module")
def vllm() -> ChildEngine:
    if not VLLM_PYTHON.is_file():
        pytest.skip("no .venv-vllm: vLLM has an environment of its own; build it: make vllm")
    engine = load(entries.load(REPOSITORY, "tiny-llava-vllm"), REPOSITORY)
    assert isinstance(engine, ChildEngine)
    return engine


@pytest.mark.long  # the pipe with other engines above, vLLM without it in tests/vllm
def test_vllm_through_the_pipe_equals_transformers_here(vllm: ChildEngine) -> None:
    hf = load(entries.load(REPOSITORY, "tiny-llava"), REPOSITORY)
    prompts = sample_prompts(3)
    assert sum(bool(p.images) for p in prompts) >= 40
    found = vllm.candidate_scores(prompts)
    parts = [hf.candidate_scores(prompts[i : i + 32]) for i in range(0, len(prompts), 32)]
    for i, prompt in enumerate(prompts):
        k = len(prompt.candidates)
        one, two = found.logits[i, :k], parts[i // 32].logits[i % 32, :k]
        np.testing.assert_allclose(
            one - np.logaddexp.reduce(one), two - np.logaddexp.reduce(two), atol=1e-4
        )
        assert (
            found.n_tokens[i] == parts[i // 32].n_tokens[i % 32]
            and found.top_token[i] == parts[i // 32].top_token[i % 32]
        )
    numbers = [p for p in prompts if len(p.candidates) == 10][:4]
    assert vllm.generate(numbers, ["", "7"], 8) == hf.generate(numbers, ["", "7"], 8)
    assert vllm.fingerprint != hf.fingerprint
    assert 0 < vllm.counts["tokens_prefilled"] < vllm.counts["tokens_of_prompts"]


@pytest.mark.long
def test_a_prompt_too_long_for_vllm_fails_alone_and_by_its_name(vllm: ChildEngine) -> None:
    with pytest.raises(Exception, match="512") as told:
        vllm.candidate_scores([Prompt("12 " * 600, "ABC")])
    assert told.value.kind == "PromptTooLong"  # type: ignore[attr-defined]
    assert np.isfinite(vllm.candidate_scores(PROMPTS).logits[2]).all()


@pytest.mark.long
def test_the_registered_entry_is_evaluated_and_checked(
    vllm: ChildEngine, tiny_benchmark: Path, tmp_path: Path
) -> None:
    """From the environment without vLLM: the same accuracies as transformers', and a verdict that
    says so."""
    results = tmp_path / "r.duckdb"
    for name in ("tiny-llava", "tiny-llava-vllm"):
        ok("evaluate", name, "--benchmark", tiny_benchmark, "--results", results, "--draws", 50)
    table = metrics(results, "metric IN ('accuracy', 'mae')")
    a, b = (
        table[table["model"] == n].drop(columns=["run_id", "model"])
        for n in ("tiny-llava", "tiny-llava-vllm")
    )
    order = [c for c in a.columns if c not in ("value", "ci_low", "ci_high")]
    pd.testing.assert_frame_equal(
        a.sort_values(order, ignore_index=True), b.sort_values(order, ignore_index=True), atol=1e-4
    )
    said = ok(
        "models",
        "parity",
        "tiny-llava-vllm",
        "--benchmark",
        tiny_benchmark,
        "--results",
        results,
        "--probes",
        24,
    )
    assert "vllm / hf" in said and "verdict: agree" in said
