"""The models of the papers and the recommended ones, registered in one go from a hub on loopback
for a simulated host of eight GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sdgbias.cli import register as command
from sdgbias.errors import HubUnreachable, InfrastructureError, UsageError
from sdgbias.registry import catalogue, changes, entries, machine
from sdgbias.registry.catalogue import (
    CLOSED,
    KNOWN,
    LICENCE,
    PAPER,
    READY,
    RECOMMENDED,
    REFUSED,
    TOO_LARGE,
    TROUBLE,
)
from sdgbias.registry.machine import Machine
from sdgbias.scoring import parity
from tests.builders.hub import Hub, Repo, commit, weights
from tests.builders.hub_repositories import ARCHITECTURES, BIG, VLM

EIGHT = replace(BIG, machine=Machine((79.6,) * 8, 1000.0))
REPOSITORY = Path(__file__).resolve().parents[2]
APP = typer.Typer()
APP.command("register-model")(command.register_model)
#: The shapes of Qwen2.5-VL-72B's config.json.
QWEN_72B = {
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
}


def served(kind: str) -> dict[str, Repo]:
    """Every hub repository of the list, at the size that its name states."""
    made = {}
    for one in catalogue.listed(kind):
        if one.get("backend") == "api":
            continue
        params = {"7b": 7, "13b": 13, "72B": 73, "72b": 73, "90B": 89, "38B": 38, "32B": 33}
        billions = next((n for word, n in params.items() if word in one["repo"]), 3)
        config: dict[str, Any] = dict(VLM)
        if "instructblip" in one["repo"]:
            config |= {"model_type": "instructblip", "architectures": ["InstructBlipFor"]}
        elif "ShareGPT4V" in one["repo"]:
            config |= {"model_type": "share4v"}
        elif "MiniCPM" in one["repo"]:
            config |= {"model_type": "minicpmv", "auto_map": {"AutoModel": "m.M"}}
        elif "Qwen2.5-VL-72B" in one["repo"]:
            config |= QWEN_72B | {"model_type": "qwen2_5_vl", "architectures": [ARCHITECTURES[1]]}
        files = {"config.json": config, "model.safetensors": weights(10)}
        if billions == 73:  # of which the hub says nothing: sizes are in the headers
            names = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
            index = {"weight_map": {name: name for name in names}, "metadata": {}}
            files = {"config.json": config, "model.safetensors.index.json": index}
            files |= dict.fromkeys(names, weights(36_500_000_000))
        gated = one["repo"].startswith(("google/gemma", "meta-llama/"))
        pipeline = "image-classification" if "vit" in one["repo"] else "image-text-to-text"
        made[one["repo"]] = Repo(
            [commit(files, one["repo"])],
            pipeline,
            params=None if billions == 73 else billions * 10**9,
            gated=gated,
        )
    return made


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub({**served(PAPER), **served(RECOMMENDED)}, {"hf_member0000000000": "member"}) as made:
        made.into(monkeypatch, tmp_path / "hf")
        yield made


def test_an_empty_registry_gets_every_model_of_both_papers(root: Path, hub: Hub) -> None:
    rows = {row.name: row for row in catalogue.register(root, EIGHT, (PAPER,))}
    assert len(rows) == 20
    kinds = {name: row.verdict for name, row in rows.items()}
    assert {n for n, kind in kinds.items() if kind == CLOSED} == {
        *("gpt-4o", "gemini-2.0-flash", "claude-3.5-sonnet", "gemini-1.5-pro")
    }
    assert {n for n, kind in kinds.items() if kind == REFUSED} == {
        *("sharegpt4v-7b", "sharegpt4v-13b", "minicpm-v-8b")
    }
    assert "--trust-remote-code --notes" in rows["minicpm-v-8b"].why
    assert {kind for n, kind in kinds.items() if kind not in (CLOSED, REFUSED)} == {READY}
    made = entries.load_all(root)
    for name, spec in made.items():
        assert spec.state == "candidate"
        if spec.backend != "api":
            assert spec.revision == hub.repos[spec.repo].commits[-1].sha == rows[name].revision
    llava, blip = made["llava-1.5-7b"], made["instructblip-13b"]
    assert (llava.backend, llava.title) == ("vllm", "LLaVA-v1.5 7B")
    assert entries.suites(llava) == ("sdg", "people") and entries.suites(blip) == ("sdg",)
    assert (blip.backend, made["clip-vit-b32"].backend) == ("hf", "clip-zero-shot")
    assert rows["llava-1.5-7b"].gib == pytest.approx(1.15 * 7e9 * 2 / 2**30 + 4)

    files = sorted((root / "registry/models").iterdir())
    before = [path.read_text() for path in files]
    again = {row.name: row.verdict for row in catalogue.register(root, EIGHT, (PAPER,))}
    assert {again[name] for name in made} == {KNOWN}
    assert [path.read_text() for path in files] == before, "a second run changes nothing"


def test_the_shipped_candidates_are_those_of_the_list(root: Path, hub: Hub) -> None:
    shipped = entries.load_all(REPOSITORY)
    for one in catalogue.listed(PAPER):
        spec = shipped[one["name"]]
        assert (spec.title, spec.repo) == (one["title"], one["repo"])
        assert entries.suites(spec) == tuple(one.get("suites", ["sdg"]))
        changes.write(root, spec)
    rows = {row.name: row for row in catalogue.register(root, EIGHT, (PAPER,))}
    assert rows["gpt-4o"].verdict == KNOWN
    qwen = entries.load(root, "qwen2.5-vl-7b")
    assert entries.COMMIT.fullmatch(qwen.revision) and qwen.backend == "vllm", (
        "an entry that was never pinned is proposed the engine that fits here"
    )
    assert (qwen.batch_size, qwen.dtype) == (256, "bfloat16")
    assert entries.load(root, "sharegpt4v-7b").revision == entries.UNPINNED


def test_recommended_gated_large_and_unanswered(
    root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["zai-org/GLM-4.1V-9B-Thinking"].broken = 503
    rows = {row.repo: row for row in catalogue.register(root, EIGHT, (RECOMMENDED,))}
    gated = {repo for repo, row in rows.items() if row.verdict == LICENCE}
    assert gated == {repo for repo in rows if repo.startswith(("google/", "meta-llama/"))}
    llama = rows["meta-llama/Llama-3.2-90B-Vision-Instruct"]
    assert "accept its terms at" in llama.why
    assert llama.revision == hub.repos[llama.repo].commits[0].sha
    assert rows["zai-org/GLM-4.1V-9B-Thinking"].verdict == TROUBLE
    largest = rows["Qwen/Qwen2.5-VL-72B-Instruct"]
    assert (largest.engine, largest.devices) == ("vllm", 4)
    assert entries.load(root, largest.name).params_b == 73.0, "from the headers of its shards"
    assert entries.load(root, largest.name).options == {
        "suites": ["sdg", "people"],
        "tensor_parallel_size": 4,
    }
    assert rows["OpenGVLab/InternVL3_5-38B-HF"].devices == 2
    assert rows["Qwen/Qwen3-VL-32B-Instruct"].devices == 1
    monkeypatch.setenv("HF_TOKEN", "hf_member0000000000")
    later = {row.repo: row for row in catalogue.register(root, EIGHT, (RECOMMENDED,))}
    assert (later[llama.repo].verdict, later[llama.repo].devices) == (READY, 4)
    assert later[largest.repo].verdict == KNOWN

    one = replace(EIGHT, machine=Machine((24.0,), 64.0))
    (root / "registry/models" / f"{largest.name}.yaml").unlink()
    small = {row.repo: row for row in catalogue.register(root, one, (RECOMMENDED,))}
    assert small[largest.repo].verdict == TOO_LARGE
    assert "too large for this machine" in entries.load(root, largest.name).reason


def test_hub_that_is_down_ends_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub({}) as gone:
        gone.into(monkeypatch, root / "hf", seconds=1)
    with pytest.raises(HubUnreachable):
        catalogue.register(root, EIGHT, (PAPER,))
    assert not list((root / "registry/models").iterdir())


def test_on_the_command_line(root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    monkeypatch.setattr(parity, "here", lambda root: replace(EIGHT, machine=machine.this()))
    monkeypatch.setenv("SDGBIAS_GPUS", "8x79.6")
    dry = CliRunner().invoke(APP, ["--paper", "--dry-run"])
    assert "nothing written" in dry.output and not list((root / "registry/models").iterdir())
    told = CliRunner().invoke(APP, ["--paper", "--gpu", "h100"])
    assert told.exit_code == 0
    assert (
        "1 x 19 GiB" in told.output and "13 ready, 4 closed, 3 can't be registered" in told.output
    )
    assert "Next: sdgbias models fetch llava-1.5-7b " in told.output
    assert entries.load(root, "qwen2.5-vl-3b").options["gpu"] == "h100"
    hub.repos["zai-org/GLM-4.1V-9B-Thinking"].broken = 503
    failed = CliRunner().invoke(APP, ["--recommended"]).exception
    assert isinstance(failed, InfrastructureError) and "1 of 13" in str(failed)
    for wrong in ([], ["a/b", "--paper"]):
        assert isinstance(CliRunner().invoke(APP, wrong).exception, UsageError)
