"""Figures of the overview and of a model's page, after the paper's Figures 3, 5 and 7."""

from __future__ import annotations

import pandas as pd

from sdgbias.report.charts import Figure, drawn, figure, named, shaped
from sdgbias.report.data import ReportData
from sdgbias.types import PILLARS, TESTS, VIEWS, Task


def of_model(data: ReportData) -> list[Figure]:
    """Accuracy by view at T1, and before and after CADE by test; ``data``: of one model."""
    return drawn(data, _views, _before_after)


def image_use(data: ReportData) -> list[Figure]:
    """Accuracy of Full minus CTX+Q at T1 by pillar, a panel each; [] if nothing was analysed."""
    return drawn(data, _image_use)


def _accuracy(data: ReportData, tests: list[str], methods: list[str]) -> pd.DataFrame:
    """Pooled accuracy in the order of ``tests``, then of ``methods``."""
    rows = data.metrics[
        data.metrics["value"].notna()
        & (data.metrics["task"] == Task.MCQ.value)
        & (data.metrics["metric"] == "accuracy")
        & (data.metrics["pillar"] == "all")
        & (data.metrics["indicator"] == "all")
        & data.metrics["test"].isin(tests)
        & data.metrics["method"].isin(methods)
    ]
    ranks = {name: at for at, name in enumerate([*tests, *methods])}
    order = rows[["test", "method"]].replace(ranks).astype(int)
    return shaped(rows.loc[order.sort_values(["test", "method"]).index])


def _views(data: ReportData) -> Figure:
    return figure("model-views", named(_accuracy(data, ["T1"], list(VIEWS)), "model-views"))


def _before_after(data: ReportData) -> Figure:
    tests = [test.value for test in TESTS[Task.MCQ]]
    return figure("model-cade", named(_accuracy(data, tests, ["full", "cade"]), "model-cade"))


def _image_use(data: ReportData) -> Figure:
    rows = data.image_use[data.image_use["pillar"].isin(PILLARS)]
    order = rows["pillar"].map({pillar: at for at, pillar in enumerate(PILLARS)})
    return figure(
        "image-use", shaped(rows.loc[order.sort_values(kind="stable").index], signed=True)
    )
