"""The page of the quality check: readable without a network, small, the same bytes every time; and
Great Expectations' own Data Docs where somebody asks for them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sdgbias.benchmark import quality
from sdgbias.errors import DataValidationError
from tests.builders.quality import SUITES, Put, Tables, only, save


def page(folder: Path) -> str:
    return (folder / quality.PAGE).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def faulty(good: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark whose clusters all break rules, with markup in a key."""
    tables = {**good, "clusters": good["clusters"].copy()}
    tables["clusters"]["year"] = 1990
    Put("clusters", "cluster_id", "<script>alert('x')</script> $name")(tables)
    folder = save(tables, tmp_path_factory.mktemp("faulty"))
    with pytest.raises(DataValidationError):
        quality.run_gate(folder, SUITES)
    return folder


def test_every_rule_says_what_it_asks_and_whether_it_held(passed: Path) -> None:
    text = page(passed)
    assert "The benchmark passed its rules." in text
    for name in quality.TABLES:
        section = text.split(f'<h2 id="{name}">')[1].split("<h2")[0]
        for rule in quality.load_rules(name, SUITES).every:
            assert f"<td>{rule.name}</td>" in section
    assert "<td>A cluster may appear once.</td>" in text
    assert "<td>cname and iso3 must be one of the 56 countries.</td>" in text
    assert "not judged: the split is by id" in text
    row = text.split("<td>value-in-range</td>")[1].split("</tr>")[0]
    assert "held" in row and '<td class="number">3</td>' in row


def test_it_is_offline_and_well_formed(faulty: Path) -> None:
    text = page(faulty)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    root = ElementTree.fromstring(re.sub(r"<!doctype html>|<meta[^>]*>", "", text, flags=re.I))
    assert not {e.tag for e in root.iter()} & {"script", "img", "iframe", "link", "object", "form"}
    assert all(re.fullmatch("#[a-z_]+", link.get("href", "")) for link in root.iter("a"))


def test_failures_are_shown_with_few_examples_and_markup_stays_text(faulty: Path) -> None:
    text = page(faulty)
    assert "did not pass" in text and "broken by 30" in text
    row = text.split("<td>year-range</td>")[1].split("</tr>")[0]
    assert row.count("<code>") == 5
    assert "&lt;script&gt;" in text and "$name" in text and "<script" not in text


def test_same_benchmark_same_bytes_elsewhere(faulty: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(faulty, tmp_path / "again"))
    for path in (again / "validation").iterdir():
        path.unlink()
    with pytest.raises(DataValidationError):
        quality.run_gate(again, SUITES)
    for path in [quality.PAGE, *(f"validation/{name}.json" for name in quality.TABLES)]:
        assert (again / path).read_bytes() == (faulty / path).read_bytes()
        assert str(faulty) not in (faulty / path).read_text(encoding="utf-8")


def test_results_of_great_expectations_are_kept_as_it_writes_them(faulty: Path) -> None:
    kept = json.loads((faulty / "validation" / "clusters.json").read_text(encoding="utf-8"))
    assert kept["success"] is False and kept["statistics"]["evaluated_expectations"] > 10
    by_rule = {r["expectation_config"]["meta"]["rule"]: r for r in kept["results"]}
    assert by_rule["year-range"]["result"]["unexpected_count"] == 30
    assert by_rule["cluster-id-agrees"]["success"] is False
    assert (
        "left(cluster_id, 2)" in by_rule["cluster-id-agrees"]["expectation_config"]["meta"]["sql"]
    )


def test_its_own_data_docs_on_request(good: Tables, tmp_path: Path) -> None:
    folder = save(good, tmp_path)
    quality.run_gate(folder, only(tmp_path, "cluster-id-unique", "coordinates-on-earth"), True)
    index = (folder / quality.DATA_DOCS / "index.html").read_text(encoding="utf-8")
    assert "clusters" in index and "items_mcq" in index
