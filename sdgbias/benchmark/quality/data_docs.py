"""Data Docs of the quality check: the counts in quality.json as pages rendered by Great
Expectations, readable offline.

The standard page view of Great Expectations loads style sheets, scripts, fonts and images from six
hosts; only the part rendered from the validation results is used, in a page with our small style
sheet. Pages contain no time stamps or paths and at most five examples per rule; everything that
comes from data is escaped (Great Expectations doesn't do so).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from sdgbias.benchmark.quality.expectations import (
    FILES,
    SEVERITIES,
    expectations,
    find_suites,
    gx,
    load_suite,
)
from sdgbias.errors import InputError
from sdgbias.files import write_atomically

FOLDER = "data_docs"
_GROUPS = {
    "gate": "Gate rules: a broken one stops the benchmark",
    "quarantine": "Quarantine rules: rows that break one leave",
    "warn": "Warnings",
}
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:70rem;padding:1rem;color:#1a1a1a;
background:#fff}
table{border-collapse:collapse;width:100%;margin:.3rem 0 1rem}
td,th{border-bottom:1px solid #ddd;padding:.3rem .5rem;text-align:left;vertical-align:top}
.ge-section h5{font-size:1.1rem;margin:1.2rem 0 .2rem}.ge-section h6{margin:.5rem 0}
.text-success{color:#17693a}.text-danger{color:#a3161c}i{font-style:normal}
.fa-check-circle::before{content:"\\2714"}.fa-times::before{content:"\\2718"}
.fa-exclamation-triangle::before{content:"!"}a{color:#0b4f8a}
@media(prefers-color-scheme:dark){body{color:#e8e8e8;background:#181818}td,th{border-color:#444}.text-success{color:#6fce95}
.text-danger{color:#ff8a8f}a{color:#8ec5ff}}
"""


def write_docs(benchmark: Path, out: Path, suites: Path | None = None) -> Path:
    """Render benchmark/quality.json into ``out`` (index.html and a page per table); returns the
    path of index.html.

    The same quality.json gives the same bytes. Raises InputError when it is missing, unreadable or
    was written for another set of rules, StoreError when ``out`` can't be written.
    """
    path = Path(benchmark) / "quality.json"
    again = f"judge the benchmark first: sdgbias build --stage check --out {benchmark}"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        pages = {
            f"{name}.html": _table_page(name, found, suites or find_suites())
            for name, found in sorted(report["tables"].items())
        }
        pages["index.html"] = _index(report)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; {again}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: not what the quality gate writes ({type(error).__name__}: {error}); {again}"
        ) from None
    for name, text in pages.items():
        write_atomically(out / name, text, "give a writable folder")
    return out / "index.html"


def _page(title: str, body: str) -> str:
    head = (
        '<meta charset="utf-8"><meta name="viewport"'
        f' content="width=device-width"><title>{escape(title)}</title><style>{_STYLE}</style>'
    )
    return (
        "<!doctype html>\n<html"
        f' lang="en"><head>{head}</head>\n<body>\n'
        f"<h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _index(report: Mapping[str, Any]) -> str:
    rows = []
    for name, found in sorted(report["tables"].items()):
        broken = [
            sum(f["severity"] == severity for f in found["broken"]) for severity in SEVERITIES
        ]
        cells = [f"{found['rows']:,}", len(found["rules"]), *broken, len(found["skipped"])]
        link = f'<a href="{escape(name)}.html">{escape(FILES.get(name, name))}</a>'
        rows.append(
            f"<tr><td>{link}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        )
    titles = (
        "table",
        "rows",
        "rules judged",
        "gates broken",
        "quarantine rules broken",
        "warnings",
        "not judged",
    )
    head = "".join(f"<th>{title}</th>" for title in titles)
    verdict = "The benchmark passed." if report["passed"] else "The benchmark did not pass."
    body = (
        f"<p>{verdict}</p>\n<table><thead><tr>{head}</tr></thead><tbody>\n"
        + "\n".join(rows)
        + "\n</tbody></table>"
    )
    return _page("Quality gate", body)


def _table_page(name: str, found: Mapping[str, Any], suites: Path) -> str:
    rules = {str(e["meta"]["rule"]): e for e in load_suite(name, suites)["expectations"]}
    judged = {rule: e for rule, e in rules.items() if rule in found["rules"]}
    unknown = sorted((set(found["rules"]) | set(found["skipped"])) - set(rules))
    if unknown:
        raise KeyError(f"rule {unknown[0]} of {name}")
    body = _rendered(name, found, judged)
    if found["skipped"]:
        lines = "".join(
            f"<tr><td>{escape(r)}</td><td>{escape(str(why))}</td></tr>"
            for r, why in sorted(found["skipped"].items())
        )
        body += f"\n<h5>Not judged</h5><table><tbody>{lines}</tbody></table>"
    return _page(
        f"{FILES.get(name, name)}.parquet",
        f'<p><a href="index.html">all tables</a> · {found["rows"]:,} rows</p>\n{body}',
    )


def _rendered(name: str, found: Mapping[str, Any], rules: Mapping[str, Mapping[str, Any]]) -> str:
    """The validation results as rendered by Great Expectations, without the page around them."""
    package, _ = gx()
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
            config.description = escape(config.description).replace(
                "$", "$$"
            )  # it becomes a template
            results.append(
                ExpectationValidationResult(
                    success=rule not in broken,
                    expectation_config=config,
                    result=_result(found["rows"], broken.get(rule)),
                    exception_info={
                        "raised_exception": False,
                        "exception_message": None,
                        "exception_traceback": None,
                    },
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
