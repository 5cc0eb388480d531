"""The id of a run hangs on whatever the results can depend on, and on nothing else."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdgbias.engines import fingerprint
from sdgbias.errors import ModelError
from sdgbias.methods import protocol, stats
from sdgbias.methods.labels import LetterGrams
from sdgbias.registry import weights
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import run_id as of_runs
from sdgbias.scoring.run_id import run_id
from sdgbias.suites import SUITES, EvalSettings, facet, sdg
from sdgbias.types import FACET, IMAGE_FREE, SDG, Task

SUITE = SUITES[SDG]
FILES = (
    *("config.json", "model.safetensors", "additional_chat_templates/tool.jinja"),
    *("qformer_tokenizer/tokenizer.json", "chat_template.jinja", "generation_config.json"),
    *("processor_config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer.model"),
    *("merges.txt", "qwen.tiktoken", "modeling_own.py"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1")
    return folder


@pytest.fixture
def spec(folder: Path) -> ModelSpec:
    return ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled")


def of(spec: ModelSpec, **settings: Any) -> str:
    return run_id(spec, Path(), "b1", SUITE, EvalSettings(**settings))


def test_each_setting_of_an_evaluation_makes_another_run(spec: ModelSpec) -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"seed": 1},
        {"draws": 5},
        {"numerics": "reference"},
        {"mode": "continue"},
        {"passes": ("paraphrases",)},
        {"search": "exact"},
    ]
    ids = {of(spec, **one) for one in settings}
    assert len(ids) == len(settings) and of(spec) in ids and of(spec).startswith("m-")
    identities = [SUITE.identity(EvalSettings(**one)) for one in settings]
    assert json.loads(json.dumps(identities)) == identities, "an id is made of JSON values"


PLACED = {"options": {"gpu": "h100", "chunk_timeout": 5, "suites": [SDG]}}
ANOTHER: list[dict[str, Any]] = [
    {"dtype": "bfloat16"},
    {"trust_remote_code": True},
    {"backend": "vit-zero-shot"},
    {"views": IMAGE_FREE},
    {"max_new_tokens": {"mcq": 32}},
    {"options": {"processor": {"max_pixels": 1}}},
    {"options": {"template": {"system": "Be brief."}}},
]
EQUAL = [{"title": "x"}, {"state": "retired"}, {"reason": "x"}, {"notes": "x"}, {"licence": "x"}]


@pytest.mark.parametrize(
    ("changed", "another"),
    [
        *((one, True) for one in ANOTHER),
        *((one, False) for one in (*EQUAL, PLACED, {"batch_size": 3})),
    ],
)
def test_what_a_score_depends_on_makes_another_run_and_nothing_else_does(
    spec: ModelSpec, changed: Any, another: bool
) -> None:
    assert (of(replace(spec, **changed)) != of(spec)) is another


@pytest.mark.parametrize("library", ["torch", "transformers", "pillow", "the engine"])
def test_another_version_makes_another_run(
    spec: ModelSpec, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    before, versions = of(spec), fingerprint.versions(None, library)
    if library == "the engine":
        monkeypatch.setitem(fingerprint.VERSIONS, "hf", "hf-next")
    else:
        assert versions[library][0].isdigit() and "+" not in versions[library]
        monkeypatch.setattr(of_runs, "versions", lambda python, *names: {library: "99"})
    assert of(spec) != before


@pytest.mark.parametrize(
    ("place", "name", "value", "others"),
    [
        (facet, "ANALYSIS", "next", {FACET}),
        (LetterGrams, "floor", 0.7, {FACET}),
        (LetterGrams, "name", "letter-grams-2", {FACET}),
        (stats, "SMALLEST", 30, {FACET}),
        (sdg, "ANALYSIS", "next", {SDG}),
        (protocol, "SEARCH_SHARE", 0.3, {SDG}),
        (protocol, "FINALISTS", 50, {SDG}),
        (stats, "LEVEL", 0.9, {SDG, FACET}),
        *((protocol.RANGES, task, ((0.0, 9.0),) * 4, {SDG}) for task in Task),
    ],
)
def test_a_version_or_constant_of_a_suite_makes_other_runs_of_that_suite(
    spec: ModelSpec,
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    name: str,
    value: object,
    others: set[str],
) -> None:
    def ids(**settings: Any) -> dict[str, str]:
        asked = EvalSettings(**settings)
        return {name: run_id(spec, Path(), "b1", SUITES[name], asked) for name in (SDG, FACET)}

    before = ids()
    if isinstance(place, dict):
        monkeypatch.setitem(place, name, value)
    else:
        assert value != getattr(place, name)
        monkeypatch.setattr(place, name, value)
    after = ids()
    assert {name for name in before if before[name] != after[name]} == others


def test_settings_count_for_the_suites_that_depend_on_them(spec: ModelSpec) -> None:
    settings: list[dict[str, Any]] = [{}, {"draws": 5}, {"passes": ("table_j",)}, {"seed": 1}]
    default, draws, passes, seed = (
        run_id(spec, Path(), "b1", SUITES[FACET], EvalSettings(**one)) for one in settings
    )
    assert draws == passes == default != seed


def test_the_port_of_an_endpoint_on_this_machine_makes_no_other_run() -> None:
    options = {"api_key_env": "K", "model": "tiny"}

    def at(url: str, **more: object) -> str:
        named = options | {"base_url": url} | more
        return of(ModelSpec("m", "M", "api", "s/m", "1", "enabled", options=named))

    assert at("http://127.0.0.1:1/v1") == at("http://127.0.0.1:2/v1", concurrency=2)
    elsewhere = {at("https://a.org/v1"), at("https://b.org/v1"), at("https://a.org/v1", model="x")}
    assert len({at("http://127.0.0.1:1/v1"), *elsewhere}) == 4


def test_every_file_of_the_weights_counts_also_in_subfolders_and_no_other(
    spec: ModelSpec, folder: Path
) -> None:
    before = of(spec)
    for name in FILES:
        (folder / name).write_text("2")
        assert of(spec) != before, name
        (folder / name).write_text("1")
    for name in ("notes.md", ".cache/download.json", "checkpoint.bin"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not read by an engine")
    assert of(spec) == before


def test_files_are_read_once_unless_they_were_just_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a file that was just written may not show its next change."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = weights.folder_digest(folder)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(weights, "RACE", -1.0)
    assert weights.folder_digest(folder) == first
    with monkeypatch.context() as patch:
        patch.setattr(weights, "read_digest", lambda *_: pytest.fail("read again"))
        assert weights.folder_digest(folder) == first
    for kept in (tmp_path / "cache/sdgbias").iterdir():
        kept.write_text("half a dig")
    assert weights.folder_digest(folder) == first, "a torn file of the cache is made anew"
    os.utime(folder / "config.json", ns=(1, time.time_ns()))
    assert weights.folder_digest(folder) == first


def test_other_weights_than_the_registered_ones_are_refused(spec: ModelSpec, folder: Path) -> None:
    pinned = replace(spec, revision=weights.folder_digest(folder)[:40])
    assert of(pinned) == of(spec), "the same files are the same run, pinned or not"
    (folder / "model.safetensors").write_text("others")
    with pytest.raises(ModelError, match=r"other files than.*register-model .*--overwrite"):
        of(pinned)
    assert of(spec), "a folder without a pinned revision is what it holds"
