"""Items: values and gold letters, quotas, ids, splits, and that neither order nor another country
reshuffles them."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark.build import Draw
from sdgbias.benchmark.item_columns import LABELS, MCQ_COLUMNS, REGRESSION_COLUMNS
from sdgbias.benchmark.items import Candidates, find_candidates, lookup_values
from sdgbias.benchmark.splits import authors_split, split_by_country
from sdgbias.errors import InputError, UsageError
from sdgbias.raw.clusters import read_clusters
from sdgbias.raw.indicators import load_indicators, load_regression_tasks
from sdgbias.raw.series import read_series
from sdgbias.types import PILLARS, Task
from tests.builders.item_tables import (
    CODES,
    Drawn,
    build_items,
    choose_items,
    indicator,
    make_clusters,
    make_images,
    make_series,
    row,
)

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = REPOSITORY.parent / "shared" / "data"


def build(clusters: pd.DataFrame, series: pd.DataFrame, **asked: Any) -> Drawn:
    return build_items(clusters, make_images(clusters), series, **asked)


@cache
def candidates(codes: tuple[str, ...] = CODES, each: int = 6, seed: int = 0) -> Candidates:
    """Pairing takes a second, choosing a twentieth of that."""
    clusters = make_clusters(codes, each)
    return find_candidates(clusters, make_images(clusters), make_series(codes), seed=seed)


@cache
def everything() -> Drawn:
    return choose_items(candidates(), mcq=None, regression=None)


def left_out(drawn: Drawn, rule: str) -> pd.DataFrame:
    return drawn.quarantine[drawn.quarantine["rule"] == rule].reset_index(drop=True)


# -- gold values


def lookup(rows: list[dict[str, object]], **cluster: object) -> tuple[float, int, str] | None:
    """(value, year, level) that one Kenyan cluster of 2015 gets for stunting."""
    one = make_clusters(("KE",), 1).assign(year=np.int32(2015), **cluster)
    gold = lookup_values(one, pd.DataFrame(rows), indicator("stunting"), max_gap=10)
    columns = ("value", "value_year", "level")
    if gold["value"].isna().all():
        return None
    value, year, level = (gold[name].item() for name in columns)
    return value, year, level


def unsd(year: int, value: float, iso3: str = "KEN") -> dict[str, object]:
    return row("sh_sta_stunt", iso3, year, value)


def gdl(year: int, value: float, **where: str) -> dict[str, object]:
    return row("gdl_area_stunting", "KEN", year, value, **where)


URBAN, REGION = gdl(2014, 20, stratum="urban"), gdl(2011, 30, region="kenr101")
OLD = {**REGION, "year": 2009}  # a regional survey may be 5 years old at most
LOCAL = [unsd(2015, 10), URBAN, REGION]


@pytest.mark.parametrize(
    ("rows", "cluster", "gold"),
    [
        ([unsd(y, y - 2000) for y in (2012, 2014, 2016)], {}, (14.0, 2014, "national")),
        ([unsd(2005, 5)], {}, (5.0, 2005, "national")),
        ([unsd(2004, 4)], {}, None),
        ([unsd(2015, 4, "NER")], {}, None),
        # the nearest year wins over the order of the series
        ([gdl(2013, 38.2), unsd(2015, 9)], {}, (9.0, 2015, "national")),
        # equally near: the series that the indicator names first, even if its year is the later
        ([gdl(2016, 1), unsd(2014, 2)], {}, (1.0, 2016, "national")),
        # both tied: the earlier year
        ([unsd(2016, 6), unsd(2014, 4)], {}, (4.0, 2014, "national")),
        # the most local level first
        (LOCAL, {"gdl_region": "kenr101", "urban": "U"}, (30.0, 2011, "subnational")),
        (LOCAL, {"gdl_region": "kenr102", "urban": "U"}, (20.0, 2014, "urban-rural")),
        (LOCAL, {"gdl_region": "", "urban": ""}, (10.0, 2015, "national")),
        ([unsd(2015, 10), OLD], {"gdl_region": "kenr101"}, (10.0, 2015, "national")),
    ],
)
def test_gold_value_of_a_cluster(
    rows: list[dict[str, object]], cluster: dict[str, str], gold: tuple[float, int, str] | None
) -> None:
    assert lookup(rows, **cluster) == lookup(rows[::-1], **cluster) == gold


def test_a_region_is_the_same_in_capitals() -> None:
    """The areas of clusters are written KENr101, those of series kenr101."""
    clusters = make_clusters(("KE",), 2).assign(gdl_region=["KENr101", "KENr102"], year=2015)
    series = pd.DataFrame([gdl(2014, value, region=f"kenr10{value}") for value in (1, 2)])
    entry = indicator("stunting")

    candidates = find_candidates(
        clusters, make_images(clusters), series, seed=0, indicators=[entry]
    )

    rows = candidates.by_task[Task.MCQ].sort_values("cluster_id")
    assert rows["value"].tolist() == [1.0, 2.0] and set(rows["level"]) == {"subnational"}


@pytest.mark.skipif(
    not (SHARED / "indicators" / "gdl_area").is_dir(),
    reason="the Global Data Lab's area table (../shared/data/indicators) is absent",
)
def test_mali_2018_gets_the_stunting_of_2018() -> None:
    series, _ = read_series(SHARED / "indicators")
    one = make_clusters(("ML",), 1).assign(year=np.int32(2018), urban="")
    gold = lookup_values(one, series, indicator("stunting"), max_gap=10)
    assert (gold["value"].round(1).item(), gold["value_year"].item()) == (26.9, 2018)
    assert build(one, series).items_mcq.set_index("indicator").loc["stunting", "answer"] == "B"


@pytest.mark.skipif(
    not (SHARED / "realpack").is_dir(),
    reason="the real specimens (../shared/data/realpack) are absent",
)
def test_real_clusters_get_items_from_the_committed_series() -> None:
    clusters, _ = read_clusters(SHARED / "realpack")
    series, _ = read_series(REPOSITORY / "data" / "indicators")
    items = build(clusters, series).items_mcq
    # not physical activity and HAQ, which can't be committed
    assert items["indicator"].nunique() == 12
    assert items["cname"].nunique() == clusters["cname"].nunique()
    albania = items[(items["cname"] == "AL") & (items["indicator"] == "stunting")]
    assert set(albania["answer"]) == {"B"}  # 23.2 % in 2008


# -- every possible item


def test_everything_is_asked_where_a_value_is_known() -> None:
    drawn = everything()
    items = {"mcq": drawn.items_mcq, "regression": drawn.items_regression}
    assert list(items["mcq"]) == list(MCQ_COLUMNS)
    assert list(items["regression"]) == list(REGRESSION_COLUMNS)
    assert (len(items["mcq"]), len(items["regression"])) == (30 * 14, 30 * 9)
    for task, table in items.items():
        assert table["item_id"].is_monotonic_increasing and table["item_id"].is_unique
        key = f"{task}|{table['indicator'][0]}|{table['cluster_id'][0]}"
        assert table["item_id"][0] == int(hashlib.md5(key.encode()).hexdigest()[:12], 16)
        assert table["split"].tolist() == authors_split(task, table["item_id"]).tolist()
        assert table["image_id"].str.len().eq(64).all()
    json.dumps(drawn.notes)


def test_gold_letters_agree_with_their_option_texts() -> None:
    items = everything().items_mcq
    stunting = items[items["indicator"] == "stunting"]
    gold = np.select([stunting["value"] < 20, stunting["value"] < 30], ["A", "B"], "C")
    assert stunting["answer"].tolist() == gold.tolist()
    options = items[["option_a", "option_b", "option_c"]].to_numpy()
    assert all(options[at, "ABC".index(letter)] for at, letter in enumerate(items["answer"]))
    # Q-only has one prompt for an indicator
    assert items.groupby("indicator")["question"].nunique().eq(1).all()


def test_regression_answers_are_the_labels() -> None:
    clusters = make_clusters()
    clusters.loc[0, "water_index"] = np.nan
    drawn = build(clusters, make_series(), only=["stunting"])
    for task in load_regression_tasks():
        of_task = drawn.items_regression[drawn.items_regression["indicator"] == task.slug]
        assert (of_task["answer"] == of_task[task.target]).all()
        assert set(of_task["target"]) == {task.target}
        assert set(of_task["tolerance"]) == {task.tolerance}
    gone = drawn.quarantine.query("table == 'items_regression'")
    key = f"{clusters['cluster_id'][0]}|water_security"
    assert gone[["key", "rule"]].to_numpy().tolist() == [[key, "no-indicator-value"]]


def test_namibia_is_no_missing_value() -> None:
    items = build(make_clusters(("NM", "NI")), make_series(), only=["stunting"]).items_mcq
    assert set(zip(items["cname"], items["iso3"], items["country"], strict=True)) == {
        ("NM", "NAM", "Namibia"),
        ("NI", "NER", "Niger"),  # not Nicaragua, whose ISO code is NI
    }


# -- what is left out


def test_clusters_without_an_image_are_out() -> None:
    clusters = make_clusters()
    images = make_images(clusters)[:7]
    drawn = build_items(clusters, images, make_series(), only=["stunting"])
    assert drawn.items_mcq["cluster_id"].nunique() == 7
    assert (drawn.notes["clusters"], drawn.notes["clusters_with_image"]) == (30, 7)


def test_of_two_images_of_a_cluster_the_first_by_name_is_shown() -> None:
    clusters = make_clusters(("KE", "NI"), 1)
    images = make_images(clusters)
    more = images.assign(image_id=["f" * 64, "0" * 64])
    images = pd.concat([images, more], ignore_index=True)

    items = build_items(clusters, images, make_series(), only=["stunting"]).items_mcq

    shown = dict(zip(items["cluster_id"], items["image_id"], strict=True))
    assert [shown[name] for name in clusters["cluster_id"]] == [images["image_id"][0], "0" * 64]


def test_an_item_needs_the_evidence_of_its_template() -> None:
    """Electricity needs night lights, two regression tasks the asset index; what a picture shows is
    taken for there where it isn't stated."""
    clusters = make_clusters(("KE",), 4)
    ids = clusters["cluster_id"].tolist()
    clusters.loc[0, "asset_index"] = np.nan
    shown = ["tile, nightlights", "photo, tile", "", "photo, tile, nightlights"]
    images = make_images(clusters).assign(modalities=shown)
    drawn = build_items(clusters, images, make_series(), only=["electricity", "stunting"])
    lost = left_out(drawn, "missing-evidence").set_index("key")["detail"]
    dark = f"{ids[1]}|electricity"
    assert {*lost.index} == {f"{ids[0]}|maternal_capital", f"{ids[0]}|plumbing_from_people", dark}
    assert "lacks: nightlights" in lost[dark]
    items = drawn.items_regression
    assert ids[0] not in set(items.loc[items["indicator"] == "maternal_capital", "cluster_id"])
    assert set(items.loc[items["indicator"] == "education_access", "cluster_id"]) == set(ids)
    assert items.set_index("cluster_id")["modalities"][ids[1]].iloc[0] == "photo, tile"


