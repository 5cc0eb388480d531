"""Items: values and gold letters, quotas, ids, splits, and that neither order nor another country
reshuffles them."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark.build import Draw
from sdgbias.benchmark.item_columns import LABELS, MCQ_COLUMNS, REGRESSION_COLUMNS
from sdgbias.benchmark.items import Candidates, find_candidates
from sdgbias.benchmark.splits import authors_split, split_by_country
from sdgbias.errors import InputError, UsageError
from sdgbias.raw.indicators import load_indicators, load_regression_tasks
from sdgbias.types import PILLARS, Task
from tests.builders.item_tables import (
    CODES,
    Drawn,
    build_items,
    choose_items,
    make_clusters,
    make_images,
    make_series,
    row,
)

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def build(clusters: pd.DataFrame, series: pd.DataFrame, mcq: int | None = None) -> Drawn:
    return build_items(clusters, make_images(clusters), series, mcq=mcq, regression=None, seed=0)


@cache
def candidates(codes: tuple[str, ...] = CODES, each: int = 6, seed: int = 0) -> Candidates:
    """Pairing takes a second, choosing a twentieth of that."""
    clusters = make_clusters(codes, each)
    return find_candidates(clusters, make_images(clusters), make_series(codes), seed=seed)


@cache
def everything() -> Drawn:
    return choose_items(candidates(), mcq=None, regression=None)


def test_authors_split_of_the_ids_0_to_19() -> None:
    assert np.flatnonzero(authors_split("mcq", range(20)) == "val").tolist() == [1, 4]
    assert np.flatnonzero(authors_split("regression", range(20)) == "val").tolist() == [1, 2, 9, 18]
    with pytest.raises(InputError, match="valid: mcq, regression"):
        authors_split("quiz", [1])


def test_authors_split_is_their_rule_to_the_letter() -> None:
    for number in (0, 7, 2**47, 123456789012):
        fraction = int(hashlib.md5(f"mcq-{number}".encode()).hexdigest()[:15], 16) / 16**15
        assert authors_split("mcq", [number])[0] == ("val" if fraction < 0.2 else "test")


def test_everything_is_asked_where_a_value_is_known() -> None:
    made = everything()
    assert list(made.items_mcq) == list(MCQ_COLUMNS) and list(made.items_regression) == list(
        REGRESSION_COLUMNS
    )
    assert len(made.items_mcq) == 30 * 14 and len(made.items_regression) == 30 * 9
    for items, task in ((made.items_mcq, "mcq"), (made.items_regression, "regression")):
        assert items["item_id"].is_monotonic_increasing and items["item_id"].is_unique
        first = items.iloc[0]
        key = f"{task}|{first['indicator']}|{first['cluster_id']}"
        assert first["item_id"] == int(hashlib.md5(key.encode()).hexdigest()[:12], 16)
        assert items["split"].tolist() == authors_split(task, items["item_id"]).tolist()
        assert items["image_id"].str.len().eq(64).all()
    assert (
        made.items_mcq["answer"].isin(["A", "B", "C"]).all()
        and not made.items_mcq[["value", "source"]].isna().any().any()
    )
    assert (
        made.items_mcq.dtypes["value_year"] == "int32"
        and made.items_mcq.dtypes["item_id"] == "int64"
    )
    json.dumps(made.notes)


def test_gold_letters_agree_with_their_option_texts() -> None:
    items = everything().items_mcq
    stunting = items[items["indicator"] == "stunting"]
    expected = np.select([stunting["value"] < 20, stunting["value"] < 30], ["A", "B"], "C")
    assert stunting["answer"].tolist() == expected.tolist()
    options = items[["option_a", "option_b", "option_c"]].to_numpy()
    assert all(options[at, "ABC".index(letter)] for at, letter in enumerate(items["answer"]))
    assert (
        items.groupby("indicator")["question"].nunique().eq(1).all()
    )  # Q-only has one prompt for an indicator


def test_regression_answers_are_the_labels() -> None:
    clusters = make_clusters()
    clusters.loc[0, "water_index"] = np.nan
    made = build(clusters, make_series())
    for task in load_regression_tasks():
        own = made.items_regression[made.items_regression["indicator"] == task.slug]
        assert (own["answer"] == own[task.target]).all() and set(own["target"]) == {task.target}
        assert set(own["tolerance"]) == {task.tolerance}
    gone = made.quarantine[made.quarantine["table"] == "items_regression"]
    assert gone["key"].tolist() == [f"{clusters['cluster_id'][0]}|water_security"]
    assert gone["rule"].tolist() == ["no-indicator-value"]


def test_namibia_is_no_missing_value() -> None:
    items = build(make_clusters(("NM", "NI")), make_series()).items_mcq
    assert set(zip(items["cname"], items["iso3"], items["country"], strict=True)) == {
        ("NM", "NAM", "Namibia"),
        ("NI", "NER", "Niger"),  # not Nicaragua, whose ISO code is NI
    }


def test_clusters_without_an_image_are_out() -> None:
    clusters = make_clusters()
    made = build_items(
        clusters, make_images(clusters)[:7], make_series(), mcq=None, regression=None, seed=0
    )
    assert made.items_mcq["cluster_id"].nunique() == 7
    assert made.notes["clusters"] == 30 and made.notes["clusters_with_image"] == 7


def test_an_item_needs_the_evidence_of_its_template() -> None:
    """Electricity needs night lights, two regression tasks the asset index; what a picture shows is
    taken for there where it isn't stated."""
    clusters = make_clusters(("KE",), 4)
    ids = clusters["cluster_id"].tolist()
    clusters.loc[0, "asset_index"] = np.nan
    shown = ["tile, nightlights", "photo, tile", "", "photo, tile, nightlights"]
    images = make_images(clusters).assign(modalities=shown)
    made = build_items(clusters, images, make_series(), mcq=None, regression=None, seed=0)
    lost = made.quarantine[made.quarantine["rule"] == "missing-evidence"]
    assert sorted(lost["key"]) == sorted(
        [f"{ids[0]}|maternal_capital", f"{ids[0]}|plumbing_from_people", f"{ids[1]}|electricity"]
    )
    assert "lacks: nightlights" in lost.set_index("key")["detail"][f"{ids[1]}|electricity"]
    items = made.items_regression
    assert ids[0] not in set(items.loc[items["indicator"] == "maternal_capital", "cluster_id"])
    assert set(items.loc[items["indicator"] == "education_access", "cluster_id"]) == set(ids)
    assert items.set_index("cluster_id")["modalities"][ids[1]].iloc[0] == "photo, tile"


