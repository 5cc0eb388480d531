"""Synthetic satellite tiles: 8 bands, 255 x 255 pixels of 30 m, drawn from a cluster's wealth and
urbanity.

These grow with wealth and urbanity and remain visible at 48 x 48 pixels: the size of the
settlement, how regular its street grid is, bright metal and tiled roofs instead of brown thatch,
paved (dark) instead of dirt (pale) roads, and above all the extent and brightness of the night
lights. Aridity, fields, rivers and the settlement's place are nuisances. Reflectances keep roughly
the band means of SustainBench's table; few distinct values keep the files small.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass

import numpy as np
from PIL import Image

from sdgbias.files import packaged_yaml
from sdgbias.raw.synthetic.latent import SyntheticCluster, keyed

SIZE = 255
BANDS = ("BLUE", "GREEN", "RED", "SWIR1", "SWIR2", "TEMP1", "NIR", "NIGHTLIGHTS")
LAST_DMSP_YEAR = 2011
_X, _Y = np.meshgrid(
    np.arange(SIZE, dtype=np.float32), np.arange(SIZE, dtype=np.float32)
)  # column east, row SOUTHWARD

#: Surface -> reflectance in BLUE, GREEN, RED, SWIR1, SWIR2, NIR (0..1).
_SURFACES: dict[str, list[float]] = packaged_yaml("synthetic.yaml")["surfaces"]
_CODE = {name: i for i, name in enumerate(_SURFACES)}
_SHADES = np.array([0.88, 0.96, 1.04, 1.12], dtype=np.float32)
#: (6, surfaces x 4 shades) float32 in steps of 1/1024.
_TABLE = np.round(
    np.array(list(_SURFACES.values()), np.float32).T[:, :, None] * _SHADES * 1024
).reshape(6, -1).astype(np.float32) / np.float32(1024)


@dataclass(frozen=True)
class Settlement:
    """Where the settlement lies. ``east``, ``north``: pixels from the tile's centre; ``radius`` in
    pixels."""

    east: float
    north: float
    radius: float
    angle: float
    rivers: bool


def layout(cluster: SyntheticCluster) -> Settlement:
    """The settlement's place and size: radius about 18 px (poor village) to 95 px (rich city)."""
    rng = keyed(cluster.seed, "layout", cluster.cname, cluster.k)
    east, north = rng.uniform(-45, 45, 2)
    grown = 0.6 * cluster.urbanity + 0.4 * cluster.level
    angle, rivers = float(rng.uniform(0, 1.57)), bool(rng.random() < 0.3)
    return Settlement(float(east), float(north), 10 + 100 * grown**1.4, angle, rivers)


def _smooth(rng: np.random.Generator, cells: int) -> np.ndarray:
    """(255, 255) float32 noise in about -1..1 that varies over 255 / cells pixels."""
    coarse = (rng.random((cells, cells), dtype=np.float32) * 2 - 1).astype(np.float32)
    return np.asarray(Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.BICUBIC))


def _background(rng: np.random.Generator, cluster: SyntheticCluster) -> np.ndarray:
    """(255, 255) int16 surface codes of bush and fields, wetter or drier by the region."""
    wet = 1 - cluster.aridity + 0.35 * _smooth(rng, 7) + 0.12 * _smooth(rng, 25)
    natural = np.digitize(wet, (0.32, 0.55, 0.85)).astype(np.int16)
    kinds = [_CODE[name] for name in ("soil", "dry_grass", "scrub", "forest")]
    codes = np.array(kinds, np.int16)[natural]
    # farmland: rectangles of one crop each; more of it green where it is wet or (irrigation) rich
    angle, cell = rng.uniform(0, 1.57), rng.uniform(15, 24)
    c, s = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    i = np.floor((_X * c + _Y * s) / cell).astype(np.int16) & 31
    j = np.floor((_Y * c - _X * s) / (cell * 0.7)).astype(np.int16) & 31
    green = 0.15 + 0.45 * (1 - cluster.aridity) + 0.25 * cluster.level
    pick = rng.random((32, 32))
    kind = np.where(pick < (1 + green) / 2, _CODE["stubble"], _CODE["fallow"])
    kind = np.where(pick < green, _CODE["crop"], kind)
    farmed = (rng.random((32, 32)) < 0.75)[i, j] & (_smooth(rng, 5) > -0.15)
    land: np.ndarray = np.where(farmed, kind.astype(np.int16)[i, j], codes)
    return land


