"""Install packages into the environment of this interpreter: quickly with uv, else with pip.

    .venv/bin/python scripts/install.py --constraint constraints.txt --editable '.[dev]'

Takes the arguments of `pip install`. uv resolves and unpacks in parallel, which is several times
quicker, and comes from the same index as everything else (it is a package itself). It doesn't read
pip's configuration, so the settings that decide where packages come from are handed over:
`pip config list` -> uv's environment variables. Variables of uv that are already set win.
Where uv can't be installed or doesn't get through, pip does it.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

#: pip's setting -> uv's variable. uv wants lists separated by spaces, as pip has them.
VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
    "proxy": "ALL_PROXY",
}
SECTIONS = ("global", "install", ":env:")  # the later one wins, as in pip
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def uv_settings(lines: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """uv's environment variables for pip's settings.

    Args:
        lines: What `pip config list` prints: section.name='value'.
        given: The environment; what it already sets for uv is left out of the result.
    """
    values: dict[tuple[str, str], str] = {}
    for line in lines:
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in SECTIONS and name in VARIABLES:
            values[section, VARIABLES[name]] = " ".join(str(ast.literal_eval(value)).split())
    settings = {
        variable: values[section, variable]
        for section in SECTIONS
        for variable in VARIABLES.values()
        if (section, variable) in values
    }
    # pip takes the best version of all indexes, uv by default the first index that has the package
    settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {name: value for name, value in settings.items() if name not in given}


def with_uv(arguments: list[str]) -> bool:
    """Whether uv installed `arguments` into this interpreter's environment."""
    uv = ["--quiet", "--constraint", str(CONSTRAINTS), "uv"]
    if subprocess.run([*PIP, "install", *uv], check=False).returncode:
        return False
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    environment = {**os.environ, **uv_settings(listed.stdout.splitlines(), os.environ)}
    command = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    return not subprocess.run(
        [*command, *quiet, *arguments], env=environment, check=False
    ).returncode


def main(arguments: list[str]) -> int:
    """Install; the exit code is pip's where uv doesn't get through."""
    print("installing", *arguments, flush=True)
    if with_uv(arguments):
        return 0
    print("uv doesn't get through; installing with pip, which takes minutes", flush=True)
    return subprocess.run([*PIP, "install", "--quiet", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
