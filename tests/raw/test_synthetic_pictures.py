"""Latents, tiles and photos: ranges, missing rates, shape, orientation, and that wealth can be read
from the pictures."""

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from sdgbias.raw.images.composite import encode_jpeg
from sdgbias.raw.synthetic.latent import (
    DEFAULT_COUNTRIES,
    MISSING,
    SyntheticCluster,
    country_wealth,
    draw_cluster,
    surveys,
    urban_share,
)
from sdgbias.raw.synthetic.photos import photo_records, render_photo
from sdgbias.raw.synthetic.tiles import BANDS, layout, render_tile, tile_bytes

SEED = 21
LIGHTS = BANDS.index("NIGHTLIGHTS")
RANGES = {
    **{"asset_index": (-6, 6), "water_index": (1, 5), "sanitation_index": (1, 5)},
    **{"under5_mort": (0, 1000), "women_edu": (0, 18), "women_bmi": (18, 32)},
}


@pytest.fixture(scope="module")
def many() -> list[SyntheticCluster]:
    return [draw_cluster(SEED, cc, k) for cc in DEFAULT_COUNTRIES for k in range(400)]


@pytest.fixture(scope="module")
def few() -> list[SyntheticCluster]:
    return [draw_cluster(SEED, cc, k) for cc in DEFAULT_COUNTRIES for k in range(6)]


@pytest.fixture(scope="module")
def tiles(few: list[SyntheticCluster]) -> np.ndarray:
    return np.stack([render_tile(c) for c in few])


def corr(a: object, b: object) -> float:
    return float(np.corrcoef(np.asarray(a, float), np.asarray(b, float))[0, 1])


def test_labels_stay_in_range_follow_wealth_and_are_missing_as_in_sustainbench(
    many: list[SyntheticCluster],
) -> None:
    for name, (low, high) in RANGES.items():
        known = [c for c in many if c.labels[name] is not None]
        values = np.array([c.labels[name] for c in known])
        assert values.min() >= low and values.max() <= high, name
        r = corr(values, [c.wealth for c in known])
        assert r < -0.4 if name == "under5_mort" else r > 0.75, (name, r)
    for name, rate in MISSING.items():
        gone = np.mean([c.labels[name] is None for c in many])
        assert abs(gone - rate) < 4 * (rate * (1 - rate) / len(many)) ** 0.5, (name, gone)
        assert all((c.labels[name] is None) == (c.counts[name] is None) for c in many)
        assert all(n >= 5 for c in many if (n := c.counts[name]) is not None)
    deaths = [c.labels["under5_mort"] for c in many if c.labels["under5_mort"] is not None]
    assert 0.15 < np.mean([n == 0 for n in deaths]) < 0.4
    assert 0.01 < np.mean([not c.tile for c in many]) < 0.03
    assert 0.02 < np.mean([not c.photos for c in many]) < 0.04


def test_codes_years_and_places(many: list[SyntheticCluster]) -> None:
    assert {c.urban for c in many} == {"U", "R"} and {c.photos for c in many} == {0, 1, 2, 3}
    assert {c.adm1dhs for c in many} == {1, 2, 3, 4, 9999}
    assert 0 < np.mean([c.adm1fips != "" for c in many]) < 0.15
    for cc in DEFAULT_COUNTRIES:
        early, late = surveys(SEED, cc)
        assert 2000 <= early.year <= 2011 < late.year <= 2018
        assert {c.year for c in many if c.cname == cc} == {early.year, late.year}
        assert -1.8 <= country_wealth(SEED, cc) <= 1.8
        share = np.mean([c.urban == "U" for c in many if c.cname == cc])
        assert abs(share - urban_share(SEED, cc)) < 0.11
    assert all(-90 <= c.lat <= 90 and -180 <= c.lon <= 180 for c in many)
    records = [r["id"] for c in many[:1200] for r in photo_records(c)]
    assert len(set(records)) == len(records) == sum(c.photos for c in many[:1200])
    assert draw_cluster(1, "NM", 3) == draw_cluster(1, "NM", 3) != draw_cluster(2, "NM", 3)