def _density(rng: np.random.Generator, cluster: SyntheticCluster, place: Settlement) -> np.ndarray:
    """(255, 255) float32 share of built-up land, 0..1: one settlement, and hamlets around it in the
    country."""
    dx, dy = _X - (127 + place.east), _Y - (127 - place.north)
    dist = np.hypot(dx, dy) * (1 + 0.3 * _smooth(rng, 6))
    dens: np.ndarray = 1 / (
        1 + np.exp(np.clip((dist - place.radius) / (0.10 * place.radius + 2), -30, 30))
    )
    for _ in range(int(rng.integers(2, 6)) if cluster.urbanity < 0.5 else 2):
        x, y, r = rng.uniform(15, 240), rng.uniform(15, 240), rng.uniform(4, 6 + 6 * cluster.level)
        x0, x1, y0, y1 = max(0, int(x - 20)), int(x + 21), max(0, int(y - 20)), int(y + 21)
        d2 = (_X[y0:y1, x0:x1] - x) ** 2 + (_Y[y0:y1, x0:x1] - y) ** 2
        np.maximum(dens[y0:y1, x0:x1], 0.8 * np.exp(-d2 / (r * r)), out=dens[y0:y1, x0:x1])
    share: np.ndarray = dens.astype(np.float32)
    return share


def _settle(
    rng: np.random.Generator,
    cluster: SyntheticCluster,
    place: Settlement,
    dens: np.ndarray,
    codes: np.ndarray,
) -> np.ndarray:
    """Draws streets, roofs and through roads over ``codes``; returns the (255, 255) bool mask of
    built-up pixels."""
    rich, urbanity = cluster.level, cluster.urbanity
    dx, dy = _X - (127 + place.east), _Y - (127 - place.north)
    c, s = np.float32(np.cos(place.angle)), np.float32(np.sin(place.angle))
    bend = np.float32(9 * (1 - rich) ** 1.5)
    u = dx * c + dy * s + bend * _smooth(rng, 9) + 512
    v = dy * c - dx * s + bend * _smooth(rng, 9) + 512
    town = dens > 0.3
    # plots of 3 px: roof, yard or park
    i, j = (u / 3).astype(np.int16) & 127, (v / 3).astype(np.int16) & 127
    roofs = rng.random((128, 128))
    shares = {
        **{"thatch": (1 - rich) ** 1.6, "rust": 0.5 * (1 - rich), "tile_roof": 0.45 * rich},
        **{"metal": 1.2 * rich**1.5, "concrete": 0.9 * rich * urbanity},
    }
    edges = np.cumsum(np.array(list(shares.values())) / sum(shares.values()))
    covers = np.array([_CODE[name] for name in shares], np.int16)
    roof = covers[np.minimum(np.searchsorted(edges, roofs), 4)]
    parks = rng.random((128, 128)) < 0.15 + 0.35 * rich
    free = np.where(parks, _CODE["park"], _CODE["yard"]).astype(np.int16)
    full = (0.30 + 0.45 * urbanity + 0.2 * rich) * dens
    built: np.ndarray = town & (rng.random((128, 128), dtype=np.float32)[i, j] < full)
    codes[town] = free[i[town], j[town]]
    codes[built] = roof[i[built], j[built]]
    # streets between blocks; each is paved or not
    block = 26 - 10 * urbanity
    bi, bj = (u / block).astype(np.int16) & 63, (v / block).astype(np.int16) & 63
    chosen = rng.random((2, 64)) < float(np.clip((rich - 0.3) / 0.4, 0, 1))
    paved = np.where(chosen, _CODE["asphalt"], _CODE["dirt_road"]).astype(np.int16)
    width = 2.0 + 1.6 * rich
    keep = rng.random((2, 64)) < 0.25 + 0.9 * rich
    for axis, (w, b) in enumerate(((u, bi), (v, bj))):
        street = town & (np.mod(w, np.float32(block)) < width) & keep[axis][b]
        codes[street] = paved[axis][b[street]]
    # through roads: one dirt track in the poorest place, up to four wide paved ones in the richest
    for road in range(1 + round(3 * rich)):
        slope = place.angle + road * 0.785 + rng.normal(0, 0.12)
        bends = (2 + 10 * (1 - rich)) * _smooth(rng, 4)
        off = np.abs(-np.sin(slope) * dx + np.cos(slope) * dy + bends)
        is_paved = rich + rng.normal(0, 0.05) > 0.38 + 0.08 * road
        half, cover = (1.2 + 2.0 * rich, "asphalt") if is_paved else (1.1, "dirt_road")
        codes[off < half] = _CODE[cover]
    return built


