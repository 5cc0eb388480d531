"""New entries: what is proposed for folders and for repositories of a hub on loopback, and every
refusal."""

from __future__ import annotations

import json
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdgbias.errors import HubUnreachable, RegistryError
from sdgbias.registry import entries, hub
from sdgbias.registry import propose as register
from sdgbias.registry.machine import Machine
from sdgbias.registry.propose import NO_ENTRY, Host, Request, propose
from sdgbias.registry.spec import ModelSpec
from sdgbias.registry.weights import folder_digest
from sdgbias.types import IMAGE_FREE, VIEWS
from tests.builders.entries import put
from tests.builders.hub import Hub, Repo, commit, weights
from tests.builders.hub_repositories import BIG, REPOS, SMALL, VLM, saved
from tests.builders.refusals import Refusal


def test_a_hub_model_is_pinned_and_described(root: Path, served: Hub) -> None:
    proposal = propose("open/Llava-7B", root, BIG)
    old, new = (commit.sha for commit in REPOS["open/Llava-7B"].commits)
    assert proposal.spec == ModelSpec(
        "llava-7b",
        "Llava-7B",
        "vllm",
        "open/Llava-7B",
        new,
        "candidate",
        reason="not checked yet: sdgbias models enable llava-7b",
        family="llava",
        params_b=7.06,
        dtype="bfloat16",
        batch_size=256,
        licence="llama2",
        options={"max_images": 1},
    )
    assert proposal.obstacle == "" and entries.write(root, proposal.spec).is_file()
    verdicts = "\n".join(proposal.verdicts)
    assert "about 15.8 GiB (weights 13.2 GiB); seen here: 4 GPUs of 80 GiB" in verdicts
    assert "composite" in verdicts
    read = [path for path in served.asked if path.endswith((".safetensors", ".bin", ".py"))]
    assert not read, "no weights, no code"
    earlier = propose("open/Llava-7B", root, BIG, Request(revision=old, name="old")).spec
    assert earlier.revision == old


FOUR_SMALL = replace(BIG, machine=Machine((12.0,) * 4, 500.0))
HALF = {"backend": "vllm", "dtype": "float16", "options": {}, "batch_size": 256}
MINE = Request(
    dtype="float32", max_images=3, tensor_parallel=2, suites=("people",), gpu="a100", title="Mine"
)
OPTIONS = {"max_images": 3, "tensor_parallel_size": 2, "suites": ["people"], "gpu": "a100"}
ON_TWO = {"max_images": 1, "device_map": "auto", "num_gpus": 2}


