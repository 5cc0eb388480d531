"""sdgbias.toml: paths that needn't stand on every line, and what counts before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias.cli import project
from sdgbias.nightly.plan import benchmarks_of
from tests.builders.commands import ok, refused, sdgbias
from tests.builders.results import publish_fake


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with results, a project file that names them, and a folder below."""
    at = tmp_path_factory.mktemp("project")
    publish_fake(at / "mine.duckdb")
    (at / project.NAME).write_text('results = "mine.duckdb"\nregistry = "nowhere"\n')
    (at / "notes" / "deep").mkdir(parents=True)
    return at


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in project.KEYS.values():
        monkeypatch.delenv(variable, raising=False)


def test_the_file_counts_here_and_below(folder: Path) -> None:
    named = ok("results", "--results", folder / "mine.duckdb")
    assert named
    assert ok("results", cwd=folder) == ok("results", cwd=folder / "notes" / "deep") == named
    assert f"SDGBIAS_REGISTRY={folder / 'nowhere'}: no registry" in refused(4, "models", cwd=folder)


def test_an_option_and_the_environment_come_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "other.duckdb" in refused(7, "results", "--results", "other.duckdb", cwd=folder)
    monkeypatch.setenv("SDGBIAS_RESULTS", "env.duckdb")
    assert "no results at env.duckdb" in refused(7, "results", cwd=folder)
    assert "other.duckdb" in refused(7, "results", "--results", "other.duckdb", cwd=folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'result = "a"',
            "unknown key 'result'; valid: benchmark, raw, registry, results; did you mean 'results",
        ),
        ('colour = "a"', "unknown key 'colour'; valid: benchmark, raw, registry, results"),
        ("results = 3", "results = 3; valid: a path in quotes"),
        ('raw = " "', "raw = ' '; valid: a path in quotes"),
        ("results = a b", "can't be read: "),
    ],
)
def test_a_fault_is_one_line_that_names_the_file(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / project.NAME).write_text(text)
    assert f"{tmp_path / project.NAME}: {words}" in refused(3, "results", cwd=tmp_path)
    assert sdgbias("--help", cwd=tmp_path).returncode == 0


def test_a_build_writes_where_an_evaluation_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDGBIAS_RAW", str(tmp_path / "no raw"))
    monkeypatch.setenv("SDGBIAS_BENCHMARK", str(tmp_path / "mine"))
    assert str(tmp_path / "no raw") in refused(3, "build", cwd=tmp_path)
    assert str(tmp_path / "mine") in refused(3, "evaluate", "tiny-llava")
    assert not (tmp_path / "data").exists()


def test_a_night_takes_the_named_benchmark_and_those_of_other_suites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for where, suite in (
        ("data/benchmark", "sdg"),
        ("data/people/benchmark", "people"),
        ("real", "sdg"),
    ):
        (tmp_path / where).mkdir(parents=True)
        card = f'{{"suite": "{suite}", "benchmark_id": "b"}}'
        (tmp_path / where / "benchmark.json").write_text(card)
    people = Path("data/people/benchmark")
    assert benchmarks_of(None) == (Path("data/benchmark"), people)
    monkeypatch.setenv("SDGBIAS_BENCHMARK", "real")
    assert benchmarks_of(None) == (Path("real"), people)
    assert benchmarks_of([people]) == (people,)
    monkeypatch.setenv("SDGBIAS_BENCHMARK", "not built")
    assert benchmarks_of(None) == (Path("not built"),)
