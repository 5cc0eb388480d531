"""Writes registry/*.schema.json, from which editors complete and check the YAML files of the
registry, out of the dataclasses that read them: python scripts/schemas.py (part of `make docs`)."""

from __future__ import annotations

import json
from pathlib import Path

from sdgbias import formats
from sdgbias.benchmark.own_spec import SuiteFile
from sdgbias.nightly.regression.policy import Policy
from sdgbias.registry.entries import Entry
from sdgbias.registry.watch import Rules

REGISTRY = Path(__file__).resolve().parents[1] / "registry"
FORMATS = {"model": Entry, "policy": Policy, "suite": SuiteFile, "watch": Rules}


def texts() -> dict[Path, str]:
    """File -> its text."""
    return {
        REGISTRY / f"{name}.schema.json": json.dumps(formats.schema(model, name), indent=1) + "\n"
        for name, model in FORMATS.items()
    }


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
