"""The quality gate: a good benchmark passes, and every rule of every suite catches the defect it is there for."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from sdgbias import quality, quality_flags
from sdgbias.errors import GateError, InputError
from sdgbias.types import PILLARS, TOLERANCES, Task
from sdgbias.views import build_prompts

SUITES = Path(__file__).resolve().parents[2] / "expectations"
Tables = dict[str, pd.DataFrame]
TEXT_COLUMNS = ("task", "test", "view", "text", "image_id", "candidates")


# ------------------------------------------------------------------------------- a small benchmark without faults


def composite(shade: int, size: int = 448, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (size, size), shade).save(out, format="PNG")
    return out.getvalue()


def split(task: str, item: int) -> str:
    return "val" if int(hashlib.md5(f"{task}-{item}".encode()).hexdigest()[:15], 16) / 16**15 < 0.2 else "test"


def good_tables() -> Tables:
    places = [("AL", "ALB", "Albania", "train")] * 3 + [("BF", "BFA", "Burkina Faso", "val")] * 2
    places += [("NM", "NAM", "Namibia", "val")] + [("AO", "AGO", "Angola", "test")] * 2
    clusters = pd.DataFrame(places, columns=["cname", "iso3", "country", "official_split"])
    n = len(clusters)
    clusters.insert(0, "cluster_id", [f"{c}-2010-5{'#Z'[i % 2]}-{i:08d}" for i, c in enumerate(clusters["cname"])])
    clusters["survey"] = clusters["cluster_id"].str[:10]
    clusters["year"] = np.array([2010, 2011] * (n // 2), dtype="int32")
    clusters["lat"], clusters["lon"] = [np.nan, *np.linspace(-20, 40, n - 1)], [np.nan, *np.linspace(0, 20, n - 1)]
    clusters["urban"] = ["U", "R", "", "U", "R", "U", "R", "U"]
    clusters["adm1dhs"] = np.array([9999, *range(1, n)], dtype="int32")
    clusters["asset_index"] = [-1.86, np.nan, np.nan, *np.linspace(-3, 3, n - 3)]
    clusters["water_index"] = [1.0, 5.0, np.nan, *np.linspace(1.5, 4.5, n - 3)]
    clusters["sanitation_index"] = [1.0, 5.0, np.nan, *np.linspace(1.5, 4.5, n - 3)]
    clusters["under5_mort"] = [0.0, 1000.0, np.nan, *np.linspace(20, 150, n - 3)]
    clusters["women_edu"] = [0.0, 18.0, np.nan, *np.linspace(2, 9, n - 3)]
    clusters["women_bmi"] = [24.37, np.nan, np.nan, *np.linspace(19, 26, n - 3)]
    # cluster 2 knows nothing: under T1 and T2 its prompts have no Context line

    png = [composite(20 * i) for i in range(n)]
    images = pd.DataFrame({"cluster_id": clusters["cluster_id"], "png": png, "photo_id": "123", "n_photos": np.int32(2)})
    images.insert(1, "image_id", [hashlib.sha256(blob).hexdigest() for blob in png])

    three = {
        "stunting": (PILLARS[0], "lower", "% of children", ("below 20 %", "20 % to under 30 %", "30 % or more")),
        "inactivity": (PILLARS[0], "lower", "% of adults", ("below 15 %", "15 % or more", "")),
        "wash": (
            PILLARS[1],
            "lower",
            "deaths per 100,000 people",
            ("below 16 per 100,000", "16 to under 1,000 per 100,000", "1,000 or more"),
        ),
        "shdi": (PILLARS[2], "higher", "index, 0-1", ("below 0.550", "0.550 to under 0.700", "0.700 or more")),
    }
    # (indicator, value, letter) of items on clusters 0, 1, 2, ...; letters in about the shares of Table B
    asked = [("stunting", v, a) for v, a in zip((3, 20, 19.9, 25, 29.9, 30, 90), "ABABBCC", strict=True)]
    asked += [("inactivity", 15.0, "B")]
    asked += [("wash", v, a) for v, a in zip((5, 10, 16, 999, 1500), "AABBC", strict=True)]
    asked += [("shdi", v, a) for v, a in zip((0.4, 0.6, 0.8), "ABC", strict=True)]
    rows = []
    seen: dict[str, int] = {}
    for indicator, value, answer in asked:
        cluster = seen[indicator] = seen.get(indicator, -1) + 1
        pillar, polarity, unit, options = three[indicator]
        kind = {"pillar": pillar, "indicator": indicator, "indicator_title": indicator, "sdg": "3", "unit": unit}
        rows.append({"at": cluster, **kind, "value": float(value), "polarity": polarity, "answer": answer}
                    | dict(zip(("option_a", "option_b", "option_c"), options, strict=True))
                    | {"question": f"How high is {indicator} around this place?"})  # fmt: skip
    mcq = with_place(pd.DataFrame(rows), clusters, images, "mcq")
    mcq["value_year"], mcq["source"], mcq["level"] = mcq["year"] - 1, "unsd", "national"

    rows = []
    for target, where in (("women_bmi", (0, 3, 5)), ("asset_index", (0, 4, 7)), ("under5_mort", (0, 1))):
        for cluster in where:
            rows.append({"at": cluster, "pillar": PILLARS[0], "indicator": f"infer_{target}", "indicator_title": target, "sdg": "3",
                         "unit": "unit", "target": target, "tolerance": TOLERANCES[target],
                         "answer": round(float(clusters[target][cluster]), 1),
                         "question": f"What is the {target.replace('_', ' ')} around this place?"})  # fmt: skip
    regression = with_place(pd.DataFrame(rows), clusters, images, "regression")
    prompts = pd.concat([build_prompts(mcq, Task.MCQ), build_prompts(regression, Task.REGRESSION)], ignore_index=True)
    prompts = prompts.astype(dict.fromkeys(TEXT_COLUMNS, "str"))
    return {"clusters": clusters, "images": images, "items_mcq": mcq, "items_regression": regression, "prompts": prompts}


def with_place(items: pd.DataFrame, clusters: pd.DataFrame, images: pd.DataFrame, task: str) -> pd.DataFrame:
    """Ids, splits, image and the cluster's own columns."""
    at = items.pop("at")
    items.insert(0, "item_id", np.arange(len(items), dtype="int64") * 7 + 3)
    items["split"] = [split(task, i) for i in items["item_id"]]
    own = clusters.drop(columns=["survey", "lat", "lon", "adm1dhs", "official_split"]).iloc[at].reset_index(drop=True)
    items = pd.concat([items, own], axis=1)
    items["split_place"] = items["cname"].map({"AL": "test", "BF": "val", "NM": "val", "AO": "test"})
    items["image_id"] = images["image_id"].iloc[at].to_numpy()
    return items


