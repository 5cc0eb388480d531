"""Registry entries that are written, replaced, and moved to another state."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdgbias.errors import RegistryError
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import STATES
from tests.builders.entries import COMMIT, GOOD, OFF, QUARANTINED, put


def test_an_entry_is_written_once_and_read_back_the_same(root: Path) -> None:
    spec = ModelSpec(**{**GOOD, "options": {"a": 1}, "params_b": 2.0, "notes": "naïve: yes"})
    path = entries.write(root, spec)
    assert entries.load(root, "m") == spec
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=../model.schema.json\n")
    assert [p.name for p in path.parent.iterdir()] == ["m.yaml"]  # nothing left behind
    with pytest.raises(RegistryError, match="exists already"):
        entries.write(root, spec)
    entries.write(root, replace(spec, title="New"), overwrite=True)
    assert entries.load(root, "m").title == "New"
    with pytest.raises(RegistryError, match="40 hex"):
        entries.write(root, replace(spec, name="n", revision="main"))
    path.rename(path.with_suffix(".yml"))
    with pytest.raises(RegistryError, match=r"is named m\.yaml"):
        entries.write(root, spec)


def test_an_unpinned_entry_is_completed_without_overwrite_and_not_enabled_before(
    root: Path,
) -> None:
    put(root, {**GOOD, **OFF, "revision": "unpinned"})
    with pytest.raises(RegistryError, match="40 hex digits"):
        entries.set_state(root, "m", "enabled")
    entries.write(root, ModelSpec(**GOOD))
    assert entries.load(root, "m").enabled
    with pytest.raises(RegistryError, match="exists already"):
        entries.write(root, ModelSpec(**{**GOOD, "revision": COMMIT[::-1]}))


LINE = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\u2028\u2029\x85\ufeff"),
    min_size=1,
    max_size=40,
)

BY_HAND = """# looked at by A
name: m   # as the file
title: M
state: candidate  # not yet
backend:   "hf"
repo: owner/m
revision: "0123456789abcdef0123456789abcdef01234567"
# why it waits:
reason: needs a GPU  # for now
# what it is asked:
options:
    suites:
      - sdg   # places
    max_images: 1
notes: >-
  one
  two
"""


def test_set_state_changes_three_fields_and_keeps_comments_and_order(root: Path) -> None:
    path = put(root, BY_HAND)
    before = entries.load(root, "m")

    assert entries.set_state(root, "m", "enabled") == path
    enabled = path.read_text()
    assert entries.load(root, "m") == replace(before, state="enabled", reason="")
    kept = ["looked at by A", "as the file", "not yet", "why it waits:", "what it is asked:"]
    kept.append("places")
    assert re.findall(r"# (.+)", enabled) == kept

    entries.set_state(root, "m", **QUARANTINED)
    lines = path.read_text().splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith("state: quarantined "))
    assert lines[at].endswith("# not yet")
    assert lines[at + 1 : at + 3] == [
        'reason: "OutOfMemory: needs 40 GiB: really"',
        'until: "2026-11-30"',
    ]
    assert entries.load(root, "m") == replace(before, **QUARANTINED)
    entries.set_state(root, "m", "quarantined", reason="again", until=date(2026, 12, 2))
    again = entries.load(root, "m")
    assert (again.reason, again.until) == ("again", "2026-12-02")

    entries.set_state(root, "m", "enabled")
    # a comment keeps its column where the value before it becomes shorter
    assert re.sub(" +#", " #", path.read_text()) == re.sub(" +#", " #", enabled)
    assert [p.name for p in path.parent.iterdir()] == ["m.yaml"]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(old=LINE, new=LINE, comment=LINE, after=st.booleans())
def test_whatever_stands_in_a_reason_or_a_comment_is_read_back(
    root: Path, old: str, new: str, comment: str, after: bool
) -> None:
    lines = [f"# {comment}", "name: m   # as it is", "title: M", "backend: planted", "repo: p"]
    lines += ["revision: r", yaml.safe_dump({"reason": old}, width=10_000, allow_unicode=True)]
    path = put(
        root, "\n".join([*lines, "state: candidate"] if after else ["state: candidate", *lines])
    )

    entries.set_state(root, "m", "retired", reason=new)

    assert entries.load(root, "m").reason == new.strip()
    assert path.read_text().splitlines().count(f"# {comment}".rstrip()) == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "options:\n  suites: [sdg]  # why\n",
            "options:\n  suites: [sdg]  # why\n  share_prefix: true\n",
        ),
        ("options: {max_images: 1}\n", "options: {max_images: 1, share_prefix: true}\n"),
        ("options:\n  share_prefix: false  # then\n", "options:\n  share_prefix: true   # then\n"),
        ("", "options:\n  share_prefix: true\n"),
    ],
)
def test_how_prompts_are_scored_together_is_written_and_nothing_else(
    root: Path, before: str, after: str
) -> None:
    top = (
        "name: m  # of A\ntitle: M\nbackend: hf\nrepo: local:m\nrevision: local\nstate: candidate\n"
    )
    top += "reason: waits\nbatch_size: {}  # as measured\n"
    path = put(root, top.format(8) + before)
    spec = entries.load(root, "m")
    decided = replace(spec, batch_size=1, options={**spec.options, "share_prefix": True})
    assert entries.set_ways(root, "m", decided) == path
    assert path.read_text(encoding="utf-8") == top.format(1) + after
    assert entries.load(root, "m") == decided
    assert entries.set_ways(root, "m", decided) == path, "again, nothing to do"


@pytest.mark.parametrize("reason", ["reason: |-\n  of two\n", "reason: >\n  folded\n  text\n\n"])
def test_a_reason_of_several_lines_and_an_entry_on_one_line_change(root: Path, reason: str) -> None:
    top = "name: m\ntitle: M\nbackend: planted\nrepo: p\nrevision: r\n"
    path = put(root, f"{top}{reason}until: 2026-11-30\nstate: quarantined\nfamily: f")
    assert entries.load(root, "m").until == "2026-11-30", "a bare date is one, too"
    entries.set_state(root, "m", "enabled")
    plain = yaml.safe_load(f"{top}state: enabled\nfamily: f")
    assert entries.load(root, "m") == entries.parse(plain, "m")
    path.write_text(f"{{{', '.join(top.splitlines())}, state: enabled}}")
    entries.set_state(root, "m", "quarantined", reason="x")
    assert entries.load(root, "m").reason == "x"


@pytest.mark.parametrize("old", STATES)
@pytest.mark.parametrize("new", STATES)
def test_moves(root: Path, old: str, new: str) -> None:
    legal = {
        "candidate": {"candidate", "enabled", "retired"},
        "enabled": {"enabled", "quarantined", "retired"},
        "quarantined": {"quarantined", "enabled", "retired"},
        "retired": {"retired", "enabled"},
    }
    path = put(root, {**GOOD, "state": old, "reason": "before"})
    text = path.read_text()
    if new in legal[old]:
        entries.set_state(root, "m", new, reason="now")
        assert (entries.load(root, "m").state, entries.load(root, "m").reason) == (new, "now")
        return
    with pytest.raises(RegistryError, match=f"{old} can't become {new}; valid: "):
        entries.set_state(root, "m", new, reason="now")
    assert path.read_text() == text