def test_indicators_without_two_values_and_impossible_values_leave_with_a_reason() -> None:
    series = [row("haq", iso3, 2012, 40) for iso3 in ("KEN", "NER")]
    series += [row("sh_acs_unhc", "KEN", 2012, 101), row("sh_acs_unhc", "NER", 2012, 30)]
    drawn = build(make_clusters(("KE", "NI"), 2), pd.DataFrame(series))
    assert set(drawn.items_mcq["indicator"]) == {"uhc_index"}
    assert set(drawn.items_mcq["cname"]) == {"NI"}
    lost = drawn.quarantine.query("table == 'items_mcq'")
    slugs = lost["key"].str.split("|").str[1].groupby(lost["rule"]).unique()
    assert list(slugs["invalid-options"]) == ["haq_index"]
    assert list(slugs["value-out-of-range"]) == ["uhc_index"]
    assert len(slugs["no-indicator-value"]) == 12
    assert "every cluster has the value 40" in left_out(drawn, "invalid-options")["detail"][0]


def test_duplicates_leave() -> None:
    clusters = make_clusters(("KE", "NI"), 3)
    images = make_images(clusters)
    images.loc[1, "image_id"] = images.loc[0, "image_id"]
    twice = pd.concat([clusters, clusters[-1:]])
    drawn = build_items(twice, images, make_series(), only=["stunting", "electricity"])
    assert drawn.items_mcq["cluster_id"].nunique() == 5
    assert not drawn.items_mcq.duplicated(["indicator", "image_id"]).any()
    counts = left_out(drawn, "duplicate-item")["table"].value_counts().to_dict()
    assert counts == {"clusters": 1, "items_mcq": 2, "items_regression": 9}