def test_indicators_without_two_values_and_impossible_values_leave_with_a_reason() -> None:
    clusters = make_clusters(("KE", "NI"), 2)
    series = pd.DataFrame(
        [row("haq", iso3, 2012, 40) for iso3 in ("KEN", "NER")]
        + [row("sh_acs_unhc", "KEN", 2012, 101), row("sh_acs_unhc", "NER", 2012, 30)]
    )
    made = build(clusters, series)
    assert set(made.items_mcq["indicator"]) == {"uhc_index"} and set(made.items_mcq["cname"]) == {
        "NI"
    }
    mcq = made.quarantine[made.quarantine["table"] == "items_mcq"]
    found = (
        mcq.groupby("rule")["key"]
        .agg(lambda keys: sorted({key.split("|")[1] for key in keys}))
        .to_dict()
    )
    assert found["invalid-options"] == ["haq_index"] and found["value-out-of-range"] == [
        "uhc_index"
    ]
    assert len(found["no-indicator-value"]) == 12
    assert "same value 40" in mcq.set_index("rule").loc["invalid-options", "detail"].iloc[0]


def test_duplicates_leave() -> None:
    clusters = make_clusters(("KE", "NI"), 3)
    images = make_images(clusters)
    images.loc[1, "image_id"] = images.loc[0, "image_id"]
    twice = pd.concat([clusters, clusters[-1:]])
    made = build_items(twice, images, make_series(), mcq=None, regression=None, seed=0)
    assert made.items_mcq["cluster_id"].nunique() == 5
    assert not made.items_mcq.duplicated(["indicator", "image_id"]).any()
    gone = made.quarantine[made.quarantine["rule"] == "duplicate-item"]
    counts = gone["table"].value_counts().to_dict()
    assert counts == {"clusters": 1, "items_mcq": 14, "items_regression": 9}


