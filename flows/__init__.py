"""The project as Prefect flows.

Importing the package sets Prefect's defaults for a flow started by hand (`python -m
flows.nightly`): Prefect reads its environment once, when it is imported, and every module here
comes after this one. Variables that are set already stay. A flow that a worker started has
its worker's environment, and Prefect imported, before it gets here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from sdgbias.errors import SdgbiasError
from sdgbias.files import packaged_yaml

#: Group of settings -> environment variable -> value (sdgbias/data/prefect.yaml).
SETTINGS: dict[str, dict[str, str]] = packaged_yaml("prefect.yaml")

if "prefect" not in sys.modules:
    for name, value in SETTINGS["flows"].items():
        os.environ.setdefault(name, value)


def run_command(command: Callable[..., Any]) -> None:
    """Run a function with the options of this process; an error of the package is one line and the
    exit code of its class."""
    try:
        typer.run(command)
    except SdgbiasError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
