from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.raw.clusters import COLUMNS, LABELS, countries, read_clusters

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
REALPACK = SHARED / "realpack"
GOOD = dict.fromkeys(COLUMNS, "") | {
    "DHSID_EA": "AL-2008-5#-00000001",
    "cname": "AL",
    "year": "2008",
    "lat": "40.5",
    "lon": "19.5",
    "n_asset": "18.0",
    "asset_index": "-2.5",
    "water_index": "3.5",
    "sanitation_index": "5.0",
    "under5_mort": "0.0",
    "women_edu": "9.5",
    "women_bmi": "24.25",
    "cluster_id": "1",
    "adm1dhs": "3",
    "urban": "R",
}


def row(**changes: str) -> dict[str, str]:
    return GOOD | changes


def of(cname: str, number: int = 1, **changes: str) -> dict[str, str]:
    return row(DHSID_EA=f"{cname}-2008-5#-{number:08d}", cname=cname, **changes)


def read(
    folder: Path, *rows: dict[str, str], columns: tuple[str, ...] = COLUMNS
) -> tuple[pd.DataFrame, pd.DataFrame]:
    pd.DataFrame(rows)[list(columns)].to_csv(folder / "dhs_final_labels.csv", index=False)
    return read_clusters(folder)


def test_countries() -> None:
    table = countries().set_index("cname")
    assert len(table) == 56
    assert table["iso3"].is_unique
    assert table["official_split"].value_counts().to_dict() == {"train": 30, "val": 13, "test": 13}
    # the ten codes that differ from ISO-2, Namibia's 'NA' among them
    differ = "BU-BI DR-DO GU-GT IA-IN KY-KG LB-LR MB-MD MD-MG NI-NE NM-NA"
    found = table[table.index != table["iso2"]]["iso2"]
    assert " ".join(f"{dhs}-{iso2}" for dhs, iso2 in sorted(found.items())) == differ
    table.loc[:, "name"] = "spoiled"
    assert countries()["name"].is_unique


def test_a_good_row_keeps_its_values(tmp_path: Path) -> None:
    clusters, lost = read(tmp_path, GOOD)
    assert lost.empty
    assert list(lost.columns) == ["table", "key", "rule", "detail"]
    read_as: dict[str, object] = {label: float(GOOD[label]) for label in (*LABELS, "lat", "lon")}
    read_as |= {"cluster_id": GOOD["DHSID_EA"], "survey": "AL-2008-5#", "year": 2008, "cname": "AL"}
    read_as |= {"iso3": "ALB", "country": "Albania", "official_split": "train"}
    assert clusters.iloc[0].to_dict() == read_as | {"urban": "R", "adm1dhs": 3}
    assert clusters["year"].dtype == clusters["adm1dhs"].dtype == np.int32


@pytest.mark.parametrize(("mark", "decimal"), [(";", ","), (";", "."), ("\t", ".")])
def test_labels_as_spreadsheets_export_them(tmp_path: Path, mark: str, decimal: str) -> None:
    plain = read(tmp_path, row())[0]
    table = pd.DataFrame([row()], columns=list(COLUMNS), dtype=str)
    table = table.apply(lambda column: column.str.replace(".", decimal, regex=False))
    table.to_csv(tmp_path / "dhs_final_labels.csv", sep=mark, index=False)
    pd.testing.assert_frame_equal(read_clusters(tmp_path)[0], plain)


@pytest.mark.parametrize("blank", ["", "  ", "nan", "NA"])
def test_missing_is_unknown_and_not_an_error(tmp_path: Path, blank: str) -> None:
    columns = (*LABELS, "lat", "lon", "urban", "adm1dhs")
    clusters, lost = read(tmp_path, row(**dict.fromkeys(columns, blank)))
    assert lost.empty
    assert clusters[[*list(LABELS), "lat", "lon"]].isna().all(axis=None)
    assert clusters["urban"].tolist() == [""]
    assert clusters["adm1dhs"].tolist() == [9999]


def test_columns_go_by_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    expected, _ = read(tmp_path, GOOD, of("NM"))
    wide = [r | {"extra": "x"} for r in (GOOD, of("NM"))]
    shuffled, lost = read(tmp_path / "other", *wide, columns=("extra", *reversed(COLUMNS)))
    pd.testing.assert_frame_equal(shuffled, expected)
    assert lost.empty


