"""What the engines refuse, word for word (refusals.yaml): options, folders, answers of the hub."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from huggingface_hub import errors as hub
from safetensors.torch import load_file, save_file

from sdgbias.engines import load
from sdgbias.engines.hub_errors import translate
from sdgbias.registry.spec import ModelSpec
from tests.builders import families
from tests.builders.refusals import Refusal

SPEC = ModelSpec("m", "M", "hf", "owner/m", "a" * 40, "enabled")
NEEDED: dict[str, dict[str, Any]] = {
    "api": {"api_key_env": "KEY", "base_url": "https://example.org/v1"},
    "planted": {"oracle": "x"},
    "planted-people": {"oracle": "x"},
    "vit-zero-shot": {"labels": {"nurse": "tench"}},
}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("hf", {"adapter_of": "owner/name", "chunk_timeout": -1}),  # a LoRA, which it would ignore
    ("vllm", {"max_len": 5}),
    ("api", {"api_key": "sk-1"}),
    ("hf", {"max_images": 1.0}),
    ("hf", {"max_images": True}),
    ("hf", {"max_images": 0}),
    ("hf", {"max_images": None}),
    ("hf", {"share_prefix": "no"}),
    ("hf", {"device_map": "cuda:0"}),
    ("hf", {"num_gpus": 0.5}),
    ("hf", {"processor": {"a": datetime.date(2026, 1, 1)}}),
    ("hf", {"template": {"system": 3}}),
    ("hf", {"template": {"rate": float("nan")}}),
    ("vllm", {"gpu_memory_utilization": 1.2}),
    ("vllm", {"enforce_eager": "yes"}),
    ("vllm", {"kv_cache_gib": 0}),
    ("vllm", {"max_model_len": 512.0}),
    ("vllm", {"quantization": True}),
    ("vllm", {"suites": "sdg"}),
    ("api", {"base_url": "http://example.org/v1"}),
    ("api", {"base_url": "http://127.0.0.1.example.org/v1"}),
    ("api", {"base_url": "https://user:word@example.org/v1"}),
    ("api", {"base_url": "https://example.org/v1?x=1"}),
    ("api", {"base_url": "https://[bad/v1"}),
    ("api", {"base_url": "https://example.org/v1/chat/completions"}),
    ("api", {"base_url": ""}),
    ("api", {"top_logprobs": -1}),
    ("api", {"concurrency": True}),
    ("api", {"limits": {"requests": -1}}),
    ("api", {"limits": {"images": 1}}),
    ("api", {"candidate_ids": {"AB": [1]}}),
    ("api", {"spellings": 101}),
    ("api", {"temperature": False}),
    ("api", {"timeout": float("nan")}),
    ("api", {"body": {"n": 2}}),
    ("api", {"backoff": -1}),
    ("planted", {"optimism": 1}),
    ("planted", {"prior": {"all": [0, 1]}}),
    ("planted", {"prior": {"Health": [0, 1, 2]}}),
    ("planted", {"digit_prior": [0, 1]}),
    ("planted", {"noise": -1}),
    ("planted", {"image_weight": "much"}),
    ("planted", {"seed": 0.5}),
    ("planted", {"oracle": "", "image_noise": 1.0}),
    ("planted", {"oracle": "", "image_weight": "much"}),
    ("planted", {"oracle": "", "optimsm": 1.0}),
    ("planted", {"oracle": "../elsewhere"}),
    ("planted", {"oracle": "nowhere"}),
    ("planted-people", {"oracle": ""}),
    ("planted-people", {"recal": 1}),
    ("planted-people", {"recall": "much"}),
    ("planted-people", {"effects": {"tall": 0.1}}),
    ("vit-zero-shot", {"labels": {}}),
    ("vit-zero-shot", {"labels": {"nurse": "tench", "singer": "tench"}}),
    ("vit-zero-shot", {"labels": {"nurse": []}}),
    ("text-encoder", {"kind": "clip"}),
    ("tgi", {}),
]


@pytest.mark.parametrize(
    ("backend", "options"), [pytest.param(*case, id=f"{case[0]} {case[1]}") for case in OPTIONS]
)
def test_an_option_is_checked_before_anything_is_loaded(
    backend: str, options: dict[str, Any], refusal: Refusal, tmp_path: Path
) -> None:
    given = {**NEEDED.get(backend, {}), **options}
    entry = replace(
        SPEC, backend=backend, options={k: v for k, v in given.items() if v != "" or k != "oracle"}
    )
    with refusal():
        load(entry, tmp_path)


# ----------------------------------------------------------------------
# folders with one fault each


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return families.write(tmp_path_factory.mktemp("whole") / "m", "qwen2_5_vl", shard="60KB")


def cut(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:200])


def lose(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def put(name: str, text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(text, encoding="utf-8")


def setting(name: str, **values: object) -> Callable[[Path], Any]:
    """Changes values of a JSON file by path (text_config__hidden_size)."""

    def change(folder: Path) -> None:
        settings = json.loads((folder / name).read_text(encoding="utf-8"))
        for path, value in values.items():
            *way, last = path.split("__")
            at = settings
            for step in way:
                at = at[step]
            at[last] = value
        (folder / name).write_text(json.dumps(settings), encoding="utf-8")

    return change


def lack_a_weight(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    shards = json.loads(index.read_text(encoding="utf-8"))
    [name] = [n for n in shards["weight_map"] if n.endswith("layers.1.mlp.down_proj.weight")]
    shard = folder / shards["weight_map"].pop(name)
    kept = {n: w for n, w in load_file(shard).items() if n != name}
    save_file(kept or {"x": torch.zeros(1)}, shard, {"format": "pt"})
    index.write_text(json.dumps(shards), encoding="utf-8")


def leave_an_adapter_unmerged(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    shards = json.loads(index.read_text(encoding="utf-8"))
    [name] = [n for n in shards["weight_map"] if n.endswith("layers.1.mlp.down_proj.weight")]
    shard, inner = (
        folder / shards["weight_map"].pop(name),
        name.replace("weight", "base_layer.weight"),
    )
    weights = load_file(shard)
    save_file(weights | {inner: weights.pop(name)}, shard, {"format": "pt"})
    shards["weight_map"][inner] = shard.name
    index.write_text(json.dumps(shards), encoding="utf-8")


def pickle_weights(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    torch.save({}, folder / "pytorch_model.bin")


SHARD = "model-00001-of-00007.safetensors"
OWN = {"AutoConfig": "configuration_own.Own", "AutoModelForImageTextToText": "modeling_own.Own"}
FAULTS: dict[str, Callable[[Path], Any]] = {
    "a shard is cut": cut(SHARD),
    "a shard is missing": lose(SHARD),
    "a weight is missing": lack_a_weight,
    "an adapter isn't merged": leave_an_adapter_unmerged,
    "weights are pickled": pickle_weights,
    "config.json is cut": cut("config.json"),
    "no config.json": lose("config.json"),
    "generation_config.json is cut": put("generation_config.json", '{"eos_token_id": [2,'),
    "tokenizer.json is cut": put("tokenizer.json", '{"a":'),
    "preprocessor_config.json is a list": put("preprocessor_config.json", "[]"),
    "no preprocessor_config.json": lose("preprocessor_config.json"),
    "other shapes": setting("config.json", text_config__hidden_size=64),
    "an unknown family": setting("config.json", model_type="qwen9_vl"),
    "code of its own": setting("config.json", model_type="own_vl", auto_map=OWN),
    "a patch size that is none": setting("config.json", vision_config__patch_size="x"),
    "a size that is none": setting("preprocessor_config.json", size="big"),
    "a template that ends early": put("chat_template.jinja", "{% for m in %}"),
    "a template that divides by zero": put("chat_template.jinja", "{{ 1 / 0 }}"),
    "a file that nests too deep": put("preprocessor_config.json", "[" * 100_000),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_folder_that_never_loads_is_one_line(
    fault: Callable[[Path], Any], whole: Path, tmp_path: Path, refusal: Refusal
) -> None:
    shutil.copytree(whole, tmp_path / "m")
    fault(tmp_path / "m")
    with refusal(TRANSFORMERS=transformers.__version__):
        load(replace(SPEC, repo=f"path:{tmp_path / 'm'}", revision="local"), tmp_path)


def test_a_sharded_folder_loads(whole: Path, tmp_path: Path) -> None:
    assert len(list(whole.glob("*.safetensors"))) == 7
    assert load(replace(SPEC, repo=f"path:{whole}", revision="local"), tmp_path).fingerprint


# ----------------------------------------------------------------------
# what an error is called decides whether the model is put aside


def wrapped(kind: str, status: int = 0) -> OSError:
    """As transformers raises it: an OSError with the error of the hub's client as its cause."""
    response = httpx.Response(status or 200, request=httpx.Request("GET", "https://hub/owner/m"))
    named = getattr(hub, kind, getattr(httpx, kind, RuntimeError))
    error = OSError("We couldn't connect to the hub\nand so on")
    given = {"response": response} if status else {}
    error.__cause__ = named("as the client puts it", **given)
    return error