def test_near_duplicates_leave_when_picture_and_context_agree() -> None:
    """1 looks like 0 and has its context, to one decimal, as prompts show it; 2 looks like 0 in
    another context; 3 has the context of 0 and another picture; 4 looks like 0 and has its numbers,
    of which one is urban and one rural."""
    clusters = make_clusters(("KE",), 5)
    labels = [*LABELS, "urban"]
    clusters.loc[[1, 3, 4], labels] = clusters.loc[[0, 0, 0], labels].to_numpy()
    clusters.loc[[0, 1, 3, 4], "urban"] = ["U", "U", "U", "R"]
    clusters.loc[1, "asset_index"] = round(clusters.loc[0, "asset_index"], 1) - 0.01
    images = make_images(clusters)
    alike = images.index.isin([1, 2, 4])
    images["image_group"] = images["image_id"].where(~alike, images.loc[0, "image_id"])
    drawn = build_items(clusters, images, make_series(), only=["stunting", "electricity"])
    gone = left_out(drawn, "near-duplicate-item")
    assert set(gone["key"].str.split("|").str[0]) == {clusters["cluster_id"][1]}
    assert gone["table"].value_counts().to_dict() == {"items_mcq": 2, "items_regression": 9}
    assert drawn.items_mcq["cluster_id"].nunique() == 4
    ends = f"context and nearly the image as {clusters['cluster_id'][0]}"
    assert gone["detail"].str.endswith(ends).all()


