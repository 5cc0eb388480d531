"""The report page, from a small published results file."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

from sdgbias import store
from sdgbias import wording as words
from sdgbias.analysis.rows import row, table
from sdgbias.errors import StoreError
from sdgbias.methods import lean, stats
from sdgbias.methods.stats import Estimate
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report import charts, leans
from sdgbias.report.build import write_report
from sdgbias.report.charts import draw
from sdgbias.report.pages import findings
from sdgbias.report.reader import Cells, Results
from sdgbias.types import PILLARS
from tests.builders.results import publish_fake
from tests.builders.studies import analyse_fake


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = publish_fake(tmp_path_factory.mktemp("results") / "sdgbias.duckdb")
    analyse_fake(path, "fake-pessimist-2")
    return path


@pytest.fixture(scope="module")
def folder(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(results, tmp_path_factory.mktemp("report")).parent


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


# -- the page
# ----------------------------------------------------------------------


def test_distinct_prompts_and_cells_are_of_the_same_views(page: str) -> None:
    # 700 distinct prompts, 60 of them asked by extra passes alone, which the 1,200 cells don't hold
    assert "640 distinct of 1,200, and 60 of extra passes: 699 scored" in page


def test_page_shows_the_newest_run_of_each_model(page: str) -> None:
    assert "fake-optimist-1" in page
    assert "fake-pessimist-2" in page
    assert "fake-optimist-0" not in page


def test_page_says_what_is_planted_quarantined_and_failed(page: str) -> None:
    assert "Planted, not measured:" in page
    for text in (
        "missing-tile",
        "photo-corrupt",
        "&lt;cut off&gt;",
        "NonFiniteLogits",
        "CC BY-SA 4.0",
        "0123456789abcdef",
    ):
        assert text in page


def test_a_model_has_a_page_of_its_own(page: str, folder: Path, results: Path) -> None:
    assert '<a href="model-fake-pessimist.html">fake-pessimist</a>' in page
    text = (folder / "model-fake-pessimist.html").read_text(encoding="utf-8")
    assert "The image helps" in text and "The image helps" not in page
    sql = """SELECT value, ci_low, ci_high FROM metrics WHERE run_id = 'fake-pessimist-2' AND task
             = 'mcq' AND test = 'T3'
             AND method = 'cade' AND pillar = 'all' AND metric = 'accuracy'"""
    value, low, high = store.query(results, sql).iloc[0]
    assert f"{100 * value:.1f}\u00a0%<small>{100 * low:.1f}–{100 * high:.1f}</small>" in text


def test_the_first_screens_answers_are_told_as_the_page_has_them(
    results: Path, page: str, tmp_path: Path
) -> None:
    told: list[str] = []
    write_report(results, tmp_path, tell=told.append)
    shown = " ".join(re.sub(r"<[^>]+>", "", page).split())
    assert len(told) >= 3 and all(" ".join(answer.split()) in shown for answer in told)


def test_a_models_name_cannot_leave_its_element(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results.parent, tmp_path / "r")
    with store.connect(tmp_path / "r" / results.name, details=()) as con:
        con.execute("UPDATE runs SET model = '</script><b>' WHERE model = 'fake-optimist'")
    text = write_report(tmp_path / "r" / results.name, tmp_path / "out").read_text("utf-8")
    assert "<b>" not in text and "&lt;/script&gt;&lt;b&gt;" in text


def test_every_figure_has_alt_text_with_its_numbers(page: str, folder: Path) -> None:
    drawn = r'<div class="(?:several)?" role="img" aria-label="([^"]+)"'
    for text, many in (
        (page, 1),
        ((folder / "model-fake-optimist.html").read_text(encoding="utf-8"), 2),
    ):
        labels = re.findall(drawn, text)
        assert len(labels) == many
        assert all(" n " in label and "CI" in label for label in labels)
        ids = re.findall(r'\bid="([^"]+)"', text)
        assert len(ids) == len(set(ids))


def test_a_bare_run_still_makes_a_page(tmp_path: Path) -> None:
    path = tmp_path / "bare.duckdb"
    store.publish(
        path,
        {"run_id": "r", "model": "<m>", "benchmark_id": "b", "finished_at": "2026-11-20T00:00:00"},
        {},
    )
    text = write_report(path, tmp_path / "out").read_text(encoding="utf-8")
    assert "&lt;m&gt;" in text
    assert "<m>" not in text
    assert not (tmp_path / "out" / "questions.html").exists()


def test_different_benchmarks_are_flagged(tmp_path: Path, page: str) -> None:
    for model in "ab":
        record = {
            "run_id": model,
            "model": model,
            "benchmark_id": model,
            "finished_at": "2026-11-20T00:00:00",
        }
        store.publish(tmp_path / "two.duckdb", record, {})
    assert "Different benchmarks:" in write_report(
        tmp_path / "two.duckdb", tmp_path / "out"
    ).read_text(encoding="utf-8")
    assert "Different benchmarks:" not in page


def test_errors_are_one_line(results: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't be written"):
        write_report(results, tmp_path / "file")
    with store.connect(tmp_path / "empty.duckdb"):
        pass
    with pytest.raises(StoreError, match=r"no finished run; run `sdgbias evaluate"):
        write_report(tmp_path / "empty.duckdb", tmp_path)


# -- words
# ----------------------------------------------------------------------


def shares(
    p: float, c: float, o: float, half: float = 0.05, clusters: int = 6
) -> dict[str, Estimate]:
    return {
        d: Estimate(v, 100, v - half, v + half, clusters)
        for d, v in zip(DIRECTIONS, (p, c, o), strict=True)
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (shares(0.1, 0.1, 0.8), "leans optimistic"),
        (shares(0.7, 0.2, 0.1), "leans pessimistic"),
        (shares(0.48, 0.04, 0.48), "splits between optimistic and pessimistic"),
        (shares(0.33, 0.33, 0.34), "shows no clear direction"),
        (shares(0.1, 0.1, 0.8, half=0.5), "shows no clear direction"),
        (shares(0.1, 0.1, 0.8, clusters=5), "5 prompts: too few to say"),
        (shares(0.1, 0.1, 0.8, clusters=1), "1 prompt: too few to say"),
        (shares(0.1, 0.1, 0.8, clusters=0), "can't be judged"),
        ({"optimistic": Estimate(1.0, 3, 0.4, 1.0, 9)}, "can't be judged"),
    ],
)
def test_lean(given: dict[str, Estimate], said: str) -> None:
    assert lean.verdict(given) == said


def test_numbers_as_text() -> None:
    assert words.number(-1234.56) == "−1,234.6"
    assert words.number(-0.01, signed=True) == "0.0"
    assert words.number(float("nan")) == "n/a"


def cells_of(results: Path) -> Cells:
    with Results(results).reading() as reader:
        return Cells(reader, store.latest_runs(results))


def test_headline_sentences(results: Path) -> None:
    found = cells_of(results)
    assert [v.verdict for v in leans.leaning(found, "fake-optimist")] == [
        "1 prompt: too few to say"
    ] * 3
    assert leans.leaning(found, "fake-optimist")[0].evidence.endswith(
        "; 1 distinct prompt in one wording: holds for other questions in this wording"
    )
    with Results(results).reading() as reader:
        verdict, _ = findings.findings(reader, "fake-pessimist-2")["extra"][0]
    assert verdict == "The image helps"


def test_wordings_make_a_lean(results: Path, tmp_path: Path) -> None:
    """With the study of wordings in the results, the verdict rests on them, and counts
    indicators."""
    own = tmp_path / "r.duckdb"
    publish_fake(own)
    run = store.latest_runs(own)[0]
    model = str(store.query(own, "SELECT model FROM runs WHERE run_id = ?", [run])["model"][0])
    says = np.array([2] * 24 + [1] * 3)
    shares = {d: stats.share(says == k, np.arange(27)) for k, d in enumerate(DIRECTIONS)}
    common = {"test": "T1", "method": "q_only", "attribute": "pillar", "group": PILLARS[0]}
    made = [row("wordings", f"share_{d}", e, **common) for d, e in shares.items()]
    made.append(row("wordings", "distinct_indicators", 9.0, **common))
    kept = store.query(own, "SELECT * EXCLUDE (run_id) FROM numbers WHERE run_id = ?", [run])
    store.replace(own, run, {"numbers": pd.concat([kept, table(made)], ignore_index=True)})
    first, second, _ = leans.leaning(cells_of(own), model)
    assert first.verdict == "leans optimistic" and "; 9 indicators in several" in first.evidence
    assert leans.prompts([first, second]) == "1 to 9 distinct prompts"
    assert second.verdict == "1 prompt: too few to say"


def test_a_pillar_of_few_indicators_is_judged_over_their_wordings_alone(tmp_path: Path) -> None:
    """Three indicators say nothing about others; 27 wordings of them, 24 optimistic, say what holds
    for these three, and the finding says so."""
    results = tmp_path / "r.duckdb"
    publish_fake(results)
    run = store.latest_runs(results)[0]
    model = str(store.query(results, "SELECT model FROM runs WHERE run_id = ?", [run])["model"][0])
    says = np.array([2] * 24 + [1] * 3)
    common = {"test": "T1", "method": "q_only", "attribute": "pillar", "group": PILLARS[0]}
    rows = [
        row("wordings", f"{prefix}share_{d}", stats.share(says == k, clusters), **common)
        for k, d in enumerate(DIRECTIONS)
        for prefix, clusters in (("", np.arange(27) // 9), ("wordings_", np.arange(27)))
    ]
    rows += [row("wordings", "distinct_indicators", 3.0, **common)]
    rows += [row("wordings", "distinct_prompts", 27.0, **common)]
    earlier = store.query(results, "SELECT * EXCLUDE (run_id) FROM numbers WHERE run_id = ?", [run])
    store.replace(results, run, {"numbers": pd.concat([earlier, table(rows)])})

    lean = leans.leaning(cells_of(results), model)[0]

    assert (lean.verdict, lean.short) == ("leans optimistic", "optimistic on its 3 indicators")
    assert lean.evidence.endswith(
        "; 27 wordings of 3 indicators: holds for other wordings of these"
    )


# -- figures
# ----------------------------------------------------------------------


def test_figures_follow_the_page_scheme_and_say_their_numbers(
    results: Path, tmp_path: Path
) -> None:
    def drawn(path: Path) -> list[charts.Figure]:
        with Results(path).reading() as reader:
            names = ("model-views", "model-cade", "image-use")
            return draw.draw(reader, ["fake-pessimist-2"], names)

    figures = drawn(results)
    assert [f.name for f in figures] == ["model-views", "model-cade", "image-use"]
    for shown in map(charts.still_figure, figures):
        for _, svg in shown["panels"]:
            assert "currentColor" in svg and "http" not in svg and "#010203" not in svg
    where = {"model": "fake-pessimist", "task": "mcq", "test": "T2", "method": "cade"}
    gain = cells_of(results).estimate(**where, metric="accuracy")
    assert gain is not None
    assert f"T2 CADE: {100 * gain.value:.1f} (CI " in charts.described(figures[1])
    shutil.copytree(results.parent, tmp_path, dirs_exist_ok=True)
    with duckdb.connect(str(tmp_path / results.name)) as con:
        con.execute("UPDATE numbers SET low = NULL, high = NULL WHERE method = 'q_only'")
        con.execute(
            "INSERT INTO numbers BY NAME SELECT * REPLACE ('stunting' AS indicator) FROM numbers"
        )
    views, *others = drawn(tmp_path / results.name)
    assert "Q-only" in charts.described(views) and "no interval" in charts.described(views)
    for other, before in zip(others, figures[1:], strict=True):
        numbers = list(before.heads)  # of all indicators together alone
        pd.testing.assert_frame_equal(other.frame[numbers], before.frame[numbers])


def test_a_row_without_an_interval_gives_its_number_of_clusters() -> None:
    nothing = float("nan")
    row = {"value": 0.5, "n": 40, "ci_low": nothing, "ci_high": nothing, "clusters": 3}
    assert words.interval_of(row, "accuracy") == "no interval: 3 clusters"
    assert words.interval_of(row | {"clusters": None}, "accuracy") == "no interval"
    assert words.interval_of(row | {"ci_low": 0.4, "ci_high": 0.6}, "accuracy") == "40.0–60.0"


def test_a_method_is_the_highest_only_beyond_the_intervals_of_all_others() -> None:
    def sentence(*bounds: tuple[float | None, float | None]) -> str:
        shown = {
            "model": "m",
            "test": "T1",
            "pillar": "all",
            "method": ["x", "y", "z"],
            "metric": "accuracy",
            "value": [60.0, 50.0, 40.0],
            "said": ["60.0", "50.0", "40.0"],
            "low": [low for low, _ in bounds],
            "high": [high for _, high in bounds],
            "ci": "c",
            "n": 90,
        }
        return draw.best(pd.DataFrame(), pd.DataFrame(shown))["best"]

    apart = sentence((56.0, 64.0), (46.0, 54.0), (36.0, 44.0))
    assert apart == "for m, the highest is x with 60.0 % (95 % CI c, n 90; T1)."
    reached = sentence((53.0, 67.0), (43.0, 57.0), (36.0, 44.0))
    assert "no method is the highest" in reached and "1 of 2 others" in reached
    # without an interval of its own, or of another, nothing is told apart
    assert "2 of 2 others" in sentence((None, None), (46.0, 54.0), (36.0, 44.0))
    assert "1 of 2 others" in sentence((56.0, 64.0), (None, None), (36.0, 44.0))
