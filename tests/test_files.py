"""YAML by hand: read strictly, searched for secrets, changed in a few fields and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sdgbias import files
from sdgbias.errors import InputError

LINE = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\u2028\u2029\x85\ufeff"),
    min_size=1,
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(old=LINE, new=LINE, comment=LINE, after=st.booleans())
def test_a_field_changes_and_the_rest_stays(old: str, new: str, comment: str, after: bool) -> None:
    """Whatever stands in a value or a comment: the new values are read back, and every other line
    is the same."""
    lines = [
        f"# {comment}",
        "name: m   # as it is",
        yaml.safe_dump({"reason": old}, width=10_000, allow_unicode=True).rstrip("\n"),
        "b: [1, 2]",
    ]
    text = "\n".join([*lines, "state: x"] if after else ["state: x", *lines]) + "\n"
    changed = files.with_yaml_fields(text, {"state": "y", "reason": new, "until": "2026-11-30"})
    assert files.load_yaml(changed) == {
        **files.load_yaml(text),
        "state": "y",
        "reason": new,
        "until": "2026-11-30",
    }
    kept = [line for line in text.splitlines() if not line.startswith(("state", "reason"))]
    assert [line for line in changed.splitlines() if line in kept] == kept
    back = files.with_yaml_fields(changed, {"state": "x", "reason": old, "until": ""})
    assert back == text


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
from sdgbias.report.pages.studies import write
out, long = Path(sys.argv[1]), "x" * 5000
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for call in (
    lambda: write_json(out / "a.json", {"a": long}),
    lambda: write_atomically(out / "b.csv", long),
    lambda: write_outcome(out / "c.json", {"a": long}),
    lambda: write(out / "d.html", long),
):
    try:
        call()
    except SdgbiasError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", command, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == 4, done.stdout
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
    for bad in ("", "a\0b"):
        with pytest.raises(InputError, match="no path inside"):
            files.confine(inside, bad)
