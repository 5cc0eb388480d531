"""The parity gate as a person meets it: a model whose engines disagree is scored, not published,
until a check agrees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdgbias import store
from tests.builders.commands import REPOSITORY, add_model, ok, refused

QUICK = ("--draws", 50, "--passes", "none")


@pytest.mark.slow
def test_disagreeing_engines_stop_the_run_and_agreeing_ones_let_it_pass(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    results = tmp_path / "r" / "sdgbias.duckdb"
    more = {"registry": tmp_path}
    where = ("--benchmark", tiny_benchmark, "--results", results)
    add_model(tmp_path, "left", options={"noise": 0.5})
    add_model(tmp_path, "right", options={"noise": 0.9})
    said = refused(
        11, "models", "parity", "left", "--against", "right", "--probes", 24, *where, **more
    )
    assert (
        "left: planted / right: log-probabilities differ by up to" in said
        and "the worst probe is" in said
    )
    told = json.loads((results.parent / "parity" / "left.json").read_text())
    assert told["verdict"] == "disagree" and all(row["agrees"] for row in told["itself"])
    assert told["against"]["right"]["n"] == 24 and told["against"]["right"]["flips"] > 0

    said = refused(11, "evaluate", "left", *QUICK, *where, **more)
    assert "nothing is published, scores are kept" in said and said.endswith(
        "sdgbias models parity left --against right"
    )
    assert "Question:" in said, "the worst probe is shown"
    assert list((results.parent / "scores" / "left").glob("*/scores-*.parquet"))
    assert store.query(results, "SELECT count(*) AS n FROM runs")["n"].item() == 0
    ok("evaluate", "right", *QUICK, *where, **more)  # nobody has asked about this one

    add_model(tmp_path, "right", options={"noise": 0.5})
    assert "verdict: agree" in ok(
        "models", "parity", "left", "--against", "right", "--probes", 24, *where, **more
    )
    assert " 0 scored now" in ok("evaluate", "left", *QUICK, *where, **more)
    assert store.query(results, "SELECT model FROM runs ORDER BY model")["model"].tolist() == [
        "left",
        "right",
    ]


@pytest.mark.long
def test_another_model_under_the_same_name_is_not_held_back(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    where = ("--benchmark", tiny_benchmark, "--results", tmp_path / "r.duckdb")
    add_model(tmp_path, "left", options={"noise": 0.5})
    add_model(tmp_path, "right", options={"noise": 0.9})
    refused(
        11,
        "models",
        "parity",
        "left",
        "--against",
        "right",
        "--probes",
        12,
        *where,
        registry=tmp_path,
    )
    add_model(tmp_path, "left", options={"noise": 0.4})
    ok("evaluate", "left", *QUICK, *where, registry=tmp_path)


def test_the_transformers_engine_agrees_with_itself(tiny_benchmark: Path, tmp_path: Path) -> None:
    """The one engine that is everywhere; the other is kept from being found, as on a bare clone."""
    for path in ("registry/weights", "registry/models"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).symlink_to(REPOSITORY / path)
    said = ok(
        "models",
        "parity",
        "tiny-llava",
        "--probes",
        9,
        "--benchmark",
        tiny_benchmark,
        "--results",
        tmp_path / "r.duckdb",
        registry=tmp_path,
    )
    told = json.loads((tmp_path / "parity" / "tiny-llava.json").read_text())
    assert [row["what"] for row in told["itself"]] == [
        "hf: alone / in batches",
        "hf: shuffled / in order",
    ]
    assert all(
        row["n"] == 9 and row["logp_max"] < 1e-4 and row["flips"] == row["lengths"] == 0
        for row in told["itself"]
    )
    if told["verdict"] != "agree":  # there is a vLLM in this environment
        assert told["verdict"] == "only one backend here" and "make vllm" in told["missing"]["vllm"]
        assert "not compared with vllm: tiny-llava: no vLLM here" in said


def test_the_list_and_what_is_refused(tmp_path: Path) -> None:
    add_model(tmp_path, "left")
    assert ok("models", registry=tmp_path) == ok("models", "list", registry=tmp_path)
    assert "unknown model 'nobody'" in refused(4, "models", "parity", "nobody", registry=tmp_path)
    assert "backend hf can't serve what planted does" in refused(
        2, "models", "parity", "left", "--against", "hf", registry=tmp_path
    )
    missing = refused(
        3, "models", "parity", "left", "--benchmark", tmp_path / "none", registry=tmp_path
    )
    assert "no benchmark here" in missing