@pytest.mark.parametrize(
    ("repo", "host", "wanted", "fields", "words"),
    [
        ("open/qwen", BIG, Request(), HALF, ""),
        ("open/qwen", SMALL, Request(), {"backend": "hf"}, ""),
        (
            "open/blip",
            BIG,
            Request(),
            {"backend": "hf", "options": {"max_images": 1}},
            "vLLM 0.32.0 does not serve InstructBlipFor",
        ),
        (
            "open/qwen",
            BIG,
            MINE,
            {"options": OPTIONS, "dtype": "float32", "title": "Mine"},
            "for each of 2 devices",
        ),
        # 1.2 x 6.6
        ("open/blip", FOUR_SMALL, Request(), {"options": ON_TWO}, "about 7.9 GiB for each of 2"),
        # Phi-4 multimodal is listed for speech: the family counts more than the hub's tag
        ("open/hears-too", BIG, Request(), {"family": "llava"}, ""),
        ("open/known-own-code", BIG, Request(), {"trust_remote_code": False}, "isn't run"),
        (
            "open/own-code",
            BIG,
            Request(trust_remote_code=True, notes="read by A at that commit"),
            {"trust_remote_code": True},
            "runs code of its own",
        ),
        ("shut/gated", BIG, Request(), {"name": "gated"}, ""),
        ("shut/private", BIG, Request(), {"name": "private"}, ""),
    ],
)
def test_each_family_has_its_backend_dtype_and_pictures(
    repo: str,
    host: Host,
    wanted: Request,
    fields: dict[str, object],
    words: str,
    root: Path,
    served: Hub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_member0000000000" if repo.startswith("shut/") else "")
    proposal = propose(repo, root, host, wanted)
    assert {name: getattr(proposal.spec, name) for name in fields} == fields
    assert words in "\n".join(proposal.verdicts)


@pytest.mark.parametrize(("repo", "host"), [("open/huge", BIG), ("open/Llava-7B", SMALL)])
def test_what_is_too_large_or_without_its_engine_is_a_candidate(
    repo: str, host: Host, root: Path, served: Hub
) -> None:
    proposal = propose(repo, root, host)
    assert proposal.obstacle.startswith("too large for this machine: about")
    assert proposal.spec.reason == proposal.obstacle
    assert host.machine.words() in proposal.obstacle and "\n" not in proposal.obstacle
    entries.write(root, proposal.spec)
    roomy = replace(SMALL, machine=Machine((), 64.0))
    lacking = propose("open/qwen", root, roomy, Request(backend="vllm")).obstacle
    assert lacking.startswith("vLLM isn't installed here")


#: Repository, token and request of what is refused.
REFUSALS: dict[str, tuple[str, str, Request]] = {
    "a family without pictures": ("open/text", "", Request()),
    "an unknown family": ("open/unknown", "", Request()),
    "code of its own": ("open/own-code", "", Request()),
    "code of its own, not read": ("open/own-code", "", Request(trust_remote_code=True)),
    "a processor of its own": ("open/own-processor", "", Request()),
    "a model of its own": ("open/video", "", Request()),
    "pickles": ("open/pickles", "", Request()),
    "no files": ("open/empty", "", Request()),
    "a config that is a list": ("open/list", "", Request()),
    "speech": ("open/asr", "", Request()),
    "no such repository": ("open/gone", "hf_member0000000000", Request()),
    "no such repository, not logged in": ("open/gone", "", Request()),
    "no such revision": ("open/qwen", "", Request(revision="v9")),
    "gated, not logged in": ("shut/gated", "", Request()),
    "gated": ("shut/gated", "hf_stranger00000000", Request()),
    "gated, an old token": ("shut/gated", "hf_old0000000000000", Request()),
    "open, an old token": ("open/qwen", "hf_old0000000000000", Request()),
    "private": ("shut/private", "hf_stranger00000000", Request()),
    "banned": ("shut/banned", "", Request()),
    "a hub that fails": ("shut/broken", "", Request()),
    "not served by vLLM": ("open/blip", "", Request(backend="vllm")),
    "several devices without vLLM": ("open/blip", "", Request(tensor_parallel=2)),
    "an endpoint": ("openai/gpt", "", Request(backend="api")),
    "a planted model": ("openai/gpt", "", Request(backend="planted")),
    "planted people": ("openai/gpt", "", Request(backend="planted-people")),
    "an unknown backend": ("owner/m", "", Request(backend="onnx")),
    "no such folder": ("./nowhere", "", Request()),
    "no owner": ("gpt2", "", Request()),
    "a path of three": ("a/b/c", "", Request()),
    "outside": ("local:../x", "", Request()),
    "no such local folder": ("local:nowhere", "", Request()),
    "a newer family": ("local:newer", "", Request()),
    "an encoder": ("local:encoder", "", Request()),
    "a baseline of another family": ("local:encoder", "", Request(backend="vit-zero-shot")),
    "pickles in a folder": ("local:pickles", "", Request()),
    "a shard is missing": ("local:torn", "", Request()),
    "a pointer to weights": ("local:pointer", "", Request()),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_model_that_can_not_be_served_is_refused(
    case: str, root: Path, served: Hub, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    repo, token, wanted = REFUSALS[case]
    monkeypatch.setenv("HF_TOKEN", token)
    saved(root / "newer", {**VLM, "model_type": "brandnew", "transformers_version": "9.1.0"})
    saved(root / "encoder", {**VLM, "model_type": "clip", "architectures": ["CLIPModel"]})
    saved(root / "pickles", VLM, ("pytorch_model.bin",))
    index = json.dumps({"weight_map": {"a": "model-00002.safetensors"}})
    torn = saved(root / "torn", VLM, ("model-00001.safetensors",))
    (torn / "model.safetensors.index.json").write_text(index)
    pointer = b"version https://git-lfs.github.com/spec/v1\n"
    (saved(root / "pointer", VLM) / "model.safetensors").write_bytes(pointer)

    with refusal(HUB=served.url):
        propose(repo, root, BIG, wanted)


def test_without_a_hub_a_known_commit_is_a_candidate(
    root: Path, served: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served.slow = 30.0
    served.into(monkeypatch, tmp_path / "hf", seconds=1)
    start = time.monotonic()
    with pytest.raises(
        HubUnreachable,
        match=(
            r"can't be reached \(\w+\); later again, or offline: sdgbias register-model open/qwen"
            r" --revision"
        ),
    ):
        propose("open/qwen", root, BIG)
    assert time.monotonic() - start < 25, "it doesn't wait longer than it was told to"
    found = propose("open/qwen", root, BIG, Request(revision="ab" * 20))
    assert (
        found.obstacle.startswith("registered unread (the hub can't be reached")
        and found.spec.state == "candidate"
    )
    entries.write(root, found.spec)


def test_parameters_that_the_hub_does_not_count_are_read_from_the_shards(
    root: Path, served: Hub
) -> None:
    names = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    files = {
        "config.json": VLM,
        "model.safetensors.index.json": {"weight_map": {n: n for n in names}, "metadata": {}},
        **dict.fromkeys(names, weights(36_500_000_000)),
    }
    served.repos["open/sharded"] = Repo([commit(files)], params=None)
    found = propose("open/sharded", root, BIG).spec
    assert (found.params_b, found.options["tensor_parallel_size"]) == (73.0, 4)


def test_an_entry_of_the_same_repository_keeps_its_settings(root: Path, served: Hub) -> None:
    entry = {"name": "paper", "title": "Paper's name", "backend": "hf", "repo": "open/Llava-7B"}
    entry |= {"revision": "unpinned", "state": "candidate", "reason": "x", "batch_size": 3}
    entry |= {"dtype": "bfloat16", "options": {"suites": ["people"]}}
    put(root, entry, "paper")
    spec = propose("open/Llava-7B", root, BIG).spec
    kept = ("name", "title", "backend", "batch_size", "options")
    assert {name: getattr(spec, name) for name in kept} == {name: entry[name] for name in kept}
    assert entries.COMMIT.fullmatch(spec.revision)
    on_vllm = propose("open/Llava-7B", root, BIG, Request(backend="vllm")).spec
    assert (on_vllm.name, on_vllm.batch_size) == ("paper", 256), "another engine, its own batches"
    assert entries.write(root, spec).name == "paper.yaml"
    put(root, "colour: red", "bad")
    other = propose("open/Llava-7B", root, BIG, Request(name="other")).spec
    assert other.batch_size == 256, "another name, settings of its own"
    alone = propose("open/Llava-7B", root, BIG, Request(), NO_ENTRY).spec
    assert (alone.batch_size, alone.options.get("suites")) == (256, None), "no entry's settings"


def test_a_baseline_that_chooses_labels_is_for_people(root: Path) -> None:
    saved(root / "clip", {**VLM, "model_type": "clip", "architectures": ["CLIPModel"]})
    baseline = Request(backend="clip-zero-shot")
    assert propose("local:clip", root, BIG, baseline).spec.options["suites"] == ["people"]
    other = propose("local:clip", root, BIG, replace(baseline, suites=("streets",))).spec
    assert other.options["suites"] == ["streets"]


def test_folder_in_the_repository(root: Path) -> None:
    folder = saved(root / "registry" / "weights" / "Tiny_VLM", VLM)
    spec = propose(str(folder), root, SMALL).spec
    assert spec == propose("local:registry/weights/Tiny_VLM", root, SMALL).spec
    assert spec.repo == "local:registry/weights/Tiny_VLM"
    assert (spec.name, spec.family, spec.dtype, spec.params_b) == (
        "tiny_vlm",
        "llava",
        "float32",  # so small: whatever the config states
        0.002,
    )  # 1000 x 2000
    assert spec.revision == folder_digest(folder)[:40] and spec.state == "candidate"
    entries.write(root, spec)
    assert entries.load(root, "tiny_vlm") == spec


@pytest.mark.parametrize(("kind", "size", "dtype"), [("F32", 4, "float32"), ("F16", 2, "bfloat16")])
def test_dtype_of_weights_whose_config_names_none(
    root: Path, kind: str, size: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 bytes a parameter are float32, 2 are of half precision, whatever the header adds to
    them."""
    config = {k: v for k, v in VLM.items() if k != "dtype"}
    monkeypatch.setattr(register, "FLOAT32_PARAMS", 0)
    folder = saved(root / "registry" / "weights" / "plain", config)
    header = json.dumps(
        {"w": {"dtype": kind, "shape": [100, 200], "data_offsets": [0, 20_000 * size]}}
    ).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(20_000 * size)
    )
    assert propose(str(folder), root, BIG).spec.dtype == dtype


def test_float32_where_half_precision_saves_nothing(root: Path, served: Hub) -> None:
    """In half precision the answers of tiny-llava vary with the batch; bfloat16 pays on a GPU."""

    def dtype(name: str, here: Host, **wanted: Any) -> tuple[str, str]:
        found = propose(name, root, here, Request(**wanted))
        return found.spec.dtype, found.verdicts[0]

    small = str(saved(root / "registry" / "weights" / "small", VLM))  # 2 million parameters
    for here in (SMALL, BIG):
        assert dtype(small, here)[0] == "float32"
    assert "float32 (config: bfloat16; small enough for float32)" in dtype(small, SMALL)[1]
    silent = str(saved(root / "registry" / "weights" / "silent", {**VLM, "dtype": "float64"}))
    assert "float32 (small enough for float32)" in dtype(silent, SMALL)[1], "states none of ours"
    assert dtype(small, SMALL, dtype="bfloat16")[0] == "bfloat16"
    cpu = replace(SMALL, machine=Machine((), 64.0))  # 7.06 billion: 1.15 x 26.3 + 4 = 34.2 GiB
    assert "float32 (config: bfloat16; no GPU here)" in dtype("open/Llava-7B", cpu)[1]
    assert dtype("open/Llava-7B", cpu, gpu="h100")[0] == "bfloat16", "runs on another machine"
    for here in (SMALL, BIG):  # does not fit into 8 GiB either way; has a GPU
        assert dtype("open/Llava-7B", here)[0] == "bfloat16"


def test_folder_elsewhere_is_marked(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = saved(tmp_path_factory.mktemp("disk") / "vlm", VLM)
    assert propose(str(folder), root, SMALL).spec.repo == f"path:{folder}"
    spec = propose(f"path:{folder}", root, SMALL, Request(dtype="float32", name="mine")).spec
    assert (spec.repo, spec.name, spec.dtype) == (f"path:{folder}", "mine", "float32")
    assert "machine-specific" in spec.notes


def test_a_language_model_is_proposed_with_the_views_that_it_can_be_asked(
    root: Path, served: Hub
) -> None:
    here = replace(BIG, language=lambda: frozenset({"llama", "mamba"}))
    found = propose("open/text", root, here)
    assert found.spec.views == IMAGE_FREE and found.spec.backend == "vllm"
    assert any("q_only, ctx_q: a language model" in line for line in found.verdicts)
    assert not any(line.startswith("pictures") for line in found.verdicts)
    assert propose("open/text", root, replace(SMALL, language=here.language)).spec.backend == "hf"
    assert propose("open/Llava-7B", root, here).spec.views == VIEWS


def test_a_family_without_a_vision_config_is_known_by_its_name(root: Path) -> None:
    """Chameleon, Emu3, T5Gemma 2 and the Omni models name their towers otherwise."""
    folder = root / "m"
    saved(folder, {"model_type": "chameleon", "vq_config": {}})
    here = replace(SMALL, families=lambda: frozenset({"chameleon"}))
    assert propose(f"path:{folder}", root, here).spec.views == VIEWS
    with pytest.raises(RegistryError, match="neither as image-text-to-text nor as a language"):
        propose(f"path:{folder}", root, SMALL)


def test_code_of_its_own_without_a_processor_of_pictures_is_a_language_model(root: Path) -> None:
    folder, trusted = root / "m", Request(trust_remote_code=True, notes="read by A")
    saved(folder, {"model_type": "newlm", "auto_map": {"AutoModelForCausalLM": "m.M"}})
    assert propose(f"path:{folder}", root, SMALL, trusted).spec.views == IMAGE_FREE
    (folder / "preprocessor_config.json").write_text('{"size": 1}', encoding="utf-8")
    assert propose(f"path:{folder}", root, SMALL, trusted).spec.views == VIEWS
    with pytest.raises(RegistryError, match="needs code of its own"):
        propose(f"path:{folder}", root, SMALL)


def test_a_path_that_looks_like_an_id_is_told_as_both(
    root: Path, served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    with pytest.raises(RegistryError, match="not on the hub") as plain:
        propose("weights/mine", root, BIG)
    assert "folder" not in str(plain.value)
    (root / "weights").mkdir()
    with pytest.raises(RegistryError, match=f"nor is there a folder {root}/weights/mine"):
        propose("weights/mine", root, BIG)


@pytest.mark.slow  # torch
def test_this_transformers_knows_the_paper_s_families() -> None:
    from sdgbias.engines.hf import load as hf_load

    seeing = {"internvl", "llava", "llava_onevision", "qwen2_5_vl", "instructblip", "chameleon"}
    assert seeing | {"phi4_multimodal", "qwen2_5_omni", "qwen3_omni_moe"} <= hf_load.visual()
    assert "qwen2_audio" not in hf_load.visual()
    assert {"gemma", "llama", "qwen2", "qwen3", "gpt2"} <= hf_load.language()
    assert not hf_load.visual() & hf_load.language()


def test_files_that_matter() -> None:
    names = ("README.md", "x.safetensors", "config.json", "image.png", "m.py")
    facts = hub.ModelFacts("a/b", "0", files=dict.fromkeys(names, "1"))
    assert list(facts.that_matter()) == ["x.safetensors", "config.json", "m.py"]
