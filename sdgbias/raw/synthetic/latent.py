"""The hidden causes of the synthetic sample: wealth and urbanity, and the 21 label columns that
they lead to.

Everything here is pure and keyed: a draw depends only on (seed, country[, cluster number]), so
adding a country never changes another one, and the k-th cluster of a country is always the same.
Wealth is in abstract units, about -3 (poorest) to 3 (richest). Column order, units, ranges and
missing rates are those of SustainBench's dhs_final_labels.csv (DHS surveys 1996-2019); the values
are invented.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sdgbias.errors import UsageError, one_of
from sdgbias.files import packaged
from sdgbias.raw.clusters import COLUMNS

#: Label -> share of clusters without it (n < 5), as published for SustainBench.
MISSING = {
    "asset_index": 0.261,
    "water_index": 0.253,
    "sanitation_index": 0.241,
    "under5_mort": 0.103,
    "women_edu": 0.005,
    "women_bmi": 0.194,
}
#: Eight countries, including those with irregular codes: NM (Namibia, ISO-2 'NA'), IA (India), NP,
#: AM.
DEFAULT_COUNTRIES = ("SN", "KE", "NM", "BF", "IA", "PE", "NP", "AM")
REGIONS = (1, 2, 3, 4)
URBAN_STEP, RURAL_STEP = 0.7, -0.35
NO_TILE, NO_PHOTO, NO_ADM1 = 0.02, 0.03, 0.05

#: DHS country code -> its row: lat, lon and half_width (degrees) of the box that clusters fall in,
#: who_region, owid_name (Our World in Data's, '' where it is the crosswalk's).
_TABLE = packaged("data", "synthetic_countries.csv").read_text(encoding="utf-8")
COUNTRIES = {row["cname"]: row for row in csv.DictReader(_TABLE.splitlines())}


@dataclass(frozen=True)
class Survey:
    """One DHS round: ``prefix`` is the first 10 characters of its cluster ids, e.g.
    'KE-2014-7#'."""

    year: int
    prefix: str


@dataclass(frozen=True)
class SyntheticCluster:
    """One synthetic survey cluster: hidden causes first, then the fields of the label file (None =
    n < 5, unknown)."""

    seed: int
    cname: str
    k: int
    wealth: float
    urbanity: float  # 0 open country .. 1 city centre
    aridity: float  # 0 wet and green .. 1 dry; a nuisance that images show and labels ignore
    region: int  # the true region, 1..4
    tile: bool  # False: the satellite tile is missing on purpose
    photos: int  # number of street photos, 0 = missing on purpose
    dhsid: str
    year: int
    lat: float
    lon: float
    counts: dict[str, float | None]
    labels: dict[str, float | None]
    cluster_id: int
    adm1fips: str
    adm1dhs: int  # 9999 = unknown
    urban: str

    @property
    def level(self) -> float:
        """Wealth on a 0..1 scale (0 at -3, 1 at 3), which is what the images draw."""
        return min(1.0, max(0.0, (self.wealth + 3.0) / 6.0))

    def row(self) -> tuple[object, ...]:
        """The 21 values in the order of COLUMNS."""
        values = {
            **{name: getattr(self, name) for name in COLUMNS if hasattr(self, name)},
            "DHSID_EA": self.dhsid,
            **self.labels,
            **{f"n_{name.removesuffix('_index')}": n for name, n in self.counts.items()},
        }
        return tuple(values[name] for name in COLUMNS)


def keyed(seed: int, *key: object) -> np.random.Generator:
    """A generator whose stream depends only on (seed, key), never on earlier draws."""
    text = "|".join(map(str, (seed, *key)))
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "big")))


def check_countries(countries: Sequence[str] | None) -> tuple[str, ...]:
    """The country codes to draw, in the order given; raises UsageError on an unknown or repeated
    code, or an empty list."""
    codes = tuple(DEFAULT_COUNTRIES if countries is None else countries)
    for cc in codes:
        if cc not in COUNTRIES:
            raise UsageError(one_of("DHS country code", cc, COUNTRIES))
    if not codes or len(set(codes)) != len(codes):
        named = ",".join(codes)
        raise UsageError(f"countries {named!r}: name at least one code and each only once")
    return codes


@lru_cache(maxsize=4096)
def country_wealth(seed: int, cc: str) -> float:
    """Wealth of a country, uniform in [-1.8, 1.8]."""
    return float(keyed(seed, "country", cc).uniform(-1.8, 1.8))


@lru_cache(maxsize=4096)
def region_offset(seed: int, cc: str, region: int) -> float:
    """Wealth offset of one of the four regions to its country, N(0, 0.35)."""
    return float(keyed(seed, "region", cc, region).normal(0, 0.35))


@lru_cache(maxsize=4096)
def region_aridity(seed: int, cc: str, region: int) -> float:
    """How dry a region looks, 0..1: mostly the country's own value."""
    base = keyed(seed, "biome", cc).uniform(0.1, 0.9)
    return float(np.clip(base + keyed(seed, "biome", cc, region).normal(0, 0.12), 0, 1))


