"""The report's further pages: their numbers are those of the rows, they need nothing but
themselves, and they say what is missing."""

from __future__ import annotations

import base64
import gzip
import json
import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest
import vl_convert as vlc

from sdgbias import store
from sdgbias.analysis.paper.numbers import Printed
from sdgbias.analysis.paper.tables import Cell, Column, Row, Table
from sdgbias.files import packaged_sql
from sdgbias.methods import stats
from sdgbias.report import charts, layout, leaderboard
from sdgbias.report.build import ReportPages, write_report
from sdgbias.report.charts import draw, marks
from sdgbias.report.reader import SQL, Results
from sdgbias.store import database
from tests.builders.results import NAMED, altered, publish_fake, publish_models

MODEL_PAGES = ("model-fake-optimist.html", "model-fake-pessimist.html")
STUDY_PAGES = ("methods.html", "parameters.html", "groups.html", "harm.html")


def read(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def packed(text: str) -> dict[str, dict[str, Any]]:
    """What the page's script unpacks: figure name -> filters, columns, specs with rows."""
    [data] = re.findall(
        r'<script type="application/octet-stream" id="charts">(.*?)</script>', text, re.DOTALL
    )
    return {f["name"]: f for f in json.loads(gzip.decompress(base64.b64decode(data)))}


# -- pages
# ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("method = 'full'", r"The accuracy of [^<]* with <abbr[^>]*>CADE</abbr> lies between "),
        ("metric = 'accuracy' AND \"group\" <> 'rural'", "has one group of 20 questions or more: "),
    ],
)
def test_groups_of_which_some_are_gone_are_told_as_they_are(
    fake: Path, tmp_path: Path, gone: str, words: str
) -> None:
    """As a person's SQL can leave a results file, or a benchmark of few places."""
    gone = f"DELETE FROM numbers WHERE study = 'groups' AND {gone}"
    [groups] = [page for page in layout.PAGES if page.file == "groups.html"]
    filled = ReportPages(altered(fake, tmp_path, gone)).page(groups)
    assert filled is not None
    text = layout.render(filled[0], groups, layout.Front([groups.file], inline=True), **filled[1])
    assert re.search(words, text)


def test_only_pages_with_rows_are_written(folder: Path, tmp_path: Path) -> None:
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        ["index.html", "compare.html", "questions.html", *STUDY_PAGES, *MODEL_PAGES]
    )
    bare = publish_fake(tmp_path / "bare.duckdb", n=30, n_regression=3)
    (tmp_path / "out").mkdir()
    for name in ("harm.html", "model-gone.html"):
        (tmp_path / "out" / name).write_text("of an earlier report")
    index = write_report(bare, tmp_path / "out").read_text(encoding="utf-8")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "compare.html",
        "index.html",
        *MODEL_PAGES,
        "questions.html",
    ]
    assert "the pages Methods, Parameters, Groups, Harm and calibration: not analysed" in index
    assert 'href="methods.html"' not in index


def test_an_overview_has_no_heads_without_rows_and_no_advice_that_was_followed(
    fake: Path, tmp_path: Path
) -> None:
    """Of analysed runs on numbers alone."""
    without = "DELETE FROM numbers WHERE task <> 'regression'"
    analysed = "INSERT INTO analyses SELECT run_id, '{}' FROM runs"
    results = altered(fake, tmp_path, without, analysed)
    index = write_report(results, tmp_path / "out").read_text(encoding="utf-8")
    assert "Which way each model leans" not in index and "Not shown:" not in index
    assert "2 models, all planted; newest run" in index


def test_every_page_is_linked_from_every_other(folder: Path) -> None:
    files = {p.name for p in folder.glob("*.html")}
    for name in files:
        text = read(folder, name)
        assert set(re.findall(r'<a href="([a-z]+\.html)"', text)) == files - {*MODEL_PAGES}
        here = f'<a href="{name}" class="here" aria-current="page">'
        assert (here in text) == (name not in MODEL_PAGES)
    assert {*MODEL_PAGES} <= {*re.findall(r'<a href="([^"]+)"', read(folder, "index.html"))}


