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
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f'{path}: can\'t be read: {error}; valid: KEY = "PATH"') from None
    paths = {}
    for key, value in content.items():
        if key not in KEYS:
            raise InputError(f"{path}: {one_of('key', key, KEYS)}")
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{path}: {key} = {value!r}; valid: a path in quotes")
        paths[KEYS[key]] = str(path.parent / Path(value).expanduser())
    return paths


def apply() -> None:
    """Set the variables of the project file that the environment doesn't set, for this command and
    the processes that it starts."""
    path = find(Path.cwd())
    for variable, value in ({} if path is None else read(path)).items():
        if not os.environ.get(variable):
            os.environ[variable] = value
