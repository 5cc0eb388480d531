"""Every trap of the original dumps, on specimens of a few lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd
import pytest

from sdgbias.errors import InputError
from sdgbias.raw.series import COLUMNS, SERIES, iso3_of_name, read_gdl_regions, read_series

REPO = Path(__file__).resolve().parents[2]
SHARED = REPO.parent / "shared" / "data"


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return folder


def rows(folder: Path, series: str) -> list[tuple[str, str, str, int, float]]:
    frame, _ = read_series(folder)
    own = frame[frame["series"] == series]
    keys = ["iso3", "region", "stratum", "year", "value"]
    return [tuple(row) for row in own[keys].itertuples(index=False, name=None)]


def unsd(folder: Path, name: str, text: str) -> Path:
    return write(folder, f"unsd_sdg/ddf--datapoints--{name}.csv", text)


def test_m49_codes_lose_aggregates_and_keep_namibia(tmp_path: Path) -> None:
    unsd(
        tmp_path,
        "sh_acs_unhc--by--geo_area--nature--units--year",
        "geo_area,nature,units,year,sh_acs_unhc\n"
        "1,e,index,2015,64\n"  # World
        "202,e,index,2015,45\n"  # Sub-Saharan Africa
        "840,e,index,2015,84\n"  # not one of the 56
        "516,e,index,2015,62\n"
        "8,e,index,2015,59\n",
    )
    assert rows(tmp_path, "sh_acs_unhc") == [
        ("ALB", "", "all", 2015, 59.0),
        ("NAM", "", "all", 2015, 62.0),
    ]


def test_year_ranges_count_for_their_first_year_and_are_noted(tmp_path: Path) -> None:
    unsd(
        tmp_path,
        "sh_sta_stunt--by--age--geo_area--nature--units--year",
        "age,geo_area,nature,units,year,sh_sta_stunt\nlt5y,8,ca,per_pop_u5,2016-2017,11.3\nlt5y,8,ca,x,2008,23.1\n",
    )
    frame, _ = read_series(tmp_path)
    assert frame["year"].tolist() == [2008, 2016]
    assert frame["source"].tolist() == [
        "unsd_sdg SH_STA_STUNT",
        "unsd_sdg SH_STA_STUNT (2016-2017)",
    ]


def test_natures_prefer_country_adjusted_values(tmp_path: Path) -> None:
    lines = [
        "lt5y,8,m,u,2008,1",
        "lt5y,8,c,u,2008,2",
        "lt5y,8,ca,u,2008,3",
        "lt5y,8,e,u,2008,4",
        "lt2y,8,ca,u,2008,5",
    ]
    header = "age,geo_area,nature,units,year,sh_sta_waste"
    unsd(
        tmp_path,
        "sh_sta_waste--by--age--geo_area--nature--units--year",
        "\n".join([header, *lines]),
    )
    assert rows(tmp_path, "sh_sta_waste") == [("ALB", "", "all", 2008, 3.0)]


def test_female_lower_secondary_all_quantiles_by_stratum(tmp_path: Path) -> None:
    name = (
        "se_tot_cplr--by--education_level--geo_area--location--nature--quantile--sex--units--year"
    )
    lines = [
        "education_level,geo_area,location,nature,quantile,sex,units,year,se_tot_cplr",
        "lowsec,404,allarea,e,t,female,percent,2014,70",
        "lowsec,404,urban,e,t,female,percent,2014,80",
        "lowsec,404,rural,e,t,female,percent,2014,60",
        "lowsec,404,notspec,e,t,female,percent,2014,1",
        "lowsec,404,allarea,e,q1,female,percent,2014,2",
        "lowsec,404,allarea,e,t,bothsex,percent,2014,3",
        "primar,404,allarea,e,t,female,percent,2014,4",
    ]
    unsd(tmp_path, name, "\n".join(lines))
    assert rows(tmp_path, "se_tot_cplr") == [
        ("KEN", "", "all", 2014, 70.0),
        ("KEN", "", "rural", 2014, 60.0),
        ("KEN", "", "urban", 2014, 80.0),
    ]


def test_wash_mortality_is_of_both_sexes(tmp_path: Path) -> None:
    name = "sh_sta_wash--by--age--geo_area--nature--sex--units--year"
    text = (
        "age,geo_area,nature,sex,units,year,sh_sta_wash\n"
        "n,686,e,male,u,2016,9\nn,686,e,notspec,u,2016,23.9\nn,686,e,bothsex,u,2016,24\n"
        "n,404,e,notspec,u,2016,51.2\n"
    )
    unsd(tmp_path, name, text)
    assert rows(tmp_path, "sh_sta_wash") == [
        ("KEN", "", "all", 2016, 51.2),
        ("SEN", "", "all", 2016, 24.0),
    ]


def test_area_file_latin1_blank_minus_nine_and_region_case(tmp_path: Path) -> None:
    lines = [
        "iso_code,year,GDLCODE,level,region,electr,stunting,wasting",
        "CIV,2012,CIVr101,Subnat,Abidjan (Yopougon, São),90.5, ,-9.0",
        "CIV,2012,CIVt,National,Total,55,-9.0,7.5",
        "CIV,2012,CIVtu,Urb/rur,Urban,88,30, ",
        "CIV,2012,CIVtr,Urb/rur,Rural,29,40, ",
        "AFG,2012,AFGr101,Subnat,Kabul,99,1,1",
    ]
    text = "\n".join(
        line.replace("Abidjan (Yopougon, São)", '"Abidjan (Yopougon, São)"') for line in lines
    )
    write(tmp_path, "gdl_area/GDL-AreaData200.csv", text, "latin-1")
    assert rows(tmp_path, "gdl_area_electr") == [
        ("CIV", "", "all", 2012, 55.0),
        ("CIV", "", "rural", 2012, 29.0),
        ("CIV", "", "urban", 2012, 88.0),
        ("CIV", "civr101", "all", 2012, 90.5),
    ]
    assert rows(tmp_path, "gdl_area_stunting") == [
        ("CIV", "", "rural", 2012, 40.0),
        ("CIV", "", "urban", 2012, 30.0),
    ]
    assert rows(tmp_path, "gdl_area_wasting") == [("CIV", "", "all", 2012, 7.5)]


def test_physical_activity_no_data_and_the_mean_of_sexes(tmp_path: Path) -> None:
    lines = [
        '"GHO","PUBLISHSTATE","YEAR","REGION","COUNTRY","AGEGROUP","SEX","Display Value","Numeric"'
    ]
    for country, sex, shown, value in [
        ("AGO", "BTSX", "No data", ""),
        ("KEN", "MLE", "14", "14"),
        ("KEN", "FMLE", "18", "18"),
        ("KEN", "BTSX", "15.9", "15.9"),
        ("NPL", "MLE", "3", "3"),
        ("NPL", "FMLE", "4", "4"),
        ("NPL", "BTSX", "No data", "No data"),
        ("PER", "MLE", "3", "3"),
    ]:
        lines.append(
            f'"NCD_PAC","PUBLISHED","2010","AFR","{country}","YEARS18-PLUS","{sex}","{shown}","{value}"'
        )
    write(tmp_path, "who_gho/NCD_PAC.csv", "\n".join(lines))
    assert rows(tmp_path, "ncd_pac") == [
        ("KEN", "", "all", 2010, 15.9),
        ("NPL", "", "all", 2010, 3.5),
    ]
    frame, _ = read_series(tmp_path)
    assert frame["source"].tolist() == ["who_gho NCD_PAC", "who_gho NCD_PAC, mean of sexes"]


@pytest.mark.parametrize(
    ("name", "iso3"),
    [
        ("Cote d'Ivoire", "CIV"),
        ("Côte d\N{RIGHT SINGLE QUOTATION MARK}Ivoire", "CIV"),
        ("Democratic Republic of Congo", "COD"),
        ("Congo", ""),  # the other Congo
        ("Swaziland", "SWZ"),
        ("Tanzania", "TZA"),
        ("Bolivia", "BOL"),
        ("Moldova", "MDA"),
        ("Niger", "NER"),
        ("Nigeria", "NGA"),
        ("Guinea", "GIN"),
        ("Guinea-Bissau", ""),
        ("Namibia", "NAM"),
        ("Sub-Saharan Africa", ""),
    ],
)
def test_country_names(name: str, iso3: str) -> None:
    assert iso3_of_name(name) == iso3


def test_haq_by_name(tmp_path: Path) -> None:
    text = (
        "Entity,Year,HAQ Index (IHME"
        " (2017))\nSwaziland,2010,40.1\nCongo,2010,1\nWorld,2010,2\nNamibia,2010,50\n"
    )
    write(tmp_path, "ihme_haq/any_name.csv", text)
    assert rows(tmp_path, "haq") == [("NAM", "", "all", 2010, 50.0), ("SWZ", "", "all", 2010, 40.1)]


def test_shdi_regions_national_and_the_alignment_score(tmp_path: Path) -> None:
    for series, region, nation in [
        ("shdi", 0.5, 0.4),
        ("edindex", 0.3, 0.35),
        ("healthindex", 0.6, 0.55),
    ]:
        text = f"subnat,year,{series}\nAGOr101,2011,{region}\nafgr101,2011,0.9\n"
        write(tmp_path, f"gdl_shdi/{series}--by--subnat--year.csv", text)
        write(
            tmp_path,
            f"gdl_shdi/{series}--by--national--year.csv",
            f"national,year,{series}\nagot,2011,{nation}\n",
        )
    assert rows(tmp_path, "shdi") == [
        ("AGO", "", "all", 2011, 0.4),
        ("AGO", "agor101", "all", 2011, 0.5),
    ]
    # 1 - |0.35 - 0.55| and 1 - |0.3 - 0.6|, exactly
    assert rows(tmp_path, "ed_health_alignment") == [
        ("AGO", "", "all", 2011, 0.8),
        ("AGO", "agor101", "all", 2011, 0.7),
    ]


def test_uis_completion(tmp_path: Path) -> None:
    write(tmp_path, "uis/cr_2_f.csv", "location,time,cr_2_f\nago,2015,31.9\nusa,2015,99\n")
    assert rows(tmp_path, "cr_2_f") == [("AGO", "", "all", 2015, 31.9)]


def test_missing_series_are_named(tmp_path: Path) -> None:
    write(tmp_path, "uis/cr_2_f.csv", "location,time,cr_2_f\nago,2015,31.9\n")
    _, missing = read_series(tmp_path)
    assert missing == [name for name in SERIES if name != "cr_2_f"]


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
    frame, _ = read_series(tmp_path)
    assert frame[["series", "iso3", "region", "year", "value", "source"]].values.tolist() == [
        ["cr_2_f", "AGO", "", 2015, 31.9, "uis CR_2_F"],
        ["haq", "KEN", "", 2015, 49.0, "z"],
        ["haq", "NAM", "", 2015, 50.0, "mine (2015-16)"],
        ["shdi", "NAM", "namr101", 2015, 0.6, "mine"],
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("uis/cr_2_f.csv", "location,year,cr_2_f\nago,2015,1\n", "missing column(s) time"),
        ("uis/cr_2_f.csv", "location,time,cr_2_f\nago,2015,<5\n", "value '<5'"),
        ("uis/cr_2_f.csv", "location,time,cr_2_f\nago,2015,inf\n", "value 'inf'"),
        ("uis/cr_2_f.csv", "location,time,cr_2_f\nago,15,5\n", "year '15'"),
        ("uis/cr_2_f.csv", "", "no readable CSV"),
        (
            "haq.csv",
            "series,iso3,value\nhaq,NAM,1\n",
            "missing column(s) region, stratum, year, source",
        ),
        ("tidy/x.csv", "iso3,value\nNAM,1\n", "missing column(s) series, region"),
        (
            "tidy/x.csv",
            ",".join(COLUMNS) + "\nhak,NAM,,all,2015,1,x\n",
            "unknown series 'hak'; valid: ",
        ),
        ("tidy/x.csv", ",".join(COLUMNS) + "\nhaq,NAM,,town,2015,1,x\n", "stratum 'town'"),
        (
            "tidy/x.csv",
            ",".join(COLUMNS) + "\nhaq,516,,all,2015,1,x\n",
            "iso3 '516' in 1 row(s); wants ISO-3 codes",
        ),
        ("tidy/x.csv", ",".join(COLUMNS) + "\nhaq,NM,,all,2015,1,x\n", "iso3 'NM'"),
        (
            "unsd_sdg/ddf--datapoints--sh_acs_unhc--by--year.csv",
            "geo_area,nature,year,sh_acs_unhc\nNAM,e,2015,1\n",
            "geo_area 'NAM'",
        ),
        ("uis/cr_2_f.csv", "location,time,cr_2_f\nago,2015,5\nago,20", "year '20'"),
        (
            "tidy/x.csv",
            ",".join(COLUMNS) + "\nhaq,NAM,,all,2015,1,x\nhaq,NAM,,all,2015,2,y\n",
            "haq of NAM all in 2015 has two values, 1 and 2; keep one",
        ),
        ("API_HAQ.csv", "Country Name;1990;1991\nNamibia;1;2\n", "holds no indicator series"),
        ("un.csv", "SeriesCode,GeoAreaCode\nX,1\n", "has the columns SeriesCode, GeoAreaCode; a"),
    ],
)
def test_bad_files_are_named_in_one_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_series(write(tmp_path, name, text))
    assert (
        message in str(caught.value)
        and Path(name).name in str(caught.value)
        and "\n" not in str(caught.value)
    )


def test_a_compressed_file_that_was_cut_short(tmp_path: Path) -> None:
    data = gzip.compress((",".join(COLUMNS) + "\nhaq,NAM,,all,2015,1,x\n").encode())
    (tmp_path / "tidy").mkdir()
    (tmp_path / "tidy" / "haq.csv.gz").write_bytes(data[:-12])
    with pytest.raises(InputError, match=r"haq.csv.gz is no readable CSV .*download it again"):
        read_series(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252", "utf-8-sig"])
def test_any_common_encoding(tmp_path: Path, encoding: str) -> None:
    write(
        tmp_path,
        "ihme_haq/haq.csv",
        "Entity,Year,HAQ Index (IHME (2017))\nCôte d'Ivoire,2010,40.1\n",
        encoding,
    )
    write(
        tmp_path,
        "gdl_area/GDL-AreaData200.csv",
        "iso_code,year,GDLCODE,level,region,electr,stunting,wasting\nCIV,2012,CIVr101,S,São,9,8,7\n",
        encoding,
    )
    assert rows(tmp_path, "haq") == [("CIV", "", "all", 2010, 40.1)]
    assert rows(tmp_path, "gdl_area_electr") == [("CIV", "civr101", "all", 2012, 9.0)]


@pytest.mark.parametrize("missing", [" ", "", "-9.0", "-9", " -9.00 ", "No data", ".."])
def test_codes_for_missing_are_no_values(tmp_path: Path, missing: str) -> None:
    write(tmp_path, "uis/cr_2_f.csv", f"location,time,cr_2_f\nago,2015,31.9\nken,2015,{missing}\n")
    assert rows(tmp_path, "cr_2_f") == [("AGO", "", "all", 2015, 31.9)]


def test_the_order_of_rows_and_columns_decides_nothing(tmp_path: Path) -> None:
    source = REPO / "data" / "indicators"
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    for name in ("sh_sta_stunt.csv", "se_tot_cplr.csv"):
        table = pd.read_csv(source / name, dtype=str, keep_default_na=False)
        table.to_csv(tmp_path / "a" / name, index=False)
        table.iloc[::-1, ::-1].to_csv(tmp_path / "b" / name, index=False)
    pd.testing.assert_frame_equal(read_series(tmp_path / "a")[0], read_series(tmp_path / "b")[0])


def test_an_empty_or_absent_folder_says_what_to_do(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="--indicators"):
            read_series(folder)


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
    write(tmp_path, "gdl_regions.csv", "cname,adm1dhs,gdl_region\nNM,1,a\nNM,1,b\n")
    with pytest.raises(InputError, match="two regions"):
        read_gdl_regions(tmp_path)
    write(tmp_path, "gdl_regions.csv", "cname,adm1dhs,gdl_region\nNA,1,a\n")
    with pytest.raises(InputError, match="cname 'NA' in 1 row.*DHS codes such as NM"):
        read_gdl_regions(tmp_path)


def test_the_committed_folder_is_an_indicators_folder() -> None:
    frame, missing = read_series(REPO / "data" / "indicators")
    have = frame.groupby("series")["iso3"].nunique()
    assert have["sh_sta_stunt"] == have["shdi"] == have["ed_health_alignment"] == 56
    # their licences don't allow the project to pass them on
    assert missing == [
        "cr_2_f",
        "ncd_pac",
        "haq",
        "gdl_area_stunting",
        "gdl_area_wasting",
        "gdl_area_electr",
    ]
    assert sum(path.stat().st_size for path in (REPO / "data" / "indicators").iterdir()) < 2_000_000


def test_the_committed_files_have_the_digests_that_the_readme_states() -> None:
    import hashlib

    folder = REPO / "data" / "indicators"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    files = [path for path in folder.iterdir() if path.name.endswith((".csv", ".csv.gz"))]
    assert len(files) == 14
    for path in files:
        assert (
            f"| `{path.name}` |" in readme
            and hashlib.sha256(path.read_bytes()).hexdigest() in readme
        )


@pytest.mark.skipif(
    not (SHARED / "indicators").is_dir(),
    reason="the original dumps (../shared/data/indicators) are absent",
)
def test_coverage_of_the_original_dumps() -> None:
    frame, missing = read_series(SHARED / "indicators")
    have = frame.groupby("series")["iso3"].nunique().to_dict()
    assert missing == []
    assert {
        name: have[name]
        for name in ("sh_sta_stunt", "sh_sta_waste", "sh_acs_unhc", "eg_elc_accs", "sh_sta_wash")
    } == {
        "sh_sta_stunt": 56,
        "sh_sta_waste": 56,
        "sh_acs_unhc": 56,
        "eg_elc_accs": 55,  # not Eswatini
        "sh_sta_wash": 56,
    }
    assert [
        have[name] for name in ("sh_h2o_safe", "sh_san_safe", "sp_acs_bsrvh2o", "sp_acs_bsrvsan")
    ] == [
        28,
        22,
        56,
        56,
    ]
    assert [have[name] for name in ("se_tot_cplr", "ncd_pac", "haq", "shdi")] == [56, 44, 56, 56]
    assert frame[(frame["series"] == "shdi") & (frame["region"] != "")]["region"].nunique() == 692
    assert not frame.duplicated(list(COLUMNS[:5])).any() and not frame.isna().any().any()
    assert pd.api.types.is_integer_dtype(frame["year"]) and (frame["value"] >= 0).all()


def test_physical_activity_is_of_adults(tmp_path: Path) -> None:
    """The dump has adolescents (11 to 17 years) among the rows of the same country and year."""
    head = "GHO,YEAR,COUNTRY,AGEGROUP,SEX,Numeric"
    lines = ["NCD_PAC,2010,KEN,YEARS11-17,BTSX,86.1", "NCD_PAC,2010,KEN,YEARS18-PLUS,BTSX,15.9"]
    write(tmp_path, "who_gho/NCD_PAC.csv", "\n".join([head, *lines]))
    assert rows(tmp_path, "ncd_pac") == [("KEN", "", "all", 2010, 15.9)]


def test_a_nature_that_is_not_known_counts_last(tmp_path: Path) -> None:
    """Even behind a value whose nature the dump leaves out."""
    unsd(
        tmp_path,
        "sh_sta_waste--by--age--geo_area--nature--units--year",
        "age,geo_area,nature,units,year,sh_sta_waste\n"
        "lt5y,8,na,u,2008,1\nlt5y,8,,u,2008,2\nlt5y,8,na,u,2009,3\nlt5y,8,g,u,2009,4\n",
    )
    assert [(year, value) for *_, year, value in rows(tmp_path, "sh_sta_waste")] == [
        (2008, 2.0),
        (2009, 4.0),
    ]