def test_pages_need_nothing_but_themselves(folder: Path) -> None:
    for path in folder.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert path.stat().st_size < 6_000_000
        assert "default-src 'none'" in text
        assert not re.search(r"<script[^>]*\bsrc=", text)
        markup = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
        assert not re.search(
            r"https?://|@import|<(?:img|iframe|source|object)\b[^>]*\b(?:src|data)=(?![\"']data:)",
            markup,
        )
        assert set(re.findall(r'<link[^>]*href="([^"]*)"', markup)) == {"data:,"}
        ids = re.findall(r'\bid="([^"]+)"', markup)
        assert len(ids) == len(set(ids))
        levels = [int(level) for level in re.findall(r"<h([1-6])", markup)]
        assert levels[0] == 1
        assert all(b <= a + 1 for a, b in pairwise(levels))


@pytest.mark.slow
def test_pages_are_the_same_bytes_every_time(fake: Path, folder: Path, tmp_path: Path) -> None:
    write_report(fake, tmp_path)
    for path in folder.glob("*.html"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_an_answer_without_a_number_is_said_to_count_as_it_does(folder: Path) -> None:
    assert "an answer without a number counts as 0.0" in read(folder, MODEL_PAGES[0])


def test_pages_say_what_is_missing_and_why(folder: Path) -> None:
    text = read(folder, "methods.html")
    assert "fake-optimist (planted): not analysed: sdgbias analyse" in text
    assert "fake-pessimist (planted): not analysed" not in text
    assert re.search(
        r'<th scope="row">vdd_tuned</th><td>no val rows to tune on</td><td>choice</td>',
        text,
    )
    assert "Not shown: 1 value over fewer than 20 questions." in read(folder, "groups.html")


@pytest.mark.parametrize(
    ("page", "figure", "key", "numbers"),
    [
        ("methods.html", "methods-accuracy", "bcl", ("60.0", "55.0–65.0", "48")),
        ("methods.html", "methods-gain", "vdd", ("−10.0", "−15.0 to −5.0", "48")),
        ("methods.html", "perturbation", "reversed", ("50.0", "45.0–55.0", "48")),
        ("parameters.html", "ablation", "+ tau", ("60.0", "55.0–65.0", "48")),
        ("parameters.html", "search-optimism", "T1", ("+7.0", "+2.0 to +12.0", "12")),
        ("groups.html", "groups-wealth", "richest", ("65.0", "60.0–70.0", "24")),
        ("groups.html", "groups-change", "best − worst country", ("+2.0", "−3.0 to +7.0", "48")),
        ("harm.html", "harm-fixed", "all tests", ("30.0", "25.0–35.0", "48")),
        ("harm.html", "calibration-scores", "all tests", ("21.0", "16.0–26.0", "48")),
    ],
)
def test_numbers_of_the_rows_are_on_the_page(
    folder: Path, page: str, figure: str, key: str, numbers: tuple[str, ...]
) -> None:
    [part] = re.findall(
        rf'<div class="figure" id="{figure}">(.*?)</details>', read(folder, page), re.DOTALL
    )
    lines = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line)
        for line in re.findall(r"<tr>(.*?)</tr>", part, re.DOTALL)
    ]
    assert tuple(numbers) in {tuple(cells[-3:]) for cells in lines if cells[0] == key}
    [plot] = re.findall(
        r'<div class="plot" role="img" aria-label="[^"]*CI [^"]*, n [^"]*">(<svg.*?</svg>)',
        part,
        re.DOTALL,
    )
    assert f">{key}</text>" in plot


def test_interactive_rows_and_choices(folder: Path) -> None:
    found = packed(read(folder, "methods.html"))["methods-accuracy"]
    assert [f["name"] for f in found["filters"]] == ["model", "test", "pillar"]
    assert found["filters"][0]["options"] == [
        "fake-pessimist (planted)"
    ]  # the other one is not analysed
    assert found["filters"][1]["options"] == ["all tests", "T1", "T2", "T3", "T4", "T5"]
    [spec] = found["specs"]
    rows = [
        r
        for r in spec["rows"]
        if r["method"] == "vdd" and r["test"] == "T1" and r["pillar"] == "all pillars"
    ]
    assert [(r["value"], r["low"], r["high"], r["n"]) for r in rows] == [(51.0, 46.0, 56.0, 48)]
    text = json.dumps(spec["chart"])
    assert re.search(r"pillar\W+=+ *pick_pillar", text)
    assert "#methods-accuracy-controls" in text
    assert "http" not in text
    assert len(packed(read(folder, "parameters.html"))["sweep"]["specs"]) == 4


