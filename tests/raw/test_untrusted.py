"""What docs/explanation/threat-model.md says is defended and no other test shows: pictures that
lie about their size or kind."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image, UnidentifiedImageError

from sdgbias.raw.images import composite
from sdgbias.raw.images.photos import PhotoError, read_photo
from sdgbias.types import Prompt

pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


def bomb(side: int) -> bytes:
    """A valid black-and-white PNG of side x side pixels: a thousandth of its size as RGB."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    packer = zlib.compressobj(9)
    row = bytes(1 + (side + 7) // 8)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def large() -> bytes:
    """One hundred million pixels: below what Pillow refuses by itself, above what is decoded
    here."""
    data = bomb(10_000)
    assert len(data) < 20_000
    return data


def test_a_bomb_is_not_decoded(large: bytes, tmp_path: Path) -> None:
    with pytest.raises(Image.DecompressionBombError, match="10000x10000 pixels, at most 89478485"):
        composite.open_picture(large)
    (tmp_path / "p.jpeg").write_bytes(large)
    with pytest.raises(PhotoError, match="at most") as told:
        read_photo(tmp_path / "p.jpeg")
    assert told.value.rule == "photo-too-large"


def open_for_zero_shot(data: bytes) -> object:
    from sdgbias.engines.hf.zero_shot import picture_of

    return picture_of(Prompt("?", "AB", images=(data,)))


ZERO_SHOT = pytest.param(open_for_zero_shot, marks=pytest.mark.slow)  # it imports torch


@pytest.mark.parametrize("opens", [composite.open_picture, ZERO_SHOT])
@pytest.mark.parametrize("kind", ["GIF", "TIFF", "EPS"])
def test_only_png_and_jpeg_are_decoded(kind: str, opens) -> None:  # type: ignore[no-untyped-def]
    """Pillow knows forty formats; EPS would start Ghostscript."""
    out = io.BytesIO()
    Image.new("RGB", (4, 4)).save(out, kind)
    with pytest.raises(UnidentifiedImageError):
        opens(out.getvalue())


def test_pictures_are_opened_nowhere_without_naming_the_kinds() -> None:
    """Bytes that came from elsewhere; wandb_run.py opens what the report itself has just drawn,
    files.py what was opened before."""
    package = Path(composite.__file__).parents[1]
    found = [
        f"{p.name}:{n}"
        for p in package.rglob("*.py")
        for n, line in enumerate(p.read_text(encoding="utf-8").splitlines(), 1)
        if "Image.open(" in line
        and "formats=" not in line
        and p.name not in ("wandb_run.py", "files.py")
    ]
    assert found == []
