"""The baselines that choose a label: CLIP by similarity, ViT by its head. What they can't answer is
refused, never wrong."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image
from transformers import CLIPModel, ViTForImageClassification

from sdgbias import engines, store
from sdgbias.benchmark.people import PeopleDraw, build_people
from sdgbias.benchmark.people_items import CHOICES, P1, class_list
from sdgbias.engines.hf.zero_shot import ClipZeroShot, VitZeroShot, labels_of, packaged_labels
from sdgbias.errors import ModelError, NotAnswerable, RegistryError
from sdgbias.raw.facet import CLASSES
from sdgbias.raw.synthetic.schematic_people import write_people_sample
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring import evaluate
from sdgbias.types import Prompt
from tests.builders.pictures import noise
from tests.builders.tiny_clip import byte_tokenizer, save_clip, save_vit

HEAD = ["ballplayer, baseball player", "groom, bridegroom", "scuba diver", "tench"]
LABELS = {"ballplayer": HEAD[0], "nurse": [HEAD[1], HEAD[2]]}


def direct(seed: int, names: str = "", pictures: int = 1) -> Prompt:
    return Prompt(
        P1.format(list=names or class_list()),
        "",
        tuple(noise(seed + i) for i in range(pictures)),
        f"p{seed}",
    )


CHOICE = Prompt(CHOICES["p2"].format(name="nurse"), "ABC", (noise(0),), "p0")


def spec(folder: Path, backend: str, **options: Any) -> ModelSpec:
    return ModelSpec(
        "zs",
        "ZS",
        backend,
        f"path:{folder}",
        "local",
        "enabled",
        batch_size=2,
        notes="a test's",
        options=options,
    )


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vit(tmp_path_factory.mktemp("vit"), HEAD)


def test_labels_are_the_prompts_list() -> None:
    assert labels_of(direct(0)) == CLASSES
    assert labels_of(direct(0, class_list(3))) != CLASSES and sorted(
        labels_of(direct(0, class_list(3)))
    ) == sorted(CLASSES)
    for text in (CHOICE.text, "which? [nurse]", "which? [nurse, ]", "which? []"):
        with pytest.raises(NotAnswerable, match="not a question that this model can answer"):
            labels_of(Prompt(text, ""))


def test_clip_says_the_label_that_is_most_similar(clip: Path) -> None:
    engine = engines.load(spec(clip, "clip-zero-shot"), Path())
    prompts = [direct(i) for i in range(5)]
    said = [texts[0] for texts in engine.generate(prompts, [""], 8).texts]
    whole, tokens = CLIPModel.from_pretrained(clip), byte_tokenizer()
    texts = tokens(
        [f"a photo of a {name.replace('_', ' ')}" for name in CLASSES],
        padding=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        labels = whole.get_text_features(
            input_ids=texts["input_ids"], attention_mask=texts["attention_mask"]
        ).pooler_output
        for prompt, answer in zip(prompts, said, strict=True):
            pixels = engine.images(
                images=[Image.open(io.BytesIO(prompt.images[0]))], return_tensors="pt"
            )["pixel_values"]  # type: ignore[attr-defined]
            shown = whole.get_image_features(pixel_values=pixels).pooler_output
            assert answer == CLASSES[int(torch.cosine_similarity(shown, labels).argmax())]
    assert len(set(said)) > 1, "pictures differ, so the answers should"


def test_answers_depend_on_nobody_else(clip: Path) -> None:
    engine = ClipZeroShot(spec(clip, "clip-zero-shot"), Path())
    prompts = [
        direct(0),
        direct(1, "nurse, singer"),
        direct(2),
        direct(3, "singer, nurse"),
        direct(4),
    ]
    together = engine.generate(prompts, [""], 8).texts
    assert together == [engine.generate([p], [""], 8).texts[0] for p in prompts]
    assert all(a[0] in labels_of(p) for a, p in zip(together, prompts, strict=True))
    alone = replace(spec(clip, "clip-zero-shot"), batch_size=1)
    assert ClipZeroShot(alone, Path()).generate(prompts, [""], 8).texts == together


@pytest.mark.parametrize("backend", ["clip-zero-shot", "vit-zero-shot"])
def test_what_has_no_list_or_no_picture_is_refused(
    backend: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(backend[: backend.index("-")])
    engine = engines.load(
        (
            spec(folder, backend, labels=LABELS)
            if backend.startswith("vit")
            else spec(folder, backend)
        ),
        Path(),
    )
    assert engine.forces_starts is False and len(engine.fingerprint) == 16  # type: ignore[attr-defined]
    for ask in (
        lambda: engine.candidate_scores([CHOICE]),
        lambda: engine.generate([CHOICE], [""], 8),
        lambda: engine.generate([direct(0, pictures=0)], [""], 8),
        lambda: engine.generate([direct(0, pictures=2)], [""], 8),
    ):
        with pytest.raises(ModelError, match="not a question that this model can answer") as caught:
            ask()
        assert (
            isinstance(caught.value, NotAnswerable)
            and caught.value.kind == "NotAnswerable"
            and "\n" not in str(caught.value)
        )
    with pytest.raises(ModelError, match="forced start"):
        engine.generate([direct(0)], ["", "7"], 8)


def test_vit_adds_up_the_outputs_of_a_label(vit: Path) -> None:
    engine = VitZeroShot(spec(vit, "vit-zero-shot", labels=LABELS), Path())
    pictures = [Image.open(io.BytesIO(noise(i))) for i in range(6)]
    found = engine.scores(pictures, ("nurse", "ballplayer", "singer")).exp().numpy()
    with torch.no_grad():
        pixels = engine.images(images=pictures, return_tensors="pt")["pixel_values"]
        shares = (
            ViTForImageClassification.from_pretrained(vit)(pixel_values=pixels)
            .logits.double()
            .softmax(-1)
            .numpy()
        )
    assert found[:, 0] == pytest.approx(shares[:, 1] + shares[:, 2], abs=1e-6)
    assert found[:, 1] == pytest.approx(shares[:, 0], abs=1e-6) and (found[:, 2] == 0).all()
    said = [texts[0] for texts in engine.generate([direct(i) for i in range(6)], [""], 8).texts]
    assert said == ["nurse" if a > b else "ballplayer" for a, b, _ in found]
    with pytest.raises(NotAnswerable, match="is in its map"):
        engine.generate([direct(0, "singer, dancer")], [""], 8)


def test_vit_needs_a_map_that_fits_its_head(vit: Path) -> None:
    for labels, words in (
        (None, r"the packaged map for ImageNet-1k .* names '.*', which the head"),
        ({}, "labels is {}; valid: a mapping such as"),
        ({"nurse": "nobody"}, "'nobody', which the head doesn't have"),
        ({"nurse": HEAD[0], "singer": HEAD[0]}, "stands twice"),
        ({"nurse": []}, "without outputs"),
    ):
        options = {} if labels is None else {"labels": labels}
        with pytest.raises(RegistryError, match=words):
            engines.load(spec(vit, "vit-zero-shot", **options), Path())


def test_fingerprint_hangs_on_the_map(vit: Path) -> None:
    one, two = (
        VitZeroShot(spec(vit, "vit-zero-shot", labels=m), Path()).fingerprint
        for m in (LABELS, {"nurse": HEAD[3]})
    )
    assert one != two


def test_a_run_is_finished_though_some_questions_cannot_be_asked(
    clip: Path, vit: Path, tmp_path: Path
) -> None:
    """p2 and p3 are no questions for CLIP: they are told, are none of the failures, and the next
    start has nothing to do."""
    write_people_sample(tmp_path / "raw", 6, 3)
    build_people(tmp_path / "raw", tmp_path / "b")
    asked = pd.read_parquet(tmp_path / "b" / "prompts.parquet")
    results, entry = tmp_path / "r.duckdb", spec(clip, "clip-zero-shot")
    first = evaluate.evaluate(entry, tmp_path, tmp_path / "b", results)
    choice = asked[asked["task"] == "choice"]
    refused = len(choice) + choice["text"].nunique()  # each with its picture, and once without
    assert (first.planned, first.scored, first.failed, first.unanswerable) == (
        len(asked) - len(choice),
        6,
        0,
        refused,
    )
    [run] = store.query(results, "FROM runs").to_dict("records")
    assert run["n_scored"] + run["n_cached"] + run["n_failed"] == run["n_prompts_planned"] == 6
    kinds = store.query(results, "SELECT kind, count(*) AS n FROM failures GROUP BY kind").to_dict(
        "records"
    )
    assert kinds == [{"kind": "NotAnswerable", "n": refused}]
    assert set(store.query(results, "SELECT test FROM predictions")["test"]) == {"p1"}, (
        "what can't be asked is not wrong"
    )
    again = evaluate.evaluate(entry, tmp_path, tmp_path / "b", results)
    assert again == replace(first, scored=0, cached=6, published=False)
    assert store.query(results, "FROM runs")["finished_at"][0] == run["finished_at"], (
        "the run was left alone"
    )
    stranger = replace(spec(vit, "vit-zero-shot", labels={"pilot": HEAD[0]}), name="stranger")
    with pytest.raises(
        ModelError,
        match="can't answer any question .* take suite people out of its options.suites",
    ):
        evaluate.evaluate(stranger, tmp_path, tmp_path / "b", results)


def test_the_packaged_map_is_of_the_52_classes_and_asks_about_no_other(tmp_path: Path) -> None:
    packaged = packaged_labels()
    assert set(packaged) < set(CLASSES) and packaged["ballplayer"] == [
        "ballplayer, baseball player",
        "baseball",
    ]
    outputs = [name for names in packaged.values() for name in names]
    assert len(outputs) == len(set(outputs)) and "nurse" not in packaged
    folder = save_vit(tmp_path / "vit", ["tench", *outputs])
    write_people_sample(tmp_path / "raw", 40, 3)
    build_people(tmp_path / "raw", tmp_path / "b", draw=PeopleDraw(negatives=False))
    people = pd.read_parquet(tmp_path / "b" / "people.parquet")
    known = people[people["class1"].isin(list(packaged))]
    assert 0 < len(known) < len(people)
    found = evaluate.evaluate(
        spec(folder, "vit-zero-shot"), tmp_path, tmp_path / "b", tmp_path / "r.duckdb"
    )
    assert (found.planned, found.failed) == (len(known), 0)
    told = store.query(
        tmp_path / "r.duckdb", "SELECT p.person_id FROM predictions JOIN people p USING (item_id)"
    )["person_id"]
    assert sorted(told) == sorted(known["person_id"])
