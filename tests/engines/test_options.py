"""The options of entries: what each backend takes, and the one line about what it doesn't."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from sdgbias import engines
from sdgbias.engines.options import (
    MODELS,
    HfOptions,
    Options,
    TextEncoderOptions,
    VllmOptions,
    read,
    schema,
)
from sdgbias.errors import RegistryError
from sdgbias.registry.spec import ModelSpec

NEEDED: dict[str, dict[str, Any]] = {
    "api": {"api_key_env": "KEY", "base_url": "https://example.org/v1", "limits": {"requests": 1}},
    "text-encoder": {"kind": "clip"},
}


def spec(backend: str, **options: Any) -> ModelSpec:
    given = {**NEEDED.get(backend, {}), **options}
    return ModelSpec("m", "M", backend, "local:nowhere", "local", "enabled", options=given)


@pytest.mark.parametrize("backend", MODELS)
def test_every_backend_takes_the_common_options(backend: str) -> None:
    common = {
        "chunk_timeout": 60,
        "gpu": "h100",
        "num_gpus": 2,
        "parity": ["vllm"],
        "suites": ["sdg", "people"],
    }
    assert set(common) == set(Options.model_fields)
    found = read(spec(backend, **common), Options)
    assert {name: getattr(found, name) for name in common} == common


@pytest.mark.parametrize("backend", sorted(set(MODELS) - {"planted", "planted-people"}))
def test_an_unknown_option_is_named_with_the_valid_ones(backend: str) -> None:
    """A LoRA adapter, which an engine would ignore."""
    with pytest.raises(RegistryError) as told:
        read(spec(backend, adapter_of="owner/name", chunk_timeout=-1), Options)
    names = ", ".join(sorted(MODELS[backend].model_fields))
    said = f"registry/models/m.yaml: unknown option 'adapter_of'; valid: {names}"
    assert str(told.value) == said


@pytest.mark.parametrize(
    ("backend", "name", "value", "valid"),
    [
        ("hf", "max_images", 1.0, "a whole number from 1 on: pictures"),
        ("hf", "max_images", True, "a whole number from 1 on: pictures"),
        ("hf", "max_images", 0, "a whole number from 1 on: pictures"),
        ("hf", "max_images", None, "a whole number from 1 on: pictures"),
        ("hf", "share_prefix", "no", "true or false: whether"),
        ("hf", "device_map", "cuda:0", "auto, balanced, sequential: how"),
        ("hf", "num_gpus", 0.5, "a whole number from 0 on: GPUs"),
        ("hf", "processor", {"a": datetime.date(2026, 1, 1)}, "a mapping such as {max_pixels: "),
        ("hf", "template", {"system": 3}, "a mapping such as {enable_thinking: false}: "),
        ("hf", "template", {"rate": float("nan")}, "a mapping such as"),
        ("vllm", "gpu_memory_utilization", 1.2, "a number above 0 and up to 1: share"),
        ("vllm", "enforce_eager", "yes", "true or false: "),
        ("vllm", "kv_cache_gib", 0, "a number above 0"),
        ("vllm", "max_model_len", 512.0, "a whole number from 1 on: "),
        ("vllm", "quantization", True, ""),
        ("vllm", "suites", "sdg", "a list such as [sdg, people]: suites"),
        ("api", "spellings", 101, "a whole number from 1 to 100: how many"),
        ("api", "temperature", False, "0, default: "),
        ("api", "body", {"n": 2}, "a mapping such as {seed: 1}: further fields"),
        ("api", "backoff", -1, "a number from 0 on: seconds"),
        ("text-encoder", "kind", "bert", "clip, t5: what kind"),
    ],
)
def test_a_bad_value_names_file_option_and_what_is_valid(
    backend: str, name: str, value: object, valid: str
) -> None:
    with pytest.raises(RegistryError) as told:
        read(spec(backend, **{name: value}), Options)
    line = f"registry/models/m.yaml: {name} is {value!r}; valid: {valid}"
    assert str(told.value).startswith(line) and "\n" not in str(told.value)


def test_an_option_that_is_missing() -> None:
    bare = ModelSpec("m", "M", "text-encoder", "r", "local", "enabled")
    with pytest.raises(RegistryError, match="option kind is missing; valid: clip, t5: "):
        read(bare, TextEncoderOptions)


def test_values_are_kept_as_they_are() -> None:
    """They are part of fingerprints."""
    given = {"max_pixels": 200704, "mean": [0.5, 1, None], "split": False, "ratio": 1.0}
    found = read(spec("hf", processor=given, template={"n": 1, "x": 1.5, "on": True}), HfOptions)
    assert repr(found.processor) == repr(given)
    assert repr(found.template.model_extra) == "{'n': 1, 'x': 1.5, 'on': True}"


def test_an_option_is_checked_before_anything_is_loaded() -> None:
    with pytest.raises(RegistryError, match="unknown option 'max_len'"):
        engines.load(spec("hf", max_len=5), Path())


@pytest.mark.parametrize("model", dict.fromkeys(MODELS.values()), ids=lambda model: model.__name__)
def test_every_option_says_what_it_means_in_one_line(model: type[Options]) -> None:
    for about in schema(model).values():
        assert len(about["description"]) > 10 and "\n" not in about["description"]


def test_the_engines_of_one_model_take_the_same_template_and_processor() -> None:
    given = {"template": {"system": "Be brief."}, "processor": {"max_pixels": 9}}
    one, two = read(spec("hf", **given), HfOptions), read(spec("vllm", **given), VllmOptions)
    assert (one.template, one.processor) == (two.template, two.processor)
