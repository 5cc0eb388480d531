"""The tables of benchmarks that the package builds, and ways to plant a fault in them: material for
the tests of the quality check."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from sdgbias.benchmark import quality
from sdgbias.benchmark.own import build_own
from sdgbias.benchmark.people import build_people
from sdgbias.benchmark.quality.evaluate import TableVerdict
from sdgbias.benchmark.quality.rules import FILES, QualityRule, load_rules, read_sql
from sdgbias.benchmark.quality.stored import stored_facts
from sdgbias.benchmark.quality.validation import open_context, validate
from sdgbias.raw.images import shards
from sdgbias.raw.synthetic.schematic_people import write_people_sample
from sdgbias.types import TESTS, Task
from tests.builders import own_questions

SUITES = Path(__file__).resolve().parents[2] / "expectations"
Tables = dict[str, pd.DataFrame]
Plant = Callable[..., None]
#: Index of pictures -> the rows of its shards.
PICTURES = {"images": "pictures", "images_people": "people_pictures", "images_own": "own_pictures"}


def picture(shade: int, size: int = 448, kind: str = "PNG", mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (size, size), shade).save(out, format=kind)
    return out.getvalue()


def good_tables(benchmark: Path, folder: Path) -> Tables:
    """The tables of a benchmark of places, with predictions for it; of 12 people and of custom
    questions, which are built in ``folder``; and the rows of the shards of all three."""
    write_people_sample(folder / "people-raw", 12, 3)
    build_people(folder / "people-raw", folder / "people")
    build_own(own_questions.write(folder / "own-raw"), folder / "own")
    tables: Tables = {}
    for at, names in (
        (benchmark, quality.TABLES),
        (folder / "people", quality.PEOPLE),
        (folder / "own", quality.OWN),
    ):
        tables |= {n: pd.read_parquet(at / f"{FILES.get(n, n)}.parquet") for n in names}
        rows = [
            pd.read_parquet(path).assign(shard=path.stem)
            for path in sorted((at / "images").glob("*.parquet"))
        ]
        pictures = pd.concat(rows, ignore_index=True)
        [index] = PICTURES.keys() & set(names)
        tables[PICTURES[index]] = pictures.assign(parts=pictures["parts"].map(list))
    tables["predictions"] = _predictions(tables["items_mcq"], tables["items_regression"])
    return tables


def _predictions(mcq: pd.DataFrame, regression: pd.DataFrame) -> pd.DataFrame:
    """Of every view and of CADE: A (first B) of each choice, each number missed by 0 to 4."""
    blocks = []
    for task, items in ((Task.MCQ, mcq), (Task.REGRESSION, regression)):
        for test in TESTS[task]:
            for number, method in enumerate(("q_only", "ctx_q", "img_q", "full", "cade")):
                block = items[["item_id", "split"]].assign(
                    task=task.value, test=test.value, method=method, kept=number < 4
                )
                if task is Task.MCQ:
                    letter = "A" if number else "B"
                    block = block.assign(pred=letter, correct=items["answer"] == letter)
                    block["value"] = block["error"] = np.nan
                else:
                    block["pred"] = "1" if number else ""
                    block["value"], block["error"] = items["answer"] + number, float(number)
                    block["correct"] = number <= items["tolerance"]
                blocks.append(block.assign(confidence=0.5, kl=0.0))
    return pd.concat(blocks, ignore_index=True)


def write_shards(tables: Tables, folder: Path, pictures: str = "pictures") -> None:
    for name, rows in tables[pictures].groupby("shard", sort=True):
        shards.write_shard(
            folder / "images" / f"{name}.parquet", rows.drop(columns="shard").to_dict("records")
        )


def save(tables: Tables, folder: Path, names: Sequence[str] = quality.TABLES) -> Path:
    """A benchmark folder, shards included."""
    [index] = PICTURES.keys() & set(names)
    write_shards(tables, folder, PICTURES[index])
    for name in names:
        tables[name].to_parquet(folder / f"{FILES.get(name, name)}.parquet", index=False)
    if names == quality.PEOPLE:
        card = '{"benchmark_id": "0123", "suite": "people"}'
        (folder / "benchmark.json").write_text(card, encoding="utf-8")
    return folder


def check(
    table: str,
    tables: Tables,
    folder: Path,
    suites: Path = SUITES,
    split: str = "id",
    *,
    both: bool = True,
) -> TableVerdict:
    """quality.check of a table, with what the shards of pictures say (they are written into
    ``folder``) and the other tables at hand; with ``both``, Great Expectations must come to the
    same verdict."""
    frame = tables[table]
    if table in PICTURES and {"shard", "image_id", "n_parts"} <= set(frame):
        write_shards(tables, folder, PICTURES[table])
        frame = stored_facts(folder, frame)
    verdict = quality.check(table, frame, suites, tables, split)
    if both:
        judged, _ = validate(open_context(), load_rules(table, suites), verdict, list(frame))
        assert (judged.findings, judged.counts) == (verdict.findings, verdict.counts)
    return verdict


def only(folder: Path, *rules: str) -> Path:
    """The suites with columns-present and these rules alone: Great Expectations takes 10 ms per
    rule, whatever the rows."""
    folder = folder / "expectations"
    folder.mkdir(parents=True)
    for path in SUITES.glob("*.json"):
        suite = json.loads(path.read_text(encoding="utf-8"))
        kept = [
            e for e in suite["expectations"] if e["meta"]["rule"] in ("columns-present", *rules)
        ]
        text = json.dumps(suite | {"expectations": kept})
        (folder / path.name).write_text(text, encoding="utf-8")
    for path in SUITES.glob("*.sql"):
        definitions, spanning = read_sql(path)
        kept = [
            f"-- {r.name} ({_needs(r)}): {r.message}\n{r.sql}" for r in spanning if r.name in rules
        ]
        (folder / path.name).write_text(";\n".join([*definitions, *kept, ""]), encoding="utf-8")
    return folder


def _needs(rule: QualityRule) -> str:
    return f"{rule.severity}, needs {', '.join(rule.needs)}" if rule.needs else rule.severity


# -- faults


def copied(tables: Tables) -> Tables:
    """Tables to plant faults in; what they share with these is copied where it is written to."""
    return {name: frame.copy(deep=False) for name, frame in tables.items()}


@dataclass(frozen=True)
class Of:
    """The value of another row: so many rows further on, or of another table that row; of the same
    column where nothing else is given."""

    row: int
    table: str = ""
    column: str = ""


@dataclass(frozen=True)
class Put:
    """Plants a value in one cell of a table: in ``row``, or in another one where the call says."""

    table: str
    column: str
    value: Any
    row: int = 0

    def __call__(self, tables: Tables, row: int | None = None) -> None:
        at = self.row if row is None else row
        frame, new = tables[self.table], self.value
        if isinstance(new, Of):
            start = 0 if new.table else at
            new = tables[new.table or self.table][new.column or self.column].iloc[start + new.row]
        frame[self.column] = frame[self.column].astype(object)
        frame.iat[at, frame.columns.get_loc(self.column)] = new
        frame[self.column] = frame[self.column].infer_objects()


def drop_column(table: str, column: str) -> Plant:
    return lambda tables: tables.update({table: tables[table].drop(columns=column)})


def drop_rows(table: str, where: Callable[[pd.DataFrame], pd.Series]) -> Plant:
    return lambda tables: tables.update(
        {table: tables[table][~where(tables[table])].reset_index(drop=True)}
    )


def repeat_row(table: str, times: int = 1, **change: Any) -> Plant:
    def plant(tables: Tables) -> None:
        extra = pd.concat([tables[table].iloc[[0]].assign(**change)] * times)
        tables[table] = pd.concat([tables[table], extra], ignore_index=True)

    return plant


def edit(
    table: str, where: dict[str, Any], column: str, change: Callable[[pd.Series], Any]
) -> Plant:
    """Change a column where others have these values."""

    def plant(tables: Tables) -> None:
        frame = tables[table]
        hit = np.ones(len(frame), dtype=bool)
        for name, value in where.items():
            hit &= (frame[name] == value).to_numpy()
        assert hit.any()
        frame.loc[hit, column] = change(frame.loc[hit, column])

    return plant


def each_of(*plants: Plant) -> Plant:
    def plant(tables: Tables) -> None:
        for one in plants:
            one(tables)

    return plant
