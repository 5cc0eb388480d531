"""The material for reviewers (App. B.2): a page that shows every item of the sample, and a CSV per
reviewer.

    sheet.html           one item at a time, keys and buttons; keeps the verdicts in the browser,
                         saves them as a CSV, needs no server
    images/<id>-<k>.jpg  the pictures
    <reviewer>.csv       empty verdicts, for use in a spreadsheet; never replaced once it contains
                         verdicts
    sample.json          identifies the sample and its benchmark
    README.md

The folder contains street photos with faces in them: don't redistribute it (docs/how-to/review.md).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from sdgbias import templates
from sdgbias.benchmark import prompts
from sdgbias.benchmark.review import SHARE, benchmark_id, draw_sample, read_table
from sdgbias.benchmark.review.verdicts import COLUMNS, REASONS, VERDICTS, csv_text, written_in
from sdgbias.errors import InputError, UsageError
from sdgbias.files import (
    confine,
    json_object,
    packaged,
    writable,
    write_atomically,
    write_json,
)
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.composite import encode_jpeg, open_picture
from sdgbias.raw.images.image_store import ImageReader
from sdgbias.types import LETTERS, TESTS, ContextTest, Task

SIDE, QUALITY = 800, 85
ADJUDICATOR = "adjudicator"
_DATA = packaged("benchmark", "review")
_NAME = re.compile(r"\w[\w-]{0,39}")


@dataclass(frozen=True)
class Sheets:
    """The result of write_sheets; `kept` are the existing CSVs with verdicts."""

    out: Path
    benchmark: Path
    items: int
    of: int
    images: int
    without_image: int
    csvs: tuple[str, ...]
    kept: tuple[str, ...]

    def lines(self) -> list[str]:
        """What to print."""
        return templates.lines("sheets", s=self)


def write_sheets(
    benchmark: Path,
    out: Path,
    share: float = SHARE,
    seed: int = 0,
    reviewers: Sequence[str] = ("one", "two"),
    progress: Progress = silent,
) -> Sheets:
    """Draw the sample and write the sheet and a CSV per reviewer into `out`. The same benchmark
    gives the same bytes; can be resumed.

    Raises UsageError (names; `out` holds verdicts on another sample), InputError, StoreError.
    """
    names = _names(reviewers)
    sample = draw_sample(benchmark, share, seed)
    items, of = _items(benchmark, sample)
    sample_id = hashlib.sha256(_inline(items).encode()).hexdigest()[:16]
    csvs = [f"{name}.csv" for name in names]
    kept = _written(out, sample_id, csvs)
    parts = {item["image"]: item["parts"] for item in items if item["parts"]}
    _write_images(benchmark, out, parts, progress)
    for name in csvs:
        if name not in kept:
            write_atomically(out / name, csv_text(sample.reindex(columns=list(COLUMNS)).fillna("")))
    facts = {
        **{"sample_id": sample_id, "benchmark_id": benchmark_id(benchmark)},
        **{"share": share, "seed": seed, "items": len(items), "of": of},
    }
    data = {"sample": sample_id, "reasons": list(REASONS), "columns": COLUMNS, "items": items}
    page = templates.render(
        "benchmark/review/review.html.j2",
        **facts,
        people=[*names, ADJUDICATOR],
        reasons=REASONS,
        data=_inline(data),
        style=(_DATA / "review.css").read_text(encoding="utf-8"),
        script=(_DATA / "review.js").read_text(encoding="utf-8"),
    )
    write_atomically(out / "sheet.html", page)
    about = {**facts, "verdicts": VERDICTS, "reasons": REASONS, "csvs": csvs}
    page = templates.render("benchmark/review/review_readme.md.j2", **about)
    write_atomically(out / "README.md", page)
    strata = sample.groupby(["task", "pillar", "indicator"]).size().rename("n").reset_index()
    write_json(out / "sample.json", {**facts, "strata": strata.to_dict("records")})
    lost = sum(not item["parts"] for item in items)
    paths = tuple(str(out / name) for name in csvs)
    return Sheets(out, benchmark, len(items), of, len(parts), lost, paths, kept)


def _names(reviewers: Sequence[str]) -> list[str]:
    names = [name.strip() for name in reviewers if name.strip()]
    if len(names) < 2 or len({name.lower() for name in names}) < len(names):
        raise UsageError(
            f"--reviewers {','.join(names)}: name two different people or more, such as anna,ben;"
            " kappa needs two"
        )
    for name in names:
        if not _NAME.fullmatch(name) or name.lower() == ADJUDICATOR:
            raise UsageError(
                f"--reviewers: {name!r} can't be a file name; take letters, digits, - and _ (not"
                f" '{ADJUDICATOR}')"
            )
    return names


def _written(out: Path, sample_id: str, csvs: Sequence[str]) -> tuple[str, ...]:
    """The CSVs that contain verdicts. Raises UsageError when these belong to another sample than
    the one about to be written."""
    kept = tuple(name for name in csvs if written_in(out / name))
    others = sorted({path.name for path in out.glob("*.csv") if written_in(path)} - {*kept})
    before = json_object(out / "sample.json").get("sample_id")
    if (kept or others) and before != sample_id:
        raise UsageError(
            f"{out}: verdicts were entered in {', '.join([*kept, *others])}, for another sample;"
            " give another folder with --out"
        )
    return kept


def _items(benchmark: Path, sample: pd.DataFrame) -> tuple[list[dict[str, Any]], int]:
    """(the page's content per item, in the order of the sample; number of items in the
    benchmark)."""
    index = read_table(
        Path(benchmark) / "images.parquet", ["image_id", "n_parts", "photo_id"]
    ).drop_duplicates("image_id")
    records, of = [], 0
    for task in Task:
        table = read_table(Path(benchmark) / f"items_{task}.parquet")
        of += len(table)
        drawn = sample.loc[sample["task"] == task.value, ["item_id", "no"]]
        rows = table.merge(drawn, on="item_id").merge(index, on="image_id", how="left")
        if len(rows):
            rows["context"] = _contexts(rows, TESTS[task][0])
            rows["n_parts"] = rows["n_parts"].fillna(0).astype(int)
            texts = rows.select_dtypes(exclude="number").columns
            rows[texts] = rows[texts].fillna("")
            records += [(row["no"], _shown(row, task)) for row in rows.to_dict("records")]
    return [record for _, record in sorted(records, key=lambda pair: pair[0])], of


def _contexts(own: pd.DataFrame, test: ContextTest) -> pd.Series:
    groups = own.groupby("target", sort=True) if "target" in own else [("", own)]
    lines = [prompts.context_lines(part, test, str(target)) for target, part in groups]
    return pd.concat(lines).reindex(own.index)


def _shown(row: dict[Any, Any], task: Task) -> dict[str, Any]:
    """What the page shows of an item. The context is that of the test with the fullest context for
    the item."""
    where = {"U": "urban", "R": "rural"}.get(row["urban"], "urban or rural unknown")
    photo = f", photo {row['photo_id']}" if row["photo_id"] else ""
    if row["modalities"].startswith("tile"):
        photo += ", no street photo"
    shown = {
        "key": f"{task}-{row['item_id']}",
        "image": row["image_id"],
        "parts": row["n_parts"],
        "task": "Choice" if task is Task.MCQ else "Estimate",
        "pillar": row["pillar"],
        "indicator": f"{row['indicator_title']} (SDG {row['sdg']})",
        "place": f"{row['country']}, {row['year']}, {where}",
        "cluster": row["cluster_id"] + photo,
        "test": TESTS[task][0].value,
        "context": row["context"],
        "question": row["question"],
    }
    if task is Task.MCQ:
        basis = f"{row['value']:g} {row['unit']}, {row['value_year']}, {row['level']}"
        return {
            **shown,
            "options": [row[f"option_{letter.lower()}"] for letter in LETTERS],
            "gold": row["answer"],
            "basis": f"{basis}, {row['source']}",
        }
    return {
        **shown,
        "options": [],
        "gold": f"{row['answer']:.1f}",
        "basis": f"{row['unit']}; right within ± {row['tolerance']:g}",
    }


def _write_images(benchmark: Path, out: Path, parts: dict[str, int], progress: Progress) -> None:
    """Write every part of every picture as a JPEG, encoded anew, so that no metadata of a photo is
    copied; existing files stay, those of an earlier sample go. Read in storage (cluster) order."""
    index = read_table(benchmark / "images.parquet", ["cluster_id", "image_id"])
    stored = index.sort_values("cluster_id")["image_id"].drop_duplicates()
    files = {
        image: [confine(out, f"images/{image}-{k}.jpg") for k in range(parts[image])]
        for image in stored
        if image in parts
    }
    reader = ImageReader(benchmark)
    for image, paths in each(progress, "writing pictures", files.items(), every=100):
        if all(path.is_file() for path in paths):
            continue
        for path, data in zip(paths, reader[image], strict=True):
            try:
                picture = encode_jpeg(open_picture(data), QUALITY, SIDE)
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                raise InputError(
                    f"{benchmark}: image {path.stem} can't be decoded ({error}); build the images"
                    " again with 'sdgbias build'"
                ) from None
            write_atomically(path, picture)
    wanted = {path for paths in files.values() for path in paths}
    with writable(out):
        for path in (out / "images").glob(f"{'[0-9a-f]' * 64}-*.jpg"):
            if path not in wanted:
                path.unlink()


def _inline(value: object) -> str:
    """JSON that is safe inside a script element: '<' can't end it, and line separators of older
    JavaScript are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
