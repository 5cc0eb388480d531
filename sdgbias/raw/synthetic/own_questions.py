"""An example of a custom-question folder: 100 questions about 50 images of the sample."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path

from sdgbias.errors import UsageError
from sdgbias.files import packaged, writable
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.composite import encode_jpeg
from sdgbias.raw.synthetic.latent import DEFAULT_COUNTRIES, draw_cluster
from sdgbias.raw.synthetic.photos import JPEG_QUALITY, render_photo
from sdgbias.raw.synthetic.series import write_csv

PLACES = 50
COLUMNS = "id,question,a,b,c,answer,picture,hint,place,setting,topic"
SETTINGS = {"U": "urban", "R": "rural"}
WEALTH = ("among the poorest third", "in the middle third", "among the richest third")


def write_example(out: Path, seed: int = 0, progress: Progress = silent) -> int:
    """Write suite.yaml, items.csv and pictures/ into a new or empty folder; return the number of
    questions. The same seed gives the same bytes.

    Answers are given once as letter and once as text; one kind of question has two options, the
    other three. Raises UsageError for a non-empty folder, StoreError when it can't be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} already holds something; name a new folder")
    drawn = (draw_cluster(seed, country, k) for k in count() for country in DEFAULT_COUNTRIES)
    places = list(islice((place for place in drawn if place.photos), PLACES))
    rank = {c.dhsid: at for at, c in enumerate(sorted(places, key=lambda c: (c.wealth, c.dhsid)))}
    with writable(out, "free space or name another folder"):
        (out / "pictures").mkdir(parents=True)
        rows: list[tuple[str, ...]] = []
        for place in each(progress, "drawing pictures", places):
            name, picture = place.dhsid, f"pictures/{place.dhsid}.jpg"
            (out / picture).write_bytes(encode_jpeg(render_photo(place, 0), JPEG_QUALITY))
            value, setting = place.labels["sanitation_index"], SETTINGS[place.urban]
            sanitation = "" if value is None else f", sanitation index {value:.1f} of 5"
            about = (picture, f"survey of {place.year}{sanitation}", name, setting)
            kind = "Is the place in the photo rural or urban?"
            rows.append((f"{name}-setting", kind, "rural", "urban", "", setting, *about, "setting"))
            kind = "How wealthy does the place in the photo look beside other places?"
            third = "ABC"[rank[name] * len(WEALTH) // len(places)]
            rows.append((f"{name}-wealth", kind, *WEALTH, third, *about, "wealth"))
        write_csv(out / "items.csv", COLUMNS, rows)
        (out / "suite.yaml").write_bytes(packaged("data", "example_suite.yaml").read_bytes())
    return len(rows)
