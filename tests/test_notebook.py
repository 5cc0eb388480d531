"""What `import sdgbias` offers a notebook, and the example notebook, cell by cell."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sdgbias
from sdgbias import notebook, store
from sdgbias.errors import StoreError, UsageError
from sdgbias.methods import stats
from tests.builders.results import publish_fake

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_fake(tmp_path_factory.mktemp("results") / "sdgbias.duckdb")


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, sdgbias; heavy = {'pandas', 'numpy', 'duckdb', 'torch'} & set(sys.modules);"
        " assert not heavy, heavy; assert set(sdgbias.NOTEBOOK) <= set(dir(sdgbias));"
        " assert callable(sdgbias.load) and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        sdgbias.laod  # type: ignore[attr-defined]  # noqa: B018


def newest(results: Path, model: str) -> str:
    [run_id] = [run for run in store.latest_runs(results) if run.startswith(model)]
    return run_id


@pytest.fixture
def two_suites(tmp_path: Path) -> Path:
    """As the demo leaves it: the newest run of each model is on people, and a planted model that
    was asked about people alone comes first."""
    path = publish_fake(tmp_path / "sdgbias.duckdb")
    for model in ("fake-optimist", "fake-pessimist", "a-planted-one"):
        record = {"run_id": f"people-{model}", "model": model, "benchmark_id": "people"}
        record |= {"suite": "people", "finished_at": "2027-01-01T00:00:00"}
        store.publish(path, record, {})
    return path


def test_the_notebook_runs(two_suites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells one after the other in one namespace, as a kernel runs them."""
    results = two_suites
    monkeypatch.setenv("SDGBIAS_RESULTS", str(results))
    book = json.loads((REPOSITORY / "docs/tutorial/results.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    shown = []
    for cell in book["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None, "strip the outputs"
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop()
        assert isinstance(last, ast.Expr), "every cell shows something"
        exec(compile(tree, "cell", "exec"), names)
        shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    runs, accuracy, pairs, blind, figure, rows = shown
    assert list(runs["run_id"]) == list(store.query(results, "FROM runs")["run_id"])
    assert {"value", "ci_low", "ci_high", "n"} <= set(accuracy.columns) and len(accuracy)
    assert len(pairs) and {"value", "ci_low", "ci_high", "n", "p", "mde"} <= set(pairs.columns)
    assert 0 < blind[0] < 1 and blind[1] > 100
    assert figure._repr_svg_().startswith("<svg") and figure.png[:4] == b"\x89PNG"
    assert len(rows) == len(figure.rows)


def test_metrics_are_those_of_the_file(results: Path) -> None:
    found = notebook.metrics("fake-optimist", "accuracy", results)
    newest = store.latest_runs(results)
    assert set(found["run_id"]) == {r for r in newest if r.startswith("fake-optimist")}
    assert set(found["metric"]) == {"accuracy"} and found["n"].min() > 0
    assert len(notebook.metrics(results=results)) > len(notebook.metrics(newest[0], "", results))
    assert notebook.load("SELECT count(*) AS n FROM runs", results)["n"][0] == 3


def test_compare_is_the_paired_difference(results: Path) -> None:
    """Recomputed from the answers: one minus other, clustered by place."""
    found = notebook.compare("fake-pessimist", "fake-optimist", results).set_index(
        ["method", "test"]
    )
    one, other = (
        store.query(
            results,
            """SELECT item_id, cluster_id, correct FROM predictions p JOIN runs r USING (run_id)
               JOIN items i USING (benchmark_id, task, item_id) WHERE run_id = ? AND p.task = 'mcq'
               AND test = 'T1' AND method = 'cade' AND p.split = 'test' ORDER BY item_id""",
            [newest(results, name)],
        )
        for name in ("fake-pessimist", "fake-optimist")
    )
    difference = one["correct"].to_numpy(float) - other["correct"].to_numpy(float)
    test = stats.paired(
        difference, np.unique(one["cluster_id"], return_inverse=True)[1], "difference"
    )
    row = found.loc[("CADE", "T1")]
    assert row["value"] == pytest.approx(test.estimate.value)
    assert row["n"] == len(difference)
    assert (row["ci_low"], row["ci_high"], row["p"]) == pytest.approx(
        (test.estimate.low, test.estimate.high, test.p)
    )
    turned = notebook.compare("fake-optimist", "fake-pessimist", results)
    assert turned["value"].to_numpy() == pytest.approx(-found["value"].to_numpy())


def test_wrong_names_list_the_right_ones(results: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"'fake'; valid: .*fake-optimist"):
        notebook.scores("fake", results)
    with pytest.raises(UsageError, match="are one run"):
        notebook.compare("fake-optimist", newest(results, "fake-optimist"), results)
    with pytest.raises(UsageError, match=r"unknown figure .*compare-pairs"):
        notebook.figure("pie", results)
    with pytest.raises(UsageError, match=r"unknown test 'T9'.*T1"):
        notebook.figure("compare-pairs", results, test="T9")
    with pytest.raises(UsageError, match=r"unknown select of compare-pairs 'colour'"):
        notebook.figure("compare-pairs", results, colour="red")
    with pytest.raises(StoreError, match="no results at"):
        notebook.load(results=tmp_path / "none.duckdb")