GOOD = good_tables()


def copies() -> Tables:
    return {name: frame.copy() for name, frame in GOOD.items()}


def check(table: str, tables: Tables, suites: Path = SUITES) -> quality.Verdict:
    return quality.check(table, tables[table], suites, tables)


def only(folder: Path, *rules: str) -> Path:
    """The suites with columns-present and these rules alone: Great Expectations takes 10 ms per rule, whatever the rows."""
    folder = folder / "expectations"
    folder.mkdir()
    for path in SUITES.iterdir():
        suite = json.loads(path.read_text(encoding="utf-8"))
        kept = [e for e in suite["expectations"] if e["meta"]["rule"] in ("columns-present", *rules)]
        (folder / path.name).write_text(json.dumps(suite | {"expectations": kept}), encoding="utf-8")
    return folder


# ---------------------------------------------------------------------------------------- one defect per rule

Plant = Callable[[Tables], None]


def put(table: str, column: str, value: Any, row: int = 0) -> Plant:
    def plant(tables: Tables) -> None:
        frame = tables[table]
        frame[column] = frame[column].astype(object)
        frame.iloc[row, frame.columns.get_loc(column)] = value
        frame[column] = frame[column].infer_objects()

    return plant


def drop_column(table: str, column: str) -> Plant:
    return lambda tables: tables.update({table: tables[table].drop(columns=column)})


def drop_rows(table: str, where: Callable[[pd.DataFrame], pd.Series]) -> Plant:
    return lambda tables: tables.update({table: tables[table][~where(tables[table])].reset_index(drop=True)})


def repeat_row(table: str, **change: Any) -> Plant:
    def plant(tables: Tables) -> None:
        extra = tables[table].iloc[[0]].assign(**change)
        tables[table] = pd.concat([tables[table], extra], ignore_index=True)

    return plant


