"""The material for reviewers (App. B.2), in one folder: sheet.html shows every item of the sample,
beside images/; a CSV per reviewer for those who prefer a spreadsheet; sample.json; README.md.

The pictures may show faces: don't redistribute the folder (docs/how-to/review.md).
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

from sdgbias import templates
from sdgbias.benchmark import prompts
from sdgbias.benchmark.review import SHARE, benchmark_id, draw_sample, read_items
from sdgbias.benchmark.review.verdicts import COLUMNS, REASONS, csv_text, written_in
from sdgbias.errors import UsageError
from sdgbias.files import (
    confine,
    json_object,
    packaged,
    reading,
    understood,
    writable,
    write_atomically,
    write_json,
)
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.composite import encode_jpeg, open_picture
from sdgbias.raw.images.shards import ImageReader
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
    with reading(benchmark / "images.parquet", "build it again: sdgbias build") as path:
        index = pd.read_parquet(path, columns=["image_id", "n_parts", "photo_id", "cluster_id"])
    index = index.sort_values("cluster_id").drop_duplicates("image_id").set_index("image_id")
    tables = {task: read_items(benchmark, task) for task in Task}
    shown = {key: item for task in Task for key, item in _shown(task, tables[task], sample, index)}
    items, of = [shown[key] for key in sample.index], sum(map(len, tables.values()))
    sample_id = hashlib.sha256(_inline(items).encode()).hexdigest()[:16]
    csvs = [f"{name}.csv" for name in names]
    entered = sorted(path.name for path in out.glob("*.csv") if written_in(path))
    if entered and json_object(out / "sample.json").get("sample_id") != sample_id:
        raise UsageError(
            f"{out}: verdicts were entered in {', '.join(entered)}, for another sample; give"
            " another folder with --out"
        )
    parts = {item["image"]: item["parts"] for item in items if item["parts"]}
    _write_images(benchmark, out, {i: parts[i] for i in index.index if i in parts}, progress)
    rows = sample[["task"]].assign(item_id=sample.index, verdict="", reason="", comment="")
    for name in csvs:
        if name not in entered:
            write_atomically(out / name, csv_text(rows))
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
    readme = "benchmark/review/review_readme.md.j2"
    write_atomically(
        out / "README.md", templates.render(readme, **facts, reasons=REASONS, csvs=csvs)
    )
    strata = sample.groupby(["task", "pillar", "indicator"]).size().rename("n").reset_index()
    write_json(out / "sample.json", {**facts, "strata": strata.to_dict("records")})
    lost = sum(not item["parts"] for item in items)
    kept = tuple(name for name in csvs if name in entered)
    paths = tuple(str(out / name) for name in csvs)
    return Sheets(out, benchmark, len(items), of, len(parts), lost, paths, kept)


def _names(reviewers: Sequence[str]) -> list[str]:
    names = [name.strip() for name in reviewers if name.strip()]
    usable = all(_NAME.fullmatch(name) and name.lower() != ADJUDICATOR for name in names)
    if not usable or len({name.lower() for name in names}) < max(2, len(names)):
        raise UsageError(
            f"--reviewers {','.join(names)}: name two different people or more, such as anna,ben,"
            f" by letters, digits, - and _ (not '{ADJUDICATOR}')"
        )
    return names


def _shown(
    task: Task, items: pd.DataFrame, sample: pd.DataFrame, index: pd.DataFrame
) -> list[tuple[str, dict[str, Any]]]:
    """(key, what the page shows) of the sampled items of a task. The context is that of the test
    with the fullest context for the task."""
    test = TESTS[task][0]
    rows = items[items.index.isin(sample.index)].join(index[["n_parts", "photo_id"]], on="image_id")
    if rows.empty:
        return []
    rows["context"] = prompts.task_contexts(rows, task, test)
    rows["n_parts"] = rows["n_parts"].fillna(0).astype(int)
    texts = rows.select_dtypes(exclude="number").columns
    rows[texts] = rows[texts].fillna("")
    return [
        (key, _item(key, row, task, test))
        for key, row in zip(rows.index, rows.to_dict("records"), strict=True)
    ]


def _item(key: str, row: dict[Any, Any], task: Task, test: ContextTest) -> dict[str, Any]:
    where = {"U": "urban", "R": "rural"}.get(row["urban"], "urban or rural unknown")
    photo = f", photo {row['photo_id']}" if row["photo_id"] else ""
    if row["modalities"].startswith("tile"):
        photo += ", no street photo"
    if task is Task.MCQ:
        options = [row[f"option_{letter.lower()}"] for letter in LETTERS]
        basis = f"{row['value']:g} {row['unit']}, {row['value_year']}, {row['level']}"
        gold, basis = row["answer"], f"{basis}, {row['source']}"
    else:
        options = []
        gold, basis = f"{row['answer']:.1f}", f"{row['unit']}; right within ± {row['tolerance']:g}"
    return {
        "key": key,
        "image": row["image_id"],
        "parts": row["n_parts"],
        "task": "Choice" if task is Task.MCQ else "Estimate",
        "pillar": row["pillar"],
        "indicator": f"{row['indicator_title']} (SDG {row['sdg']})",
        "place": f"{row['country']}, {row['year']}, {where}",
        "cluster": row["cluster_id"] + photo,
        "test": test.value,
        "context": row["context"],
        "question": row["question"],
        "options": options,
        "gold": gold,
        "basis": basis,
    }


def _write_images(benchmark: Path, out: Path, parts: dict[str, int], progress: Progress) -> None:
    """Write every part of every picture as a JPEG, encoded anew, so that no metadata of a photo is
    copied; existing files stay, those of an earlier sample go. In storage (cluster) order."""
    files = {
        image: [confine(out, f"images/{image}-{k}.jpg") for k in range(n)]
        for image, n in parts.items()
    }
    reader = ImageReader(benchmark)
    for image, paths in each(progress, "writing pictures", files.items(), every=100):
        if all(path.is_file() for path in paths):
            continue
        for path, data in zip(paths, reader[image], strict=True):
            onward = "build the images again with 'sdgbias build'"
            with understood(benchmark, f"image {path.stem} can't be decoded", onward):
                picture = encode_jpeg(open_picture(data), QUALITY, SIDE)
            write_atomically(path, picture)
    wanted = {path for paths in files.values() for path in paths}
    with writable(out):
        for path in {*(out / "images").glob(f"{'[0-9a-f]' * 64}-*.jpg")} - wanted:
            path.unlink()


def _inline(value: object) -> str:
    """JSON that is safe inside a script element: '<' can't end it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
