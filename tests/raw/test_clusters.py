from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.raw.clusters import COLUMNS, LABELS, countries, read_clusters

REALPACK = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "realpack"
FIRST, OTHER = "AL-2008-5#-00000001", "AL-2008-5#-00000002"
GOOD = dict.fromkeys(COLUMNS, "") | {
    **{"DHSID_EA": FIRST, "cname": "AL", "year": "2008", "lat": "40.5", "lon": "19.5"},
    **{"n_asset": "18.0", "asset_index": "-2.5", "water_index": "3.5", "sanitation_index": "5.0"},
    **{"under5_mort": "0.0", "women_edu": "9.5", "women_bmi": "24.25", "cluster_id": "1"},
    **{"adm1dhs": "3", "urban": "R"},
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


def test_a_good_row_keeps_its_values(tmp_path: Path) -> None:
    clusters, lost = read(tmp_path, GOOD)
    assert lost.empty and list(lost.columns) == ["table", "key", "rule", "detail"]
    read_as: dict[str, object] = {label: float(GOOD[label]) for label in (*LABELS, "lat", "lon")}
    read_as |= {"cluster_id": FIRST, "survey": "AL-2008-5#", "year": 2008, "cname": "AL"}
    read_as |= {"iso3": "ALB", "country": "Albania", "official_split": "train"}
    assert clusters.iloc[0].to_dict() == read_as | {"urban": "R", "adm1dhs": 3}
    assert clusters["year"].dtype == clusters["adm1dhs"].dtype == np.int32


@pytest.mark.parametrize("mark", [";", "\t"])
def test_semicolons_and_tabs_bring_decimal_commas(tmp_path: Path, mark: str) -> None:
    """As spreadsheets of many languages save the table."""
    good = row(asset_index="-2.5E-02")
    clusters, _ = read(tmp_path, good)
    path = tmp_path / "dhs_final_labels.csv"
    pd.DataFrame([good]).replace(r"\.", ",", regex=True).to_csv(path, sep=mark, index=False)
    with_commas, lost = read_clusters(tmp_path)
    assert lost.empty
    pd.testing.assert_frame_equal(clusters, with_commas)


def test_missing_is_unknown_and_not_an_error(tmp_path: Path) -> None:
    columns = (*LABELS, "lat", "lon", "urban", "adm1dhs")
    blanks = enumerate(("", "  ", "nan", "NA"), start=1)
    rows = [of("AL", n, **dict.fromkeys(columns, blank)) for n, blank in blanks]
    clusters, lost = read(tmp_path, *rows)
    assert lost.empty and len(clusters) == 4
    assert clusters[[*LABELS, "lat", "lon"]].isna().all(axis=None)
    assert set(clusters["urban"]) == {""} and set(clusters["adm1dhs"]) == {9999}


def test_neither_the_order_of_columns_nor_of_rows_matters(tmp_path: Path) -> None:
    """Of several rows with one id the fullest stays, then the first by text."""
    rows = [of(c, n, women_edu="30" if n == 2 else "3") for c in ("SN", "AL") for n in (3, 1, 2)]
    rows += [row(women_edu="9"), row(asset_index="", women_bmi=""), row(women_edu="8")]
    clusters, lost = read(tmp_path, *rows)
    wide = [r | {"extra": "x"} for r in rows[::-1]]
    again, lost_again = read(tmp_path, *wide, columns=("extra", *reversed(COLUMNS)))

    pd.testing.assert_frame_equal(clusters, again)
    assert clusters["cluster_id"].is_monotonic_increasing
    assert clusters.set_index("cluster_id").loc[FIRST, "women_edu"] == 3.0
    assert lost["rule"].tolist() == lost_again["rule"].tolist()
    assert lost["rule"].value_counts().to_dict() == {
        "duplicate-cluster": 3,
        "value-out-of-range": 2,
    }
    fullest = [row(asset_index="", women_bmi=""), row(women_edu="9"), row(women_edu="8")]
    assert read(tmp_path, *fullest)[0]["women_edu"].tolist() == [8.0]


@pytest.mark.parametrize(
    ("rule", "detail", "changes"),
    [
        ("unknown-country", "line 3: cname 'NA' is none of the 56 DHS codes", {"cname": "NA"}),
        ("unknown-country", "''", {"cname": ""}),
        ("inconsistent-metadata", "'2010' but DHSID_EA says 2008", {"year": "2010"}),
        ("inconsistent-metadata", "'2016-2017' but DHSID_EA says 2008", {"year": "2016-2017"}),
        ("inconsistent-metadata", "'2006'", {"year": "2006"}),
        ("inconsistent-metadata", "'unknown'", {"year": "unknown"}),
        (
            "inconsistent-metadata",
            "Madagascar.*'MB'.*Moldova",
            {"cname": "MD", "DHSID_EA": "MB-2008-5#-00000002"},
        ),
        ("malformed-id", "'AL-2008-5#-1' is not of the form", {"DHSID_EA": "AL-2008-5#-1"}),
        ("malformed-id", "passwd", {"DHSID_EA": "../../etc/passwd"}),
        ("malformed-id", "not of the form", {"DHSID_EA": OTHER + "/../x"}),
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
    clusters, lost = read(tmp_path, GOOD, row(**({"DHSID_EA": OTHER} | changes)))
    assert clusters["cluster_id"].tolist() == [FIRST]
    assert clusters["women_edu"].tolist() == [9.5]
    assert lost[["table", "rule"]].values.tolist() == [["clusters", rule]]
    assert lost["detail"].str.contains(detail).all()


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    read(tmp_path, GOOD, row(DHSID_EA="x"))
    path = tmp_path / "dhs_final_labels.csv"
    path.write_text("sep=,\n" + path.read_text().replace("\n", "\n\n"))
    _, lost = read_clusters(tmp_path)
    assert lost["detail"].str.startswith("line 6: DHSID_EA 'x'").tolist() == [True]


def test_surveys_span_new_year(tmp_path: Path) -> None:
    written = {"2007": 2007, "2007-08": 2007, "2008.0": 2008, "2008-2009": 2008, "2008/09": 2008}
    written |= {"2008 - 2009": 2008, "2009": 2009}
    rows = [of("AL", n, year=year) for n, year in enumerate(written, start=1)]
    clusters, lost = read(tmp_path, *rows)
    assert lost.empty and clusters["year"].tolist() == list(written.values())


def test_latin1_outside_the_id_does_no_harm(tmp_path: Path) -> None:
    rows = (COLUMNS, row(adm1fips="São Tomé").values(), of("KE", 2).values())
    table = "".join(",".join(cells) + "\n" for cells in rows).replace("KE-2008", "KÉ-2008")
    (tmp_path / "dhs_final_labels.csv").write_bytes(table.encode("latin-1"))
    clusters, lost = read_clusters(tmp_path)
    assert clusters["cluster_id"].tolist() == [FIRST]
    assert lost["rule"].tolist() == ["malformed-id"]


#: A value beside its range, and what the range is.
OUTSIDE = [
    *[("water_index", v, "1 to 5") for v in ("0.99", "5.01", "-9.0")],
    *[("sanitation_index", v, "1 to 5") for v in ("0", "6", "-9")],
    *[("under5_mort", v, "0 to 1000 deaths") for v in ("-1", "1000.5", "-9")],
    *[("women_edu", v, "0 to 18 years") for v in ("-0.1", "98", "-9")],
    *[("women_bmi", v, "12 to 60 kg/m2") for v in ("2425", "0.24", "-9")],
    *[("asset_index", v, "finite") for v in ("inf", "high", "-9", "-9.0")],
    *[("lat", "91", "-90 to 90"), ("lon", "-181", "-180 to 180")],
    *[("urban", "1", "U, R and empty"), ("adm1dhs", "3.5", "whole numbers 0 to")],
]


def test_a_value_out_of_range_is_blanked_and_its_row_stays(tmp_path: Path) -> None:
    rows = [of("AL", n, **{name: value}) for n, (name, value, _) in enumerate(OUTSIDE, start=1)]
    clusters, lost = read(tmp_path, *rows)
    assert len(clusters) == len(lost) == len(OUTSIDE)
    assert set(lost["table"]) == {"labels"} and set(lost["rule"]) == {"value-out-of-range"}
    for n, (name, value, wanted) in enumerate(OUTSIDE):
        assert pd.isna(clusters[name][n]) or clusters[name][n] in ("", 9999)
        assert lost["key"][n] == clusters["cluster_id"][n]
        assert f"{name} {value!r} is outside " in lost["detail"][n] and wanted in lost["detail"][n]


def test_ends_of_the_ranges_are_inside_and_only_0_0_is_nowhere(tmp_path: Path) -> None:
    """Gabon lies on the equator, Ghana on the meridian."""
    scales = ["water_index", "sanitation_index"]
    low = {"under5_mort": "0", "women_edu": "0", "asset_index": "-99", "women_bmi": "12"}
    high = {"under5_mort": "1000", "women_edu": "18", "asset_index": "99", "women_bmi": "60"}
    clusters, lost = read(
        tmp_path,
        of("AL", 1, lat="0.0", lon="9.45", **low, **dict.fromkeys(scales, "1")),
        of("AL", 2, lat="5.62", lon="0.0", **high, **dict.fromkeys(scales, "5")),
        of("AL", 3, lat="0.0", lon="0.0"),
    )
    assert lost.empty
    assert clusters[list(LABELS)].notna().all(axis=None)
    assert clusters[["lat", "lon"]].to_numpy()[:2].tolist() == [[0.0, 9.45], [5.62, 0.0]]
    assert clusters[["lat", "lon"]].isna().to_numpy()[2].all()


def test_real_rows() -> None:
    if not REALPACK.exists():
        pytest.skip("needs the shared realpack folder")
    clusters, lost = read_clusters(REALPACK)
    assert len(clusters) == 30
    assert lost.empty
    first = clusters.set_index("cluster_id").loc[FIRST]
    assert (first["water_index"], first["women_bmi"], first["iso3"]) == (3.444444, 24.365, "ALB")