@lru_cache(maxsize=4096)
def surveys(seed: int, cc: str) -> tuple[Survey, Survey]:
    """Two rounds per country: one of 2000-2011 (DMSP night lights), one of 2012-2018 (VIIRS)."""
    rng = keyed(seed, "surveys", cc)
    rounds = []
    for year in (int(rng.integers(2000, 2012)), int(rng.integers(2012, 2019))):
        version = 4 if year < 2005 else 5 if year < 2010 else 6 if year < 2013 else 7
        rounds.append(Survey(year, f"{cc}-{year}-{version}{'#' if rng.random() < 0.6 else 'Z'}"))
    return rounds[0], rounds[1]


def urban_share(seed: int, cc: str) -> float:
    """Probability that a cluster is urban: 0.4 at wealth 0, more in richer countries."""
    return 1.0 / (1.0 + math.exp(0.405 - 0.35 * country_wealth(seed, cc)))


def _clip(value: float, low: float, high: float) -> float:
    return low if value < low else high if value > high else value


def _labels(wealth: float, z: Sequence[float], p_zero: float) -> dict[str, float]:
    """Monotone noisy functions of wealth. ``z``: six standard normals; ``p_zero``: the uniform that
    decides a zero."""
    # small samples of births often hold no death at all
    zero = p_zero < 1.0 / (1.0 + math.exp(1.25 - 0.6 * wealth))
    return {
        "asset_index": round(1.1 * wealth + 0.35 * z[0], 6),
        "water_index": round(_clip(3.1 + 0.70 * wealth + 0.35 * z[1], 1, 5), 6),
        "sanitation_index": round(_clip(2.9 + 0.80 * wealth + 0.35 * z[2], 1, 5), 6),
        # deaths per 1,000 live births
        "under5_mort": (
            0.0 if zero else round(_clip(62 * math.exp(-0.5 * wealth + 0.3 * z[3]), 4, 400), 6)
        ),
        "women_edu": round(_clip(7.0 + 2.8 * wealth + 1.1 * z[4], 0, 18), 6),  # years
        "women_bmi": round(_clip(22.6 + 1.4 * wealth + 0.7 * z[5], 18, 32), 4),  # kg/m2
    }


def draw_cluster(seed: int, cc: str, k: int) -> SyntheticCluster:
    """The k-th cluster (from 0) of a country."""
    rng = keyed(seed, "cluster", cc, k)
    z = rng.standard_normal(8).tolist()
    u = rng.random(24).tolist()
    rounds = surveys(seed, cc)
    survey = rounds[0] if u[0] < 0.45 else rounds[1]
    region = REGIONS[int(u[1] * 4)]
    urban = u[2] < urban_share(seed, cc)
    wealth = country_wealth(seed, cc) + region_offset(seed, cc, region)
    wealth += URBAN_STEP if urban else RURAL_STEP
    wealth += 0.45 * z[6]
    urbanity = _clip((0.66 if urban else 0.22) + 0.13 * z[7] + 0.02 * wealth, 0.02, 1.0)
    lat0, lon0, half = (float(COUNTRIES[cc][name]) for name in ("lat", "lon", "half_width"))
    labels = dict(_labels(wealth, z, u[3]))
    households = 8 + int(u[4] * 22)
    births, women, measured = 6 + int(u[5] * 34), households + int(u[6] * 10), 5 + int(u[7] * 25)
    n_base = (households, households, households, births, women, measured)
    counts: dict[str, float | None] = {}
    out: dict[str, float | None] = {}
    for i, (name, rate) in enumerate(MISSING.items()):
        gone = u[8 + i] < rate
        counts[name] = None if gone else float(n_base[i])
        out[name] = None if gone else labels[name]
    n_photos = 0 if u[14] < NO_PHOTO else 1 + (u[15] > 0.45) + (u[15] > 0.8)
    # the regions are the quarters of the country's box: 1 south-west, 2 south-east, 3 north-west, 4
    # north-east
    return SyntheticCluster(
        seed=seed,
        cname=cc,
        k=k,
        wealth=wealth,
        urbanity=urbanity,
        aridity=_clip(region_aridity(seed, cc, region) + 0.2 * (u[16] - 0.5), 0.0, 1.0),
        region=region,
        tile=u[17] >= NO_TILE,
        photos=n_photos,
        dhsid=f"{survey.prefix}-{k + 1:08d}",
        year=survey.year,
        lat=round(lat0 + half * (u[18] - (1 if region <= 2 else 0)), 6),
        lon=round(lon0 + half * (u[19] - (1 if region % 2 else 0)), 6),
        counts=counts,
        labels=out,
        cluster_id=k + 1,
        adm1fips=f"{cc}{region:02d}" if u[20] < 0.08 else "",
        adm1dhs=9999 if u[21] < NO_ADM1 else region,
        urban="U" if urban else "R",
    )


def plan_clusters(clusters: int, countries: Sequence[str]) -> list[tuple[str, int]]:
    """(country, k) of every cluster: split as evenly as possible, the remainder goes to the first
    countries."""
    share, rest = divmod(clusters, len(countries))
    return [(cc, k) for i, cc in enumerate(countries) for k in range(share + (i < rest))]
