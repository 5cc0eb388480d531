"""The project file `sdgbias.toml`: paths that the commands of a project share, so that they don't
stand on every line.

    results = "results/sdgbias.duckdb"
    benchmark = "data/real"
    raw = "/data/sustainbench/dhs"
    registry = "."

It lies in the working folder or above; its paths are relative to its own folder. What counts, in
this order: a command's option, the environment variable, the file, the default.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from sdgbias.errors import InputError, one_of

NAME = "sdgbias.toml"
#: Key of the file -> the environment variable that says the same.
KEYS = {
    "results": "SDGBIAS_RESULTS",
    "benchmark": "SDGBIAS_BENCHMARK",
    "raw": "SDGBIAS_RAW",
    "registry": "SDGBIAS_REGISTRY",
}


def find(start: Path) -> Path | None:
    """The nearest project file at or above ``start``."""
    return next((f / NAME for f in (start, *start.parents) if (f / NAME).is_file()), None)


def read(path: Path) -> dict[str, str]:
    """Environment variable -> absolute path, of each key in the file. Raises InputError:
    unreadable, an unknown key, a value that is no path."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise InputError(f'{path}: can\'t be read: {error}; valid: KEY = "PATH"') from None
    paths = {}
    for key, value in content.items():
        if key not in KEYS:
            raise InputError(f"{path}: {one_of('key', key, KEYS)}")
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise InputError(f"{path}: {key} = {value!r}; valid: a path in quotes")
        try:
            paths[KEYS[key]] = str(path.parent / Path(value).expanduser())
        except RuntimeError:
            raise InputError(f"{path}: {key} = {value!r}; no such home folder here") from None
    return paths


def given() -> dict[str, str]:
    """Environment variable -> path: of the environment, else of the project file."""
    path = find(Path.cwd())
    here = {name: os.environ[name] for name in KEYS.values() if os.environ.get(name)}
    return (read(path) if path else {}) | here


def apply() -> None:
    """Set the variables of the project file that the environment doesn't set, for this command and
    the processes that it starts."""
    os.environ.update(given())
