"""Noised and blank pictures: made from an id alone, always the same, as noisy as the diffusion step
says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sdgbias.errors import InputError
from sdgbias.raw.images.composite import encode_png, open_picture
from sdgbias.raw.images.shards import ImageReader, store_images
from sdgbias.raw.images.variants import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    Pictures,
    blank_id,
    noise,
    noise_id,
    signal_left,
)


def png(colour: tuple[int, int, int], side: int = 64) -> bytes:
    return encode_png(Image.new("RGB", (side, side), colour))


@pytest.fixture
def stored(tmp_path: Path) -> Pictures:
    """Two places; the second shows two pictures."""
    index = store_images(
        tmp_path,
        [
            ("KE-1", "", [png((120, 110, 100))]),
            ("KE-2", "", [png((0, 0, 0)), png((255, 255, 255), 32)]),
        ],
    )
    index.assign(image_group="").to_parquet(tmp_path / "images.parquet")
    return Pictures(ImageReader(tmp_path))


def test_the_noise_has_the_size_that_the_step_says(stored: Pictures) -> None:
    """A grey pixel stays, on average, sqrt(s) of its distance from CLIP's mean; around it lies
    noise of sqrt(1 - s) deviations."""
    picture, step = png((120, 110, 100), 256), 500
    pixels = np.asarray(open_picture(noise(picture, step, "k")), dtype=float) / 255
    left = signal_left(step)
    for channel, value in enumerate((120, 110, 100)):
        mean, deviation = CLIP_MEAN[channel], CLIP_DEVIATION[channel]
        assert pixels[..., channel].mean() == pytest.approx(
            mean + left**0.5 * (value / 255 - mean), abs=0.01
        )
        assert pixels[..., channel].std() == pytest.approx((1 - left) ** 0.5 * deviation, rel=0.03)


def test_the_schedule_falls_from_nearly_one() -> None:
    """1 - beta_0 with beta_0 = sigmoid(-6) (0.005 - 1e-5) + 1e-5."""
    assert signal_left(0) == pytest.approx(1 - (0.004990 / (1 + np.exp(6)) + 1e-5))
    assert 1 > signal_left(0) > signal_left(500) > signal_left(999) > 0


def test_a_derived_id_always_means_the_same_bytes(stored: Pictures) -> None:
    one, two = list(stored)
    again = Pictures(stored.stored)
    assert stored[noise_id(one)] == again[noise_id(one)] != stored[noise_id(one, 700)]
    assert stored[one] == again.stored[one]
    noised = stored[noise_id(two)] if len(stored[two]) == 2 else stored[noise_id(one)]
    assert [open_picture(part).size for part in noised] == [(64, 64), (32, 32)]


def test_every_picture_has_a_noise_of_its_own(tmp_path: Path) -> None:
    """Two equal pictures of one place; two places whose pictures are nearly the same."""
    grey, other = png((120, 110, 100)), png((120, 110, 101))
    index = store_images(tmp_path, [("KE-1", "", [grey, grey]), ("KE-2", "", [other])])
    index.assign(image_group="").to_parquet(tmp_path / "images.parquet")
    pictures = Pictures(ImageReader(tmp_path))
    one, two = (pictures[noise_id(key)] for key in index["image_id"])
    assert one[0] != one[1]
    distance = np.abs(
        np.asarray(open_picture(one[0]), dtype=float)
        - np.asarray(open_picture(two[0]), dtype=float)
    ).mean()
    assert distance > 10  # the same noise would leave about one step


def test_a_blank_picture_is_white(stored: Pictures) -> None:
    (blank,) = stored[blank_id(80, 40)]
    pixels = np.asarray(open_picture(blank))
    assert pixels.shape == (40, 80, 3) and (pixels == 255).all()
    assert blank_id() == "blank:448x448"


def test_what_is_required_is_the_source(stored: Pictures) -> None:
    one = next(iter(stored))
    stored.require([one, noise_id(one), blank_id(), ""])
    assert noise_id(one) in stored and blank_id() in stored and "noise-500:nobody" not in stored
    with pytest.raises(InputError, match="no image nobody"):
        stored.require([one, "noise-500:nobody"])
    with pytest.raises(InputError, match="built with --no-images"):
        stored.require(["noise-500:pending:123"])
