"""Make data/indicators/ (the openly licensed series, tidied) from the original dumps.

    python scripts/tidy_indicators.py DUMPS [--out data/indicators]

DUMPS is a folder with the subfolders unsd_sdg and gdl_shdi. Only CC BY series are written, for the
56 countries of the benchmark. README.md beside them states origin, licence, citation and what was
done; its table of files, with the sha256 of each, is written anew. Same dumps, same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
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
#: The rows of the table of files: file, series, origin, rows, countries, years, sha256.
TABLE = re.compile(r"(?<=\n\| file \|)(.*\n\|[-|]+\|\n)(?:\|.*\n)+")
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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dumps", type=Path)
    parser.add_argument("--out", type=Path, default=Path("data/indicators"))
    options = parser.parse_args(argv)
    frame, _ = read_series(options.dumps)
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
    readme = options.out / "README.md"
    table = "".join(f"{row}\n" for row in rows)
    changed = TABLE.sub(lambda found: found[1] + table, readme.read_text(encoding="utf-8"))
    readme.write_text(changed, encoding="utf-8")
    print(f"wrote {len(rows)} series to {options.out}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SdgbiasError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