HUB: dict[str, Exception] = {
    "gated": wrapped("GatedRepoError", 403),
    "forbidden": wrapped("HfHubHTTPError", 403),
    "an expired token": wrapped("HfHubHTTPError", 401),
    "no such repository": wrapped("RepositoryNotFoundError", 404),
    "no such revision": wrapped("RevisionNotFoundError", 404),
    "no such file": wrapped("RemoteEntryNotFoundError", 404),
    "not in the cache": wrapped("LocalEntryNotFoundError"),
    "no connection": wrapped("ConnectError"),
    "a hub that fails": wrapped("HfHubHTTPError", 503),
    "something else": wrapped("SomethingElse"),
    "no image processor": OSError("Can't load image processor for 'owner/m'. If you were trying"),
    "code of its own": ValueError("x contains custom code; pass `trust_remote_code=True`"),
    "a newer family": ValueError(
        "The checkpoint has model type `qwen9_vl` but Transformers does not recognize this"
        " architecture."
    ),
    "torchvision": ImportError("AutoVideoProcessor requires the Torchvision library but it was"),
    "torchvision, of its files": ValueError("w requires `torchvision` to be installed. Please"),
    "a package": ImportError("Package `num2words` is required to run SmolVLM processor."),
    "a module": ModuleNotFoundError("No module named 'timm.data'"),
    "a library": ImportError("ParakeetFeatureExtractor requires the librosa library. But that"),
    # without sentencepiece transformers takes a tokenizer.model for a file of tiktoken
    "tiktoken": ValueError("`tiktoken` is required to read a `tiktoken` file."),
    "sentencepiece": ValueError("Couldn't instantiate the backend tokenizer from one of:\n(1) a"),
    "anything else": ValueError("Could not load any class"),
}


@pytest.mark.parametrize("error", HUB.values(), ids=HUB)
def test_an_error_of_the_hub_or_its_files_has_a_kind(
    error: Exception, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    with refusal(TRANSFORMERS=transformers.__version__):
        raise translate(SPEC, None, "can't load the processor of", error)


def test_what_needs_a_login_names_it(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    for kind in ("GatedRepoError", "RepositoryNotFoundError"):
        with refusal(kind):
            raise translate(SPEC, None, "can't load", wrapped(kind, 401))


def test_a_folder_is_always_the_models_own_fault(refusal: Refusal) -> None:
    with refusal():
        raise translate(SPEC, Path("/w"), "can't load", wrapped("ConnectError"))
