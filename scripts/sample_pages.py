"""Writes docs/sample: pages of a demo's night, and of a later night with a breach, to look at
before installing anything.

    python scripts/sample_pages.py DEMO.duckdb BREACH.duckdb

DEMO is what `sdgbias demo` leaves. BREACH is the same project two nights later (`sdgbias nightly`):
registry/models/planted-optimist.yaml is enabled for the first, with options that know the right
answers (oracle: data/benchmark, context_weight and image_weight 2, noise 0.3, context_noise and
image_noise 0.5), and made worse for the second (both weights 0.3, prior: {all: [0.0, 0.5, 4.0]},
revision: planted-2).

The digest of the templates stands beside the pages; tests/report/test_sample.py compares it.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from sdgbias import store
from sdgbias.report.build import ReportPages
from sdgbias.report.layout import NIGHT, OVERVIEW, QUESTIONS, Page

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "docs/sample"
DIGEST = SAMPLE / "templates.sha256"
#: Folder -> its pages beside those of the models.
PAGES = {"demo": (OVERVIEW, NIGHT, QUESTIONS), "breach": (NIGHT, OVERVIEW)}


def digest() -> str:
    """Of everything that gives a page its form: templates, style and scripts."""
    checksum = hashlib.sha256()
    for folder in ("templates", "static"):
        for path in sorted((ROOT / "sdgbias/report" / folder).rglob("*")):
            if path.is_file():
                checksum.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return checksum.hexdigest()


def write(results: Path, out: Path, pages: tuple[Page, ...]) -> None:
    """The chosen pages of the newest runs, and a page per model, linked to each other."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.html"):
        old.unlink()
    with store.held_open(results):
        for file, text in ReportPages(results).files(pages).items():
            (out / file).write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", type=Path)
    parser.add_argument("breach", type=Path)
    chosen = parser.parse_args()
    for name, pages in PAGES.items():
        write(getattr(chosen, name), SAMPLE / name, pages)
    DIGEST.write_text(digest() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
