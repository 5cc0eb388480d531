"""write_sample: layout, determinism, independence of countries, series, refusals."""

import csv
import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from sdgbias.errors import StoreError, UsageError
from sdgbias.raw.clusters import COLUMNS
from sdgbias.raw.series import read_gdl_regions, read_series
from sdgbias.raw.synthetic import DEFAULT_COUNTRIES, write_sample
from sdgbias.raw.synthetic.latent import COUNTRIES, country_wealth, region_offset
from sdgbias.raw.synthetic.series import CURVES, crosswalk, curve, gdl_code, write_series

LABELS = "dhs_final_labels.csv"


def digests(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


@pytest.fixture(scope="module")
def written(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, object], list[tuple[int, int]]]:
    folder = tmp_path_factory.mktemp("sample") / "raw"
    calls: list[tuple[int, int]] = []
    counts = write_sample(
        folder, 10, seed=11, progress=lambda what, *at: calls.append(at), workers=2
    )
    return folder, counts, calls


def test_layout_is_sustainbench_s(written):
    folder, counts, calls = written
    labels = pd.read_csv(folder / LABELS, keep_default_na=False, dtype=str)
    assert tuple(labels.columns) == COLUMNS
    assert len(labels) == 10
    assert labels["cname"].value_counts().to_dict() == {
        cc: 2 if i < 2 else 1 for i, cc in enumerate(DEFAULT_COUNTRIES)
    }
    assert labels["DHSID_EA"].str.fullmatch(r"[A-Z]{2}-20\d\d-[4-7][#Z]-\d{8}").all()
    assert (labels["DHSID_EA"].str[-8:].astype(int) == labels["cluster_id"].astype(int)).all()
    tiles = sorted((folder / "dhs_npzs").glob("*/*.npz"))
    photos = sorted((folder / "mapillary" / "imagery").glob("*/*/*.jpeg"))
    assert len(tiles) == counts["tiles"] == 10 - counts["missing_tile"]
    assert len(photos) == counts["photos"]
    assert all(path.parent.name == path.name[:10] for path in tiles)
    assert calls[-1] == (10, 10)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    note = (folder / "README.txt").read_text()
    assert "synthetic" in note.lower()
    assert "seed: 11" in note
    assert "CC0" in note


def test_metadata_names_every_photo(written):
    folder = written[0]
    for cc in DEFAULT_COUNTRIES:
        with (folder / "mapillary" / "metadata" / f"{cc}.csv").open() as lines:
            rows = list(csv.DictReader(lines))
        on_disk = {
            str(p.relative_to(folder / "mapillary" / "imagery")): p
            for p in (folder / "mapillary" / "imagery" / cc).glob("*/*.jpeg")
        }
        assert {row["path"] for row in rows} == set(on_disk)
        for row in rows:
            assert row["path"] == f"{cc}/{row['DHSID_EA']}/{row['id']}.jpeg"
            assert len(row["id"]) == 15
            taken = 1970 + int(row["captured_at"]) / 31_557_600_000
            assert abs(taken - int(row["DHSID_EA"][3:7])) <= 3
    with Image.open(next(iter(on_disk.values()))) as photo:
        assert (photo.format, photo.mode, photo.size) == ("JPEG", "RGB", (640, 360))


def test_same_bytes_with_any_number_of_workers_and_again_in_place(written, tmp_path):
    folder = written[0]
    write_sample(tmp_path / "one", 10, seed=11, workers=1)
    assert digests(tmp_path / "one") == digests(folder)
    next((tmp_path / "one" / "dhs_npzs").glob("*/*.npz")).unlink()
    write_sample(tmp_path / "one", 10, seed=11, workers=2)  # completes what was cut short
    assert digests(tmp_path / "one") == digests(folder)


def test_a_new_country_changes_no_other_one(tmp_path):
    two = write_sample(tmp_path / "two", 4, seed=4, countries=["KE", "NM"], workers=1)
    three = write_sample(tmp_path / "three", 6, seed=4, countries=["ZM", "KE", "NM"], workers=1)
    assert (two["clusters"], three["clusters"]) == (4, 6)
    old, new = digests(tmp_path / "two"), digests(tmp_path / "three")
    pictures = [name for name in old if name.startswith(("dhs_npzs", "mapillary"))]
    assert pictures
    assert all(old[name] == new[name] for name in pictures)
    rows = [set((tmp_path / name / LABELS).read_text().splitlines()) for name in ("two", "three")]
    assert rows[0] < rows[1]
    frames = [read_series(tmp_path / name / "indicators")[0] for name in ("two", "three")]
    kept = frames[1][frames[1]["iso3"] != "ZMB"].reset_index(drop=True)
    pd.testing.assert_frame_equal(frames[0], kept)


