"""One page layer with two front doors: the static report and the web application show the same
pages with the same numbers; words are explained from one glossary."""

from __future__ import annotations

import re
from html import unescape
from importlib.metadata import version
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from sdgbias.analysis import paper
from sdgbias.analysis.paper import results as stored
from sdgbias.report import layout
from sdgbias.report.build import write_report

#: Pages that both doors show.
SHARED = [layout.NIGHT, *(p for p in layout.PAGES if p.template and not p.interactive)]


@pytest.fixture(scope="module")
def static(served: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = paper.build(stored.load(served))
    return write_report(served, tmp_path_factory.mktemp("static"), tables=tables).parent


def words(markup: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", markup))).strip()


def tables(html: str) -> dict[str, list[list[str]]]:
    """Label -> rows of cells as a reader sees them, without the web application's own column."""
    found = {}
    labelled = r'aria-label="([^"]*)">\s*<table[^>]*>(.*?)</table>'
    for label, table in re.findall(labelled, html, re.S):
        rows = [
            [words(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)]
            for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.S)
        ]
        at = rows[0].index("Look") if "Look" in rows[0] else None
        found[label] = [r[:at] for r in rows]
    return found


def test_every_table_of_a_template_has_a_caption() -> None:
    begins = re.compile(r"(?:<table(?: [^>]*)?>|call ui\.table\([^)]*\) %\})\s*(.{9})", re.S)
    for template in Path(layout.__file__).with_name("templates").glob("*.j2"):
        for after in begins.findall(template.read_text(encoding="utf-8")):
            assert after in ("<caption ", "<caption>", "{{ caller"), f"{template.name}: {after}"


@pytest.mark.parametrize("page", SHARED, ids=lambda page: page.title)
def test_both_doors_show_the_same_numbers(
    static: Path, client: TestClient, page: layout.Page
) -> None:
    answer = client.get(page.address)
    assert answer.status_code == 200
    if not (static / page.file).is_file():
        assert "The results hold nothing for this page yet" in answer.text
        return
    theirs = tables((static / page.file).read_text(encoding="utf-8"))
    ours = tables(answer.text)
    assert theirs == ours and sum(map(len, ours.values())) > 3


def test_an_example_is_the_question_of_the_web_application(
    static: Path, client: TestClient
) -> None:
    html = (static / "questions.html").read_text(encoding="utf-8")
    parts = re.findall(r'<div class="body">(.*?)<div class="aside">(.*?)</dl>', html, re.S)
    assert len(parts) > 3
    for body, facts in parts[:3]:
        said = dict(re.findall(r"<dt>(\w+)</dt><dd[^>]*>(.*?)</dd>", facts))
        [test] = set(re.findall(r"tuned on val at (T\d)", words(body)))
        address = layout.SERVED.link("questions", said["Run"], "mcq", said["Item"], test=test)
        served = client.get(address).text
        [theirs] = re.findall(r'<div class="body">(.*?)<div class="aside">', served, re.S)
        assert words(theirs) == words(body)


def test_the_navigation_is_the_same_list(static: Path, client: TestClient) -> None:
    def titles(html: str) -> list[str]:
        return re.findall(r'<li><a href="[^"#]+"[^>]*>([^<]+)</a></li>', html.split("</header>")[0])

    here = titles(client.get("/").text)
    assert here == [page.title for page in layout.PAGES]
    for file in static.glob("*.html"):
        shown = titles(file.read_text(encoding="utf-8"))
        assert shown == [t for t in here if t in shown] and layout.NIGHT.title in shown


def test_terms_are_explained_and_text_stays_text() -> None:
    made = layout.explained("<b>Full</b> at T1 and T10, Fuller; CTX+Q, Full, generated")
    assert made.count("<abbr") == 4 and "&lt;b&gt;<abbr" in made
    assert f'title="{layout.TERMS["T1"]}">T1</abbr> and T10, Fuller' in made
    assert ">Full, generated</abbr>" in made
    assert list(layout.terms_in("CADE", "T5 of T1")) == ["T1", "T5", "CADE"]


def test_the_charts_script_is_bundled_once_for_all_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vl_convert

    from sdgbias.report.pages import studies

    bundled: list[str] = []
    monkeypatch.setattr(
        vl_convert, "javascript_bundle", lambda text: bundled.append(text) or "a</script>\u00e9"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library = studies.library.__wrapped__  # without what this process remembers
    assert [library(), library()] == ["a<\\/script>\u00e9"] * 2 and len(bundled) == 1
    [kept] = (tmp_path / "cache" / "sdgbias").iterdir()
    assert kept.name == f"vega-{version('vl-convert-python')}.js"
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))  # no folder: it is bundled each time
    assert [library(), library()] == ["a<\\/script>\u00e9"] * 2 and len(bundled) == 3
