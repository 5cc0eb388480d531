"""Survey regions matched to the series' regions by name, on tables in the layout of DHS's GPS data
and of the shipped series."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from sdgbias.errors import InputError
from sdgbias.raw import regions
from sdgbias.raw.series import read_region_names, read_series

SHIPPED = Path(__file__).resolve().parents[2] / "data" / "indicators"
#: Columns of a GE attribute table, in DHS's order.
GPS = (
    "DHSID,DHSCC,DHSYEAR,DHSCLUST,CCFIPS,ADM1FIPS,ADM1FIPSNA,ADM1SALBNA,ADM1SALBCO,ADM1DHS,ADM1NAME,"
    "DHSREGCO,DHSREGNA,SOURCE,URBAN_RURA,LATNUM,LONGNUM,ALT_GPS,ALT_DEM,DATUM"
)
KENYA = ("Nairobi", "north eastern", "Rift-Valley Province", "North", "")


def gps_row(cluster: int, region: str, adm1: str = "NULL") -> str:
    where = f"KE,2014,{cluster},KE,NULL,NULL,NULL,NULL,{cluster},{adm1},{cluster},{region}"
    return f"KE2014{cluster:08d},{where},GPS,R,-1.0,36.0,9999,1500,WGS84"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / regions.GPS_FOLDER
    folder.mkdir()
    lines = [GPS, *(gps_row(at, name) for at, name in enumerate(KENYA, start=1))]
    (folder / "KEGE71FL.csv").write_text("\n".join([*lines, gps_row(6, "NULL", "Coast")]) + "\n")
    return tmp_path


def clusters(n: int = 7) -> pd.DataFrame:
    table = pd.DataFrame({"cluster_id": [f"KE-2014-7#-{at:08d}" for at in range(1, n + 1)]})
    return table.assign(cname="KE", iso3="KEN", survey="KE-2014-7#", adm1dhs=range(1, n + 1))


def matched(raw: Path, given: list[tuple[str, int, str]]) -> tuple[list[str], pd.DataFrame]:
    table = clusters()
    named = regions.read_cluster_regions(raw).set_index("dhs_id")["region_name"]
    table["region_name"] = regions.dhs_ids(table["cluster_id"]).map(named).fillna("")
    override = pd.DataFrame(given, columns=["cname", "adm1dhs", "gdl_region"])
    found, review = regions.match_regions(table, override, read_region_names(SHIPPED))
    return found.tolist(), review


def test_names_match_and_the_rest_is_for_review(raw: Path) -> None:
    """The spelling of the survey differs in case, hyphens and words for the kind of place; 'North'
    is no part of a match; a cluster without a GPS row has no name."""
    found, review = matched(raw, [])
    assert found == ["kenr101", "kenr108", "kenr106", "", "", "kenr103", ""]
    todo = review[["region_name", "status", "clusters"]].head(2).values.tolist()
    assert todo == [["North", regions.NO_MATCH, 1], ["", regions.NO_NAME, 2]]
    assert review["clusters"].sum() == 7 and list(review) == list(regions.REVIEW_COLUMNS)


def test_the_hand_written_map_wins(raw: Path) -> None:
    found, review = matched(raw, [("KE", 1, "KENr102"), ("KE", 4, "kenr104"), ("NM", 2, "namr101")])
    assert found[:4] == ["kenr102", "kenr108", "kenr106", "kenr104"]
    assert (review["status"] == regions.BY_MAP).sum() == 2


def test_lists_in_brackets_and_names_that_fit_twice() -> None:
    names = pd.DataFrame(
        [
            ("CMR", "cmrr102", "Centre (incl Yaounde)"),
            ("CMR", "cmrr109", "Sud-Ouest"),
            ("CMR", "cmrr110", "Ouest (Bafoussam Dschang)"),
            ("CMR", "cmrr111", "Ouest"),
        ],
        columns=["iso3", "region", "name"],
    )
    table = clusters(5).assign(
        iso3="CMR", cname="CM", region_name=["Yaoundé", "SUD OUEST", "Dschang", "Ouest", "Sud"]
    )
    found, review = regions.match_regions(
        table, pd.DataFrame({"cname": [], "adm1dhs": [], "gdl_region": []}), names
    )
    assert found.tolist() == ["cmrr102", "cmrr109", "cmrr110", "", ""]
    both = review[review["status"] == regions.SEVERAL]
    assert both[["region_name", "candidates"]].values.tolist() == [["Ouest", "cmrr110 cmrr111"]]


def test_every_shipped_name_finds_its_own_region() -> None:
    """The names lead back to one region each, or to none where the publisher uses one twice."""
    names = read_region_names(SHIPPED)
    table = names.assign(cname="", survey="", adm1dhs=1, region_name=names["name"], cluster_id="")
    found, _ = regions.match_regions(
        table.drop(columns="region"),
        pd.DataFrame({"cname": [], "adm1dhs": [], "gdl_region": []}),
        names,
    )
    wrong = names[(found.to_numpy() != names["region"].to_numpy())]
    assert (found[wrong.index] == "").all() and len(wrong) <= 0.02 * len(names)
    frame, _ = read_series(SHIPPED)
    coded = set(frame.loc[frame["region"] != "", "region"])
    assert coded == set(names["region"])


def test_other_encodings_and_faulty_tables(raw: Path) -> None:
    folder = raw / regions.GPS_FOLDER
    (folder / "PE.CSV").write_bytes("dhsid,adm1name\nPE200900000001,Áncash\n".encode("latin-1"))
    assert "Áncash" in set(regions.read_cluster_regions(raw)["region_name"])
    (folder / "ZZ.csv").write_text("DHSID,LATNUM\nZZ200900000001,1.0\n")
    with pytest.raises(InputError, match=r"ZZ\.csv: wants the columns DHSID and one of DHSREGNA"):
        regions.read_cluster_regions(raw)
    assert regions.read_cluster_regions(raw / "none").empty