# -- the choice


def test_what_is_taken_out_is_replaced_and_nothing_else_moves() -> None:
    before = choose_items(candidates(), mcq=100, regression=50)
    gone = set(before.items_mcq["item_id"][:7])
    after = choose_items(candidates(), mcq=100, regression=50, without={Task.MCQ: gone})
    assert len(after.items_mcq) == 100 and not set(after.items_mcq["item_id"]) & gone
    assert set(before.items_mcq["item_id"]) - gone <= set(after.items_mcq["item_id"])
    counts = [drawn.items_mcq["indicator"].value_counts().to_dict() for drawn in (before, after)]
    assert counts[0] == counts[1]
    pd.testing.assert_frame_equal(after.items_regression, before.items_regression)


def test_review_drops_or_marks() -> None:
    numbers = {"mcq": 60, "regression": 30}
    before = choose_items(candidates(), **numbers).items_mcq["item_id"]
    first, second = before[:2]
    verdict = ["rejected", "accepted"]
    review = pd.DataFrame({"task": "mcq", "item_id": [first, second], "verdict": verdict})
    dropped = choose_items(candidates(), **numbers, review=review)
    items = dropped.items_mcq.set_index("item_id")
    assert first not in items.index and len(items) == 60
    assert items["review"][second] == "accepted"
    [line] = left_out(dropped, "rejected-in-review").to_dict("records")
    assert (line["table"], line["detail"]) == ("items_mcq", f"item {first}")
    # ids are unique within a task only
    assert set(dropped.items_regression["review"]) == {""}
    marked = choose_items(candidates(), **numbers, review=review, review_action="mark").items_mcq
    assert marked["item_id"].tolist() == before.tolist()
    assert marked["review"].value_counts().to_dict() == {"": 58, "rejected": 1, "accepted": 1}