def edit_prompts(where: dict[str, Any], **change: Callable[[pd.Series], Any]) -> Plant:
    def plant(tables: Tables) -> None:
        prompts = tables["prompts"]
        hit = np.ones(len(prompts), dtype=bool)
        for column, value in where.items():
            hit &= (prompts[column] == value).to_numpy()
        assert hit.any()
        for column, edit in change.items():
            prompts.loc[hit, column] = edit(prompts.loc[hit, column])

    return plant


def label_ranges(table: str) -> dict[str, Plant]:
    bad = {"asset_index": np.inf, "water_index": 0.99, "sanitation_index": 5.5, "under5_mort": -1.0, "women_edu": 25.0, "women_bmi": 2437.0}
    return {f"{name.replace('_', '-')}-range": put(table, name, value) for name, value in bad.items()}


def shares_off(tables: Tables) -> None:
    tables["items_mcq"].loc[tables["items_mcq"]["pillar"] == PILLARS[2], "answer"] = "A"


def swap_values(tables: Tables) -> None:
    frame = tables["items_mcq"]
    frame.loc[frame["value"] == 3, "value"] = 95.0  # stays letter A


def cut_png(tables: Tables) -> None:
    whole = tables["images"]["png"][0]
    put("images", "png", whole[:-20])(tables)
    put("images", "image_id", hashlib.sha256(whole[:-20]).hexdigest())(tables)


def item_defects(table: str, task: str) -> dict[str, Plant]:
    other = {"mcq": "polarity", "regression": "unit"}[task]
    return {
        "columns-present": drop_column(table, "split_place"),
        "item-id-unique": put(table, "item_id", GOOD[table]["item_id"][1]),
        "item-cluster-exists": put(table, "cluster_id", "AL-2010-5#-99999999"),
        "item-image-exists": put(table, "image_id", "0" * 64),
        "image-of-cluster": put(table, "image_id", GOOD["images"]["image_id"][7]),
        "labels-of-cluster": put(table, "women_edu", 17.0),
        "item-country-known": put(table, "iso3", "GIN"),
        "pillar-known": put(table, "pillar", None),
        "indicator-slug": put(table, "indicator", "Stunting (2.2.1)"),
        "indicator-uniform": put(table, other, "something else"),
        "question-present": put(table, "question", None),
        "split-known": put(table, "split", "train"),
        "split-place-known": put(table, "split_place", None),
        "split-by-id": put(table, "split", {"val": "test", "test": "val"}[GOOD[table]["split"][0]]),
        "split-place-by-country": put(table, "split_place", "val"),
        "item-has-prompts": drop_rows("prompts", lambda p: (p["task"] == task) & (p["item_id"] == GOOD[table]["item_id"][0])),
        "near-duplicate-item": repeat_row(table, item_id=10_000, question=GOOD[table]["question"][0].upper() + " !"),
        **label_ranges(table),
    }


