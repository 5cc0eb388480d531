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


Written = tuple[Path, dict[str, int], list[tuple[int, int]]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("sample") / "raw"
    calls: list[tuple[int, int]] = []
    counts = write_sample(folder, 10, 11, progress=lambda what, *at: calls.append(at), workers=2)
    return folder, counts, calls


def test_layout_is_sustainbench_s(written: Written) -> None:
    folder, counts, calls = written
    labels = pd.read_csv(folder / LABELS, keep_default_na=False, dtype=str)
    assert tuple(labels.columns) == COLUMNS
    countries = {cc: 2 if i < 2 else 1 for i, cc in enumerate(DEFAULT_COUNTRIES)}
    assert labels["cname"].value_counts().to_dict() == countries
    assert labels["DHSID_EA"].str.fullmatch(r"[A-Z]{2}-20\d\d-[4-7][#Z]-\d{8}").all()
    assert (labels["DHSID_EA"].str[-8:].astype(int) == labels["cluster_id"].astype(int)).all()
    tiles = sorted((folder / "dhs_npzs").glob("*/*.npz"))
    assert len(tiles) == counts["tiles"] == 10 - counts["missing_tile"]
    assert all(path.parent.name == path.name[:10] for path in tiles)
    assert calls[-1] == (10, 10) and calls == sorted(calls)
    note = (folder / "README.txt").read_text()
    assert all(words in note for words in ("Synthetic", "seed: 11", "CC0"))
    imagery, photos = folder / "mapillary" / "imagery", 0
    for cc in DEFAULT_COUNTRIES:
        with (folder / "mapillary" / "metadata" / f"{cc}.csv").open() as lines:
            rows = list(csv.DictReader(lines))
        on_disk = {str(p.relative_to(imagery)): p for p in (imagery / cc).glob("*/*.jpeg")}
        photos += len(on_disk)
        assert {f"{cc}/{row['DHSID_EA']}/{row['id']}.jpeg" for row in rows} == set(on_disk)
        for row in rows:
            taken = 1970 + int(row["captured_at"]) / 31_557_600_000
            assert len(row["id"]) == 15 and abs(taken - int(row["DHSID_EA"][3:7])) <= 3
    assert photos == counts["photos"]
    with Image.open(next(iter(on_disk.values()))) as photo:
        assert (photo.format, photo.mode, photo.size) == ("JPEG", "RGB", (640, 360))


def test_what_was_cut_short_is_completed_to_the_same_bytes(
    written: Written, tmp_path: Path
) -> None:
    """By one worker in place of two."""
    for path in written[0].rglob("*.jpeg"):
        copy = tmp_path / "one" / path.relative_to(written[0])
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "one" / "README.txt").write_bytes((written[0] / "README.txt").read_bytes())
    write_sample(tmp_path / "one", 10, seed=11, workers=1)
    assert digests(tmp_path / "one") == digests(written[0])


def test_a_country_depends_on_the_seed_and_on_no_other_country(tmp_path: Path) -> None:
    for name, countries in (("two", ["KE", "NM"]), ("three", ["ZM", "KE", "NM"])):
        counts = write_sample(tmp_path / name, 2 * len(countries), 4, countries, workers=1)
        assert counts["clusters"] == 2 * len(countries)
    old, new = digests(tmp_path / "two"), digests(tmp_path / "three")
    drawn = [name for name in old if name.startswith(("dhs_npzs", "mapillary"))]
    assert drawn and all(old[name] == new[name] for name in drawn)
    rows = [set((tmp_path / name / LABELS).read_text().splitlines()) for name in ("two", "three")]
    assert rows[0] < rows[1]
    frames = [read_series(tmp_path / name / "indicators")[0] for name in ("two", "three")]
    kept = frames[1][frames[1]["iso3"] != "ZMB"].reset_index(drop=True)
    pd.testing.assert_frame_equal(frames[0], kept)
    counts = write_sample(tmp_path / "seed", 4, seed=5, countries=["KE", "NM"], images=False)
    assert (counts["tiles"], counts["photos"], counts["missing_tile"]) == (0, 0, 4)
    assert not list((tmp_path / "seed").rglob("*.npz"))
    other = digests(tmp_path / "seed")
    assert other[LABELS] != old[LABELS]
    changed = [name for name in other if "datapoints" in name or "gdl_shdi/shdi" in name]
    assert len(changed) > 5 and all(other[name] != old[name] for name in changed)


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
def test_arguments_that_make_no_sense(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]*$") as caught:
        write_sample(**({"out": tmp_path / "raw", "clusters": 2, "seed": 1} | change))
    assert message in str(caught.value)
    assert not (tmp_path / "raw").exists()


def test_a_folder_with_other_contents_is_left_alone(tmp_path: Path) -> None:
    write_sample(tmp_path / "raw", 2, seed=1, images=False)
    (tmp_path / "file").write_text("mine")
    before = digests(tmp_path)
    for place, error, says in (
        ("raw", UsageError, "already holds something else"),
        ("file", UsageError, "already holds something else"),
        ("file/raw", StoreError, r"file.*can't be written"),
    ):
        with pytest.raises(error, match=says):
            write_sample(tmp_path / place, 2, seed=2, images=False)
    assert digests(tmp_path) == before


def test_curves_are_monotone_and_stay_in_range() -> None:
    assert set(crosswalk()) == set(COUNTRIES) and len(COUNTRIES) == 56
    for series, (low, high, _, _) in CURVES.items():
        values = np.array([curve(series, float(w)) for w in np.linspace(-6, 6, 241)])
        assert (np.diff(values) * np.sign(high - low) >= 0).all(), series
        assert values.min() >= min(low, high) and values.max() <= max(low, high), series
        assert abs(curve(series, 2) - curve(series, -2)) > 0.9 * abs(high - low), series


def test_series_are_read_and_follow_wealth(tmp_path: Path) -> None:
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


def test_regions_of_the_labels_lead_to_regions_of_the_series(written: Written) -> None:
    regions = read_gdl_regions(written[0] / "indicators")
    frame, _ = read_series(written[0] / "indicators")
    assert set(regions["gdl_region"]) == set(frame.loc[frame["region"] != "", "region"])
    assert gdl_code("SN", 1) == "senr101"
    own = frame[(frame["series"] == "shdi") & (frame["year"] == 2010)].set_index("region")["value"]
    wealth = {
        gdl_code(cc, r): country_wealth(11, cc) + region_offset(11, cc, r)
        for cc in DEFAULT_COUNTRIES
        for r in (1, 2, 3, 4)
    }
    assert own.corr(pd.Series(wealth)) > 0.97