def test_kept_bins_keep_the_options_of_old_questions() -> None:
    old, clusters = candidates(("KE", "NI")), make_clusters()
    tables = (clusters, make_images(clusters), make_series())
    asked = {"seed": 0, "indicators": [indicator("electricity")]}
    moved = find_candidates(*tables, **asked)
    kept = find_candidates(*tables, **asked, options=lambda entry, _: old.options[entry.slug])
    # terciles follow the clusters
    assert moved.options["electricity"].edges != old.options["electricity"].edges
    assert kept.options["electricity"] == old.options["electricity"]
    rows = kept.by_task[Task.MCQ].query("indicator == 'electricity'")
    letters = old.options["electricity"].letters(rows["value"].to_numpy())
    assert rows["answer"].tolist() == letters.tolist()


@pytest.mark.parametrize("total", [0, 7, 333])
def test_quotas_are_exact_in_table_a_proportions(total: int) -> None:
    drawn = choose_items(candidates(each=40), mcq=total, regression=total)
    for items, shares, entries in (
        (drawn.items_mcq, (44.58, 32.52, 22.90), load_indicators()),
        (drawn.items_regression, (38.854, 33.522, 27.624), load_regression_tasks()),
    ):
        assert len(items) == total
        for pillar, share in zip(PILLARS, shares, strict=True):
            assert abs((items["pillar"] == pillar).sum() - total * share / 100) < 1
            constructs = {e.slug: getattr(e, "family", e.slug) for e in entries}
            of_pillar = {constructs[e.slug] for e in entries if e.pillar == pillar}
            counts = items["indicator"].map(constructs).value_counts()
            assert np.ptp(counts.reindex(list(of_pillar), fill_value=0)) <= 1
    assert drawn.notes["mcq"]["short"] == [] == drawn.notes["regression"]["short"]


def test_a_shortfall_is_filled_within_the_pillar_and_said() -> None:
    series = make_series()
    series = series[~series["series"].isin(["haq", "shdi", "se_tot_cplr", "cr_2_f"])]
    drawn = build(make_clusters(("KE", "NI"), 10), series, mcq=100)
    counts = drawn.items_mcq["indicator"].value_counts()
    pillars = drawn.items_mcq["pillar"].value_counts()
    notes = drawn.notes["mcq"]
    assert "haq_index" not in counts
    assert pillars[PILLARS[0]] == notes["pillar_quotas"][PILLARS[0]] == 45
    assert pillars[PILLARS[2]] == counts["ed_health_alignment"] == 20
    assert f"{PILLARS[0]}, haq_index: wanted 9, the data gives 0" in notes["short"]
    stays = f"{PILLARS[2]}: wanted 23, the data gives 20; the rest stays empty"
    assert stays in notes["short"]


def test_the_order_of_the_input_changes_nothing() -> None:
    clusters = make_clusters()
    tables = (clusters, make_images(clusters), make_series())
    mixed = [t.sample(frac=1, random_state=1).reset_index(drop=True) for t in tables]
    asked = {"only": ["stunting", "electricity", "uhc_index"], "mcq": 40, "regression": 90}
    first, again = (build_items(*given, seed=5, **asked) for given in (tables, mixed))
    for name in ("items_mcq", "items_regression", "quarantine"):
        pd.testing.assert_frame_equal(getattr(first, name), getattr(again, name))
    assert first.notes == again.notes
    other = build_items(*tables, **asked)
    assert set(other.items_mcq["item_id"]) != set(first.items_mcq["item_id"])


def test_neither_another_country_nor_the_quota_changes_an_item() -> None:
    series = make_series((*CODES, "PE"))
    before = build(make_clusters(), series, mcq=200)
    after = build(make_clusters((*CODES, "PE")), series, mcq=200)
    kept = after.items_mcq[after.items_mcq["cname"] != "PE"]
    assert len(after.items_mcq) == 200 and len(kept) < 200
    assert set(kept["item_id"]) <= set(before.items_mcq["item_id"])
    few = choose_items(candidates(), mcq=50, regression=None).items_mcq.set_index("item_id")
    every = everything().items_mcq.set_index("item_id")
    pd.testing.assert_frame_equal(every.loc[few.index], few)