def test_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    rows = [
        of(code, n, women_edu="30" if n == 2 else "3")
        for code in ("SN", "AL", "NM")
        for n in (3, 1, 2)
    ]
    (tmp_path / "other").mkdir()
    clusters, lost = read(tmp_path, *rows)
    again, lost_again = read(tmp_path / "other", *rows[::-1])
    pd.testing.assert_frame_equal(clusters, again)
    pd.testing.assert_frame_equal(lost, lost_again)
    assert clusters["cluster_id"].is_monotonic_increasing
    assert len(lost) == 3


@pytest.mark.parametrize(
    ("cname", "hint"),
    [
        ("NA", "Namibia: NM was"),
        ("NE", "Niger: NI was"),
        ("IN", "India: IA was"),
        ("MG", "Madagascar: MD was"),
        ("KEN", "Kenya: KE was"),
        ("ke", "Kenya: KE was"),
        ("XX", "56 DHS codes"),
        ("", "56 DHS codes"),
    ],
)
def test_unknown_country(tmp_path: Path, cname: str, hint: str) -> None:
    clusters, lost = read(tmp_path, GOOD, row(DHSID_EA="KE-2008-5#-00000001", cname=cname))
    assert clusters["cname"].tolist() == ["AL"]
    assert lost[["table", "key", "rule"]].values.tolist() == [
        ["clusters", "KE-2008-5#-00000001", "unknown-country"]
    ]
    for words in (repr(cname), hint, "line 3"):
        assert words in lost["detail"][0]


FIRST = "AL-2008-5#-00000001"


@pytest.mark.parametrize(
    ("rule", "detail", "changes"),
    [
        ("inconsistent-metadata", "'2010' but DHSID_EA says 2008", {"year": "2010"}),
        ("inconsistent-metadata", "'2016-2017' but DHSID_EA says 2008", {"year": "2016-2017"}),
        ("inconsistent-metadata", "'2006'", {"year": "2006"}),
        ("inconsistent-metadata", "'unknown'", {"year": "unknown"}),
        ("inconsistent-metadata", "''", {"year": ""}),
        (
            "inconsistent-metadata",
            "Madagascar.*'MB'.*Moldova",
            {"cname": "MD", "DHSID_EA": "MB-2008-5#-00000002"},
        ),
        ("malformed-id", "'AL-2008-5#-1' is not of the form", {"DHSID_EA": "AL-2008-5#-1"}),
        ("malformed-id", "passwd", {"DHSID_EA": "../../etc/passwd"}),
        ("malformed-id", "not of the form", {"DHSID_EA": "AL-2008-5#-00000002/../x"}),
        ("duplicate-cluster", "repeats line 2, which is kept", {"DHSID_EA": FIRST + "\n"}),
        ("duplicate-cluster", "line 3: repeats line 2", {"DHSID_EA": FIRST, "women_edu": "9.6"}),
        (
            "duplicate-cluster",
            "line 3: repeats line 2",
            {"DHSID_EA": FIRST, "women_edu": "1", "women_bmi": " "},
        ),
    ],
)
def test_row_leaves(tmp_path: Path, rule: str, detail: str, changes: dict[str, str]) -> None:
    clusters, lost = read(tmp_path, GOOD, row(**({"DHSID_EA": "AL-2008-5#-00000002"} | changes)))
    assert clusters["cluster_id"].tolist() == [FIRST]
    assert clusters["women_edu"].tolist() == [9.5]
    assert lost[["table", "rule"]].values.tolist() == [["clusters", rule]]
    assert lost["detail"].str.contains(detail).all()


def test_surveys_span_new_year(tmp_path: Path) -> None:
    for first, years in {
        2007: ["2007", "2007-08"],
        2008: ["2008.0", "2008-2009", "2008/09", "2008 - 2009"],
        2009: ["2009"],
    }.items():
        for year in years:
            clusters, lost = read(tmp_path, row(year=year))
            assert (clusters["year"].tolist(), lost.empty) == ([first], True), year


def test_which_of_two_rows_stays_does_not_depend_on_their_order(tmp_path: Path) -> None:
    full, poor, other = row(women_edu="9"), row(asset_index="", women_bmi=""), row(women_edu="8")
    for rows in ([full, poor, other], [other, full, poor], [poor, other, full]):
        clusters, lost = read(tmp_path, *rows)
        assert clusters["women_edu"].tolist() == [8.0]  # as full as the other, first by text
        assert lost["rule"].tolist() == ["duplicate-cluster"] * 2


