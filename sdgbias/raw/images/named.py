"""Pictures that other people's tables name by their path inside a folder."""

from __future__ import annotations

from pathlib import Path

from sdgbias.errors import InputError
from sdgbias.files import FileError, confine

MAX_BYTES = 64 * 2**20  # of one picture's file


def find_picture(root: Path, name: str) -> Path:
    """The file of a picture; whether it can be decoded isn't known yet. Raises FileError with rule
    `missing-modality`, `image-outside-folder` or `broken-image`."""
    shown = f"image {name!r}"
    if not name:
        raise FileError("missing-modality", "no image is named")
    if "://" in name:
        address = f"{shown} is an address; put the picture into the folder and name its path"
        raise FileError("image-outside-folder", address)
    try:
        path = confine(root, name)
        size = path.stat().st_size if path.is_file() or path.is_symlink() else -1
    except InputError:
        outside = "leads out of the folder; put the picture into the folder, without '..' or links"
        raise FileError("image-outside-folder", f"{shown} {outside}") from None
    except OSError as error:  # a circular link
        fault = f"{shown} can't be read ({error.strerror or error}); save it again"
        raise FileError("broken-image", fault) from None
    if size < 0:
        kind = "is a folder" if path.is_dir() else "is not there"
        raise FileError("missing-modality", f"{shown} {kind}; give a path inside the folder")
    if size > MAX_BYTES:
        large = f"{shown} has {size:,} bytes, at most {MAX_BYTES:,}; make it smaller"
        raise FileError("broken-image", large)
    return path
