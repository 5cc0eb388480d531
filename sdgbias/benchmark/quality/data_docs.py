"""Data Docs of the quality check: the counts in quality.json as pages rendered by Great
Expectations, readable offline.

The standard page view of Great Expectations loads style sheets, scripts, fonts and images from six
hosts; only the part rendered from the validation results is used, in a page of our own
(data_docs.html.j2). Pages contain no time stamps or paths and at most five examples per rule;
everything that comes from data is escaped (Great Expectations doesn't do so).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from sdgbias import templates
from sdgbias.benchmark.quality.checkpoints import expectations, gx
from sdgbias.benchmark.quality.expectations import FILES, SEVERITIES, find_suites, load_suite
from sdgbias.files import understood, write_atomically

FOLDER, _PAGE = "data_docs", "benchmark/quality/data_docs.html.j2"
_GROUPS = {
    "gate": "Gate rules: a broken one stops the benchmark",
    "quarantine": "Quarantine rules: rows that break one leave",
    "warn": "Warnings",
}


def write_docs(benchmark: Path, out: Path, suites: Path | None = None) -> Path:
    """Render benchmark/quality.json into ``out`` (index.html and a page per table); returns the
    path of index.html.

    The same quality.json gives the same bytes. Raises InputError when it is missing, unreadable or
    was written for another set of rules, StoreError when ``out`` can't be written.
    """
    path = Path(benchmark) / "quality.json"
    again = f"judge the benchmark first: sdgbias build --stage check --out {benchmark}"
    with understood(path, "not what the quality gate writes", again):
        report = json.loads(path.read_text(encoding="utf-8"))
        pages = {
            f"{name}.html": _table_page(name, found, suites or find_suites())
            for name, found in sorted(report["tables"].items())
        }
        pages["index.html"] = _index(report)
    for name, text in pages.items():
        write_atomically(out / name, text, "give a writable folder")
    return out / "index.html"


def _index(report: Mapping[str, Any]) -> str:
    rows = []
    for name, found in sorted(report["tables"].items()):
        severities = [broken["severity"] for broken in found["broken"]]
        counts = [severities.count(severity) for severity in SEVERITIES]
        cells = [f"{found['rows']:,}", len(found["rules"]), *counts, len(found["skipped"])]
        rows.append({"name": name, "title": FILES.get(name, name), "cells": cells})
    return templates.render(
        _PAGE, title="Quality gate", table=None, passed=report["passed"], rows=rows
    )


def _table_page(name: str, found: Mapping[str, Any], suites: Path) -> str:
    rules = {str(e["meta"]["rule"]): e for e in load_suite(name, suites)["expectations"]}
    judged = {rule: e for rule, e in rules.items() if rule in found["rules"]}
    unknown = sorted((set(found["rules"]) | set(found["skipped"])) - set(rules))
    if unknown:
        raise KeyError(f"rule {unknown[0]} of {name}")
    return templates.render(
        _PAGE,
        title=f"{FILES.get(name, name)}.parquet",
        table=_rendered(name, found, judged),
        rows=f"{found['rows']:,}",
        skipped=sorted(found["skipped"].items()),
    )


def _rendered(name: str, found: Mapping[str, Any], rules: Mapping[str, Mapping[str, Any]]) -> str:
    """The validation results as rendered by Great Expectations, without the page around them."""
    package = gx().package
    from great_expectations.core import (
        ExpectationSuiteValidationResult,
        ExpectationValidationResult,
    )
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view import DefaultJinjaPageView

    broken = {f["rule"]: f for f in found["broken"]}
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for expectation in expectations(name, rules).expectations:
            config = expectation.configuration
            rule, severity = config.meta["rule"], config.meta["severity"]
            if "column" in config.kwargs:
                config.kwargs["column"] = _GROUPS[severity]  # pages are grouped by this
            # it becomes a template
            config.description = escape(config.description).replace("$", "$$")
            results.append(
                ExpectationValidationResult(
                    success=rule not in broken,
                    expectation_config=config,
                    result=_result(found["rows"], broken.get(rule)),
                )
            )
        good = len(results) - len(broken)
        document = ValidationResultsPageRenderer(run_info_at_end=True).render(
            ExpectationSuiteValidationResult(
                success=not broken,
                results=results,
                suite_name=name,
                statistics={
                    "evaluated_expectations": len(results),
                    "successful_expectations": good,
                    "unsuccessful_expectations": len(broken),
                    "success_percent": 100 * good / len(results) if results else 100.0,
                },
                meta={
                    "great_expectations_version": package.__version__,
                    "run_id": "",
                    "batch_kwargs": {"data_asset_name": name},
                },
            )
        )
        return _bare(DefaultJinjaPageView().render(document))


def _result(rows: int, broken: Mapping[str, Any] | None) -> dict[str, Any]:
    """A validation result in Great Expectations' shape, with a few examples only."""
    count = broken["count"] if broken else 0
    percent = 100 * count / rows if rows else 0.0
    examples = [escape(str(key)) for key in broken["examples"]] if broken else []
    if broken and not examples:  # a rule about the whole table: its message has the observed value
        return {"observed_value": escape(str(broken["message"]))}
    return {
        "element_count": rows,
        "unexpected_count": count,
        "unexpected_percent": percent,
        "partial_unexpected_list": examples,
    }


def _bare(page: str) -> str:
    """The sections of a Great Expectations page, without navigation, footer, scripts, images, links
    and blank lines."""
    start, end = page.index('<div id="section-1"'), page.index("<footer")
    body = re.sub(r"(?s)<script.*?</script>|<img[^>]*>|</?a\b[^>]*>", "", page[start:end])
    body = re.sub(r"\s*\n\s*", "\n", body).strip()
    while body.count("</div>") > body.count("<div"):
        body = body.removesuffix("</div>").rstrip()
    return body
