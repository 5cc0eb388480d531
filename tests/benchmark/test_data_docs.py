"""Data Docs: rendered by Great Expectations, readable without a network, small, the same bytes
every time."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sdgbias.benchmark import quality
from sdgbias.errors import DataValidationError, InputError, StoreError
from tests.builders.quality import GOOD, SUITES, copies, only, put, save


class Tags(HTMLParser):
    """Every tag is closed in order; collects tags and links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in ("meta", "br", "link", "img", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def pages(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark whose clusters all break rules, with markup in a key."""
    tables = copies()
    tables["clusters"]["year"] = 1990
    put("clusters", "cluster_id", "<script>alert('x')</script> $name")(tables)
    folder = save(tables, tmp_path_factory.mktemp("faulty"))
    with pytest.raises(DataValidationError):
        quality.run_gate(folder, SUITES, docs=True)
    return folder


def test_pages_of_a_good_benchmark(tmp_path: Path) -> None:
    quality.run_gate(save(GOOD, tmp_path), SUITES, docs=True)
    found = pages(tmp_path / "data_docs")
    assert set(found) == {"index.html", *(f"{name}.html" for name in quality.TABLES)}
    assert "The benchmark passed." in found["index.html"]
    for name in quality.TABLES:
        assert f'href="{name}.html"' in found["index.html"]
        for expectation in quality.load_suite(name, SUITES)["expectations"]:
            assert (
                f"{expectation['meta']['rule']} (" in found[f"{name}.html"]
                or expectation["meta"]["rule"] == "split-by-place"
            )
    assert "the split is by id" in found["items_mcq.html"]


def test_offline_clean_and_well_formed(faulty: Path) -> None:
    for name, text in pages(faulty / "data_docs").items():
        assert not re.search(r"https?:|//[a-z]|@import|url\(", text), name
        tags = Tags()
        tags.feed(text)
        assert tags.open == []
        assert not tags.seen & {"script", "img", "iframe", "link", "object", "form"}
        assert all(re.fullmatch(r"[a-z_]+\.html", link) for link in tags.links)


def test_markup_in_data_stays_text(faulty: Path) -> None:
    text = pages(faulty / "data_docs")["clusters.html"]
    assert "&lt;script&gt;" in text
    assert "$name" in text
    assert "<script" not in text


def test_failures_are_told_with_few_examples(faulty: Path) -> None:
    text = pages(faulty / "data_docs")["clusters.html"]
    assert "year-range (quarantine)" in text
    assert "100% unexpected" in text
    assert text.count("BF-2010-5Z-00000003") <= len(
        quality.load_suite("clusters", SUITES)["expectations"]
    )
    assert sum(map(len, pages(faulty / "data_docs").values())) < 2 * 2**20
    assert "did not pass" in pages(faulty / "data_docs")["index.html"]


def test_same_results_same_bytes_elsewhere(faulty: Path, tmp_path: Path) -> None:
    index = quality.write_docs(faulty, tmp_path / "a" / "docs", SUITES)
    assert index == tmp_path / "a" / "docs" / "index.html"
    assert pages(index.parent) == pages(faulty / "data_docs")
    assert str(faulty) not in "".join(pages(index.parent).values())


def test_table_rules_say_what_was_observed(tmp_path: Path) -> None:
    tables = copies()
    tables["items_mcq"]["answer"] = "A"
    tables["clusters"] = tables["clusters"].drop(columns="lat")
    with pytest.raises(DataValidationError):
        quality.run_gate(save(tables, tmp_path), only(tmp_path, "label-shares"), docs=True)
    found = pages(tmp_path / "data_docs")
    assert "missing: lat" in found["clusters.html"]
    assert "observed " in found["items_mcq.html"]


def test_bad_input(tmp_path: Path, faulty: Path) -> None:
    with pytest.raises(InputError, match=r"quality\.json: .*sdgbias build"):
        quality.write_docs(tmp_path, tmp_path / "docs", SUITES)
    path = tmp_path / "quality.json"
    path.write_text('{"tables": {"clusters": 3}}', encoding="utf-8")
    with pytest.raises(InputError, match="not what the quality gate writes"):
        quality.write_docs(tmp_path, tmp_path / "docs", SUITES)
    report = json.loads((faulty / "quality.json").read_text(encoding="utf-8"))
    report["tables"]["clusters"]["rules"]["moon-phase"] = 0
    path.write_text(json.dumps(report), encoding="utf-8")
    with pytest.raises(InputError, match="rule moon-phase of clusters"):
        quality.write_docs(tmp_path, tmp_path / "docs", SUITES)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match="can't be written"):
        quality.write_docs(faulty, tmp_path / "file", SUITES)
