"""A metric is one line: whoever adds one finds it in results, on the page of all numbers, in the
regression check and in W&B."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from starlette.testclient import TestClient

from sdgbias.nightly.regression import measured
from sdgbias.nightly.regression.policy import METHODS
from sdgbias.report.reader import Results
from sdgbias.report.web import app
from sdgbias.report.web.site import Site
from sdgbias.suites import sdg_metrics
from sdgbias.types import Task
from tests.builders import wandb_files
from tests.builders.commands import add_model, metrics, ok
from tests.builders.web_pages import text

RIGHT = sdg_metrics.AnswerMetric("right_rate", lambda a: np.asarray(a["correct"] == 1, float))


def test_a_new_metric_is_in_results_pages_regression_check_and_wandb(
    tiny_benchmark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    more = (*sdg_metrics.METRICS[Task.MCQ], RIGHT)
    monkeypatch.setattr(sdg_metrics, "METRICS", {**sdg_metrics.METRICS, Task.MCQ: more})
    results, policy = tmp_path / "r.duckdb", tmp_path / "policy.yaml"
    add_model(tmp_path, "optimist", options={"optimism": 1.5})
    rule = {"name": "right", "metric": RIGHT.name, "methods": "cade", "at_least": 0.999}
    policy.write_text(yaml.safe_dump({"rules": [rule]}))

    few = f"--benchmark {tiny_benchmark} --results {results} --draws 50 --passes none"
    ok(f"evaluate optimist {few}", registry=tmp_path)
    rows = metrics(results)
    judged = ok(f"gate --results {results} --policy {policy}", registry=tmp_path)
    ok(f"wandb log --results {results} --dir {tmp_path}/wandb", registry=tmp_path)
    with TestClient(app.create(Site(Results(results))), base_url="http://127.0.0.1:1") as client:
        page = text(client.get(f"/numbers?task=mcq&metric={RIGHT.name}&method=cade").text)

    side, checked = measured.load(results, rows["run_id"][0], METHODS), 0
    for row in rows.query("pillar == 'all' and indicator == 'all' and test != 'all'").itertuples():
        of = side.of(row.task, [row.test], row.metric, row.method)
        if of is not None and row.metric != "mae":  # which is judged in units of the tolerance
            assert np.nanmean(of.value) == pytest.approx(row.value), row
            checked += 1
    assert checked > 200, "what is judged is what was published"
    key = ["test", "method", "pillar", "indicator", "value", "n", "ci_low", "ci_high"]
    own, accuracy = (
        rows[(rows["task"] == "mcq") & (rows["metric"] == m)][key].reset_index(drop=True)
        for m in (RIGHT.name, "accuracy")
    )
    assert len(own) > 100 and own.equals(accuracy), "of every test, method, pillar and indicator"
    [cade] = own.query("test == 'all' and method == 'cade' and pillar == 'all'")["value"]
    assert f"{100 * cade:.1f} %" in page and f"{100 * cade:.1f} %" in judged
    [folder] = (tmp_path / "wandb").glob("**/offline-run-*")
    assert wandb_files.read(folder).summary[f"mcq/all/cade/{RIGHT.name}"] == pytest.approx(cade)
