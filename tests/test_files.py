"""YAML by hand: read strictly, searched for secrets, changed in a few fields and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sdgbias import files
from sdgbias.errors import InputError


def test_a_replacement_is_whole_or_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with files.replacing(path) as part:
        part.write_text("one")
        assert not path.exists()
    with pytest.raises(OSError, match="full"), files.replacing(path) as part:
        part.write_text("tw")
        raise OSError("full")
    assert path.read_text() == "one" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_no_parts(tmp_path: Path) -> None:
    """Files may not grow beyond 1,000 bytes: every writer says so and clears what it began."""
    command = """
import resource, sys
from pathlib import Path
from sdgbias.files import write_atomically, write_json
from sdgbias.errors import SdgbiasError
from sdgbias.nightly.process import write_outcome
out, long = Path(sys.argv[1]), "x" * 5000
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for call in (
    lambda: write_json(out / "a.json", {"a": long}),
    lambda: write_atomically(out / "b.csv", long),
    lambda: write_outcome(out / "c.json", {"a": long}),
):
    try:
        call()
    except SdgbiasError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", command, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == 3, done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["a: 1\na: 2\n", "a: {b: 1, b: 2}\n", "a: [\n", "a: !!python/name:os.system\n"]
)
def test_not_read(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        files.load_yaml(text)
    with pytest.raises(ValueError, match="day"):
        files.load_yaml("a: 2026-02-30")


def test_a_path_stays_inside_its_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (tmp_path / "alias").symlink_to(inside)
    assert files.confine(inside, "a/b.txt") == inside / "a" / "b.txt"
    assert files.confine(tmp_path / "alias", "a") == tmp_path / "alias" / "a"
    for bad in ("../in/a", "a/../b", "a\\..\\b", "/etc/passwd", "C:\\a", "C:a", "link/a", "link"):
        with pytest.raises(InputError, match="climbs out"):
            files.confine(inside, bad)
    (inside / "loop").symlink_to("loop")
    assert files.confine(inside, "loop") == inside / "loop"  # reading it is refused
    for bad in ("", "a\0b"):
        with pytest.raises(InputError, match="no path inside"):
            files.confine(inside, bad)
