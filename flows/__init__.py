"""The project as Prefect flows.

Importing the package sets Prefect's defaults for a flow started by hand (`python -m flows.nightly`,
`python -m flows.watch`): Prefect reads its environment once, when it is imported, and every module
here comes after this one. Variables that are set already stay. A flow that a worker started has
its worker's environment, and Prefect imported, before it gets here.
"""

from __future__ import annotations

import os
import sys

from sdgbias.nightly.stack.settings import FLOWS

if "prefect" not in sys.modules:
    for name, value in FLOWS.items():
        os.environ.setdefault(name, value)
