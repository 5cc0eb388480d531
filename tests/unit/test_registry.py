"""The model registry: what a YAML entry may say, how entries are found, written and proposed."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml

from sdgbias import register, registry
from sdgbias.errors import InfrastructureError, RegistryError
from sdgbias.types import ModelSpec

REPOSITORY = Path(__file__).resolve().parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
GOOD: dict[str, Any] = {
    "name": "m",
    "title": "M",
    "backend": "hf",
    "repo": "owner/m",
    "revision": COMMIT,
    "enabled": True,
}
OFF = {"enabled": False, "disabled_reason": "needs a GPU"}
API = {"backend": "api", "repo": "openai/m", "revision": "r"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SDGBIAS_REGISTRY", raising=False)
    (tmp_path / "registry" / "models").mkdir(parents=True)
    return tmp_path


def put(root: Path, data: Any, stem: str = "m", ending: str = ".yaml") -> Path:
    path = root / "registry" / "models" / f"{stem}{ending}"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")
    return path


# (change to GOOD, text of the error or None): the same table is put to the code and to the published JSON Schema
CASES: dict[str, tuple[dict[str, Any], str | None]] = {
    "minimal": ({}, None),
    "all fields": (
        {
            "family": "llava",
            "params_b": 7,
            "dtype": "bfloat16",
            "batch_size": 4,
            "max_new_tokens": 8,
            "licence": "MIT",
            "trust_remote_code": True,
            "notes": "read by A at that commit",
            "options": {"block_size": 32, "num_image_tokens": 576, "deep": {"list": [1, "x"]}},
        },
        None,
    ),
    "params null": ({"params_b": None}, None),
    "local folder": ({"repo": "local:registry/weights/tiny", "revision": "local"}, None),
    "path with notes": ({"repo": "path:/data/m", "revision": "local", "notes": "on gpu1"}, None),
    "disabled, unpinned": ({**OFF, "revision": "unpinned"}, None),
    "planted": ({"backend": "planted", "repo": "planted", "revision": "planted-1"}, None),
    "api": ({**API, "options": {"api_key_env": "OPENAI_API_KEY"}}, None),
    "unknown field": ({"colour": "red"}, "unknown field 'colour'"),
    "unknown backend": ({"backend": "onnx"}, "api, clip-zero-shot, hf, planted, planted-people, text-encoder, vit-zero-shot, vllm"),
    "unknown dtype": ({"dtype": "int8"}, "bfloat16, float16, float32"),
    "upper-case name": ({"name": "M"}, "lower-case"),
    "empty title": ({"title": ""}, "title is empty"),
    "enabled as text": ({"enabled": "yes"}, "true or false"),
    "batch size 0": ({"batch_size": 0}, "at least 1"),
    "batch size true": ({"batch_size": True}, "at least 1"),
    "batch size text": ({"batch_size": "8"}, "at least 1"),
    "params negative": ({"params_b": -1}, "above 0"),
    "title a number": ({"title": 5}, "valid: text"),
    "options a list": ({"options": []}, "mapping"),
    "climbs out": ({"repo": "../../etc"}, "OWNER/NAME"),
    "local climbs out": ({"repo": "local:../../etc"}, "leaves the repository"),
    "local hidden climb": ({"repo": "local:a/../../b"}, "leaves the repository"),
    "local absolute": ({"repo": "local:/etc"}, "leaves the repository"),
    "local nothing": ({"repo": "local:."}, "leaves the repository"),
    "path relative": ({"repo": "path:weights", "notes": "x"}, "path:/ABSOLUTE/FOLDER"),
    "path without notes": ({"repo": "path:/data/m"}, "which machine"),
    "absolute repo": ({"repo": "/data/m"}, "OWNER/NAME"),
    "no owner": ({"repo": "gpt2"}, "OWNER/NAME"),
    "branch as revision": ({"revision": "main"}, "40 hex digits"),
    "short commit": ({"revision": COMMIT[:12]}, "--revision COMMIT"),
    "enabled but unpinned": ({"revision": "unpinned"}, "40 hex digits"),
    "disabled on a branch": ({**OFF, "revision": "main"}, "unpinned"),
    "disabled without reason": ({"enabled": False}, "disabled_reason"),
    "blank reason": ({"enabled": False, "disabled_reason": " "}, "disabled_reason"),
    "two-line reason": ({"enabled": False, "disabled_reason": "a\nb"}, "one line"),
    "remote code without notes": ({"trust_remote_code": True}, "without notes"),
    "api without variable": (API, "api_key_env"),
    "api key pasted": ({**API, "options": {"api_key_env": "sk-abcdefghijklmnopqrstuvwx"}}, "looks like a secret"),
    "api key field": ({**API, "options": {"api_key": "x"}}, "looks like a secret"),
    "token field": ({"options": {"hf_token": "x"}}, "looks like a secret"),
    "deep token": ({"options": {"login": {"auth_token": "x"}}}, "looks like a secret"),
    "secret value": ({"options": {"header": "Bearer sk-abcdefghijklmnopqrstuvwx"}}, "looks like a secret"),
    "key on top": ({"api_key": "x"}, "looks like a secret"),
    **{f"no {field}": ({field: None}, "missing field") for field in registry.REQUIRED},
}


def case(name: str) -> tuple[dict[str, Any], str | None]:
    change, fault = CASES[name]
    data = {**GOOD, **change}
    if fault == "missing field":
        del data[next(iter(change))]
    return data, fault


@pytest.mark.parametrize("name", CASES)
def test_entry(name: str, root: Path) -> None:
    data, fault = case(name)
    stem = str(data.get("name", "m"))
    path = put(root, data, stem)
    if fault is None:
        spec = registry.load(root, stem)
        assert {f: getattr(spec, f) for f in data} == data
        return
    with pytest.raises(RegistryError) as caught:
        registry.load(root, stem)
    message = str(caught.value)
    assert str(path) in message
    assert fault in message
    assert "\n" not in message
    assert "sk-abc" not in message  # a secret is never repeated


@pytest.mark.parametrize("name", CASES)
def test_schema_agrees_with_the_code(name: str) -> None:
    schema = json.loads((REPOSITORY / "registry" / "model.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    data, fault = case(name)
    assert jsonschema.Draft202012Validator(schema).is_valid(data) == (fault is None)


def test_schema_knows_every_field() -> None:
    schema = json.loads((REPOSITORY / "registry" / "model.schema.json").read_text(encoding="utf-8"))
    assert tuple(schema["properties"]) == registry.FIELDS
    assert schema["required"] == list(registry.REQUIRED)
    readme = (REPOSITORY / "registry" / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{field}` |" in readme for field in registry.FIELDS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n", "not a mapping"),
        ("", "not a mapping"),
        ("name: [\n", "not readable YAML"),
        ("name: m\nname: m\n", "'name' is given twice"),
        ("name: !!python/object/apply:os.system ['true']\n", "not readable YAML"),
    ],
)
def test_not_an_entry(root: Path, text: str, words: str) -> None:
    put(root, text)
    with pytest.raises(RegistryError, match=words):
        registry.load(root, "m")


def test_name_differs_from_file(root: Path) -> None:
    put(root, GOOD, "other")
    with pytest.raises(RegistryError, match="valid: other"):
        registry.load(root, "other")


@pytest.mark.parametrize(("stem", "ending"), [("m", ".yml"), ("M", ".yaml")])
def test_duplicates(root: Path, stem: str, ending: str) -> None:
    put(root, GOOD)
    put(root, GOOD, stem, ending)
    for call in (lambda: registry.load_all(root), lambda: registry.load(root, "m")):
        with pytest.raises(RegistryError, match="duplicate"):
            call()


def test_unknown_name_lists_the_valid_ones(root: Path) -> None:
    put(root, GOOD)
    put(root, {**GOOD, "name": "n"}, "n", ".yml")
    with pytest.raises(RegistryError, match=r"unknown model 'x'; valid: m, n; add one: sdgbias register-model"):
        registry.load(root, "x")
    assert registry.load(root, "n").name == "n"


def test_broken_neighbour_blocks_only_the_whole(root: Path) -> None:
    put(root, GOOD)
    put(root, "colour: red", "bad")
    assert registry.load(root, "m").name == "m"
    with pytest.raises(RegistryError, match=r"bad\.yaml"):
        registry.load_all(root)


def test_load_all_and_enabled(root: Path) -> None:
    for stem, change in (("b", {}), ("a", OFF)):
        put(root, {**GOOD, **change, "name": stem}, stem)
    assert list(registry.load_all(root)) == ["a", "b"]
    assert list(registry.enabled(root)) == ["b"]


def test_find_root(root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    below = root / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert registry.find_root() == root.resolve()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(RegistryError, match="export SDGBIAS_REGISTRY="):
        registry.find_root(elsewhere)
    checkout = Path(registry.__file__).resolve().parents[1]
    assert registry.find_root() == checkout, "an editable install works from any folder"
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    assert registry.find_root() == root.resolve()
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(elsewhere))
    with pytest.raises(RegistryError, match="no registry/models in it"):
        registry.find_root()


def test_write_then_load_gives_the_same(root: Path) -> None:
    spec = ModelSpec(**{**GOOD, "options": {"a": 1}, "params_b": 2.0, "notes": "naïve: yes"})
    path = registry.write(root, spec)
    assert registry.load(root, "m") == spec
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=../model.schema.json\n")
    assert [p.name for p in path.parent.iterdir()] == ["m.yaml"]  # nothing left behind
    with pytest.raises(RegistryError, match="exists already"):
        registry.write(root, spec)
    registry.write(root, replace(spec, title="New"), overwrite=True)
    assert registry.load(root, "m").title == "New"


def test_write_refuses_what_load_would_refuse(root: Path) -> None:
    with pytest.raises(RegistryError, match="40 hex"):
        registry.write(root, ModelSpec(**{**GOOD, "revision": "main"}))
    put(root, GOOD, "m", ".yml")
    with pytest.raises(RegistryError, match="--name NAME"):
        registry.write(root, ModelSpec(**GOOD))


def test_unpinned_entry_is_completed_without_overwrite(root: Path) -> None:
    put(root, {**GOOD, **OFF, "revision": "unpinned", "title": "Paper's name", "batch_size": 3})
    spec = register.propose("owner/m", revision=COMMIT, root=root)
    assert (spec.name, spec.title, spec.batch_size, spec.enabled, spec.revision) == ("m", "Paper's name", 3, True, COMMIT)
    registry.write(root, spec)
    assert registry.load(root, "m").enabled
    with pytest.raises(RegistryError, match="exists already"):
        registry.write(root, replace(spec, revision=COMMIT[::-1]))


# ------------------------------------------------------------------------------------------------- propose


def weights(folder: Path, config: dict[str, Any], files: tuple[str, ...] = ("model.safetensors",)) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [1000, 2000], "data_offsets": [0, 0]}}).encode()
    for name in files:
        (folder / name).write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


VLM = {"model_type": "llava", "vision_config": {}, "text_config": {}, "dtype": "bfloat16"}


def test_propose_folder_in_the_repository(root: Path) -> None:
    folder = weights(root / "registry" / "weights" / "Tiny_VLM", VLM)
    spec = register.propose(str(folder), root=root)
    assert spec == register.propose("local:registry/weights/Tiny_VLM", root=root)
    assert spec.repo == "local:registry/weights/Tiny_VLM"
    assert (spec.name, spec.family, spec.dtype, spec.params_b) == ("tiny_vlm", "llava", "bfloat16", 0.002)  # 1000 x 2000
    assert (spec.revision, spec.batch_size, spec.enabled) == ("local", 32, True)
    assert registry.weights_path(spec, root) == root / "registry" / "weights" / "Tiny_VLM"
    registry.write(root, spec)
    assert registry.load(root, "tiny_vlm") == spec


def test_propose_folder_elsewhere_is_marked(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = weights(tmp_path_factory.mktemp("disk") / "vlm", VLM)
    assert register.propose(str(folder), root=root).repo == f"path:{folder}"
    spec = register.propose(f"path:{folder}", root=root, dtype="float32", batch_size=2, name="mine")
    assert (spec.repo, spec.name, spec.dtype, spec.batch_size) == (f"path:{folder}", "mine", "float32", 2)
    assert "machine-specific" in spec.notes


@pytest.mark.parametrize(
    ("config", "files", "words"),
    [
        ({"model_type": "llama"}, ("model.safetensors",), "'llama' has no vision_config"),
        (VLM, ("pytorch_model.bin",), r"safetensors only.*found pytorch_model\.bin"),
        (VLM, (), "safetensors only"),
        ([], ("model.safetensors",), "not a JSON object"),
    ],
)
def test_propose_refuses(root: Path, config: Any, files: tuple[str, ...], words: str) -> None:
    weights(root / "w", config, files)
    with pytest.raises(RegistryError, match=words):
        register.propose("local:w", root=root)


def test_propose_refuses_broken_weights(root: Path) -> None:
    folder = weights(root / "w", VLM)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-00002.safetensors"}}))
    with pytest.raises(RegistryError, match=r"model-00002\.safetensors is missing"):
        register.propose("local:w", root=root)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(RegistryError, match="not a safetensors file"):
        register.propose("local:w", root=root)


@pytest.mark.parametrize("repo", ["./nowhere", "gpt2", "a/b/c", "local:../x", "local:nowhere"])
def test_propose_bad_repo(root: Path, repo: str) -> None:
    with pytest.raises(RegistryError):
        register.propose(repo, root=root)


def test_propose_other_backends(root: Path) -> None:
    with pytest.raises(RegistryError, match="by hand"):
        register.propose("openai/gpt", backend="api", root=root)
    with pytest.raises(RegistryError, match="valid: api, clip-zero-shot, hf, planted, planted-people, text-encoder"):
        register.propose("owner/m", backend="onnx", root=root)


def test_propose_hub_without_network(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    assert register.propose("owner/M-7B", revision=COMMIT, root=root).name == "m-7b"  # pinned: the hub isn't asked
    with pytest.raises(InfrastructureError, match="offline: sdgbias register-model owner/m --revision COMMIT") as caught:
        register.propose("owner/m", root=root)
    assert "\n" not in str(caught.value)


class FakeInfo:
    sha = COMMIT
    pipeline_tag = "image-text-to-text"

    def __init__(self, *names: str) -> None:
        self.config = {"model_type": "llava"}
        self.card_data = SimpleNamespace(license="mit")
        self.siblings = [SimpleNamespace(rfilename=name) for name in names]


def test_propose_asks_the_hub_for_the_commit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *a, **k: FakeInfo("model.safetensors"))
    spec = register.propose("owner/m", revision="main", root=root)
    assert (spec.revision, spec.family, spec.licence) == (COMMIT, "llava", "mit")
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *a, **k: FakeInfo("model.bin"))
    with pytest.raises(RegistryError, match="safetensors only"):
        register.propose("owner/m", root=root)


# -------------------------------------------------------------------------------------------- what is shipped


def test_shipped_entries() -> None:
    specs = registry.load_all(REPOSITORY)
    schema = json.loads((REPOSITORY / "registry" / "model.schema.json").read_text(encoding="utf-8"))
    for path in sorted((REPOSITORY / "registry" / "models").iterdir()):
        text = path.read_text(encoding="utf-8")
        assert text.startswith(registry.SCHEMA_LINE), path
        jsonschema.validate(yaml.safe_load(text), schema)
    assert list(registry.enabled(REPOSITORY)) == ["planted-people", "tiny-llava"]
    assert [s.backend for s in specs.values()].count("api") == 3
    hub = {s.repo for s in specs.values() if s.backend == "hf" and not s.enabled}
    assert len(hub) == 10  # the open models of Table H
    assert all(f"sdgbias register-model {s.repo} --revision" in s.disabled_reason for s in specs.values() if s.repo in hub)


def test_import_is_light() -> None:
    code = (
        "import yaml, dataclasses, enum, json, re, pathlib, sys, time; t = time.perf_counter(); import sdgbias.registry; "
        "print(time.perf_counter() - t, *(m for m in ('pandas', 'numpy', 'torch', 'huggingface_hub') if m in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout.split()
    assert out[1:] == []  # nothing heavy came along
    assert float(out[0]) < 0.15  # measured 0.01 s; loose for busy machines