def test_latin1_outside_the_id_does_no_harm(tmp_path: Path) -> None:
    rows = (COLUMNS, row(adm1fips="São Tomé").values(), of("KE", 2).values())
    table = "".join(",".join(cells) + "\n" for cells in rows)
    path = tmp_path / "dhs_final_labels.csv"
    path.write_bytes(table.encode("latin-1"))
    clusters, lost = read_clusters(tmp_path)
    assert clusters["cluster_id"].tolist() == [FIRST, "KE-2008-5#-00000002"]
    assert lost.empty
    path.write_bytes(table.replace("KE-2008", "KÉ-2008").encode("latin-1"))
    clusters, lost = read_clusters(tmp_path)
    assert (len(clusters), lost["rule"].tolist()) == (1, ["malformed-id"])


@pytest.mark.parametrize("code", ["-9.0", "-9"])
def test_minus_nine_is_missing_in_every_label(tmp_path: Path, code: str) -> None:
    clusters, lost = read(tmp_path, row(**dict.fromkeys(LABELS, code)))
    assert clusters[list(LABELS)].isna().all(axis=None)
    assert set(lost["rule"]) == {"value-out-of-range"}
    assert {f"{name} {code!r}" for name in LABELS} == set(lost["detail"].str.split(" is ").str[0])


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        *[("water_index", v, "1 to 5") for v in ("0.99", "5.01")],
        *[("sanitation_index", v, "1 to 5") for v in ("0", "6")],
        *[("under5_mort", v, "0 to 1000 deaths") for v in ("-1", "1000.5")],
        *[("women_edu", v, "0 to 18 years") for v in ("-0.1", "98")],
        *[("women_bmi", v, "12 to 60 kg/m2") for v in ("2425", "0.24")],
        *[("asset_index", v, "finite") for v in ("inf", "high")],
        *[("lat", "91", "-90 to 90"), ("lon", "-181", "-180 to 180")],
    ],
)
def test_value_out_of_range(tmp_path: Path, name: str, value: str, wanted: str) -> None:
    clusters, lost = read(tmp_path, row(**{name: value}))
    assert np.isnan(clusters[name][0])
    assert clusters["cname"].tolist() == ["AL"]
    key = ["labels", "AL-2008-5#-00000001", "value-out-of-range"]
    assert lost[["table", "key", "rule"]].values.tolist() == [key]
    assert f"{name} {value!r}" in lost["detail"][0]
    assert wanted in lost["detail"][0]


def test_ends_of_the_ranges_are_inside(tmp_path: Path) -> None:
    scales = ["water_index", "sanitation_index"]
    low = {"under5_mort": "0", "women_edu": "0", "asset_index": "-99"} | dict.fromkeys(scales, "1")
    high = {"under5_mort": "1000", "women_edu": "18", "asset_index": "99"}
    high |= dict.fromkeys(scales, "5")
    clusters, lost = read(tmp_path, of("AL", 1, **low), of("AL", 2, **high))
    assert lost.empty
    assert clusters[list(LABELS)].notna().all(axis=None)


def test_odd_urban_and_null_island(tmp_path: Path) -> None:
    clusters, lost = read(tmp_path, row(urban="1", lat="0.0", lon="0.0"))
    assert clusters["urban"].tolist() == [""]
    assert np.isnan(clusters["lat"][0])
    assert lost["detail"].tolist() == ["urban '1' is outside U, R and empty"]


def test_real_rows() -> None:
    if not REALPACK.exists():
        pytest.skip("needs the shared realpack folder")
    clusters, lost = read_clusters(REALPACK)
    assert len(clusters) == 30
    assert lost.empty
    first = clusters.set_index("cluster_id").loc["AL-2008-5#-00000001"]
    assert (first["water_index"], first["women_bmi"], first["iso3"]) == (3.444444, 24.365, "ALB")


def test_a_cluster_on_the_equator_or_the_prime_meridian_keeps_its_place(tmp_path: Path) -> None:
    """Gabon lies on the equator, Ghana on the meridian: only 0, 0 means that nothing is known."""
    clusters, lost = read(
        tmp_path, of("AL", 1, lat="0.0", lon="9.45"), of("AL", 2, lat="5.62", lon="0.0")
    )
    assert clusters[["lat", "lon"]].to_numpy().tolist() == [[0.0, 9.45], [5.62, 0.0]]
    assert lost.empty


def test_places_where_they_should_be_are_not_taken_for_swapped(tmp_path: Path) -> None:
    """Each would be a place on earth the other way round, too (test_refusals.py)."""
    places = [("SN", "14.3", "-15.0"), ("IA", "25.1", "82.4"), ("PE", "-9.2", "-75.3")]
    assert len(read(tmp_path, *(of(code, lat=lat, lon=lon) for code, lat, lon in places))[0]) == 3