def test_the_axis_of_a_choice_of_tasks_names_the_quantity_of_the_task(folder: Path) -> None:
    text = read(folder, "parameters.html")
    assert charts.OF_TASK not in text and "or mean absolute error</text>" not in text
    assert ">accuracy, %</text>" in text
    by_task = {"ablation", "streams", "sweep", "search", "search-optimism"}
    found = {name: f for name, f in packed(text).items() if name in by_task}
    assert {"ablation", "sweep"} <= found.keys()
    for name, one in found.items():
        for spec in one["specs"]:
            titles = [axis["title"] for axis in spec["chart"]["axes"] if "title" in axis]
            assert {"signal": "split(pick_task, ': ')[1]"} in titles, name


def test_every_study_has_its_figure(fake: Path) -> None:
    made = ReportPages(fake).drawn
    names = [f.name for group in made.values() for f in group]
    assert len(names) == len(set(names)) == 6 + 6 + 6 + 7 + 2
    for f in (f for group in made.values() for f in group):
        assert len(f.chosen())
        assert f.frame["n"].map(lambda n: isinstance(n, int)).all()
        assert set(f.heads) <= set(f.frame.columns)
    # a second for each chart, so of each form one
    for spec in {
        str(layer_marks(f.spec)): f.spec for group in made.values() for f in group
    }.values():
        alt.LayerChart.from_dict({**spec, "data": {"name": "rows"}}, validate=True)


