"""The options of entries: what each backend takes; what none takes: test_refusals.py."""

from __future__ import annotations

from typing import Any

import pytest

from sdgbias.engines.options import (
    MODELS,
    ApiOptions,
    HfOptions,
    Options,
    VllmOptions,
    read,
    schema,
)
from sdgbias.registry.spec import ModelSpec

NEEDED: dict[str, dict[str, Any]] = {
    "api": {"api_key_env": "KEY", "base_url": "https://example.org/v1"},
    "text-encoder": {"kind": "clip"},
}


def spec(backend: str, **options: Any) -> ModelSpec:
    given = {**NEEDED.get(backend, {}), **options}
    return ModelSpec("m", "M", backend, "local:nowhere", "local", "enabled", options=given)


@pytest.mark.parametrize("backend", MODELS)
def test_every_backend_takes_the_common_options(backend: str) -> None:
    common = {"chunk_timeout": 60, "gpu": "h100", "num_gpus": 2, "parity": ["vllm"]}
    common |= {"suites": ["sdg", "people"]}
    assert set(common) == set(Options.model_fields)
    found = read(spec(backend, **common), Options)
    assert {name: getattr(found, name) for name in common} == common


@pytest.mark.parametrize("backend", ["hf", "vllm"])
def test_values_are_kept_as_they_are(backend: str) -> None:
    """They are part of fingerprints, and the engines of one model take the same."""
    given = {"max_pixels": 200704, "mean": [0.5, 1, None], "split": False, "ratio": 1.0}
    kind = {"hf": HfOptions, "vllm": VllmOptions}[backend]
    found = read(spec(backend, processor=given, template={"n": 1, "x": 1.5, "on": True}), kind)
    assert repr(found.processor) == repr(given)
    assert repr(found.template.model_extra) == "{'n': 1, 'x': 1.5, 'on': True}"


@pytest.mark.parametrize("url", ["https://example.org/v1/", "http://localhost:1", "http://[::1]:1"])
def test_https_and_loopback_are_addresses(url: str) -> None:
    assert read(spec("api", base_url=url), ApiOptions).base_url == url.rstrip("/")


@pytest.mark.parametrize("model", dict.fromkeys(MODELS.values()), ids=lambda model: model.__name__)
def test_every_option_says_what_it_means_in_one_line(model: type[Options]) -> None:
    for about in schema(model).values():
        assert len(about["description"]) > 10 and "\n" not in about["description"]
