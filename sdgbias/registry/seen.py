"""The ledger of the watch: every repository that it has looked at, when it was first seen, and what
came of it. One JSON file, registry/seen.json, replaced as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sdgbias.errors import RegistryError
from sdgbias.files import understood, write_atomically

FILE = Path("registry") / "seen.json"


@dataclass(frozen=True)
class Seen:
    """verdict: a kind of finding (watch.py), later what came of the admission (nightly/admit.py);
    why: its reason, as announced; versions: of the libraries that the verdict depends on; name: the
    entry that was written, '' for none; ready: whether that can be tried on this machine."""

    repo: str
    commit: str
    first_seen: str
    verdict: str
    why: str
    versions: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    ready: bool = False


def read(root: Path) -> dict[str, Seen]:
    """Repository in lower case -> its row; {} before the first look. RegistryError for a file that
    isn't a ledger."""
    path = root / FILE
    if not path.exists():
        return {}
    onward = "remove it: everything is then announced once more"
    with understood(path, "not a ledger of the watch", onward, RegistryError):
        found = [Seen(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    return {row.repo.lower(): row for row in found}


def write(root: Path, rows: Mapping[str, Seen]) -> None:
    """Replaces the ledger. RegistryError when it can't be written."""
    path = root / FILE
    text = json.dumps([asdict(rows[repo]) for repo in sorted(rows)], indent=1, ensure_ascii=False)
    write_atomically(path, text + "\n", "make registry writable, then again", RegistryError)
