"""Make data/indicators/ (the openly licensed series, tidied) from the original dumps.

    python scripts/tidy_indicators.py DUMPS [--out data/indicators]

DUMPS is a folder with the subfolders unsd_sdg and gdl_shdi. Only CC BY series are written, for the
56 countries of the benchmark; README.md beside them states origin, licence, citation, what was
done, and sha256 of every file. Same dumps, same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import sys
from pathlib import Path

from sdgbias.errors import SdgbiasError
from sdgbias.raw.series import (
    COLUMNS,
    REGION_NAMES_FILE,
    SHDI,
    UNSD,
    read_region_names,
    read_series,
)

#: Survey years of the benchmark; SHDI's earlier years would only make the files bigger.
SHDI_YEARS = (1996, 2019)

TITLES = {
    "sh_sta_stunt": "2.2.1 stunting, children under 5, %",
    "sh_sta_waste": "2.2.2 wasting, children under 5, %",
    "sh_acs_unhc": "3.8.1 universal health coverage service index, 0-100",
    "eg_elc_accs": "7.1.1 population with access to electricity, %, also urban and rural",
    "sp_acs_bsrvh2o": "population with at least basic drinking water, %, also urban and rural",
    "sp_acs_bsrvsan": "population with at least basic sanitation, %, also urban and rural",
    "sh_h2o_safe": "6.1.1 population with safely managed drinking water, %, also urban and rural",
    "sh_san_safe": "6.2.1 population with safely managed sanitation, %, also urban and rural",
    "sh_sta_wash": "3.9.2 deaths from unsafe water, sanitation and hygiene per 100,000 (2016)",
    "se_tot_cplr": "4.1.2 lower-secondary completion, female, %, also urban and rural",
    "shdi": "subnational human development index, 0-1, by region and country",
    "edindex": "its education index, 0-1",
    "healthindex": "its health index, 0-1",
}

README = """# Indicator series that ship with the project

Tidy CSVs (columns `series,iso3,region,stratum,year,value,source`) of the openly licensed series, for the 56 countries of the
benchmark. Made by `scripts/tidy_indicators.py` from the original dumps; not edited by hand. This folder is a valid
`--indicators` folder. Files ending in `.csv.gz` are gzipped CSVs (`gzip -dc FILE`), which pandas and DuckDB read as they are.

| origin | licence | citation |
|---|---|---|
| UNSD: United Nations Global SDG Indicators Database, <https://unstats.un.org/sdgs/indicators/database/>, as repackaged in open-numbers/ddf--unstats--sdg_indicators | CC BY 4.0 (repackage) | United Nations Statistics Division, Global SDG Indicators Database |
| SHDI: Global Data Lab, Subnational Human Development Index, <https://globaldatalab.org/shdi/>, as repackaged in DDF form | CC BY 4.0 (repackage) | Smits, J. and Permanyer, I. (2019). The Subnational Human Development Database. Scientific Data 6:190038. doi:10.1038/sdata.2019.38 |

| file | series | origin | rows | countries | years | sha256 |
|---|---|---|---|---|---|---|
{rows}

## What was done to them

* UNSD: regional aggregates and other countries left out (M49 codes mapped to ISO-3); children under 5; `se_tot_cplr` lower
  secondary, female, all wealth quantiles together; `sh_sta_wash` both sexes. Where one year has several natures of a value, the
  country-adjusted one is kept, then country, estimated, modelled, global. All areas, urban and rural are kept as `stratum`.
* SHDI: years {first}-{last}; region codes in lower case; `region` is empty for the national value. `gdl_region_names.csv`
  (columns `iso3,region,name`) holds the publisher's names of these regions, without the country's: survey regions are matched by them.
* Missing values (blank, -9) left out; values are unchanged otherwise.
* `sdgbias` itself derives the education-health alignment score, 1 - |edindex - healthindex|, when it reads them.

## Series that aren't here

Their terms don't allow the project to pass them on. Put them in a folder of your own, in the subfolders named here, next to
copies of these files in `tidy/`, and pass it as `--indicators`.

| series | subfolder and file | where from | terms |
|---|---|---|---|
| insufficient physical activity | `who_gho/NCD_PAC.csv` | WHO Global Health Observatory, indicator NCD_PAC, <https://www.who.int/data/gho> | CC BY-NC-SA |
| Healthcare Access and Quality index (GBD 2015) | `ihme_haq/*.csv` (Entity, Year, HAQ Index (IHME (2017))) | IHME, <https://ghdx.healthdata.org/>; repackaged by Our World in Data | non-commercial |
| female lower-secondary completion, UIS | `uis/cr_2_f.csv` | UNESCO Institute for Statistics, <https://uis.unesco.org/> | see UIS |
| regional stunting, wasting, electricity | `gdl_area/GDL-AreaData*.csv` | Global Data Lab area database, <https://globaldatalab.org/areadata/> (free registration) | none stated |
| map of survey regions to Global Data Lab regions, an override | `gdl_regions.csv` (cname, adm1dhs, gdl_region) | made by you, from the surveys' region labels | - |

Without them physical inactivity and HAQ have no items, stunting and wasting have national values only, and electricity has urban and
rural ones. SHDI and the alignment score have regional values here; a cluster reaches them through the name of its survey region, which
SustainBench's labels don't hold: put the surveys' GPS tables beside them (`RAW/dhs_gps/*.csv`), else these two are national as well.
UHC, HAQ, physical inactivity and WASH mortality are national whatever is added.
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dumps", type=Path)
    parser.add_argument("--out", type=Path, default=Path("data/indicators"))
    options = parser.parse_args(argv)
    frame, _ = read_series(options.dumps)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for series in (*UNSD, *SHDI):
        part = frame[frame["series"] == series]
        if series in SHDI:
            part = part[part["year"].between(*SHDI_YEARS)]
        text = part[list(COLUMNS)].to_csv(index=False, lineterminator="\n").encode()
        name = f"{series}.csv"
        if len(text) > 400_000:  # the regional SHDI files, 0.7 MB each as plain text
            name, text = f"{series}.csv.gz", gzip.compress(text, 9, mtime=0)
        (options.out / name).write_bytes(text)
        origin = "SHDI" if series in SHDI else "UNSD"
        years = f"{part['year'].min()}-{part['year'].max()}" if len(part) else ""
        digest = hashlib.sha256(text).hexdigest()
        rows.append(
            f"| `{name}` | {TITLES[series]} | {origin} | {len(part)} | {part['iso3'].nunique()} |"
            f" {years} | `{digest}` |"
        )
    names = read_region_names(options.dumps)
    names = names[names["region"].isin(frame["region"][frame["series"].isin(SHDI)])]
    text = names.to_csv(index=False, lineterminator="\n").encode()
    (options.out / REGION_NAMES_FILE).write_bytes(text)
    rows.append(
        f"| `{REGION_NAMES_FILE}` | names of the regions of these three | SHDI | {len(names)} |"
        f" {names['iso3'].nunique()} | | `{hashlib.sha256(text).hexdigest()}` |"
    )
    readme = README.format(rows="\n".join(rows), first=SHDI_YEARS[0], last=SHDI_YEARS[1])
    (options.out / "README.md").write_text(readme, encoding="utf-8")
    print(f"wrote {len(rows)} series to {options.out}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SdgbiasError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