def test_near_duplicates_leave_when_picture_and_context_agree() -> None:
    """1 looks like 0 and has its context; 2 looks like 0 in another context; 3 has the context of 0
    and another picture."""
    clusters = make_clusters(("KE",), 4)
    labels = [*LABELS, "urban"]
    clusters.loc[[1, 3], labels] = clusters.loc[[0, 0], labels].to_numpy()
    clusters.loc[1, "asset_index"] = (
        round(clusters.loc[0, "asset_index"], 1) - 0.01
    )  # the same to one decimal, as prompts show it
    images = make_images(clusters)
    images["image_group"] = images["image_id"].where(
        ~images.index.isin([1, 2]), images.loc[0, "image_id"]
    )
    made = build_items(clusters, images, make_series(), mcq=None, regression=None, seed=0)
    gone = made.quarantine[made.quarantine["rule"] == "near-duplicate-item"]
    assert set(gone["key"].str.split("|").str[0]) == {clusters["cluster_id"][1]}
    assert gone["table"].value_counts().to_dict() == {"items_mcq": 14, "items_regression": 9}
    assert made.items_mcq["cluster_id"].nunique() == 3
    assert (
        gone["detail"]
        .str.endswith(f"context and nearly the image as {clusters['cluster_id'][0]}")
        .all()
    )


def test_what_is_taken_out_is_replaced_and_nothing_else_moves() -> None:
    found = candidates()
    before = choose_items(found, mcq=100, regression=50)
    out = set(before.items_mcq["item_id"][:7])
    after = choose_items(found, mcq=100, regression=50, without={Task.MCQ: out})
    assert len(after.items_mcq) == 100 and not set(after.items_mcq["item_id"]) & out
    assert set(before.items_mcq["item_id"]) - out <= set(after.items_mcq["item_id"])
    counts = [made.items_mcq["indicator"].value_counts().to_dict() for made in (before, after)]
    assert counts[0] == counts[1]
    pd.testing.assert_frame_equal(after.items_regression, before.items_regression)


def test_review_drops_or_marks() -> None:
    found = candidates()
    before = choose_items(found, mcq=60, regression=30)
    first, second = before.items_mcq["item_id"][:2]
    verdicts = pd.DataFrame(
        {"task": "mcq", "item_id": [first, second], "verdict": ["rejected", "accepted"]}
    )
    dropped = choose_items(found, mcq=60, regression=30, review=verdicts)
    assert first not in set(dropped.items_mcq["item_id"]) and len(dropped.items_mcq) == 60
    assert dropped.items_mcq.set_index("item_id")["review"][second] == "accepted"
    (line,) = dropped.quarantine[dropped.quarantine["rule"] == "rejected-in-review"].to_dict(
        "records"
    )
    assert line["table"] == "items_mcq" and line["detail"] == f"item {first}"
    marked = choose_items(
        found, mcq=60, regression=30, review=verdicts, review_action="mark"
    ).items_mcq
    assert marked["item_id"].tolist() == before.items_mcq["item_id"].tolist()
    assert marked.set_index("item_id")["review"].value_counts().to_dict() == {
        "": 58,
        "rejected": 1,
        "accepted": 1,
    }
    assert set(dropped.items_regression["review"]) == {""}  # ids are unique within a task only


def test_kept_bins_keep_the_options_of_old_questions() -> None:
    old = candidates(("KE", "NI"))
    series = make_series()
    clusters = make_clusters()
    moved = find_candidates(clusters, make_images(clusters), series, seed=0)
    kept = find_candidates(
        clusters,
        make_images(clusters),
        series,
        seed=0,
        options=lambda entry, values: old.options[entry.slug],
    )
    assert (
        moved.options["electricity"].edges != old.options["electricity"].edges
    )  # terciles follow the clusters
    assert kept.options == old.options
    rows = kept.by_task[Task.MCQ]
    own = rows[rows["indicator"] == "electricity"]
    assert (
        own["answer"].tolist()
        == old.options["electricity"].letters(own["value"].to_numpy()).tolist()
    )


