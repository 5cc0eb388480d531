"""The overview and the folder of the report, leans in words, and the figures of models."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias import store, wording
from sdgbias.analysis.rows import row, table
from sdgbias.errors import StoreError
from sdgbias.methods import stats
from sdgbias.raw.indicators import DIRECTIONS
from sdgbias.report import charts, headlines, leans
from sdgbias.report.build import write_report
from sdgbias.report.charts import draw
from sdgbias.report.pages import findings, first_screen
from sdgbias.report.reader import Cells, Results
from sdgbias.types import PILLARS
from tests.builders.results import altered, publish_fake


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


# -- the page
# ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        # 700 distinct prompts, 60 of extra passes alone, which the 1,200 cells don't hold
        "640 distinct of 1,200, and 60 of extra passes: 699 scored",
        *("fake-optimist-1", "fake-pessimist-2", "Planted, not measured:", "missing-tile"),
        *("photo-corrupt", "&lt;cut off&gt;", "NonFiniteLogits", "CC BY-SA 4.0"),
        "0123456789abcdef",
    ],
)
def test_the_overview_says(page: str, words: str) -> None:
    assert words in page


def test_the_overview_has_the_newest_run_alone_and_warns_of_nothing(page: str) -> None:
    assert "fake-optimist-0" not in page and "Different benchmarks:" not in page


def test_a_model_has_a_page_of_its_own(page: str, folder: Path, fake: Path) -> None:
    assert '<a href="model-fake-pessimist.html">fake-pessimist</a>' in page
    text = (folder / "model-fake-pessimist.html").read_text(encoding="utf-8")
    assert "The image helps" in text and "The image helps" not in page
    sql = """SELECT value, ci_low, ci_high FROM metrics WHERE run_id = 'fake-pessimist-2'
             AND task = 'mcq' AND test = 'T3' AND method = 'cade' AND pillar = 'all'
             AND metric = 'accuracy'"""
    value, low, high = 100 * store.query(fake, sql).iloc[0]
    assert f"{value:.1f}\u00a0%<small>{low:.1f}–{high:.1f}, n " in text


def test_the_first_screens_answers_are_told_as_the_page_has_them(
    report: tuple[Path, list[str]], page: str
) -> None:
    shown = " ".join(re.sub(r"<[^>]+>", "", page).split())
    assert len(report[1]) >= 3 and all(" ".join(answer.split()) in shown for answer in report[1])


def test_every_figure_has_alt_text_with_its_numbers(page: str, folder: Path) -> None:
    drawn = r'<div class="(?:several)?" role="img" aria-label="([^"]+)"'
    model = (folder / "model-fake-optimist.html").read_text(encoding="utf-8")
    for text, many in ((page, 1), (model, 2)):
        labels = re.findall(drawn, text)
        assert len(labels) == many
        assert all(" n " in label and "CI" in label for label in labels)


def test_bare_runs_of_two_benchmarks_make_a_page_and_names_stay_text(tmp_path: Path) -> None:
    for benchmark, model in (("a", "</script><b>"), ("b", "<m>")):
        record = {"run_id": benchmark, "model": model, "benchmark_id": benchmark}
        record |= {"finished_at": "2026-11-20T00:00:00", "n_prompts_planned": 1}
        fault = pd.DataFrame([{"table": "images", "key": "k", "rule": "missing-tile"}])
        store.publish(tmp_path / "r.duckdb", record, {"quarantine": fault})

    text = write_report(tmp_path / "r.duckdb", tmp_path / "out").read_text("utf-8")

    assert "&lt;/script&gt;&lt;b&gt;" in text and "&lt;m&gt;" in text
    assert "<b>" not in text and "<m>" not in text
    assert "Different benchmarks:" in text
    assert "2 faulty rows out of the 2 benchmarks" in text
    titles = [headlines.sections(tmp_path / "r.duckdb", model)[0][0] for model in ("", "<m>")]
    assert ["Different benchmarks:" in title for title in titles] == [True, False]
    assert not (tmp_path / "out" / "questions.html").exists()


def test_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bare = {"run_id": "a", "model": "a", "finished_at": "2026-11-20T00:00:00"}
    store.publish(tmp_path / "r.duckdb", bare, {})
    with pytest.raises(StoreError, match="can't be written"):
        write_report(tmp_path / "r.duckdb", tmp_path / "file")
    with store.connect(tmp_path / "empty.duckdb"):
        pass
    with pytest.raises(StoreError, match=r"no finished run; run `sdgbias evaluate"):
        write_report(tmp_path / "empty.duckdb", tmp_path)


def test_the_first_page_is_written_last(fake: Path, tmp_path: Path) -> None:
    """So that a report which is stopped halfway doesn't begin with links to pages that are not
    there."""
    (tmp_path / "questions.html").mkdir()
    with pytest.raises(StoreError, match=r"questions.html: can't be written"):
        write_report(fake, tmp_path)
    assert not (tmp_path / "index.html").exists()


def test_a_folder_that_is_named_like_one_of_the_report_loses_nothing(
    fake: Path, tmp_path: Path
) -> None:
    benchmark, beside = tmp_path / "data" / "benchmark", tmp_path / "out" / "benchmark"
    for path in (benchmark / "benchmark.json", beside / "of-mine.csv", beside / "quality.html"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"benchmark_id": "b"}')

    write_report(fake, beside.parent, [benchmark])
    with pytest.raises(
        StoreError, match=r"data/benchmark is a benchmark, .*; choose another --out"
    ):
        write_report(fake, benchmark.parent, [benchmark])

    assert [path.name for path in beside.iterdir()] == ["of-mine.csv"]
    assert [path.name for path in benchmark.iterdir()] == ["benchmark.json"]


# -- words
# ----------------------------------------------------------------------


def cells_of(results: Path) -> Cells:
    with Results(results).reading() as reader:
        return Cells(reader, store.latest_runs(results))


def test_one_prompt_makes_no_lean_and_a_finding_is_a_sentence(fake: Path) -> None:
    verdicts = leans.leaning(cells_of(fake), "fake-optimist")
    assert [v.verdict for v in verdicts] == ["1 prompt: too few to say"] * 3
    # what can't be said holds for nothing else
    assert verdicts[0].evidence.endswith("; 1 distinct prompt in one wording")
    with Results(fake).reading() as reader:
        assert findings.findings(reader, "fake-pessimist-2")["extra"][0][0] == "The image helps"


def test_a_finding_says_how_much_of_cade_rests_on_withheld_scores(
    fake: Path, tmp_path: Path
) -> None:
    row = """INSERT INTO numbers BY NAME SELECT * REPLACE ('{}' AS metric, {} AS value) FROM numbers
             WHERE study = 'headline' AND task = 'mcq' AND test = 'all' AND method = 'cade'
                   AND attribute = '' AND indicator = 'all' AND metric = 'accuracy'"""
    numbers = {"certain_rate": 0.2, "accuracy_low": 0.1, "accuracy_high": 0.9}
    path = altered(fake, tmp_path, *(row.format(*number) for number in numbers.items()))
    with Results(path).reading() as reader:
        [(_, text)] = [
            (verdict, text)
            for verdict, text in findings.findings(reader, "fake-pessimist-2")["extra"]
            if verdict == "Some of CADE’s answers are one possibility of several"
        ]
    assert text.replace("\xa0", " ").startswith("20.0 % of them hold whatever scores")
    assert text.replace("\xa0", " ").endswith("an accuracy between 10.0 % and 90.0 %")


WORDED = "; 27 wordings of 3 indicators: holds for other wordings of these"


@pytest.mark.parametrize(
    ("indicators", "short", "evidence"),
    [
        (9, "optimistic", "; 9 indicators in several"),
        # three say nothing about others; 27 wordings of them say what holds for these three
        (3, "optimistic on its 3 indicators", WORDED),
    ],
)
def test_wordings_make_a_lean(tmp_path: Path, indicators: int, short: str, evidence: str) -> None:
    """27 wordings, 24 of them answered optimistically: the verdict rests on them."""
    results = publish_fake(tmp_path / "r.duckdb")
    run = store.latest_runs(results)[0]
    earlier = store.query(results, "SELECT * EXCLUDE (run_id) FROM numbers WHERE run_id = ?", [run])
    says = np.array([2] * 24 + [1] * 3)
    common = {"test": "T1", "method": "q_only", "attribute": "pillar", "group": PILLARS[0]}
    clusters = {"": np.arange(27) if indicators == 9 else np.arange(27) // 9}
    clusters |= {"wordings_": np.arange(27)} if indicators == 3 else {}
    rows = [
        row("wordings", f"{prefix}share_{d}", stats.share(says == k, of), **common)
        for k, d in enumerate(DIRECTIONS)
        for prefix, of in clusters.items()
    ]
    rows.append(row("wordings", "distinct_indicators", float(indicators), **common))
    rows.append(row("wordings", "distinct_prompts", 27.0, **common))
    turned = {"reversed": [2] * 20 + [1] * 7, "random": [0] * 27}
    rows += [
        row("perturbation", f"share_{d}", stats.share(np.array(of) == k, np.arange(27)), **at)
        for order, of in turned.items()
        for at in [common | {"parameter": order}]
        for k, d in enumerate(DIRECTIONS)
    ]
    store.replace(results, run, {"numbers": pd.concat([earlier, table(rows)], ignore_index=True)})

    model, cells = run.rpartition("-")[0], cells_of(results)
    first, second, _ = leans.leaning(cells, model)

    assert (first.verdict, first.short) == ("leans optimistic", short)
    assert evidence in first.evidence
    assert "with the options reversed 74.1" in first.evidence.replace("\xa0", " ")
    assert second.verdict == "1 prompt: too few to say"
    [shown] = first_screen.picture(cells, {}, [model])["rows"]
    bar = shown["cells"][1]["bars"][0]
    # the columns of the table of these numbers are in this order
    assert list(bar.shares) == list(DIRECTIONS)
    assert (bar.shares["optimistic"].value, bar.name) == (24 / 27, "without evidence")
    assert wording.written(bar.shares["optimistic"]).aside in first.evidence
    if indicators == 9:
        assert leans.prompts([first, second]) == "1 to 9 distinct prompts"


# -- figures
# ----------------------------------------------------------------------


def test_figures_follow_the_page_scheme_and_say_their_numbers(fake: Path, tmp_path: Path) -> None:
    names = ["model-views", "model-cade", "image-use"]

    def drawn(path: Path) -> list[charts.Figure]:
        with Results(path).reading() as reader:
            return list(draw.draw(reader, ["fake-pessimist-2"], names).values())

    figures = drawn(fake)
    assert [f.name for f in figures] == names
    for shown in map(charts.still_figure, figures):
        for _, svg in shown["panels"]:
            assert "currentColor" in svg and "http" not in svg and "#010203" not in svg
    where = {"model": "fake-pessimist", "task": "mcq", "test": "T2", "method": "cade"}
    gain = cells_of(fake).estimate(**where, metric="accuracy")
    assert gain is not None
    assert f"T2 CADE: {100 * gain.value:.1f} (CI " in charts.described(figures[1])
    views, *others = drawn(
        altered(
            fake,
            tmp_path,
            # infinite: of a results file that another program wrote
            "UPDATE numbers SET low = '-inf', high = 'inf' WHERE method = 'q_only'",
            "INSERT INTO numbers BY NAME SELECT * REPLACE ('stunting' AS indicator) FROM numbers",
        )
    )
    assert "Q-only" in charts.described(views)
    assert " (no interval: 3 clusters, n 48)" in charts.described(views)
    for other, before in zip(others, figures[1:], strict=True):
        numbers = list(before.heads)  # of all indicators together alone
        pd.testing.assert_frame_equal(other.frame[numbers], before.frame[numbers])


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ([(56, 64), (46, 54), (36, 44)], "for m, the highest is x with 60.0 % (95 % CI c, n 90;"),
        ([(53, 67), (43, 57), (36, 44)], "no method is clearly the highest"),
        ([(53, 67), (43, 57), (36, 44)], "1 of 2 others"),
        # without an interval of its own, or of another, nothing is told apart
        ([(None, None), (46, 54), (36, 44)], "2 of 2 others"),
        ([(56, 64), (None, None), (36, 44)], "1 of 2 others"),
    ],
)
def test_a_method_is_the_highest_only_beyond_the_intervals_of_all_others(
    bounds: list[tuple[float | None, float | None]], said: str
) -> None:
    shown = pd.DataFrame(
        {"method": ["x", "y", "z"], "value": [60.0, 50, 40], "said": ["60.0", "50.0", "40.0"]}
    ).assign(model="m", test="T1", pillar="all", metric="accuracy", ci="c", n=90)
    shown["low"], shown["high"] = zip(*bounds, strict=True)
    assert said in draw.best(pd.DataFrame(), shown)["best"]
