"""Files of a raw folder that can't be read: one line each, word for word in refusals.yaml."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from sdgbias.raw.clusters import COLUMNS, LABELS_FILE, read_clusters
from sdgbias.raw.facet import read_annotations
from sdgbias.raw.images.photos import index_photos
from sdgbias.raw.series import COLUMNS as SERIES_COLUMNS
from sdgbias.raw.series import read_gdl_regions, read_series
from tests.builders.raw_folder import ONE, put_photo
from tests.builders.refusals import Refusal

LABELS, TIDY = ",".join(COLUMNS), ",".join(SERIES_COLUMNS)
UIS, UNSD = "uis/cr_2_f.csv", "unsd_sdg/ddf--datapoints--{0}--by--geo_area--nature--units--year.csv"
REGIONS, PHOTOS, FACET = "gdl_regions.csv", "mapillary/metadata/AL.csv", "annotations.csv"
READERS: dict[str, Callable[[Path], object]] = {
    LABELS_FILE: read_clusters,
    REGIONS: read_gdl_regions,
    PHOTOS: index_photos,
    FACET: lambda folder: read_annotations(folder / FACET),
}


def labels(*rows: dict[str, str]) -> str:
    """A label file; what a row doesn't say is blank."""
    lines = [",".join(row.get(name, "") for name in COLUMNS) for row in rows]
    return "\n".join([LABELS, *lines, ""])


#: What is wrong: the file and what it holds (None: it isn't there). It is read by the reader of
#: that file, or as an indicator series.
CASES: dict[str, tuple[str, str | bytes | None]] = {
    "labels: no file": (LABELS_FILE, None),
    "labels: empty": (LABELS_FILE, ""),
    "labels: binary": (LABELS_FILE, b"\xff\xfe\x00a,b\n"),
    "labels: UTF-16": (LABELS_FILE, LABELS.encode("utf-16")),
    "labels: Excel's first line alone": (LABELS_FILE, "sep=;"),
    "labels: a column twice": (LABELS_FILE, f"{LABELS},lat\n{','.join('1' * 22)}\n"),
    "labels: a row of more cells": (LABELS_FILE, f"{LABELS}\n{','.join('x' * 22)}\n"),
    "labels: cut short": (LABELS_FILE, labels(row := {"DHSID_EA": ONE, "cname": "AL"}, row)[:-30]),
    "labels: another separator": (LABELS_FILE, LABELS.replace(",", "|") + "\n"),
    "labels: no rows": (LABELS_FILE, labels()),
    "labels: no usable row": (
        LABELS_FILE,
        labels({"DHSID_EA": "ZZ-2008-5#-00000001", "cname": "ZZ", "year": "2008"}),
    ),
    "series: no series": ("README.txt", ""),
    "series: no folder": ("nowhere/x", None),
    "UIS: another column": (UIS, "location,year,cr_2_f\nago,2015,1\n"),
    "UIS: below a value": (UIS, "location,time,cr_2_f\nago,2015,<5\n"),
    "UIS: infinite": (UIS, "location,time,cr_2_f\nago,2015,inf\n"),
    "UIS: a short year": (UIS, "location,time,cr_2_f\nago,15,5\n"),
    "UIS: cut short": (UIS, "location,time,cr_2_f\nago,2015,5\nago,2019"),
    "UIS: empty": (UIS, ""),
    "UNSD: codes of ISO": (
        UNSD.format("sh_acs_unhc"),
        "geo_area,nature,year,sh_acs_unhc\nNAM,e,2015,1\n",
    ),
    "tidy: some columns": ("haq.csv", "series,iso3,value\nhaq,NAM,1\n"),
    "tidy: two columns": ("tidy/x.csv", "iso3,value\nNAM,1\n"),
    "tidy: unknown series": ("tidy/x.csv", f"{TIDY}\nhak,NAM,,all,2015,1,x\n"),
    "tidy: unknown stratum": ("tidy/x.csv", f"{TIDY}\nhaq,NAM,,town,2015,1,x\n"),
    "tidy: a country's number": ("tidy/x.csv", f"{TIDY}\nhaq,516,,all,2015,1,x\n"),
    "tidy: a country's DHS code": ("tidy/x.csv", f"{TIDY}\nhaq,NM,,all,2015,1,x\n"),
    "tidy: two values": (
        "tidy/x.csv",
        f"{TIDY}\nhaq,NAM,,all,2015,1,x\nhaq,NAM,,all,2015,2,y\n",
    ),
    "tidy: an archive cut short": (
        "tidy/haq.csv.gz",
        gzip.compress(f"{TIDY}\nhaq,NAM,,all,2015,1,x\n".encode())[:-12],
    ),
    "regions: two of one unit": (REGIONS, "cname,adm1dhs,gdl_region\nNM,1,a\nNM,1,b\n"),
    **{
        f"regions: code {code}": (REGIONS, f"cname,adm1dhs,gdl_region\nNM,{code},a\n")
        for code in ("inf", "1.5", "99999999999")
    },
    "regions: a code of ISO": (REGIONS, "cname,adm1dhs,gdl_region\nNA,1,a\n"),
    "photos: no cluster": (PHOTOS, f"id,year\n9,{ONE}\n"),
    "photos: no id": (PHOTOS, f"DHSID_EA,year\n{ONE},2008\n"),
    "photos: none is there": (PHOTOS, "id,DHSID_EA\n9,1\n9,2\n"),
    "photos: empty": (PHOTOS, ""),
    "photos: half an archive": ("mapillary/imagery/AL.zip", b"PK\x03\x04 half"),
    "FACET: other columns": (FACET, "person_id,filename\n1,a.jpg\n"),
    "FACET: no file": (FACET, None),
} | {
    f"labels: no column {name}": (LABELS_FILE, LABELS.replace(name, "other") + "\n")
    for name in ("DHSID_EA", "cname", "women_bmi", "urban")
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_can_not_be_read_is_refused(
    case: str, tmp_path: Path, refusal: Refusal
) -> None:
    name, content = CASES[case]
    read, path = READERS.get(name, read_series), tmp_path / name
    if case.startswith("photos"):
        read = index_photos
        put_photo(tmp_path, ONE, "9")
    if content is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with refusal():
        read(tmp_path / "nowhere" if case == "series: no folder" else tmp_path)
