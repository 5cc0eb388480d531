"""Registry entries, and a registry folder to put them into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
GOOD: dict[str, Any] = {
    "name": "m",
    "title": "M",
    "backend": "hf",
    "repo": "owner/m",
    "revision": COMMIT,
    "state": "enabled",
}
OFF = {"state": "candidate", "reason": "needs a GPU"}


def put(root: Path, data: Any, stem: str = "m", ending: str = ".yaml") -> Path:
    path = root / "registry" / "models" / f"{stem}{ending}"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")
    return path


QUARANTINED = {
    "state": "quarantined",
    "reason": "OutOfMemory: needs 40 GiB: really",
    "until": "2026-11-30",
}
