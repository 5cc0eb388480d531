"""Every trap of the original dumps, on specimens of a few lines."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pandas as pd
import pytest

from sdgbias.errors import InputError
from sdgbias.raw.series import COLUMNS, iso3_of_name, read_gdl_regions, read_series

REPO = Path(__file__).resolve().parents[2]
SHARED = REPO.parent / "shared" / "data"


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return folder


def rows(folder: Path, series: str) -> str:
    """'KEN all 2015 62, ...': country, region if any, stratum, year and value."""
    frame, _ = read_series(folder)
    own = frame.loc[frame["series"] == series, ["iso3", "region", "stratum", "year", "value"]]
    texts = (map(str, row) for row in own.itertuples(index=False, name=None))
    return ", ".join(" ".join(filter(None, row)).removesuffix(".0") for row in texts)


UNSD = "unsd_sdg/ddf--datapoints--{}--by--geo_area--nature--units--year.csv"
#: What a trap is: series, file (that of UNSD), its lines, the values that remain.
TRAPS = {
    "M49 codes: no World, no Sub-Saharan Africa, none but the 56, Namibia kept": (
        *("sh_acs_unhc", UNSD, "geo_area,nature,units,year,sh_acs_unhc"),
        "1,e,index,2015,64 202,e,index,2015,45 840,e,index,2015,84 516,e,index,2015,62"
        " 8,e,index,2015,59",
        "ALB all 2015 59, NAM all 2015 62",
    ),
    "country-adjusted values are preferred": (
        *("sh_sta_waste", UNSD, "age,geo_area,nature,units,year,sh_sta_waste"),
        "lt5y,8,m,u,2008,1 lt5y,8,c,u,2008,2 lt5y,8,ca,u,2008,3 lt5y,8,e,u,2008,4"
        " lt2y,8,ca,u,2008,5",
        "ALB all 2008 3",
    ),
    "a nature that isn't known counts last, even behind one that is left out": (
        *("sh_sta_waste", UNSD, "age,geo_area,nature,units,year,sh_sta_waste"),
        "lt5y,8,na,u,2008,1 lt5y,8,,u,2008,2 lt5y,8,na,u,2009,3 lt5y,8,g,u,2009,4",
        "ALB all 2008 2, ALB all 2009 4",
    ),
    "lower secondary: of girls, of all quantiles, by stratum": (
        *("se_tot_cplr", UNSD),
        "education_level,geo_area,location,nature,quantile,sex,units,year,se_tot_cplr",
        "lowsec,404,allarea,e,t,female,percent,2014,70 lowsec,404,urban,e,t,female,percent,2014,80"
        " lowsec,404,rural,e,t,female,percent,2014,60 lowsec,404,notspec,e,t,female,percent,2014,1"
        " lowsec,404,allarea,e,q1,female,percent,2014,2"
        " lowsec,404,allarea,e,t,bothsex,percent,2014,3"
        " primar,404,allarea,e,t,female,percent,2014,4",
        "KEN all 2014 70, KEN rural 2014 60, KEN urban 2014 80",
    ),
    "wash mortality is of both sexes": (
        *("sh_sta_wash", UNSD, "age,geo_area,nature,sex,units,year,sh_sta_wash"),
        "n,686,e,male,u,2016,9 n,686,e,notspec,u,2016,23.9 n,686,e,bothsex,u,2016,24"
        " n,404,e,notspec,u,2016,51.2",
        "KEN all 2016 51.2, SEN all 2016 24",
    ),
    "physical activity is of adults: adolescents stand in other rows of the same year": (
        *("ncd_pac", "who_gho/NCD_PAC.csv", "GHO,YEAR,COUNTRY,AGEGROUP,SEX,Numeric"),
        "NCD_PAC,2010,KEN,YEARS11-17,BTSX,86.1 NCD_PAC,2010,KEN,YEARS18-PLUS,BTSX,15.9",
        "KEN all 2010 15.9",
    ),
    "countries of HAQ go by name": (
        *("haq", "ihme_haq/any_name.csv", "Entity,Year,HAQ Index (IHME (2017))"),
        "Swaziland,2010,40.1 Congo,2010,1 World,2010,2 Namibia,2010,50",
        "NAM all 2010 50, SWZ all 2010 40.1",
    ),
    "completion of UIS: codes for missing are no values, a span counts for its first year": (
        *("cr_2_f", "uis/cr_2_f.csv", "location,time,cr_2_f"),
        "ago,2015,31.9 usa,2015,99 ken,2015,_ ken,2016, ken,2017,-9.0 ken,2018,-9 ken,2019,_-9.00_"
        " ken,2020,No_data ken,2021,.. ken,2016-2017,11.3",
        "AGO all 2015 31.9, KEN all 2016 11.3",
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_of_a_dump(tmp_path: Path, trap: str) -> None:
    series, name, header, lines, values = TRAPS[trap]
    text = "\n".join([header, *lines.replace(" ", "\n").replace("_", " ").split("\n"), ""])
    assert rows(write(tmp_path, name.format(series), text), series) == values


def test_area_file_latin1_blank_minus_nine_and_region_case(tmp_path: Path) -> None:
    lines = [
        "iso_code,year,GDLCODE,level,region,electr,stunting,wasting",
        'CIV,2012,CIVr101,Subnat,"Abidjan (Yopougon, São)",90.5, ,-9.0',
        "CIV,2012,CIVt,National,Total,55,-9.0,7.5",
        "CIV,2012,CIVtu,Urb/rur,Urban,88,30, ",
        "CIV,2012,CIVtr,Urb/rur,Rural,29,40, ",
        "AFG,2012,AFGr101,Subnat,Kabul,99,1,1",
    ]
    write(tmp_path, "gdl_area/GDL-AreaData200.csv", "\n".join(lines), "latin-1")
    electr = "CIV all 2012 55, CIV rural 2012 29, CIV urban 2012 88, CIV civr101 all 2012 90.5"
    assert rows(tmp_path, "gdl_area_electr") == electr
    assert rows(tmp_path, "gdl_area_stunting") == "CIV rural 2012 40, CIV urban 2012 30"
    assert rows(tmp_path, "gdl_area_wasting") == "CIV all 2012 7.5"


def test_physical_activity_no_data_and_the_mean_of_sexes(tmp_path: Path) -> None:
    lines = ["GHO,YEAR,COUNTRY,AGEGROUP,SEX,Display Value,Numeric"]
    for country, values in {
        "AGO": {"BTSX": ""},
        "KEN": {"MLE": "14", "FMLE": "18", "BTSX": "15.9"},
        "NPL": {"MLE": "3", "FMLE": "4", "BTSX": "No data"},
        "PER": {"MLE": "3"},
    }.items():
        for sex, value in values.items():
            shown = value or "No data"
            lines.append(f'NCD_PAC,2010,"{country}",YEARS18-PLUS,"{sex}","{shown}","{value}"')
    write(tmp_path, "who_gho/NCD_PAC.csv", "\n".join(lines))
    frame, _ = read_series(tmp_path)
    assert frame[["iso3", "year", "value", "source"]].values.tolist() == [
        ["KEN", 2010, 15.9, "who_gho NCD_PAC"],
        ["NPL", 2010, 3.5, "who_gho NCD_PAC, mean of sexes"],
    ]


@pytest.mark.parametrize(
    ("iso3", "names"),
    [
        ("CIV", "Cote d'Ivoire; Côte d\N{RIGHT SINGLE QUOTATION MARK}Ivoire"),
        *[("COD", "Democratic Republic of Congo"), ("SWZ", "Swaziland"), ("TZA", "Tanzania")],
        *[("BOL", "Bolivia"), ("MDA", "Moldova"), ("NER", "Niger"), ("NGA", "Nigeria")],
        *[("GIN", "Guinea"), ("", "Congo; Guinea-Bissau; Sub-Saharan Africa")],
    ],
)
def test_country_names(iso3: str, names: str) -> None:
    assert {iso3_of_name(name) for name in names.split("; ")} == {iso3}


def test_shdi_regions_national_and_the_alignment_score(tmp_path: Path) -> None:
    for series, region, nation in (
        ("shdi", 0.5, 0.4),
        ("edindex", 0.3, 0.35),
        ("healthindex", 0.6, 0.55),
    ):
        regions = f"subnat,year,{series}\nAGOr101,2011,{region}\nafgr101,2011,0.9\n"
        write(tmp_path, f"gdl_shdi/{series}--by--subnat--year.csv", regions)
        nations = f"national,year,{series}\nagot,2011,{nation}\n"
        write(tmp_path, f"gdl_shdi/{series}--by--national--year.csv", nations)
    assert rows(tmp_path, "shdi") == "AGO all 2011 0.4, AGO agor101 all 2011 0.5"
    # 1 - |0.35 - 0.55| and 1 - |0.3 - 0.6|, exactly
    aligned = "AGO all 2011 0.8, AGO agor101 all 2011 0.7"
    assert rows(tmp_path, "ed_health_alignment") == aligned


def test_tidy_files_in_the_folder_and_in_tidy_and_a_dump_wins(tmp_path: Path) -> None:
    header = ",".join(COLUMNS)
    write(tmp_path, "haq.csv", f"{header}\nhaq,NAM,,all,2015-16,50,mine\n")
    write(
        tmp_path,
        "tidy/any.csv",
        f"{header}\nshdi,NAM,NAMr101,all,2015,0.6,mine\ncr_2_f,AGO,,all,2015,1,mine\n",
    )
    (tmp_path / "tidy" / "zipped.csv.gz").write_bytes(
        gzip.compress(f"{header}\nhaq,KEN,,all,2015,49,z\n".encode())
    )
    write(tmp_path, "uis/cr_2_f.csv", "location,time,cr_2_f\nago,2015,31.9\n")
    write(tmp_path, "gdl_regions.csv", "cname,adm1dhs,gdl_region\nNM,1,NAMr101\n")
    write(tmp_path, "notes.csv", "who,what\nx,y\n")
    excel = "sep=;\n" + f"{header}\nsh_acs_unhc,KEN,,all,2015,56.5,mine\n".replace(",", ";")
    excel = excel.replace(".", ",")
    write(tmp_path, "saved by Excel.csv", excel)
    frame, _ = read_series(tmp_path)
    assert frame[["series", "iso3", "region", "year", "value", "source"]].values.tolist() == [
        ["cr_2_f", "AGO", "", 2015, 31.9, "uis CR_2_F"],
        ["haq", "KEN", "", 2015, 49.0, "z"],
        ["haq", "NAM", "", 2015, 50.0, "mine (2015-16)"],
        ["sh_acs_unhc", "KEN", "", 2015, 56.5, "mine"],
        ["shdi", "NAM", "namr101", 2015, 0.6, "mine"],
    ]


LINE = "series,iso3,region,stratum,year,value,source\nhaq,KEN,,all,2015,49,mine\n"


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("mine.csv", LINE.encode("utf-16"), "zero bytes"),
        ("mine.csv.gz", gzip.compress(LINE.encode(), mtime=0)[:-9], "ended before"),
        ("mine.csv", LINE.replace("series,", "Series,").encode(), "missing column.*series"),
        ("MINE.CSV", LINE.replace("49", "x").encode(), "value 'x' in 1 row"),
        ("mine.csv", LINE.replace("49", "49,5").encode(), "line 2 has 8 cells.*of names 7"),
        (
            "m.csv.gz",
            gzip.compress(LINE.replace("49", "4,5").encode(), mtime=0),
            "line 2 has 8 cells",
        ),
        ("mine.csv", LINE.replace(",,all", ",KENr101,rural").encode(), "'rural'.*wants all in the"),
        ("mine.csv", b"My table\n\n" + LINE.encode(), "no readable CSV|missing column"),
        ("tidy/mine.xlsx", b"PK", "no CSV; save its table as CSV"),
    ],
    ids=[
        *("UTF-16", "cut short", "a capital", "another suffix", "decimal comma", "packed"),
        *("region and stratum", "title", "spreadsheet"),
    ],
)
def test_a_table_of_ones_own_that_can_not_be_read_is_not_passed_over(
    tmp_path: Path, name: str, data: bytes, says: str
) -> None:
    write(tmp_path, "haq.csv", LINE)
    (tmp_path / "tidy").mkdir()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=f"{name}.*{says}"):
        read_series(tmp_path)


def test_a_table_of_something_else_is_no_series(tmp_path: Path) -> None:
    write(tmp_path, "survey.csv", "cluster,stratum\n1,urban\n")
    write(tmp_path, "haq.csv", LINE)
    assert rows(tmp_path, "haq") == "KEN all 2015 49"


def test_a_table_without_any_of_the_countries_has_no_rows(tmp_path: Path) -> None:
    write(tmp_path, "none.csv", LINE.replace("KEN", "USA"))
    write(tmp_path, "header.csv", LINE.splitlines()[0] + "\n")
    assert read_series(tmp_path)[0].empty
    write(tmp_path, "haq.csv", LINE)
    assert rows(tmp_path, "haq") == "KEN all 2015 49"


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8-sig"])
def test_any_common_encoding(tmp_path: Path, encoding: str) -> None:
    haq = "Entity,Year,HAQ Index (IHME (2017))\nCôte d'Ivoire,2010,40.1\n"
    area = (
        "iso_code,year,GDLCODE,level,region,electr,stunting,wasting\nCIV,2012,CIVr101,S,São,9,8,7\n"
    )
    write(tmp_path, "ihme_haq/haq.csv", haq, encoding)
    write(tmp_path, "gdl_area/GDL-AreaData200.csv", area, encoding)
    assert rows(tmp_path, "haq") == "CIV all 2010 40.1"
    assert rows(tmp_path, "gdl_area_electr") == "CIV civr101 all 2012 9"


def test_the_order_of_rows_and_columns_decides_nothing(tmp_path: Path) -> None:
    source = REPO / "data" / "indicators"
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    for name in ("sh_sta_stunt.csv", "se_tot_cplr.csv"):
        table = pd.read_csv(source / name, dtype=str, keep_default_na=False)
        table.to_csv(tmp_path / "a" / name, index=False)
        table.iloc[::-1, ::-1].to_csv(tmp_path / "b" / name, index=False)
    pd.testing.assert_frame_equal(read_series(tmp_path / "a")[0], read_series(tmp_path / "b")[0])


def test_gdl_regions(tmp_path: Path) -> None:
    none = read_gdl_regions(tmp_path)
    assert none.empty and list(none.columns) == ["cname", "adm1dhs", "gdl_region"]
    write(
        tmp_path,
        "gdl_regions.csv",
        "gdl_region,cname,adm1dhs\nNAMr102,NM,2\nNAMr101,NM,1\nNAMr101,NM,1\n",
    )
    table = read_gdl_regions(tmp_path)
    assert table.dtypes.astype(str).tolist() == none.dtypes.astype(str).tolist()
    expected = [["NM", 1, "namr101"], ["NM", 2, "namr102"]]
    assert table[["cname", "adm1dhs", "gdl_region"]].values.tolist() == expected


def test_the_committed_folder_is_an_indicators_folder_of_the_digests_that_its_readme_states() -> (
    None
):
    folder = REPO / "data" / "indicators"
    frame, missing = read_series(folder)
    have = frame.groupby("series")["iso3"].nunique()
    assert have["sh_sta_stunt"] == have["shdi"] == have["ed_health_alignment"] == 56
    kept_out = "cr_2_f ncd_pac haq gdl_area_stunting gdl_area_wasting gdl_area_electr"
    assert missing == kept_out.split(), "their licences don't allow the project to pass them on"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    files = [path for path in folder.iterdir() if path.name.endswith((".csv", ".csv.gz"))]
    assert len(files) == 14 and sum(path.stat().st_size for path in files) < 2_000_000
    for path in files:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert f"| `{path.name}` |" in readme and digest in readme


@pytest.mark.skipif(
    not (SHARED / "indicators").is_dir(),
    reason="the original dumps (../shared/data/indicators) are absent",
)
def test_coverage_of_the_original_dumps() -> None:
    frame, missing = read_series(SHARED / "indicators")
    have = frame.groupby("series")["iso3"].nunique()
    assert missing == []
    counts = {"eg_elc_accs": 55, "sh_h2o_safe": 28, "sh_san_safe": 22, "ncd_pac": 44}
    whole = ["sh_sta_stunt", "sh_sta_waste", "sh_acs_unhc", "sh_sta_wash", "sp_acs_bsrvh2o"]
    counts |= dict.fromkeys([*whole, "sp_acs_bsrvsan", "se_tot_cplr", "haq", "shdi"], 56)
    assert have[list(counts)].to_dict() == counts
    assert frame[(frame["series"] == "shdi") & (frame["region"] != "")]["region"].nunique() == 692
    assert not frame.duplicated(list(COLUMNS[:5])).any() and not frame.isna().any().any()
    assert pd.api.types.is_integer_dtype(frame["year"]) and (frame["value"] >= 0).all()
