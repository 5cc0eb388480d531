"""Structurally different families from their folder to the results: `register-model`, then
`evaluate` on all four views and regression; and what it stored against the bare model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sdgbias import store
from sdgbias.benchmark.build import Draw, build
from sdgbias.raw.images.shards import ImageReader
from sdgbias.raw.synthetic import write_sample
from sdgbias.suites import sdg
from sdgbias.types import Prompt
from tests.builders import families
from tests.builders.bare_model import Bare
from tests.builders.commands import metrics, ok
from tests.builders.once import once

#: Positions of its own; cross attention; tiles; a Q-Former without a chat template. In shards.
KINDS = ("qwen2_5_vl", "mllama", "internvl", "blip-2")


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 multiple-choice and 10 regression questions."""

    def make(folder: Path) -> None:
        raw = folder / "raw"
        write_sample(raw, 20, 5)
        build(raw, raw / "indicators", folder / "benchmark", Draw(mcq=40, regression=10))

    return once(tmp_path_factory, "fifty", make) / "benchmark"


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_a_folder_is_registered_evaluated_and_compared(
    name: str, fifty: Path, tmp_path: Path
) -> None:
    (tmp_path / "registry" / "models").mkdir(parents=True)
    folder = families.write(tmp_path / "weights" / name, name, shard="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    results = tmp_path / "r.duckdb"
    where = ("--results", results, "--benchmark", fifty)
    said = ok(
        "register-model", folder, "--candidate", "--dtype", "float32", *where, registry=tmp_path
    )
    assert "its processor loads (" in said
    ok("evaluate", name, *where, "--passes", "none", "--draws", 50, registry=tmp_path)
    found = metrics(results)
    assert {"full", "img_q", "ctx_q", "q_only"} <= set(found["method"])
    assert set(found["task"]) >= {"mcq", "regression"}

    # each question in all four views, as stored, and by the bare model, one prompt at a time
    cells, keys = sdg.load_prompts(fifty), ["task", "item_id", "test", "view"]
    stored = store.query(results, 'SELECT task, item_id, test, "view", logits FROM scores')
    asked = cells[cells["test"] == "T2"].merge(stored, on=keys)
    assert asked[["task", "item_id"]].drop_duplicates()["task"].value_counts().to_dict() == {
        "mcq": 40,
        "regression": 10,
    }
    assert len(asked) == 50 * 4 and asked["view"].nunique() == 4
    bare, pictures, known = Bare(folder), ImageReader(fifty), {}
    for row in asked.itertuples():
        prompt = (row.text, row.candidates, row.image_id)
        if prompt not in known:
            shown = pictures[row.image_id] if row.image_id else ()
            known[prompt] = bare.scores(Prompt(row.text, row.candidates, shown, row.image_id))
        own = np.asarray(row.logits, dtype=float)[: len(row.candidates)]
        assert np.abs(own - own.mean() - known[prompt]).max() <= 1e-4, (row.view, row.text)