FULL_T5 = {"view": "full", "test": "T5"}
DEFECTS: dict[str, dict[str, Plant]] = {
    "clusters": {
        "columns-present": drop_column("clusters", "women_bmi"),
        "cluster-id-unique": repeat_row("clusters"),
        "cluster-id-format": put("clusters", "cluster_id", "AL-2010-5#-1"),
        "cluster-id-agrees": put("clusters", "year", 2014),
        "country-known": put("clusters", "iso3", "NER", row=5),  # Namibia's NM taken for Niger
        "country-named": put("clusters", "country", ""),
        "year-range": put("clusters", "year", 1990),
        "urban-known": put("clusters", "urban", "urban"),
        "adm1dhs-range": put("clusters", "adm1dhs", -1),
        "coordinates-on-earth": lambda t: [put("clusters", c, 0.0)(t) for c in ("lat", "lon")],  # type: ignore[dict-item,return-value]
        **label_ranges("clusters"),
    },
    "images": {
        "columns-present": drop_column("images", "png"),
        "image-per-cluster": repeat_row("images"),
        "image-id-format": put("images", "image_id", "ABC"),
        "image-id-is-sha256": put("images", "image_id", "0" * 64),
        "image-is-composite": cut_png,
        "image-cluster-exists": put("images", "cluster_id", "AL-2010-5#-99999999"),
        "photo-id-present": put("images", "photo_id", None),
        "photo-count": put("images", "n_photos", 0),
        "image-shared": lambda t: [put("images", c, GOOD["images"][c][1])(t) for c in ("image_id", "png")],  # type: ignore[dict-item,return-value]
    },
    "items_mcq": {
        **item_defects("items_mcq", "mcq"),
        "level-known": put("items_mcq", "level", "global"),
        "polarity-known": put("items_mcq", "polarity", "up"),
        "options-present": put("items_mcq", "option_b", ""),
        "options-distinct": put("items_mcq", "option_c", "Below 20 %"),
        "answer-among-options": put("items_mcq", "answer", "C", row=7),  # of an item with two options
        "bins-ordered": put("items_mcq", "option_a", "40 % or more"),
        "answers-follow-values": swap_values,
        "value-present": put("items_mcq", "value", np.nan),
        "value-in-unit-range": put("items_mcq", "value", 101.0, row=6),
        "value-year-range": put("items_mcq", "value_year", 0),
        "value-year-near": put("items_mcq", "value_year", 1990),
        "label-shares": shares_off,
    },
    "items_regression": {
        **item_defects("items_regression", "regression"),
        "target-known": put("items_regression", "target", "height"),
        "tolerance-of-target": put("items_regression", "tolerance", 5.0),
        "answer-present": put("items_regression", "answer", np.nan),
        "answer-is-label": put("items_regression", "answer", 24.5),
    },
    "prompts": {
        "columns-present": drop_column("prompts", "view"),
        "task-known": put("prompts", "task", "essay"),
        "view-known": put("prompts", "view", "blind"),
        "candidates-known": put("prompts", "candidates", "ABCD"),
        "prompt-text-form": put("prompts", "text", None),
        "prompt-key-unique": repeat_row("prompts"),
        "prompt-test-of-task": edit_prompts({"task": "regression", "test": "T2"}, test=lambda s: "T1"),
        "prompts-complete": drop_rows("prompts", lambda p: p.index.to_series() == 0),
        "prompt-item-exists": put("prompts", "item_id", 999_999),
        "image-follows-view": edit_prompts({"view": "q_only"}, image_id=lambda s: "0" * 64),
        "prompt-image-of-item": edit_prompts({"view": "full"}, image_id=lambda s: GOOD["images"]["image_id"][7]),
        "candidates-match-options": edit_prompts({"candidates": "AB"}, candidates=lambda s: "ABC"),
        "context-line-unexpected": edit_prompts(
            {"view": "img_q"}, text=lambda s: s.str.replace("\n", "\nContext: Given: urban=Urban\n", n=1)
        ),
        "context-line-missing": edit_prompts(
            {"view": "full", "test": "T1"}, text=lambda s: s.str.replace(r"\nContext: .*", "", regex=True)
        ),
        "t5-views-agree": edit_prompts(FULL_T5, text=lambda s: s + " "),
        "target-leak": edit_prompts(
            {"task": "regression", "view": "ctx_q", "test": "T2"},
            text=lambda s: s.str.replace("Given: ", "Given: asset_index=1.0, woman_bmi=24.4, under_5_mortality_rate=3, "),
        ),
    },
}  # fmt: skip


def severity(table: str, rule: str) -> str:
    suite = quality.load_suite(table, SUITES)
    return str(next(e["meta"]["severity"] for e in suite["expectations"] if e["meta"]["rule"] == rule))


@pytest.mark.parametrize("table", quality.TABLES)
def test_every_rule_has_its_defect(table: str) -> None:
    rules = [e["meta"]["rule"] for e in quality.load_suite(table, SUITES)["expectations"]]
    assert sorted(DEFECTS[table]) == sorted(rules)
    assert sorted(p.stem for p in SUITES.iterdir()) == sorted(quality.TABLES)


@pytest.mark.parametrize("table", quality.TABLES)
def test_good_table_passes_every_rule(table: str) -> None:
    verdict = check(table, copies())
    assert verdict.findings == ()
    assert verdict.rows_ok.all()
    assert verdict.skipped == ()
    assert set(verdict.counts) == set(DEFECTS[table])
    assert set(verdict.counts.values()) == {0}


@pytest.mark.parametrize(("table", "rule"), [(t, r) for t, rules in DEFECTS.items() for r in rules])
def test_planted_defect_is_found(table: str, rule: str, tmp_path: Path) -> None:
    tables = copies()
    DEFECTS[table][rule](tables)
    verdict = check(table, tables, only(tmp_path, rule))
    found = {f.rule: f for f in verdict.findings}
    assert rule in found
    assert verdict.counts[rule] == found[rule].count >= 1
    assert found[rule].severity == severity(table, rule)
    assert (verdict.quarantine["rule"] == rule).sum() == (found[rule].count if severity(table, rule) == "quarantine" else 0)
    assert verdict.rows_ok.sum() == verdict.rows - len(set(verdict.quarantine["key"]))


