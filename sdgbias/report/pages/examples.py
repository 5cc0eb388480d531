"""Example questions of the static report: which ones, and their pictures."""

from __future__ import annotations

import base64
import io
from typing import Any

import pandas as pd
from PIL import Image

from sdgbias.analysis.nights import Query
from sdgbias.report.pages import question, questions
from sdgbias.report.pages import runs as known
from sdgbias.report.reader import SQL, Reader
from sdgbias.types import PILLARS

LIMIT = 36


#: Total size of all pictures, base64-encoded, so that the page stays below 6 MB: pictures of this
#: size have about 20 kB each.
PICTURE_BYTES, PICTURE_SIZE = 4_000_000, (336, 336)

OUTCOMES = {
    "fixed": "Fixed by CADE",
    "broken": "Broken by CADE",
    "moved": "Changed, wrong both times",
    "same": "Unchanged",
}


def context(reader: Reader, run_ids: list[str], limit: int = LIMIT) -> dict[str, Any]:
    """Data of examples.html.j2: groups by outcome of test-split MCQs whose picture is in the store,
    each question as `question.load` gives it, with its run and the address of its picture.

    At most ``limit`` questions, taken in turn from every model x pillar x test x outcome; within a
    group they are ordered by hash of the item, so that models are shown on the same items where
    possible. Pictures have at most ``PICTURE_BYTES``.
    """
    rows = reader.frame(SQL["examples"], {"runs": run_ids, "limit": limit}, runs=run_ids)
    examples: list[dict[str, Any]] = []
    for run_id, part in rows.groupby("run_id", sort=True):
        run = known.one(reader, str(run_id))
        assert run is not None
        wanted = [("mcq", int(r["item_id"]), r["test"]) for r in part.to_dict("records")]
        for q, outcome in zip(question.load(reader, run, wanted), part["outcome"], strict=True):
            if q is not None:
                examples.append({"run": run, "q": q, "outcome": outcome})
    images = pd.DataFrame({"image_id": [f["q"]["item"]["image_id"] for f in examples]})
    uris = pictures(reader.frame, images) if examples else {}
    order = list(PILLARS)
    examples.sort(
        key=lambda f: (
            order.index(f["q"]["item"]["pillar"]),
            f["run"]["model"],
            f["q"]["test"],
            f["q"]["item"]["item_id"],
        )
    )
    groups = {title: [f for f in examples if f["outcome"] == o] for o, title in OUTCOMES.items()}
    return {
        "groups": {title: part for title, part in groups.items() if part},
        "total": len(examples),
        "pictures": uris,
        "places": questions.PLACES,
    }


def pictures(query: Query, rows: pd.DataFrame) -> dict[str, str]:
    """image_id -> data URI, in the order of the ids until PICTURE_BYTES are reached. Unreadable
    pictures are left out."""
    sql = (
        "SELECT DISTINCT ON (image_id) image_id, png FROM previews WHERE list_contains($ids,"
        " image_id) ORDER BY image_id"
    )
    table = query(sql, {"ids": sorted(set(rows["image_id"]))})
    encoded, left = {}, PICTURE_BYTES
    for image_id, png in zip(table["image_id"], table["png"], strict=True):
        buffer = io.BytesIO()
        try:
            image = Image.open(io.BytesIO(bytes(png)), formats=("PNG", "JPEG")).convert("RGB")
        except OSError:
            continue
        image.resize(PICTURE_SIZE).save(buffer, "WEBP", quality=60, method=4)
        uri = "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
        left -= len(uri)
        if left < 0:
            break
        encoded[str(image_id)] = uri
    return encoded
