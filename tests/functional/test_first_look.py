"""`sdgbias evaluate` as one tries a model: a folder without an entry, a few questions, a table."""

from __future__ import annotations

from pathlib import Path

from sdgbias import store
from sdgbias.registry import entries
from tests.builders.commands import sdgbias


def test_a_folder_and_a_planted_model_on_a_few_questions(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    weights = entries.find_root() / "registry" / "weights" / "tiny-llava"
    results = tmp_path / "sdgbias.duckdb"
    where = ("--benchmark", tiny_benchmark, "--results", results)
    few = ("--limit", 5, "--draws", 20, "--passes", "none", "--generated", "none")
    done = sdgbias("evaluate", "planted-optimist", weights, *few, *where)
    assert done.returncode == 0, done.stderr
    page = done.stdout
    [said] = [line for line in done.stderr.splitlines() if "probed" in line]
    assert said.startswith(
        "tiny-llava: no entry says how its prompts may be scored together; 12 of"
    )
    assert "in batches of 32 and shuffled (to 0.001), and behind shared beginnings" in said
    assert not results.exists(), "a first look is on no leaderboard"
    look = tmp_path / "first-look.duckdb"
    runs = store.query(look, "SELECT model, provenance FROM runs ORDER BY model")
    assert runs["model"].tolist() == ["planted-optimist", "tiny-llava"]
    for model in runs["model"]:
        assert any(
            line.split()[:5] == [model, "mcq", "all", "cade", "accuracy"]
            for line in page.splitlines()
        )


def test_a_folder_that_is_no_benchmark_is_named(tmp_path: Path) -> None:
    where = ("--benchmark", tmp_path, "--results", tmp_path / "r.duckdb")
    done = sdgbias("evaluate", "planted-optimist", "--limit", 5, *where)
    assert done.returncode == 3 and "no benchmark here" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "first-look").exists()


def test_one_file_of_an_outcome_is_about_one_model(tiny_benchmark: Path, tmp_path: Path) -> None:
    done = sdgbias("evaluate", "a", "b", "--outcome", tmp_path / "o.json")
    assert done.returncode == 2 and "name one" in done.stderr
