"""Put a raw folder under DVC, with origin, licence, citation and fetch instructions in the .dvc
file (`sdgbias raw track`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sdgbias import templates
from sdgbias.errors import InfrastructureError, InputError, StoreError
from sdgbias.files import understood, write_atomically
from sdgbias.raw.folders import sample_note
from sdgbias.raw.sources import Source, sources

#: Measured: DVC adds 117,000 loose files in 37 s and 32 tarballs of the same bytes in 2 s; push and
#: status differ likewise.
LOOSE_FILES = 20_000


@dataclass(frozen=True)
class Tracked:
    """`dvc_file`, relative to the project; the sources that its meta names; files and bytes below
    the folder."""

    dvc_file: str
    sources: tuple[str, ...]
    files: int
    size: int
    warnings: tuple[str, ...]

    @property
    def ignore(self) -> str:
        """DVC's list of ignored files beside the .dvc file."""
        return (Path(self.dvc_file).parent / ".gitignore").as_posix()

    def lines(self) -> list[str]:
        return templates.lines("raw_track", t=self)


def track_raw(folder: Path) -> Tracked:
    """`dvc add` of ``folder``, whole, and the provenance of the sources found in it written into
    its .dvc file.

    Running it again records the changes and keeps other keys that users added under `meta`. Raises
    InputError when ``folder`` is missing, empty of known sources or outside the DVC project of
    the current folder, and when a pipeline stage already owns it; InfrastructureError when DVC
    can't run.
    """
    folder, root = Path(folder), _root(Path("."))
    if not folder.is_dir():
        raise InputError(
            f"no folder {folder}; give the raw folder to track, e.g. sdgbias raw track data/real"
        )
    place = folder.resolve()
    if place == root or not place.is_relative_to(root):
        raise InputError(
            f"{folder} is not a folder below the project {root}; DVC versions only what lies in it:"
            " move it to data/"
        )
    relative = place.relative_to(root).as_posix()
    synthetic = bool(sample_note(place))
    found = [] if synthetic else [entry for entry in sources() if _holds(place, entry)]
    if not found and not synthetic:
        raise InputError(
            f"{folder} holds none of the known raw sources; see what is expected where: sdgbias raw"
            f" check {folder}"
        )
    loose, size = _count(place)
    _dvc_add(relative, root)
    dvc_file = f"{relative}.dvc"
    _describe(root / dvc_file, found)
    return Tracked(
        dvc_file,
        tuple(entry.id for entry in found),
        loose,
        size,
        tuple(_warnings(relative, found, loose)),
    )


def _root(start: Path) -> Path:
    """The DVC project at or above ``start``."""
    here = start.resolve()
    for place in (here, *here.parents):
        if (place / ".dvc").is_dir():
            return place
    raise InputError(
        f"{start} is in no DVC project; run it in this project's folder, or 'dvc init' first"
    )


def _holds(folder: Path, entry: Source) -> bool:
    """Whether a file of the source lies there: as distributed, still packed, as a tidy CSV, or
    below indicators/."""
    tidy = [
        f"{place}{series}.csv{gz}"
        for series in entry.series
        for place in ("", "tidy/")
        for gz in ("", ".gz")
    ]
    patterns = [*entry.files, *entry.bytes, *(f"dhs_npzs/{name}" for name in entry.bytes), *tidy]
    places = (
        (folder, folder / "indicators") if entry.series or entry.id == "gdl_regions" else (folder,)
    )
    return any(
        next(place.glob(pattern), None) is not None for place in places for pattern in patterns
    )


def _count(folder: Path) -> tuple[int, int]:
    """(files, bytes) below ``folder``."""
    files = size = 0
    for place, _, names in os.walk(folder):
        files += len(names)
        size += sum(os.lstat(os.path.join(place, name)).st_size for name in names)
    return files, size


def _dvc_add(relative: str, root: Path) -> None:
    """`dvc add`; its progress bars are shown on a terminal, otherwise its output is captured for
    the error message."""
    watched = sys.stderr.isatty()
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dvc", "add", relative],
            cwd=root,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=None if watched else subprocess.PIPE,
            check=False,
        )
    except OSError as error:
        raise InfrastructureError(
            f"DVC can't be started ({error.strerror or error}); pip install dvc"
        ) from error
    if done.returncode == 0:
        return
    said = [
        line.removeprefix("ERROR: ")
        for line in (done.stderr or "").splitlines()
        if line.startswith("ERROR: ")
    ]
    cause = said[0] if said else f"exit code {done.returncode}"
    if "No module named dvc" in (done.stderr or ""):
        raise InfrastructureError("DVC isn't installed beside sdgbias; pip install dvc")
    if "overlap" in cause:
        raise InputError(
            f"{relative} is written by a stage of dvc.yaml, which already versions it; keep real"
            " data in another folder, e.g. data/real"
        )
    if "tracked by SCM" in cause:
        raise InputError(
            f"{relative} is in git already; take it out first: git rm -r --cached '{relative}'"
        )
    raise InputError(f"dvc add {relative} failed: {cause.strip()}")


def _describe(path: Path, found: list[Source]) -> None:
    """Set `desc` and `meta.sources` of a .dvc file, keeping the fields of DVC and of users."""
    with understood(path, "can't be read", "then track again", StoreError):
        content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        content["desc"] = (
            "; ".join(entry.title for entry in found)
            or "synthetic sample in SustainBench's layout, nothing in it is real"
        )
        content["meta"] = {
            **(content.get("meta") or {}),
            "sources": [entry.provenance() for entry in found],
        }
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    write_atomically(path, text, "free space or permissions, then track again")


def _warnings(relative: str, found: list[Source], loose: int) -> Iterator[str]:
    private = [entry.id for entry in found if not entry.redistributable]
    if private:
        yield (
            f"the terms of {', '.join(private)} don't allow passing them on: push to a remote that"
            " only you can read"
        )
    if loose > LOOSE_FILES:
        yield (
            f"{loose:,} loose files make DVC slow; version the archives instead: keep the six"
            " dhs_*.tar.gz in a folder of their own, pack photos with (cd"
            f" {relative}/mapillary/imagery && for c in ??; do zip -0qr $c.zip $c && rm -r $c;"
            " done), which are read in place"
        )