def layer_marks(spec: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """What a chart is made of: the kind of mark of each layer, and what it shows."""
    return [(str(one.get("mark")), sorted(one.get("encoding", {}))) for one in spec["layer"]]


# -- rows
# ----------------------------------------------------------------------


def test_rows_are_shaped() -> None:
    frame = pd.DataFrame({"value": [0.25, np.nan, 0.5], "n": [8, 3, 1]}).assign(metric="accuracy")
    frame["ci_low"], frame["ci_high"] = [0.1, np.nan, np.nan], [0.4, np.nan, np.nan]
    made = draw.shaped(frame)
    assert (list(made["value"]), list(made["low"])) == ([25.0, 50.0], [10.0, None])
    assert (list(made["ci"]), list(made["n"])) == (["10.0–40.0", "no interval"], [8, 1])


def test_bars_are_stacked_in_the_order_of_their_legend() -> None:
    legend = {"a": "#0072b2", "b": "#767676"}
    form = marks.form("bars", x="share", y="bar", tips=[], hue="part", **marks.coloured(legend))
    parts = {"bar": ["x", "x", "y"], "part": ["b", "a", "a"], "value": [70.0, 30.0, 100.0]}
    rows = pd.DataFrame(parts).to_dict("records")
    svg = vlc.vegalite_to_svg({**form, "data": {"values": rows}, "width": 100})
    bars = re.findall(r'd="M([\d.]+),[\d.]+h([\d.]+)v19', svg)
    assert {(float(start), float(width)) for start, width in bars} == {
        *((30.0, 70.0), (0.0, 30.0), (0.0, 100.0)),
    }


def test_a_form_leaves_out_what_is_not_given() -> None:
    given = {"y": "model", "x": "accuracy, %", "tips": []}
    plain = marks.form("dots", **given, **marks.coloured({}))
    [rule, dot] = plain["layer"]
    assert rule["mark"]["color"] == dot["mark"]["color"] == "#0072b2"
    assert list(dot["encoding"]) == ["y", "tooltip", "x"]
    assert dot["encoding"]["y"]["sort"] is None, "null is the order of the rows, not the alphabet's"
    of_two = marks.coloured({"Full": "#0072b2", "CADE": "#d55e00"})
    [zero, _, dot] = marks.form("dots", **given, **of_two, hue="method", zero=True)["layer"]
    assert "if" not in zero and "color" not in dot["mark"]
    assert dot["encoding"]["color"] == {
        "field": "method",
        "type": "nominal",
        "scale": {"domain": ["Full", "CADE"], "range": ["#0072b2", "#d55e00"]},
    }
    assert marks.coloured({"Full": "#0072b2"})["alone"] is None, "one name needs no legend"
    cells = marks.form("heat", across=[], down=[], tips=[], shade="loss")
    assert cells["layer"][0]["transform"] == [{"filter": "datum.loss != null"}]


def test_named_columns_are_made_of_one_or_several() -> None:
    columns = {"group": ["urban", "new"], "method": ["cade", "vdd"], "p": [0.04, np.nan]}
    frame = pd.DataFrame(columns).assign(task="mcq", attribute="urban")
    made = draw.named(frame, "groups-gaps")
    assert list(made["gap"]) == ["urban − rural", "urban new"]
    assert list(made["method"]) == ["CADE", "vdd"]
    assert list(made["task"]) == ["Choice: accuracy"] * 2
    assert list(made["p"]) == ["0.040", ""]
    kinds = [draw.kind_of(m) for m in ("full", "cade", "vdd", "bcl", "always_a")]
    assert kinds == ["view", "CADE", "fixed settings", "tuned on val", "control"]


# -- leaderboard
# ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measured, a planted and an embedded model."""
    return publish_models(tmp_path_factory.mktemp("three") / "sdgbias.duckdb")


def compared(path: Path, *, rank_planted: bool = False) -> leaderboard.Board:
    with Results(path).reading() as reader:
        runs = reader.frame(SQL["labelled"], {"runs": store.latest_runs(path)})
        return leaderboard.compare(reader, runs, rank_planted=rank_planted)


def test_leaderboard_values_are_those_of_the_store(three: Path) -> None:
    sql = """SELECT value, n, ci_low, ci_high FROM metrics WHERE task = 'mcq'
             AND metric = 'accuracy' AND pillar = 'all' AND test = ? AND method = ? AND model = ?"""
    for r in compared(three).places.to_dict("records"):
        test = "all" if r["test"] == "all tests" else r["test"]
        where = [test, r["method"].lower(), r["model"].removesuffix(" (planted)")]
        shown = (r["value"], r["n"], r["ci_low"], r["ci_high"])
        assert tuple(store.query(three, sql, where).iloc[0]) == pytest.approx(shown)


def test_models_that_lack_an_answer_say_why(three: Path, tmp_path: Path) -> None:
    views = '{"spec": {"views": ["q_only", "ctx_q"]}}'
    path = altered(
        three,
        tmp_path,
        ("UPDATE runs SET config = ? WHERE model = 'tiny-llava'", [views]),
        "DELETE FROM numbers WHERE method NOT IN ('q_only', 'ctx_q')",
    )
    with store.connect(path) as con:
        database.write_reasons(con)
    [said, *_] = compared(path).lacking
    assert said | {"what": "Full", "why": "needs pictures", "models": "tiny-llava"} == said


def test_planted_models_stand_apart_unless_asked(three: Path) -> None:
    apart, together = compared(three), compared(three, rank_planted=True)
    assert set(apart.places["kind"]) == {"measured", "planted"}
    assert set(apart.places[apart.places["kind"] == "planted"]["letters"]) == {""}
    assert set(zip(apart.pairs["one"], apart.pairs["other"], strict=True)) == {
        ("llava-1.5-7b", "tiny-llava")
    }
    assert set(together.places["kind"]) == {"all"}
    assert len(together.pairs) == 3 * len(apart.pairs)


def test_pairs_are_paired_tests_with_holm(three: Path) -> None:
    made = compared(three, rank_planted=True).pairs
    mine = made[(made["test"] == "T1") & (made["method"] == "Full")].set_index(["one", "other"])
    sql = """SELECT model, p.item_id, i.cluster_id, correct::INT AS hit FROM predictions p
             JOIN runs r USING (run_id) JOIN items i
             ON (i.task, i.item_id, i.benchmark_id) = (p.task, p.item_id, r.benchmark_id)
             WHERE p.task = 'mcq' AND p.test = 'T1' AND p.method = 'full' AND p.split = 'test'
             ORDER BY p.item_id"""
    keys = ["item_id", "cluster_id"]
    wide = store.query(three, sql).pivot(index=keys, columns="model", values="hit").astype(float)
    place = wide.index.get_level_values("cluster_id").to_numpy(dtype=str)
    pairs = list(combinations(["llava-1.5-7b", "tiny-llava", "qwen2.5-vl-7b"], 2))
    tests = [stats.paired((wide[a] - wide[b]).to_numpy(), place, "difference") for a, b in pairs]
    for (a, b), test, p in zip(pairs, tests, stats.holm([t.p for t in tests]), strict=True):
        label = {"qwen2.5-vl-7b": "qwen2.5-vl-7b (planted)"}
        r = mine.loc[(label.get(a, a), label.get(b, b))]
        assert r["value"] == pytest.approx(wide[a].mean() - wide[b].mean())
        assert (r["ci_low"], r["p"]) == pytest.approx((test.estimate.low, p))
        assert r["mde"] == pytest.approx(stats.minimum_detectable(test.se, test.df))


def test_models_of_different_benchmarks_are_not_compared(three: Path, tmp_path: Path) -> None:
    path = altered(
        three,
        tmp_path,
        "INSERT INTO items BY NAME SELECT * REPLACE ('other' AS benchmark_id) FROM items",
        "UPDATE runs SET benchmark_id = 'other' WHERE model = 'tiny-llava'",
    )
    made = compared(path)
    assert made.pairs.empty
    assert set(made.places["benchmark_id"]) == {"0123456789abcdef", "other"}


# -- tables and files
# ----------------------------------------------------------------------


def test_the_report_of_three_models_has_letters_and_the_tables_handed_in(
    three: Path, tmp_path: Path
) -> None:
    absent = Cell(status="not analysed: sdgbias analyse")
    cells = (Cell(0.412, 956, 0.38, 0.44, Printed(0.3, "0.30*"), "measured"), absent)
    columns, rows = (Column("T1"), Column("T2")), (Row(("m",), cells),)
    what = ("H", "Table H: <accuracy>", "What it is.")
    table = Table(*what, ("model",), columns, rows, ("a footnote",))

    index = write_report(three, tmp_path, tables=[table]).read_text(encoding="utf-8")

    [part] = re.findall(r'<section id="leaderboard".*?</section>', index, re.DOTALL)
    assert re.search(r'<span class="letters"[^>]*>[ab]+</span>', part), "letters, never ranks"
    shown = re.findall(r'<th scope="row" data-sort="([^"]+)"', part)
    assert shown[-1] == "qwen2.5-vl-7b" and set(shown) == set(NAMED)
    assert "Planted models are made with a known bias" in part and "compare.html" in part
    assert "Every pair of models" in read(tmp_path, "compare.html")
    text = read(tmp_path, "tables.html")
    for words in (
        "Table H: &lt;accuracy&gt;",
        '0.412<small>0.380–0.440, n 956</small><small class="paper">paper 0.30*</small>',
        '<span class="why">not analysed: sdgbias analyse</span>',
        "a footnote",
    ):
        assert words in text
    summary = re.search(r"<details class=\"fold folded\">(.*?)</summary>", text, re.DOTALL)
    assert summary and "1 row by model: 1 number of ours, 1 printed in the paper" in summary[1]
    assert "<script" not in text
    assert "<details open" not in text, "a page of forty tables is read by its headings"


def test_every_figure_has_its_rows_and_its_page() -> None:
    drawn = {name.partition("/")[0] for page in layout.PAGES for name in page.figures}
    elsewhere = {"model-views", "model-cade", "image-use", "moves"}
    elsewhere |= {n for n in charts.texts() if n.startswith(("fairness", "compare"))}
    statements = packaged_sql("figures.sql").keys() - {"every_row", "overall", "people"}
    assert drawn | elsewhere == charts.texts().keys()
    assert statements == charts.texts().keys() - {"moves", "compare-accuracy", "compare-pairs"}
