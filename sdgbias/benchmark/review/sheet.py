"""The material for reviewers (App. B.2), in one folder: sheet.html shows every item of the sample,
beside images/; a CSV per reviewer for those who prefer a spreadsheet; sample.json; README.md.

The pictures may show faces: don't redistribute the folder (docs/how-to/review.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sdgbias import files, templates
from sdgbias.benchmark import prompts
from sdgbias.benchmark.review import (
    ADJUDICATOR,
    COLUMNS,
    REASONS,
    SHARE,
    draw_sample,
    read_items,
    reviewer_names,
    write_csv,
)
from sdgbias.benchmark.review.verdicts import written_in
from sdgbias.errors import UsageError
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.composite import encode_jpeg, open_picture
from sdgbias.raw.images.shards import ImageReader
from sdgbias.types import LETTERS, TESTS, Task

SIDE, QUALITY = 800, 85


def write_sheets(
    benchmark: Path,
    out: Path,
    share: float = SHARE,
    seed: int = 0,
    reviewers: Sequence[str] = ("one", "two"),
    progress: Progress = silent,
) -> dict[str, Any]:
    """Draw the sample and write the sheet and a CSV per reviewer into `out`. The same benchmark
    gives the same bytes; can be resumed: existing pictures and CSVs with verdicts are kept. Returns
    what the command prints (data/texts/sheets.txt.j2).

    Raises UsageError (names; `out` holds verdicts on another sample), InputError, StoreError.
    """
    names = reviewer_names(reviewers, fewest=2)
    sample = draw_sample(benchmark, share, seed)
    with files.reading(benchmark / "images.parquet", "build it again: sdgbias build") as path:
        index = pd.read_parquet(path, columns=["image_id", "n_parts", "photo_id", "cluster_id"])
    index = index.sort_values("cluster_id").drop_duplicates("image_id").set_index("image_id")
    tables = {task: read_items(benchmark, task) for task in Task}
    shown = {
        item["key"]: item for task in Task for item in _shown(task, tables[task], sample, index)
    }
    items = [shown[key] for key in sample.index]
    sample_id = hashlib.sha256(_inline(items).encode()).hexdigest()[:16]
    entered = sorted(path.name for path in out.glob("*.csv") if written_in(path))
    if entered and files.json_object(out / "sample.json").get("sample_id") != sample_id:
        raise UsageError(
            f"{out}: verdicts were entered in {', '.join(entered)}, for another sample; give"
            " another folder with --out"
        )
    parts = {item["image"]: item["parts"] for item in items if item["parts"]}
    _write_images(benchmark, out, {i: parts[i] for i in index.index if i in parts}, progress)
    csvs = [f"{name}.csv" for name in names]
    for name in (name for name in csvs if name not in entered):
        rows = sample[["task"]].assign(item_id=sample.index, verdict="", reason="", comment="")
        write_csv(out / name, rows)
    card = files.json_object(benchmark / "benchmark.json")
    facts = {
        **{"sample_id": sample_id, "benchmark_id": card.get("benchmark_id", "")},
        **{"share": share, "seed": seed},
        **{"items": len(items), "of": sum(map(len, tables.values()))},
    }
    data = {"sample": sample_id, "reasons": list(REASONS), "columns": COLUMNS, "items": items}
    page = {"people": [*names, ADJUDICATOR], "csvs": csvs, "data": _inline(data)}
    for name, template in (("sheet.html", "review.html.j2"), ("README.md", "review_readme.md.j2")):
        template = f"benchmark/review/{template}"
        text = templates.render(template, **facts, **page, reasons=REASONS)
        files.write_atomically(out / name, text)
    strata = sample.groupby(["task", "pillar", "indicator"]).size().rename("n").reset_index()
    files.write_json(out / "sample.json", {**facts, "strata": strata.to_dict("records")})
    return {
        **facts,
        **{"out": out, "benchmark": benchmark, "csvs": [str(out / name) for name in csvs]},
        **{"images": len(parts), "without_image": sum(not item["parts"] for item in items)},
        "kept": [name for name in csvs if name in entered],
    }


def _shown(
    task: Task, items: pd.DataFrame, sample: pd.DataFrame, index: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    """What the page shows of the sampled items of a task. The context is that of the test with the
    fullest context for the task."""
    test = TESTS[task][0]
    rows = items[items.index.isin(sample.index)].join(index[["n_parts", "photo_id"]], on="image_id")
    rows["context"] = prompts.task_contexts(rows, task, test)
    rows["n_parts"] = rows["n_parts"].fillna(0).astype(int)
    texts = rows.select_dtypes(exclude="number").columns
    rows[texts] = rows[texts].fillna("")
    for row in rows.reset_index().to_dict("records"):
        where = {"U": "urban", "R": "rural"}.get(row["urban"], "urban or rural unknown")
        photo = f", photo {row['photo_id']}" if row["photo_id"] else ""
        photo += ", no street photo" if row["modalities"].startswith("tile") else ""
        if task is Task.MCQ:
            basis = f"{row['value']:g} {row['unit']}, {row['value_year']}, {row['level']}"
            basis, gold = f"{basis}, {row['source']}", row["answer"]
        else:
            basis = f"{row['unit']}; right within ± {row['tolerance']:g}"
            gold = f"{row['answer']:.1f}"
        yield {
            **{"key": row["key"], "image": row["image_id"], "parts": row["n_parts"]},
            "task": "Choice" if task is Task.MCQ else "Estimate",
            "pillar": row["pillar"],
            "indicator": f"{row['indicator_title']} (SDG {row['sdg']})",
            "place": f"{row['country']}, {row['year']}, {where}",
            "cluster": row["cluster_id"] + photo,
            **{"test": test.value, "context": row["context"], "question": row["question"]},
            "options": [row[f"option_{c.lower()}"] for c in LETTERS if task is Task.MCQ],
            **{"gold": gold, "basis": basis},
        }


def _write_images(benchmark: Path, out: Path, parts: Mapping[str, int], progress: Progress) -> None:
    """Write every part of every picture as a JPEG, encoded anew, so that no metadata of a photo is
    copied; existing files stay, those of an earlier sample go. In storage (cluster) order."""
    reader, wanted = ImageReader(benchmark), set()
    for image, n in each(progress, "writing pictures", parts.items(), every=100):
        paths = [files.confine(out, f"images/{image}-{k}.jpg") for k in range(n)]
        wanted.update(paths)
        if all(path.is_file() for path in paths):
            continue
        for path, data in zip(paths, reader[image], strict=True):
            onward = "build the images again with 'sdgbias build'"
            with files.understood(benchmark, f"image {path.stem} can't be decoded", onward):
                picture = encode_jpeg(open_picture(data), QUALITY, SIDE)
            files.write_atomically(path, picture)
    with files.writable(out):
        for path in {*(out / "images").glob(f"{'[0-9a-f]' * 64}-*.jpg")} - wanted:
            path.unlink()


def _inline(value: object) -> str:
    """JSON that is safe inside a script element: '<' can't end it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
