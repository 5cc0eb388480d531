"""Writes docs/sample: pages of a demo's night, and of a later night with a breach, to look at
before installing anything; and docs/images, what Chromium shows of them.

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
import io
import shutil
from pathlib import Path

from PIL import Image, ImageOps

from sdgbias import store
from sdgbias.report.build import ReportPages
from sdgbias.report.layout import NIGHT, OVERVIEW, QUESTIONS, Page

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "docs/sample"
DIGEST = SAMPLE / "templates.sha256"
#: Folder -> its pages beside those of the models.
PAGES = {"demo": (OVERVIEW, NIGHT, QUESTIONS), "breach": (NIGHT, OVERVIEW)}
#: Picture of the README -> its page, its height in pixels, and the element that it shows ('': the
#: page from its beginning).
PICTURES = {
    "first-screen": ("demo/index.html", 1000, ""),
    "last-night": ("breach/night.html", 1000, ""),
    "leaderboard": ("demo/index.html", 1000, "#leaderboard"),
    "question": ("demo/questions.html", 1300, ""),
}


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


def take_pictures() -> None:
    """Write docs/images, 1,265 pixels wide, in light colours."""
    from selenium import webdriver
    from selenium.webdriver.common.by import By

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars"):
        options.add_argument(f"--{flag}")
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options, service) as chromium:
        for name, (page, height, element) in PICTURES.items():
            size = {"width": 1265, "height": height, "deviceScaleFactor": 1, "mobile": False}
            chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            chromium.get((SAMPLE / page).as_uri())
            shown = chromium.find_element(By.CSS_SELECTOR, element) if element else None
            png = shown.screenshot_as_png if shown else chromium.get_screenshot_as_png()
            picture = Image.open(io.BytesIO(png)).convert("RGB")
            if shown:  # the element has no margin of its own; the colour is the page's
                picture = ImageOps.expand(picture, 24, "#fdfdfc")
            picture.quantize(128).save(ROOT / f"docs/images/{name}.png", optimize=True)


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
    take_pictures()


if __name__ == "__main__":
    main()
