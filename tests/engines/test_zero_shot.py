"""The fairness paper's baselines, which choose a label (CLIP by similarity, ViT by its head), and
its text encoders, which read answers. What a baseline can't answer is refused, never wrong."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPModel, T5EncoderModel, ViTForImageClassification
from typer.testing import CliRunner

from sdgbias import cli, engines, store
from sdgbias.benchmark.people import PeopleDraw, build_people
from sdgbias.benchmark.people_items import CHOICES, P1, class_list
from sdgbias.engines.hf.zero_shot import VitZeroShot, labels_of, packaged_labels, text_encoder
from sdgbias.errors import ModelError, NotAnswerable
from sdgbias.methods.labels import encode
from sdgbias.raw.facet import CLASSES, SELECTED
from sdgbias.raw.synthetic.schematic_people import write_people_sample
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import evaluate
from sdgbias.types import Prompt
from tests.builders.pictures import noise
from tests.builders.refusals import Refusal
from tests.builders.tiny_clip import byte_tokenizer, save_clip, save_t5, save_vit

HEAD = ["ballplayer, baseball player", "groom, bridegroom", "scuba diver", "tench"]
LABELS = {"ballplayer": HEAD[0], "nurse": [HEAD[1], HEAD[2]]}
CHOICE = Prompt(CHOICES["p2"].format(name="nurse"), "ABC", (noise(0),), "p0")
TEXTS = ["nurse", "a person who plays the guitar on a stage", "x", "Die G\u00e4rtnerin", "nurse"]


def direct(seed: int, names: str = "", pictures: int = 1) -> Prompt:
    shown = tuple(noise(seed + i) for i in range(pictures))
    return Prompt(P1.format(list=names or class_list()), "", shown, f"p{seed}")


def spec(folder: Path, backend: str, **options: Any) -> ModelSpec:
    entry = ModelSpec("zs", "ZS", backend, f"path:{folder}", "local", "enabled", options=options)
    return replace(entry, batch_size=2, notes="a test's")


def encoder(folder: Path, kind: str, **options: Any) -> Any:
    return text_encoder(spec(folder, "text-encoder", kind=kind, **options), Path())


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vit(tmp_path_factory.mktemp("vit"), HEAD)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_t5(tmp_path_factory.mktemp("t5"))


def unit(vector: torch.Tensor) -> np.ndarray:
    return (vector / vector.norm(dim=-1, keepdim=True)).numpy()


# ----------------------------------------------------------------------
# baselines


def test_labels_are_the_prompts_list() -> None:
    assert labels_of(direct(0)) == CLASSES
    turned = labels_of(direct(0, class_list(3)))
    assert turned != CLASSES and sorted(turned) == sorted(CLASSES)
    for text in (CHOICE.text, "which? [nurse]", "which? [nurse, ]", "which? []"):
        with pytest.raises(NotAnswerable, match="not a question that this model can answer"):
            labels_of(Prompt(text, ""))


@torch.no_grad()
def test_clip_says_the_label_that_is_most_similar_whatever_stands_beside(clip: Path) -> None:
    engine: Any = engines.load(spec(clip, "clip-zero-shot"), Path())
    whole, tokens = CLIPModel.from_pretrained(clip), byte_tokenizer()
    lists = ["", "nurse, singer", "", "singer, nurse", ""]
    prompts = [direct(at, names) for at, names in enumerate(lists)]
    answers = engine.generate(prompts, [""], 8).texts
    for prompt, [answer] in zip(prompts, answers, strict=True):
        names = labels_of(prompt)
        read = [f"a photo of a {name.replace('_', ' ')}" for name in names]
        ids = tokens(read, padding=True, return_tensors="pt")
        pair = {name: ids[name] for name in ("input_ids", "attention_mask")}
        labels = whole.get_text_features(**pair).pooler_output
        shown = [Image.open(io.BytesIO(prompt.images[0]))]
        pixels = engine.images(images=shown, return_tensors="pt")["pixel_values"]
        picture = whole.get_image_features(pixel_values=pixels).pooler_output
        assert answer == names[int(torch.cosine_similarity(picture, labels).argmax())]
        assert engine.generate([prompt], [""], 8).texts == [[answer]]
    assert len({answer for [answer] in answers}) > 1, "pictures differ, so the answers should"


@torch.no_grad()
def test_vit_adds_up_the_outputs_of_a_label(vit: Path) -> None:
    engine = VitZeroShot(spec(vit, "vit-zero-shot", labels=LABELS), Path())
    pictures = [Image.open(io.BytesIO(noise(i))) for i in range(6)]
    found = engine.scores(pictures, ("nurse", "ballplayer", "singer")).exp().numpy()
    pixels = engine.images(images=pictures, return_tensors="pt")["pixel_values"]
    plain = ViTForImageClassification.from_pretrained(vit)(pixel_values=pixels)
    shares = plain.logits.double().softmax(-1).numpy()
    assert found[:, 0] == pytest.approx(shares[:, 1] + shares[:, 2], abs=1e-6)
    assert found[:, 1] == pytest.approx(shares[:, 0], abs=1e-6) and (found[:, 2] == 0).all()
    answers = [texts[0] for texts in engine.generate([direct(i) for i in range(6)], [""], 8).texts]
    assert answers == ["nurse" if a > b else "ballplayer" for a, b, _ in found]
    other = VitZeroShot(spec(vit, "vit-zero-shot", labels={"nurse": HEAD[3]}), Path())
    assert other.fingerprint != engine.fingerprint


UNANSWERABLE: dict[str, Callable[[Any], Any]] = {
    "scores": lambda engine: engine.candidate_scores([CHOICE]),
    "no list": lambda engine: engine.generate([CHOICE], [""], 8),
    "no picture": lambda engine: engine.generate([direct(0, pictures=0)], [""], 8),
    "two pictures": lambda engine: engine.generate([direct(0, pictures=2)], [""], 8),
    "forced starts": lambda engine: engine.generate([direct(0)], ["", "7"], 8),
    "other labels": lambda engine: engine.generate([direct(0, "singer, dancer")], [""], 8),
}


@pytest.mark.parametrize("ask", UNANSWERABLE.values(), ids=UNANSWERABLE)
def test_what_it_cannot_answer_is_refused(
    ask: Callable[[Any], Any], vit: Path, refusal: Refusal
) -> None:
    engine = engines.load(spec(vit, "vit-zero-shot", labels=LABELS), Path())
    assert engine.forces_starts is False
    with refusal():
        ask(engine)


def test_a_map_that_does_not_fit_the_head_is_refused(vit: Path, refusal: Refusal) -> None:
    with refusal("packaged"):
        engines.load(spec(vit, "vit-zero-shot"), Path())
    with refusal("of the entry"):
        engines.load(spec(vit, "vit-zero-shot", labels={"nurse": "nobody"}), Path())


def test_a_run_is_finished_though_some_questions_cannot_be_asked(
    clip: Path, vit: Path, tmp_path: Path
) -> None:
    """p2 and p3 are no questions for CLIP: they are none of the failures, and the next start has
    nothing to do."""
    write_people_sample(tmp_path / "raw", 6, 3)
    build_people(tmp_path / "raw", tmp_path / "b")
    asked = pd.read_parquet(tmp_path / "b" / "prompts.parquet")
    results, entry = tmp_path / "r.duckdb", spec(clip, "clip-zero-shot")
    first = evaluate.evaluate(entry, tmp_path, tmp_path / "b", results)
    choice = asked[asked["task"] == "choice"]
    refused = len(choice) + choice["text"].nunique()  # each with its picture, and once without
    counts = (first.planned, first.scored, first.failed, first.unanswerable)
    assert counts == (len(asked) - len(choice), 6, 0, refused)
    [run] = store.query(results, "FROM runs").to_dict("records")
    assert run["n_scored"] + run["n_cached"] + run["n_failed"] == run["n_prompts_planned"] == 6
    kinds = store.query(results, "SELECT kind, count(*) AS n FROM failures GROUP BY kind")
    assert kinds.to_dict("records") == [{"kind": "NotAnswerable", "n": refused}]
    answered = store.query(results, "SELECT test FROM predictions")["test"]
    assert set(answered) == {"p1"}, "what can't be asked is not wrong"
    again = evaluate.evaluate(entry, tmp_path, tmp_path / "b", results)
    assert again == replace(first, scored=0, cached=6, published=False)
    stranger = replace(spec(vit, "vit-zero-shot", labels={"pilot": HEAD[0]}), name="stranger")
    with pytest.raises(ModelError, match="can't answer any question .* out of its options.suites"):
        evaluate.evaluate(stranger, tmp_path, tmp_path / "b", results)


def test_the_packaged_map_is_of_the_52_classes_and_asks_about_no_other(tmp_path: Path) -> None:
    packaged = packaged_labels()
    assert set(packaged) < set(CLASSES) and "nurse" not in packaged
    assert packaged["ballplayer"] == ["ballplayer, baseball player", "baseball"]
    outputs = [name for names in packaged.values() for name in names]
    assert len(outputs) == len(set(outputs))
    folder = save_vit(tmp_path / "vit", ["tench", *outputs])
    write_people_sample(tmp_path / "raw", 40, 3)
    build_people(tmp_path / "raw", tmp_path / "b", draw=PeopleDraw(negatives=False))
    people = pd.read_parquet(tmp_path / "b" / "people.parquet")
    known = people[people["class1"].isin(list(packaged))]
    assert 0 < len(known) < len(people)
    results = tmp_path / "r.duckdb"
    found = evaluate.evaluate(spec(folder, "vit-zero-shot"), tmp_path, tmp_path / "b", results)
    assert (found.planned, found.failed) == (len(known), 0)
    sql = "SELECT p.person_id FROM predictions JOIN people p USING (item_id)"
    assert sorted(store.query(results, sql)["person_id"]) == sorted(known["person_id"])


# ----------------------------------------------------------------------
# text encoders


@torch.no_grad()
def clip_by_hand(folder: Path) -> torch.Tensor:
    ids = byte_tokenizer()("a photo of a nurse", return_tensors="pt")["input_ids"]
    return CLIPModel.from_pretrained(folder).get_text_features(input_ids=ids).pooler_output[0]


@torch.no_grad()
def t5_by_hand(folder: Path) -> torch.Tensor:
    ids = byte_tokenizer()("nurse", return_tensors="pt")["input_ids"]
    states = T5EncoderModel.from_pretrained(folder)(input_ids=ids).last_hidden_state[0]
    dense = load_file(folder / "2_Dense" / "model.safetensors")["linear.weight"]
    return dense @ states.mean(0)


@pytest.mark.parametrize(("kind", "by_hand"), [("clip", clip_by_hand), ("t5", t5_by_hand)])
def test_rows_are_those_of_the_bare_model_of_length_one_whatever_stands_beside(
    kind: str, by_hand: Callable[[Path], torch.Tensor], request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    tower = encoder(folder, kind)
    rows, turned = tower.embed(TEXTS), tower.embed(TEXTS[::-1])[::-1]
    assert rows[0] == pytest.approx(unit(by_hand(folder)), abs=1e-5)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(5), abs=1e-6)
    assert np.abs(turned - rows).max() < 1e-5 and tower.embed([]).shape == (0, rows.shape[1])


def test_clip_reads_fifty_words_of_an_answer_and_no_more_than_its_tower(
    clip: Path, tmp_path: Path
) -> None:
    words = [f"w{i}" for i in range(60)]
    texts = [" ".join(words[:50]), " ".join(words), " ".join(["v", *words[1:]])]
    texts += ["nurse", "a photo of a nurse"]
    short, same, other, bare, phrase = encoder(clip, "clip").embed(texts)
    assert short == pytest.approx(same, abs=1e-5) and np.abs(short - other).max() > 1e-4
    assert bare == pytest.approx(phrase, abs=1e-5)
    assert encoder(save_clip(tmp_path, positions=24), "clip").embed(["nurse " * 40]).any()


def test_the_fingerprint_follows_the_dense_layer(t5: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(t5, tmp_path / "other"))
    first = encoder(t5, "t5").fingerprint
    assert encoder(other, "t5").fingerprint == first
    path = other / "2_Dense" / "model.safetensors"
    save_file({name: value + 1 for name, value in load_file(path).items()}, path)
    assert encoder(other, "t5").fingerprint != first
    plain = encoder(save_t5(tmp_path / "plain", dense=False), "t5")
    assert plain.embed(["a nurse"]).shape == (1, 16), "without one, the mean"


def test_what_is_no_encoder_is_refused(
    clip: Path, t5: Path, tmp_path: Path, refusal: Refusal
) -> None:
    pickled = Path(shutil.copytree(t5, tmp_path / "pickled"))
    (pickled / "2_Dense" / "model.safetensors").rename(pickled / "2_Dense" / "pytorch_model.bin")
    torn = Path(shutil.copytree(clip, tmp_path / "torn"))
    state = load_file(torn / "model.safetensors")
    del state["text_projection.weight"]
    save_file(state, torn / "model.safetensors", metadata={"format": "pt"})
    for name, folder, options in (
        ("another kind", clip, {"kind": "bert"}),
        ("no kind", clip, {}),
        ("a floor above 1", clip, {"kind": "clip", "floor": 1.2}),
        ("a pickled layer", pickled, {"kind": "t5"}),
        ("a projection that is missing", torn, {"kind": "clip"}),
    ):
        with refusal(name):
            text_encoder(spec(folder, "text-encoder", **options), Path())
    with refusal("another backend"):
        text_encoder(spec(clip, "hf"), Path())


def test_people_read_takes_an_encoder_of_the_registry(
    clip: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a floor one is calibrated; its reading stands beside the packaged one."""
    tower = encoder(clip, "clip", floor=0.8)
    near, far = (encode(["x"], SELECTED, tower, floor=floor)[0] for floor in (-1.0, 1.01))
    assert tower.floor == 0.8 and near.name in SELECTED and near.how == "cosine"
    assert (far.name, far.how, far.similarity) == ("", "unparsed", near.similarity)
    write_people_sample(root / "raw", 8, 3)
    build_people(root / "raw", root / "b")
    options = {"oracle": str(root / "b"), "ramblings": 0.5}
    planted = replace(spec(clip, "planted-people", **options), repo="planted:people", revision="1")
    results = root / "r.duckdb"
    evaluate.evaluate(planted, root, root / "b", results)
    entry = {"title": "Enc", "backend": "text-encoder", "repo": f"path:{clip}", "notes": "a test's"}
    entry |= {"revision": "local", "state": "enabled"}
    for name, given in (("enc", {"kind": "clip"}), ("strict", {"kind": "clip", "floor": 1.0})):
        text = yaml.safe_dump({**entry, "name": name, "options": given})
        (root / "registry" / "models" / f"{name}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))

    def read(name: str) -> str:
        command = ["analyse", "--encoder", name, "--results", str(results)]
        return CliRunner().invoke(cli.app, command, catch_exceptions=False).stdout

    assert "answers of 1 run read by clip, floor" in read("enc")
    assert "floor 1. Next: sdgbias" in read("strict")
    sql = "SELECT method, count(*) AS n FROM metrics GROUP BY method"
    counts = store.query(results, sql).set_index("method")["n"]
    assert counts["full:clip"] == counts["full"] + 3, "and the floor of each question"
