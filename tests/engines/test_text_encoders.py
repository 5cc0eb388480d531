"""CLIP's text tower and sentence T5 as encoders: what they read, unit rows, no influence of
neighbours, plain errors."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import CLIPModel, T5EncoderModel
from typer.testing import CliRunner

from sdgbias import cli, engines, store
from sdgbias.benchmark.people import build_people
from sdgbias.engines.hf import text_encoders
from sdgbias.engines.hf.text_encoders import ClipText, SentenceT5
from sdgbias.errors import InfrastructureError, ModelError, RegistryError
from sdgbias.methods.labels import encode
from sdgbias.raw.facet import SELECTED
from sdgbias.raw.synthetic.schematic_people import write_people_sample
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import evaluate
from tests.builders.tiny_clip import byte_tokenizer, save_clip, save_t5

TEXTS = ["nurse", "a person who plays the guitar on a stage", "x", "Die Gärtnerin", "nurse"]


def spec(folder: Path, kind: object = "clip", **change: object) -> ModelSpec:
    entry = ModelSpec(
        "enc",
        "Enc",
        "text-encoder",
        f"path:{folder}",
        "local",
        "enabled",
        batch_size=2,
        notes="a test's",
        options={"kind": kind},
    )
    return replace(entry, **change)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_t5(tmp_path_factory.mktemp("t5"))


@pytest.mark.parametrize(("kind", "width"), [("clip", 8), ("t5", 6)])
def test_rows_have_length_one_and_no_neighbours(
    kind: str, width: int, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    encoder = text_encoders.load(spec(folder, kind), Path())
    found = encoder.embed(TEXTS)
    assert encoder.name == kind and found.shape == (5, width) and found.dtype == np.float32
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(5), abs=1e-6)
    assert np.abs(found[0] - found[1]).max() > 0.01, "different texts are different rows"
    for size in (1, 5):
        other = text_encoders.load(spec(folder, kind, batch_size=size), Path()).embed(TEXTS[::-1])[
            ::-1
        ]
        assert np.abs(other - found).max() < 1e-5
    assert encoder.embed([]).shape == (0, width)


def test_clip_is_the_text_tower_of_the_whole_model(clip: Path) -> None:
    whole = CLIPModel.from_pretrained(clip)
    ids = byte_tokenizer()("a photo of a nurse", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        vector = whole.get_text_features(input_ids=ids).pooler_output[0].numpy()
    assert ClipText(spec(clip), Path()).embed(["nurse"])[0] == pytest.approx(
        vector / np.linalg.norm(vector), abs=1e-5
    )


def test_clip_reads_fifty_words_of_an_answer_behind_the_phrase(clip: Path) -> None:
    words = [f"w{i}" for i in range(60)]
    assert ClipText.phrase(" ".join(words)) == "a photo of a " + " ".join(words[:50])
    assert ClipText.phrase("a photo of a nurse") == ClipText.phrase("nurse") == "a photo of a nurse"
    encoder = ClipText(spec(clip), Path())
    short, same, other = encoder.embed(
        [" ".join(words[:50]), " ".join(words), " ".join(["v", *words[1:]])]
    )
    assert np.array_equal(short, same) and np.abs(short - other).max() > 1e-4


def test_a_text_that_is_too_long_for_the_tower_is_cut(tmp_path: Path) -> None:
    encoder = ClipText(spec(save_clip(tmp_path, positions=24)), Path())
    assert encoder.embed(["nurse " * 40]).shape == (1, 8)


def test_t5_is_the_mean_over_the_text_through_the_dense_layer(t5: Path) -> None:
    ids = byte_tokenizer()("a nurse", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        pooled = T5EncoderModel.from_pretrained(t5)(input_ids=ids).last_hidden_state[0].mean(0)
        vector = (load_file(t5 / "2_Dense" / "model.safetensors")["linear.weight"] @ pooled).numpy()
    assert SentenceT5(spec(t5, "t5"), Path()).embed(["a nurse"])[0] == pytest.approx(
        vector / np.linalg.norm(vector), abs=1e-5
    )


def test_t5_without_a_dense_layer_is_the_mean(tmp_path: Path) -> None:
    plain = SentenceT5(spec(save_t5(tmp_path, dense=False), "t5"), Path())
    assert plain.embed(["a nurse"]).shape == (1, 16)


def test_fingerprint_hangs_on_weights_and_on_the_dense_layer(
    clip: Path, t5: Path, tmp_path: Path
) -> None:
    other = SentenceT5(spec(Path(shutil.copytree(t5, tmp_path / "other")), "t5"), Path())
    first = SentenceT5(spec(t5, "t5"), Path())
    assert other.fingerprint == first.fingerprint and len(first.fingerprint) == 16
    dense = tmp_path / "other" / "2_Dense" / "model.safetensors"
    data = bytearray(dense.read_bytes())
    data[-1] ^= 1
    dense.write_bytes(data)
    assert SentenceT5(spec(tmp_path / "other", "t5"), Path()).fingerprint != first.fingerprint
    assert ClipText(spec(clip), Path()).fingerprint != first.fingerprint


def test_an_answer_is_read_by_its_nearest_class(clip: Path) -> None:
    """Weights are random, so only the form is checked: a label of the list with its cosine, or
    unparsed below the floor."""
    encoder = ClipText(spec(clip), Path())
    near, far = (
        encode(["infirmière"], SELECTED, encoder, floor=floor)[0] for floor in (-1.0, 1.01)
    )
    assert near.name in SELECTED and near.how == "cosine" and -1 <= near.similarity <= 1
    assert (far.name, far.how, far.similarity) == ("", "unparsed", near.similarity)


def test_a_dense_layer_that_is_a_pickle_or_unknown_is_refused(t5: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(t5, tmp_path / "t5"))
    settings = folder / "2_Dense" / "config.json"
    said = json.loads(settings.read_text())
    settings.write_text(
        json.dumps({**said, "activation_function": "torch.nn.modules.activation.Tanh"})
    )
    with pytest.raises(ModelError, match="Tanh; known: Identity"):
        SentenceT5(spec(folder, "t5"), Path())
    settings.write_text(json.dumps({**said, "out_features": 7}))
    with pytest.raises(ModelError, match="don't fit"):
        SentenceT5(spec(folder, "t5"), Path())
    settings.write_text(json.dumps(said))
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickles are never loaded"):
        SentenceT5(spec(folder, "t5"), Path())


def test_weights_that_are_missing_are_not_drawn_at_random(
    clip: Path, t5: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        ModelError, match=r"lacks \d+ of the weights of a CLIPTextModelWithProjection"
    ):
        ClipText(spec(t5), Path())
    folder = Path(shutil.copytree(clip, tmp_path / "clip"))
    state = load_file(folder / "model.safetensors")
    del state["text_projection.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 of the weights .*text_projection"):
        ClipText(spec(folder), Path())
    shutil.copy(clip / "model.safetensors", folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["projection_dim"] = 9
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="^enc: ") as caught:
        ClipText(spec(folder), Path())
    assert "\n" not in str(caught.value)


def test_entries_that_are_no_encoder(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RegistryError, match="kind is 'bert'; valid: clip, t5"):
        text_encoders.load(spec(clip, "bert"), Path())
    with pytest.raises(RegistryError, match="backend is hf"):
        text_encoders.load(spec(clip, backend="hf"), Path())
    with pytest.raises(RegistryError, match="no model to score"):
        engines.load(spec(clip), Path())
    with pytest.raises(ModelError, match=r"no config\.json"):
        text_encoders.load(spec(clip / "nowhere"), Path())

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network\nand more")

    monkeypatch.setattr("transformers.CLIPTextModelWithProjection.from_pretrained", refuse)
    with pytest.raises(InfrastructureError, match="can't load owner/m: no network$"):
        text_encoders.load(spec(clip, repo="owner/m", revision="0" * 40), Path())


def test_floor_is_the_entrys_or_nobodys(clip: Path, t5: Path) -> None:
    assert text_encoders.load(spec(clip), Path()).floor is None
    assert (
        text_encoders.load(spec(t5, "t5", options={"kind": "t5", "floor": 0.8}), Path()).floor
        == 0.8
    )
    for wrong in (1.2, "high", True):
        with pytest.raises(
            RegistryError, match="floor is .*; valid: a number from -1 to 1: a cosine"
        ):
            text_encoders.load(spec(clip, options={"kind": "clip", "floor": wrong}), Path())


def test_people_read_takes_an_encoder_of_the_registry(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encoder without a floor is calibrated; its reading stands beside the packaged one's."""
    write_people_sample(tmp_path / "raw", 8, 3)
    build_people(tmp_path / "raw", tmp_path / "b")
    planted = ModelSpec(
        "p",
        "P",
        "planted-people",
        "planted:people",
        "1",
        "enabled",
        options={"oracle": str(tmp_path / "b"), "ramblings": 0.5},
    )
    evaluate.evaluate(planted, tmp_path, tmp_path / "b", tmp_path / "r.duckdb")
    entries = tmp_path / "registry" / "models"
    entries.mkdir(parents=True)
    entry = {
        "name": "enc",
        "title": "Enc",
        "backend": "text-encoder",
        "repo": f"path:{clip}",
        "revision": "local",
        "state": "enabled",
        "notes": "a test's",
    }
    for name, options in (("enc", {"kind": "clip"}), ("strict", {"kind": "clip", "floor": 1.0})):
        text = yaml.safe_dump(entry | {"name": name, "options": options})
        (entries / f"{name}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(tmp_path))

    def run(*command: str) -> str:
        return (
            CliRunner()
            .invoke(cli.app, ["analyse", "--encoder", *command], catch_exceptions=False)
            .stdout
        )

    results = ("--results", str(tmp_path / "r.duckdb"))
    assert "answers of 1 runs read by clip, floor" in run("enc", *results)
    assert "floor 1. Next: sdgbias" in run("strict", *results)
    counts = [
        len(store.query(tmp_path / "r.duckdb", "FROM metrics WHERE method = ?", [m]))
        for m in ("full", "full:clip")
    ]
    assert counts[1] == counts[0] + 3, "the same metrics of p1, p2 and p3, and the floor of each"