def test_split_by_place_keeps_countries_apart() -> None:
    items = choose_items(candidates(), mcq=None, regression=None, split="place").items_mcq
    assert items.groupby("cname")["split"].nunique().max() == 1 and set(items["split"]) == {
        "val",
        "test",
    }
    assert candidates().notes.get("split") is None
    by_id = choose_items(candidates(), mcq=None, regression=None).items_mcq
    assert by_id.groupby("cname")["split"].nunique().min() == 2


@pytest.mark.parametrize("total", [0, 7, 333])
def test_quotas_are_exact_in_table_a_proportions(total: int) -> None:
    made = choose_items(candidates(each=40), mcq=total, regression=total)
    for items, shares, entries in (
        (made.items_mcq, (44.58, 32.52, 22.90), load_indicators()),
        (made.items_regression, (38.854, 33.522, 27.624), load_regression_tasks()),
    ):
        assert len(items) == total
        per_pillar = [int((items["pillar"] == pillar).sum()) for pillar in PILLARS]
        assert all(
            abs(n - total * share / 100) < 1 for n, share in zip(per_pillar, shares, strict=True)
        )
        for pillar in PILLARS:
            counts: dict[str, int] = {}
            for e in entries:
                if e.pillar == pillar:
                    construct = getattr(e, "family", e.slug)
                    n = int((items["indicator"] == e.slug).sum())
                    counts[construct] = counts.get(construct, 0) + n
            assert max(counts.values()) - min(counts.values()) <= 1
    assert made.notes["mcq"]["short"] == [] == made.notes["regression"]["short"]


def test_a_shortfall_is_filled_within_the_pillar_and_said() -> None:
    clusters = make_clusters(("KE", "NI"), 10)
    series = make_series()
    series = series[~series["series"].isin(["haq", "shdi", "se_tot_cplr", "cr_2_f"])]
    made = build(clusters, series, mcq=100)
    counts = made.items_mcq["indicator"].value_counts()
    assert "haq_index" not in counts and made.notes["mcq"]["pillar_quotas"][PILLARS[0]] == 45
    assert (
        made.items_mcq["pillar"] == PILLARS[0]
    ).sum() == 45  # filled by its four other indicators
    assert (made.items_mcq["pillar"] == PILLARS[2]).sum() == counts["ed_health_alignment"] == 20
    short = made.notes["mcq"]["short"]
    assert f"{PILLARS[0]}, haq_index: wanted 9, the data gives 0" in short
    assert f"{PILLARS[2]}: wanted 23, the data gives 20; the rest stays empty" in short


def test_strata_get_their_share() -> None:
    items = choose_items(candidates(each=40), mcq=600, regression=None).items_mcq
    counts = items[items["indicator"] == "stunting"].groupby(["cname", "year"]).size()
    wanted = (items["indicator"] == "stunting").sum() / 10  # 5 countries x 2 years of equal size
    assert len(counts) == 10 and counts.between(wanted - 1, wanted + 1).all()


def test_the_order_of_the_input_changes_nothing() -> None:
    clusters, series = make_clusters(), make_series()
    images = make_images(clusters)
    first = choose_items(candidates(seed=5), mcq=150, regression=90)
    mixed = [
        frame.sample(frac=1, random_state=1).reset_index(drop=True)
        for frame in (clusters, images, series)
    ]
    again = build_items(*mixed, mcq=150, regression=90, seed=5)
    for name in ("items_mcq", "items_regression", "quarantine"):
        pd.testing.assert_frame_equal(getattr(first, name), getattr(again, name))
    assert first.notes == again.notes
    other = choose_items(candidates(), mcq=150, regression=90)
    assert set(other.items_mcq["item_id"]) != set(first.items_mcq["item_id"])


def test_another_country_only_pushes_items_out() -> None:
    series = make_series((*CODES, "PE"))
    before = build(make_clusters(), series, mcq=200)
    after = build(make_clusters((*CODES, "PE")), series, mcq=200)
    kept = after.items_mcq[after.items_mcq["cname"] != "PE"]
    assert len(after.items_mcq) == 200 and len(kept) < 200
    assert set(kept["item_id"]) <= set(before.items_mcq["item_id"])