# ----------------------------------------------------------------------------------------------- the verdict


def test_quarantine_names_the_rows(tmp_path: Path) -> None:
    tables = copies()
    put("items_mcq", "answer", "C", row=7)(tables)
    verdict = check("items_mcq", tables, only(tmp_path, "answer-among-options"))
    item = GOOD["items_mcq"]["item_id"][7]
    line = verdict.quarantine[verdict.quarantine["rule"] == "answer-among-options"].iloc[0]
    assert (line["table"], line["key"]) == ("items_mcq", str(item))
    assert np.flatnonzero(~verdict.rows_ok).tolist() == [7]


def test_near_duplicates_keep_the_lowest_id_in_any_order(tmp_path: Path) -> None:
    tables = copies()
    repeat_row("items_mcq", item_id=10_000)(tables)
    shuffled = tables["items_mcq"].sample(frac=1, random_state=3)
    verdict = quality.check("items_mcq", shuffled, only(tmp_path, "near-duplicate-item"), tables)
    assert verdict.quarantine.query("rule == 'near-duplicate-item'")["key"].tolist() == ["10000"]
    assert shuffled["item_id"].to_numpy()[~verdict.rows_ok].tolist() == [10_000]


def test_rules_across_tables_are_skipped_without_them_and_said_so() -> None:
    verdict = quality.check("items_mcq", GOOD["items_mcq"], SUITES)
    assert set(verdict.skipped) == {"item-cluster-exists", "item-image-exists", "image-of-cluster", "labels-of-cluster", "item-has-prompts"}
    assert verdict.findings == ()


@pytest.mark.parametrize("table", quality.TABLES)
def test_empty_table(table: str) -> None:
    assert check(table, {name: frame.iloc[:0] for name, frame in GOOD.items()}).findings == ()


def test_missing_column_is_named_and_the_rest_skipped() -> None:
    tables = copies()
    drop_column("clusters", "women_bmi")(tables)
    verdict = check("clusters", tables)
    assert "women_bmi" in verdict.findings[0].message
    assert len(verdict.skipped) == len(DEFECTS["clusters"]) - 1


def test_column_of_the_wrong_type_is_not_passed_over() -> None:
    tables = copies()
    tables["clusters"]["water_index"] = "many"
    with pytest.raises(InputError, match="clusters: .*water-index-range"):
        check("clusters", tables)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("below 21 %", (21, 21)),
        ("21 % to under 44 %", (21, 44)),
        ("16 to under 1,500 per 100,000", (16, 1500)),
        ("20-40", (20, 40)),
        ("20 – 40", (20, 40)),
        ("-0.5 to under −0.1", (-0.5, -0.1)),
        ("low", None),
    ],
)
def test_option_bounds(text: str, bounds: tuple[float, float] | None) -> None:
    assert quality_flags.option_bounds(text) == bounds


@pytest.mark.parametrize(("size", "mode", "good"), [(448, "RGB", True), (447, "RGB", False), (448, "L", False), (448, "RGBA", False)])
def test_composite_header(size: int, mode: str, good: bool) -> None:
    blob = composite(0, size, mode)
    facts = quality_flags.image_facts([hashlib.sha256(blob).hexdigest()], [blob])
    assert [f.tolist() for f in facts] == [[True], [good]]


# ---------------------------------------------------------------------------------------------- the suites