def test_the_papers_questions_leave_out_what_it_asks_under_another_code() -> None:
    clusters = make_clusters()
    of_paper = Draw(questions="paper").indicators()
    tables = (clusters, make_images(clusters), make_series())
    drawn = choose_items(
        find_candidates(*tables, seed=0, indicators=of_paper), mcq=120, regression=None
    )
    codes = drawn.items_mcq.groupby("indicator")["sdg"].first()
    assert len(codes) == 12 and "1.4.1" not in set(codes)
    assert {codes["safe_drinking_water"], codes["safe_sanitation"]} == {"6.1.1", "6.2.1"}
    assert not drawn.notes["mcq"]["short"]


# -- splits


def test_authors_split_is_their_rule_to_the_letter() -> None:
    assert np.flatnonzero(authors_split("mcq", range(20)) == "val").tolist() == [1, 4]
    assert np.flatnonzero(authors_split("regression", range(20)) == "val").tolist() == [1, 2, 9, 18]
    for number in (0, 7, 2**47, 123456789012):
        fraction = int(hashlib.md5(f"mcq-{number}".encode()).hexdigest()[:15], 16) / 16**15
        assert authors_split("mcq", [number])[0] == ("val" if fraction < 0.2 else "test")


def test_no_country_stands_on_both_sides_of_a_split_by_place() -> None:
    items = everything().items_mcq
    assert items.groupby("cname")["split_place"].agg(set).map(list).str[0].to_dict() == {
        **{"AL": "test", "KE": "test", "NI": "test", "NM": "val", "BF": "val"}
    }
    assert items.groupby("cname")["split"].nunique().min() == 2, "by id"
    by_place = choose_items(candidates(), mcq=None, regression=None, split="place").items_mcq
    assert by_place["split"].tolist() == items["split_place"].tolist()


def test_a_split_with_an_empty_side_falls_back_to_md5() -> None:
    def split(codes: dict[str, str]) -> dict[str, str]:
        columns = {"cname": list(codes), "official_split": list(codes.values())}
        return split_by_country(pd.DataFrame(columns))[0]

    codes = ["AL", "KE", "NI", "PE", "PH", "UG"]
    first = sorted(codes, key=lambda code: hashlib.md5(code.encode()).hexdigest())
    for official in ("train", "val"):
        sides = split(dict.fromkeys(codes, official))
        assert {code for code in codes if sides[code] == "val"} == set(first[:2])  # ceil(0.2 * 6)
    assert split({"KE": "train"}) == {"KE": "test"} and split({}) == {}


# -- nothing, and what can't be


def test_nothing_at_all_keeps_columns_and_types() -> None:
    none = build(make_clusters()[:0], make_series())
    for name in ("items_mcq", "items_regression", "quarantine"):
        empty, full = getattr(none, name), getattr(everything(), name)
        assert empty.empty and list(empty) == list(full)
        assert name == "quarantine" or empty.dtypes.equals(full.dtypes)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"mcq": -1}, "mcq is -1"),
        ({"split": "country"}, "split 'country'.*valid: id, place"),
        ({"review_action": "keep"}, "review action 'keep'.*valid: drop, mark"),
    ],
)
def test_choices_that_can_not_be(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_items(candidates(), **{"mcq": 1, "regression": 1, **asked})


def test_candidates_that_can_not_be() -> None:
    clusters = make_clusters(("KE",), 2)
    with pytest.raises(UsageError, match="max_gap is -2"):
        find_candidates(clusters, make_images(clusters), make_series(), seed=0, max_gap=-2)
    with pytest.raises(InputError, match="missing column"):
        build(clusters.drop(columns="urban"), make_series())
    with pytest.raises(InputError, match="valid: mcq, regression"):
        authors_split("quiz", [1])