def _nearest(grid: np.ndarray) -> np.ndarray:
    at = np.arange(SIZE) * len(grid) // SIZE
    upsampled: np.ndarray = grid[at][:, at]
    return upsampled


def _pool(field: np.ndarray, cells: int) -> np.ndarray:
    """(cells, cells) means of the pixels that ``_nearest`` would fill from each cell."""
    starts = -(-np.arange(cells) * SIZE // cells)
    counts = np.diff(np.append(starts, SIZE))
    means: np.ndarray = np.add.reduceat(np.add.reduceat(field, starts, 0), starts, 1) / np.outer(
        counts, counts
    )
    return means


def _night(rng: np.random.Generator, cluster: SyntheticCluster, dens: np.ndarray) -> np.ndarray:
    """(255, 255) float32 >= 0: VIIRS (15-pixel cells) from 2012, before it DMSP (28-pixel cells, 12
    x the value)."""
    dmsp = cluster.year <= LAST_DMSP_YEAR
    cells = 9 if dmsp else 17
    lit = _pool(dens, cells)
    pad = np.pad(lit, 1, mode="edge")
    glow = (pad[:-2, 1:-1] + pad[2:, 1:-1] + pad[1:-1, :-2] + pad[1:-1, 2:]) / 4
    lit = (0.6 if dmsp else 0.8) * lit + (0.4 if dmsp else 0.2) * glow
    power = 2.0 * np.exp(
        0.95 * cluster.wealth + 1.6 * (cluster.urbanity - 0.3) + rng.normal(0, 0.12)
    )
    light = np.maximum(0, power * lit**1.3 * np.exp(rng.normal(0, 0.2, lit.shape)) - 0.10)
    return _nearest(np.round(light * 12 * 2) / 2 if dmsp else np.round(light * 64) / 64).astype(
        np.float32
    )


def render_tile(cluster: SyntheticCluster) -> np.ndarray:
    """The cluster's tile: float32 (8, 255, 255), bands in the order of BANDS, row 0 SOUTH.

    Reflectances 0..1, TEMP1 in kelvin, NIGHTLIGHTS in the units of the sensor of the survey year.
    """
    rng = keyed(cluster.seed, "tile", cluster.cname, cluster.k)
    place = layout(cluster)
    codes = _background(rng, cluster)
    if place.rivers:
        side = np.cos(place.angle) * (_X - 127) + np.sin(place.angle) * (_Y - 127)
        side = side + 25 * _smooth(rng, 5)
        codes[np.abs(side - 50 * np.sign(place.angle - 0.8)) < 4.5] = _CODE["water"]
    dens = _density(rng, cluster, place)
    built = _settle(rng, cluster, place, dens, codes)
    shade = np.digitize(_smooth(rng, 40), (-0.5, 0.0, 0.5)).astype(np.int16)
    out = np.empty((8, SIZE, SIZE), np.float32)
    out[[0, 1, 2, 3, 4, 6]] = _TABLE[:, codes * 4 + shade]
    cells = 64
    warm = _pool(built.astype(np.float32), cells) * 5 + _pool(dens, cells) * 2.5
    warm = warm - _pool(out[6], cells) * 12
    kelvin = 299.0 + 7 * cluster.aridity + warm + rng.normal(0, 0.2, warm.shape)
    out[5] = _nearest(np.round(kelvin * 4) / 4)
    out[7] = _night(rng, cluster, dens)
    return np.ascontiguousarray(out[:, ::-1])  # drawn north up; SustainBench stores row 0 = south


def tile_bytes(tile: np.ndarray) -> bytes:
    """The .npz file of a tile (key x). Fixed time stamps: the same tile gives the same bytes."""
    raw = io.BytesIO()
    np.lib.format.write_array(raw, tile, allow_pickle=False)  # type: ignore[no-untyped-call]
    entry = zipfile.ZipInfo("x.npy", date_time=(1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(entry, raw.getvalue(), compresslevel=1)
    return out.getvalue()
