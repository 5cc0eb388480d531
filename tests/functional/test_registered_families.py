"""Structurally different families from their folder to the results: `register-model`, then
`evaluate` on all four views and regression."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import families
from tests.builders.commands import metrics, ok

#: Positions of its own; cross attention; tiles; a Q-Former without a chat template. In shards.
KINDS = ("qwen2_5_vl", "mllama", "internvl", "blip-2")


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_a_folder_is_registered_and_evaluated(
    name: str, tiny_benchmark: Path, tmp_path: Path
) -> None:
    (tmp_path / "registry" / "models").mkdir(parents=True)
    folder = families.write(tmp_path / "weights" / name, name, shard="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    results = tmp_path / "r.duckdb"
    where = ("--results", results, "--benchmark", tiny_benchmark)
    said = ok(
        "register-model", folder, "--candidate", "--dtype", "float32", *where, registry=tmp_path
    )
    assert "its processor loads (" in said
    ok("evaluate", name, *where, registry=tmp_path)
    found = metrics(results)
    assert {"full", "img_q", "ctx_q", "q_only"} <= set(found["method"])
    assert set(found["task"]) >= {"mcq", "regression"}