def test_another_seed_is_another_world(tmp_path):
    for seed in (1, 2):
        write_sample(tmp_path / str(seed), 2, seed=seed, countries=["SN"], images=False)
    one, two = digests(tmp_path / "1"), digests(tmp_path / "2")
    assert all(
        one[name] != two[name]
        for name in one
        if not name.endswith(("gdl_regions.csv", "s/README.txt", "y/README.txt"))
        and "entities" not in name
    )


def test_without_images_there_are_labels_and_series_only(tmp_path):
    counts = write_sample(tmp_path / "raw", 1000, seed=3, images=False)
    assert {p.name for p in (tmp_path / "raw").iterdir()} == {
        LABELS,
        "indicators",
        "README.txt",
        "dhs_npzs",
        "mapillary",
    }
    for folder in ("dhs_npzs", "mapillary"):
        assert [p.name for p in (tmp_path / "raw" / folder).rglob("*")] == ["README.txt"]
    assert (counts["tiles"], counts["photos"], counts["missing_tile"]) == (0, 0, 1000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"countries": ["SN", "XX"]}, "unknown DHS country code 'XX'; valid: AL, AM, AO"),
        ({"countries": ["SN", "SN"]}, "each only once"),
        ({"countries": []}, "at least one code"),
        ({"clusters": 0}, "clusters 0"),
        ({"workers": 0}, "workers 0"),
    ],
)
def test_arguments_that_make_no_sense(tmp_path, change, message):
    with pytest.raises(UsageError, match=r"^[^\n]*$") as caught:
        write_sample(**({"out": tmp_path / "raw", "clusters": 2, "seed": 1} | change))
    assert message in str(caught.value)
    assert not (tmp_path / "raw").exists()


def test_a_folder_with_other_contents_is_left_alone(tmp_path):
    write_sample(tmp_path / "raw", 2, seed=1, images=False)
    before = digests(tmp_path / "raw")
    with pytest.raises(UsageError, match="already holds something else"):
        write_sample(tmp_path / "raw", 2, seed=2, images=False)
    assert digests(tmp_path / "raw") == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="already holds something else"):
        write_sample(tmp_path / "file", 2, seed=2, images=False)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match=r"file.*can't be written"):
        write_sample(tmp_path / "file" / "raw", 2, seed=1, images=False)


def test_the_crosswalk_and_the_boxes_name_the_same_56_countries():
    assert set(crosswalk()) == set(COUNTRIES)
    assert len(COUNTRIES) == 56
    assert crosswalk()["NM"]["iso2"] == "NA"


def test_curves_are_monotone_and_stay_in_range():
    grid = np.linspace(-6, 6, 241)
    for series, (low, high, _, _) in CURVES.items():
        values = np.array([curve(series, float(w)) for w in grid])
        steps = np.diff(values) * np.sign(high - low)
        assert (steps >= 0).all(), series
        assert values.min() >= min(low, high), series
        assert values.max() <= max(low, high), series
        assert abs(curve(series, 2) - curve(series, -2)) > 0.9 * abs(high - low), series


def test_series_are_read_and_follow_wealth(tmp_path):
    countries = sorted(COUNTRIES)[::2]
    write_series(tmp_path, 8, countries)
    frame, missing = read_series(tmp_path)
    assert set(missing) == {"cr_2_f", "gdl_area_stunting", "gdl_area_wasting", "gdl_area_electr"}
    wealth = {crosswalk()[cc]["iso3"]: country_wealth(8, cc) for cc in countries}
    late = frame[(frame["region"] == "") & (frame["year"] >= 2010) & (frame["stratum"] == "all")]
    for series, group in late.groupby("series"):
        mean = group.groupby("iso3")["value"].mean()
        assert len(mean) == 28 if series != "ncd_pac" else 18 < len(mean) < 28, series
        rank = mean.corr(pd.Series(wealth), method="spearman")
        falls = series in ("sh_sta_stunt", "sh_sta_waste", "sh_sta_wash")
        assert rank * (-1 if falls else 1) > 0.9, (series, rank)
    power = frame[(frame["series"] == "eg_elc_accs") & (frame["year"] == 2015)].pivot_table(
        index="iso3", columns="stratum", values="value"
    )
    assert (power["urban"] > power["rural"]).mean() > 0.95
    assert set(frame.loc[frame["series"] == "sh_sta_wash", "year"]) == {2016}


def test_regions_of_the_labels_lead_to_regions_of_the_series(written):
    folder = written[0]
    regions = read_gdl_regions(folder / "indicators")
    frame, _ = read_series(folder / "indicators")
    assert set(regions["gdl_region"]) == set(frame.loc[frame["region"] != "", "region"])
    assert gdl_code("SN", 1) == "senr101"
    own = frame[(frame["series"] == "shdi") & (frame["year"] == 2010)].set_index("region")["value"]
    wealth = pd.Series(
        {
            gdl_code(cc, r): country_wealth(11, cc) + region_offset(11, cc, r)
            for cc in DEFAULT_COUNTRIES
            for r in (1, 2, 3, 4)
        }
    )
    assert own.corr(wealth) > 0.97