def broken_suites(tmp_path: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    folder = tmp_path / "expectations"
    shutil.copytree(SUITES, folder)
    suite = json.loads((folder / "images.json").read_text(encoding="utf-8"))
    edit(suite)
    (folder / "images.json").write_text(json.dumps(suite), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            lambda s: s["expectations"][1].update(type="expect_column_values_to_be_pretty"),
            "expect_column_values_to_be_pretty|rules written",
        ),
        (lambda s: s["expectations"][1]["kwargs"].update(column="ok_unheard"), "unknown column 'ok_unheard'"),
        (lambda s: s["expectations"][1]["meta"].update(severity="fatal"), "gate, quarantine, warn"),
        (lambda s: s["expectations"][1]["meta"].update(rule="columns-present"), "given twice"),
        (lambda s: s["expectations"][1].pop("meta"), "not a suite"),
        (lambda s: s.pop("expectations"), "not a suite"),
    ],
)
def test_suite_that_can_not_be_judged_is_refused(tmp_path: Path, edit: Callable[[dict[str, Any]], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        quality.check("images", GOOD["images"], broken_suites(tmp_path, edit), GOOD)


def test_unknown_table_lists_the_valid_ones() -> None:
    with pytest.raises(InputError, match="valid: clusters, images, items_mcq, items_regression, prompts"):
        quality.check("photos", GOOD["images"], SUITES)


def test_find_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SDGBIAS_REGISTRY", raising=False)
    monkeypatch.chdir(SUITES.parent / "tests")
    assert quality.find_suites() == SUITES
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="SDGBIAS_REGISTRY"):
        quality.find_suites()
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(SUITES.parent))
    assert quality.find_suites() == SUITES


# ------------------------------------------------------------------------------------------ the benchmark folder


def save(tables: Tables, folder: Path) -> Path:
    for name, frame in tables.items():
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    return folder


def test_gate_passes_a_good_benchmark(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = quality.run_gate(save(GOOD, tmp_path), SUITES)
    assert report.counts["images"] == dict.fromkeys(DEFECTS["images"], 0)
    assert report.warnings == []
    first = report.path.read_bytes()
    assert json.loads(first)["passed"] is True
    quality.run_gate(tmp_path, SUITES)
    assert report.path.read_bytes() == first  # same inputs, same bytes
    assert capfd.readouterr() == ("", "")  # no progress bars, no logging


def test_gate_stops_and_says_why(tmp_path: Path) -> None:
    suites = only(tmp_path, "t5-views-agree")
    tables = copies()
    DEFECTS["prompts"]["t5-views-agree"](tables)
    with pytest.raises(GateError) as caught:
        quality.run_gate(save(tables, tmp_path), suites)
    n = len(GOOD["items_mcq"]) + len(GOOD["items_regression"])
    assert f"prompts.parquet: rule t5-views-agree broken {n} time(s)" in str(caught.value)
    assert "\n" not in str(caught.value)
    written = json.loads((tmp_path / "quality.json").read_text(encoding="utf-8"))
    assert written["passed"] is False
    assert written["tables"]["prompts"]["rules"]["t5-views-agree"] == n


def test_rows_for_quarantine_stop_a_finished_benchmark_unless_told(tmp_path: Path) -> None:
    suites = only(tmp_path, "image-is-composite")
    tables = copies()
    cut_png(tables)
    save(tables, tmp_path)
    with pytest.raises(GateError, match=r"images\.parquet: rule image-is-composite broken 1 time\(s\) .*quarantine"):
        quality.run_gate(tmp_path, suites)
    report = quality.run_gate(tmp_path, suites, strict=False)
    assert report.counts["images"]["image-is-composite"] == 1
    assert report.verdicts["images"].quarantine["key"].tolist() == [GOOD["clusters"]["cluster_id"][0]]


def test_warnings_do_not_stop(tmp_path: Path) -> None:
    tables = copies()
    DEFECTS["items_mcq"]["value-year-near"](tables)
    report = quality.run_gate(save(tables, tmp_path), only(tmp_path, "value-year-near"))
    assert "rule value-year-near broken 1 time(s)" in report.warnings[0]


def test_missing_or_broken_table(tmp_path: Path) -> None:
    save(GOOD, tmp_path)
    (tmp_path / "prompts.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"prompts\.parquet: can't be read .*sdgbias build"):
        quality.run_gate(tmp_path, SUITES)
    (tmp_path / "prompts.parquet").unlink()
    with pytest.raises(InputError, match=r"prompts\.parquet: no such table; make it: sdgbias build"):
        quality.run_gate(tmp_path, SUITES)


@pytest.mark.parametrize(
    ("table", "column"), [("images", "png"), ("clusters", "women_bmi"), ("prompts", "task"), ("items_mcq", "option_c")]
)
def test_missing_column_on_disk(tmp_path: Path, table: str, column: str) -> None:
    tables = copies()
    drop_column(table, column)(tables)
    with pytest.raises(GateError, match=rf"{table}.parquet: rule columns-present broken 1 time.*missing: {column}") as caught:
        quality.run_gate(save(tables, tmp_path), only(tmp_path))
    assert str(caught.value).count("rule ") == 1
