"""The embedded Qwen2-VL through the real loader: its answers are those of the bare model, and it
sees what people do."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from sdgbias.benchmark.people import build_people
from sdgbias.engines import load
from sdgbias.raw.facet import CLASSES
from sdgbias.raw.images.shards import ImageReader
from sdgbias.raw.synthetic.latent import DEFAULT_COUNTRIES
from sdgbias.raw.synthetic.schematic_people import write_people_sample
from sdgbias.registry import entries
from sdgbias.suites import facet
from sdgbias.types import Prompt

ROOT = entries.find_root()
SPEC = entries.load(ROOT, "tiny-qwen")
WEIGHTS = ROOT / "registry" / "weights"


@pytest.mark.slow  # torch
def test_it_names_what_people_do(tmp_path: Path) -> None:
    """40 people whom nobody trained on."""
    write_people_sample(tmp_path / "raw", 40, seed=7)
    build_people(tmp_path / "raw", tmp_path / "b")
    items = facet.load_items(tmp_path / "b")[["item_id", "gold"]]
    table = pd.read_parquet(tmp_path / "b" / "prompts.parquet").merge(items, on="item_id")
    direct, pictures = table[table["test"] == "p1"], ImageReader(tmp_path / "b")
    prompts = [
        Prompt(text, candidates, pictures[image], image)
        for text, candidates, image in direct[["text", "candidates", "image_id"]].to_numpy()
    ]
    answers = load(SPEC, ROOT).generate(prompts, [""], 8).texts
    spoken = direct[["test", "gold"]].assign(text=[a[0] for a in answers])
    labels = facet.labelled(spoken, facet.LetterGrams())
    assert set(labels["how"]) <= {"exact", "normalised"}
    recall = (labels["label"] == labels["gold"]).mean()
    assert len(direct) >= 30 and recall > 15 / len(CLASSES)  # chance is 1 of 52


def test_the_embedded_models_are_small() -> None:
    files = [f for name in ("tiny-llava", "tiny-qwen") for f in (WEIGHTS / name).iterdir()]
    assert 6e6 < sum(path.stat().st_size for path in files) <= 8e6


@pytest.mark.parametrize(
    ("model", "shares"),
    [
        ("tiny-llava", ("SKEW", "HINT_SKEW", "MISMATCH")),
        ("tiny-qwen", ("OPTIMISM", "MISMATCH")),
    ],
)
def test_the_embedded_models_are_described_as_they_are_trained(
    model: str, shares: tuple[str, ...]
) -> None:
    common = (ROOT / "scripts" / "tiny_training.py").read_text(encoding="utf-8")
    name = f"train_{model.replace('-', '_')}.py"
    script = (ROOT / "scripts" / name).read_text(encoding="utf-8")
    page = (ROOT / "docs" / "explanation" / f"{model}.md").read_text(encoding="utf-8")
    found = re.search(rf"^{', '.join(shares)} = ([\d., ]+)$", script, re.MULTILINE)
    steps = re.search(r"^STEPS = \(([\d_, ]+)\)", script, re.MULTILINE)
    seed = re.search(r"^WORLD_SEED[^=]*= (\d+)", script, re.MULTILINE)
    worlds = re.findall(r'^    "([A-Z ]+)",$', common, re.MULTILINE)
    assert found and steps and seed and worlds
    planted = page.split("## Planted biases")[1].split("\n## ")[0]
    for row, share in zip(
        [r for r in planted.splitlines() if r.startswith("| ")][1:],
        found[1].split(", "),
        strict=True,
    ):
        assert f" {100 * float(share):.0f} %" in row, f"{share} is not in: {row}"
    stages = dict(re.findall(r"^\| ([a-z]+) \| (\d+) \|", page, re.MULTILINE))
    assert list(stages.values()) == steps[1].split(", ") and len(stages) >= 3
    assert f"({seed[1]} to {int(seed[1]) + len(worlds) - 1})" in page
    countries = " ".join(worlds).split()
    assert f"their {len(set(countries))}\ncountries" in page and len(countries) == len(
        set(countries)
    )
    assert not set(countries) & set(DEFAULT_COUNTRIES)