def test_an_id_does_not_depend_on_the_quota() -> None:
    full = everything().items_mcq.set_index("item_id")
    some = choose_items(candidates(), mcq=50, regression=None).items_mcq.set_index("item_id")
    pd.testing.assert_frame_equal(full.loc[some.index], some)


def test_no_country_stands_on_both_sides() -> None:
    items = everything().items_mcq
    assert items.groupby("cname")["split_place"].nunique().eq(1).all()
    assert dict(zip(items["cname"], items["split_place"], strict=True)) == {
        "AL": "test",
        "KE": "test",
        "NI": "test",
        "NM": "val",
        "BF": "val",
    }


def test_a_split_with_an_empty_side_falls_back_to_md5() -> None:
    def split(codes: dict[str, str]) -> dict[str, str]:
        return split_by_country(
            pd.DataFrame({"cname": list(codes), "official_split": list(codes.values())})
        )[0]

    codes = ["AL", "KE", "NI", "PE", "PH", "UG"]
    first = sorted(codes, key=lambda code: hashlib.md5(code.encode()).hexdigest())
    for official in ("train", "val"):
        made = split(dict.fromkeys(codes, official))
        assert {code for code in codes if made[code] == "val"} == set(first[:2])  # ceil(0.2 * 6)
    assert split({"KE": "train"}) == {"KE": "test"} and split({}) == {}


def test_nothing_at_all_keeps_columns_and_types() -> None:
    full, none = everything(), build(make_clusters()[:0], make_series())
    for name in ("items_mcq", "items_regression", "quarantine"):
        assert getattr(none, name).empty
        assert list(getattr(none, name)) == list(getattr(full, name))
    assert none.items_mcq.dtypes.equals(full.items_mcq.dtypes)
    assert none.items_regression.dtypes.equals(full.items_regression.dtypes)


def test_bad_arguments() -> None:
    clusters = make_clusters(("KE",), 2)
    with pytest.raises(UsageError, match="mcq is -1"):
        choose_items(candidates(), mcq=-1, regression=None)
    with pytest.raises(UsageError, match="max_gap is -2"):
        find_candidates(clusters, make_images(clusters), make_series(), seed=0, max_gap=-2)
    with pytest.raises(UsageError, match="split 'country'.*valid: id, place"):
        choose_items(candidates(), mcq=1, regression=1, split="country")
    with pytest.raises(UsageError, match="review action 'keep'.*valid: drop, mark"):
        choose_items(candidates(), mcq=1, regression=1, review_action="keep")
    with pytest.raises(InputError, match="missing column"):
        build(clusters.drop(columns="urban"), make_series())


@pytest.mark.skipif(
    not (SHARED / "realpack").is_dir(),
    reason="the real specimens (../shared/data/realpack) are absent",
)
def test_real_clusters_get_items_from_the_committed_series() -> None:
    from sdgbias.raw.clusters import read_clusters
    from sdgbias.raw.series import read_series

    clusters, _ = read_clusters(SHARED / "realpack")
    series, _ = read_series(Path(__file__).resolve().parents[2] / "data" / "indicators")
    made = build(clusters, series)
    assert (
        made.items_mcq["indicator"].nunique() == 12
    )  # not physical activity and HAQ, which can't be committed
    assert made.items_mcq["cname"].nunique() == clusters["cname"].nunique()
    albania = made.items_mcq[
        (made.items_mcq["cname"] == "AL") & (made.items_mcq["indicator"] == "stunting")
    ]
    assert set(albania["answer"]) == {"B"}  # 23.2 % in 2008


def test_the_papers_questions_leave_out_what_it_asks_under_another_code() -> None:
    clusters = make_clusters()

    found = find_candidates(
        clusters,
        make_images(clusters),
        make_series(),
        seed=0,
        indicators=Draw(questions="paper").indicators(),
    )

    rows = choose_items(found, mcq=120, regression=None)
    codes = rows.items_mcq.groupby("indicator")["sdg"].first()
    assert len(codes) == 12 and "1.4.1" not in set(codes)
    assert {codes["safe_drinking_water"], codes["safe_sanitation"]} == {"6.1.1", "6.2.1"}
    assert not rows.notes["mcq"]["short"]