def test_tiles_have_the_shape_values_and_bytes_of_sustainbench(
    few: list[SyntheticCluster], tiles: np.ndarray
) -> None:
    assert (tiles.shape[1:], tiles.dtype) == ((8, 255, 255), np.float32)
    assert np.isfinite(tiles).all() and tiles[:, LIGHTS].min() >= 0
    reflectance = tiles[:, [0, 1, 2, 3, 4, 6]]
    assert reflectance.min() >= 0 and reflectance.max() < 0.6
    assert 285 < tiles[:, 5].min() < tiles[:, 5].max() < 320  # kelvin
    for cluster, tile in zip(few[::16], tiles[::16], strict=True):
        data = tile_bytes(tile)
        assert len(data) < 350_000
        assert data == tile_bytes(render_tile(cluster))
        with np.load(io.BytesIO(data)) as npz:
            assert npz.files == ["x"]
            np.testing.assert_array_equal(npz["x"], tile)


def test_row_0_is_south(few: list[SyntheticCluster], tiles: np.ndarray) -> None:
    """The town lies where the layout says, counted northwards from row 0 and eastwards from column
    0."""
    seen = 0
    for cluster, tile in zip(few, tiles, strict=True):
        light, place = tile[LIGHTS].astype(float), layout(cluster)
        if light.max() == 0:
            continue
        weight = light**2 / (light**2).sum()
        rows, columns = np.arange(255) @ weight.sum(1), np.arange(255) @ weight.sum(0)
        if abs(place.north) > 20:
            assert np.sign(rows - 127) == np.sign(place.north)
            seen += 1
        if abs(place.east) > 20:
            assert np.sign(columns - 127) == np.sign(place.east)
    assert seen > 12


def shrunk(band: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(band).resize((48, 48), Image.Resampling.BOX))


def test_every_picture_tells_wealth(few: list[SyntheticCluster], tiles: np.ndarray) -> None:
    """Night lights of one sensor; paved and built-up land (dark in the near infrared, or bright in
    blue) among 48 x 48 pixels; the lower half of photos, which turns from brown earth to grey
    street."""
    wealth = [c.wealth for c in few]
    for year in (2005, 2015):
        light = [render_tile(dataclasses.replace(c, year=year))[LIGHTS].mean() for c in few[::3]]
        assert corr(np.log1p(light), wealth[::3]) > 0.6
    small = np.stack([[shrunk(tile[b]) for b in (0, 6)] for tile in tiles])
    built = ((small[:, 0] > 0.11) | ((small[:, 1] < 0.17) & (small[:, 0] > 0.05))).mean((1, 2))
    assert corr(built, wealth) > 0.5
    photos = [render_photo(c, 0).resize((96, 48), Image.Resampling.BOX) for c in few]
    lower = [np.asarray(photo, float)[24:].mean((0, 1)) for photo in photos]
    assert corr([p[2] - p[0] for p in lower], wealth) > 0.6


def test_photos_of_one_cluster_differ_and_repeat() -> None:
    cluster = draw_cluster(SEED, "PE", 1)
    first = render_photo(cluster, 0)
    assert (first.mode, first.size) == ("RGB", (640, 360))
    assert encode_jpeg(first, 85) == encode_jpeg(render_photo(cluster, 0), 85)
    assert encode_jpeg(first, 85) != encode_jpeg(render_photo(cluster, 1), 85)


@pytest.mark.parametrize("wealth", [-6.0, 6.0])
@pytest.mark.parametrize("urbanity", [0.02, 1.0])
def test_the_edges_of_the_scale_are_drawn_too(wealth: float, urbanity: float) -> None:
    cluster = dataclasses.replace(draw_cluster(SEED, "NP", 2), wealth=wealth, urbanity=urbanity)
    assert np.isfinite(render_tile(cluster)).all()
    assert render_photo(cluster, 0).size == (640, 360)
