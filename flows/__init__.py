"""The project as Prefect flows.

Importing the package sets Prefect's defaults for a flow started by hand (`python -m
flows.nightly`): Prefect reads its environment once, when it is imported, and every module here
comes after this one. Variables that are set already stay. A flow that a worker started has its
worker's environment, and Prefect imported, before it gets here.
"""

from __future__ import annotations

import os
import sys

from sdgbias.files import packaged_yaml

#: Group of settings -> environment variable -> value (sdgbias/data/prefect.yaml).
SETTINGS: dict[str, dict[str, str]] = packaged_yaml("prefect.yaml")

#: The environment as it was given.
GIVEN = dict(os.environ)

if "prefect" not in sys.modules:
    os.environ.update(SETTINGS["flows"] | GIVEN)
