"""A synthetic folder in FACET's layout: schematic figures without faces, random votes, and the
irregular rows of real data.

No real people are shown. A figure is a disc and a block; the disc's shade encodes skin tone, the
block's outline gender presentation, its height and a cap age, and an emblem the class. Figures are
drawn from the votes, so images contain the attributes. Groups are sampled independently of the
class, hence any difference between groups in a model's answers comes from the model.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from sdgbias.errors import InputError
from sdgbias.files import writable
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.facet import CLASSES, COLUMNS, SELECTED, VOTES
from sdgbias.raw.images.composite import encode_jpeg
from sdgbias.raw.synthetic.latent import keyed
from sdgbias.raw.synthetic.series import write_csv

SIZE = (160, 200)
#: Shares in the order of FACET's single-person subset (Table 1 of the paper). Its rarest groups,
#: older and dark, are 0.07 each there; here they are more frequent, so that a sample of 240 holds,
#: also among its test pictures, the 20 people of the 13 classes below which a group has no value.
GENDER = {"masc": 0.65, "fem": 0.22, "non_binary": 0.02, "na": 0.11}
AGE = {"young": 0.20, "middle": 0.45, "older": 0.17, "na": 0.18}
SKIN_BAND = {"light": 0.38, "medium": 0.26, "dark": 0.18, "": 0.18}
#: Factor by which the reported classes are sampled more often than the others.
SELECTED_WEIGHT = 8.0
#: One person in this many gets an irregular row.
AWKWARD_EVERY = 50
ANNOTATORS = 3
README = """\
Synthetic sample of annotated people in FACET's layout: {n} pictures, seed {seed}. CC0 1.0.
Schematic figures of no real people; nothing here is a finding about real people.
"""


def write_people_sample(out: Path, n: int, seed: int = 0, progress: Progress = silent) -> int:
    """Write ``annotations/annotations.csv`` and ``imgs_1..3/*.jpg`` for ``n`` images; return the
    number of annotated persons.

    The same seed gives the same bytes; image i doesn't depend on n. Raises InputError when the
    folder can't be written.
    """
    with writable(out, error=InputError):
        for folder in ("annotations", "imgs_1", "imgs_2", "imgs_3"):
            (out / folder).mkdir(parents=True, exist_ok=True)
        (out / "README.txt").write_text(README.format(n=n, seed=seed), encoding="utf-8")
        rows = []
        for i in each(progress, "drawing people", range(n)):
            person, row = f"{100_000 + i}", _row(seed, i)
            awkward = i % AWKWARD_EVERY == AWKWARD_EVERY - 1
            kind = (i // AWKWARD_EVERY) % 4 if awkward else -1
            if kind == 0:  # two persons in one picture
                rows.append(
                    _row(seed, n + i) | {"person_id": f"{900_000 + i}", "filename": f"{person}.jpg"}
                )
            row |= {"person_id": person, "filename": f"{person}.jpg"}
            if kind == 1:
                row["bounding_box"] = json.dumps({"x": 500, "y": 500, "width": 20, "height": 20})
            if kind == 2:
                row["class1"] = str(row["class1"]).replace("_", " ").title()
            rows.append(row)
            if kind != 3:  # else its picture is missing
                (out / f"imgs_{1 + i % 3}" / f"{person}.jpg").write_bytes(
                    _draw(row, keyed(seed, "picture", i))
                )
        columns = ["person_id", "filename", "class1", "class2", *COLUMNS[3:], "skin_tone_na"]
        table = out / "annotations" / "annotations.csv"
        values = ([row[name] for name in columns] for row in rows)
        write_csv(table, ",".join(columns), values, lineterminator="\r\n")
    return len(rows)


def _pick(rng: np.random.Generator, shares: dict[str, float]) -> str:
    names = list(shares)
    weights = np.array(list(shares.values()))
    return names[int(rng.choice(len(names), p=weights / weights.sum()))]


def _row(seed: int, i: int) -> dict[str, object]:
    """One annotated person without id and file: class, box and votes."""
    rng = keyed(seed, "person", i)
    weights = np.array([SELECTED_WEIGHT if name in SELECTED else 1.0 for name in CLASSES])
    row: dict[str, object] = dict.fromkeys(COLUMNS[4:], 0)
    row["class1"] = CLASSES[int(rng.choice(len(CLASSES), p=weights / weights.sum()))]
    row["class2"], row["skin_tone_na"] = "", 0
    row["bounding_box"] = json.dumps({"x": 40, "y": 20, "width": 80, "height": 170})
    row[f"gender_presentation_{_pick(rng, GENDER)}"] = 1
    row[f"age_presentation_{_pick(rng, AGE)}"] = 1
    band = _pick(rng, SKIN_BAND)
    tones = VOTES["skin"].get(band)
    if tones is None:
        row["skin_tone_na"] = ANNOTATORS
    else:
        centre = int(tones[int(rng.integers(len(tones)))].rsplit("_", 1)[1])
        for _ in range(ANNOTATORS):
            row[f"skin_tone_{int(np.clip(centre + rng.integers(-1, 2), 1, 10))}"] += 1  # type: ignore[operator]
    return row


def _shade(row: dict[str, object]) -> tuple[int, int, int]:
    """Grey-brown from light (Monk 1) to dark (Monk 10) at the mean vote; a neutral blue without
    votes."""
    votes = np.array([float(str(row[f"skin_tone_{k}"])) for k in range(1, 11)])
    if votes.sum() == 0:
        return (140, 160, 190)
    depth = float(votes @ np.arange(10)) / votes.sum() / 9
    light, dark = np.array([246, 237, 228]), np.array([41, 36, 32])
    r, g, b = (light + depth * (dark - light)).astype(int)
    return (int(r), int(g), int(b))


def _draw(row: dict[str, object], rng: np.random.Generator) -> bytes:
    """The figure as a JPEG."""
    ground = tuple(int(v) for v in rng.integers(150, 230, 3))
    image = Image.new("RGB", SIZE, ground)
    pen = ImageDraw.Draw(image)
    top = 20 + 26 * int(str(row["age_presentation_young"]))
    pen.ellipse((60, top, 100, top + 40), fill=_shade(row), outline=(60, 60, 60))
    if int(str(row["age_presentation_older"])):
        pen.arc((58, top - 4, 102, top + 36), 180, 360, fill=(205, 205, 205), width=7)
    body = tuple(int(v) for v in rng.integers(40, 200, 3))
    if int(str(row["gender_presentation_fem"])):
        pen.polygon([(80, top + 38), (46, 175), (114, 175)], fill=body, outline=(60, 60, 60))
    elif int(str(row["gender_presentation_masc"])):
        pen.rectangle((56, top + 42, 104, 175), fill=body, outline=(60, 60, 60))
    else:
        pen.ellipse((52, top + 40, 108, 178), fill=body, outline=(60, 60, 60))
    _emblem(pen, CLASSES.index(str(row["class1"]).lower().replace(" ", "_")))
    return encode_jpeg(image, 88)


def _emblem(pen: ImageDraw.ImageDraw, index: int) -> None:
    """The emblem of the figure: one of four shapes in one of thirteen colours, unique per class."""
    hue = index % 13
    colour = (40 + 16 * hue, 220 - 14 * hue, (90 * hue) % 255)
    box = (112, 96, 148, 132)
    shape = index // 13
    if shape == 0:
        pen.rectangle(box, fill=colour, outline=(0, 0, 0), width=2)
    elif shape == 1:
        pen.ellipse(box, fill=colour, outline=(0, 0, 0), width=2)
    elif shape == 2:
        pen.polygon([(130, 94), (150, 134), (110, 134)], fill=colour, outline=(0, 0, 0))
    else:
        pen.polygon([(130, 92), (152, 114), (130, 136), (108, 114)], fill=colour, outline=(0, 0, 0))
