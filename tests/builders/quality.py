"""A small benchmark without faults, and ways to plant one: material for the tests of the quality
gate."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from sdgbias.benchmark import quality
from sdgbias.benchmark.own import build_own
from sdgbias.benchmark.prompts import build_prompts
from sdgbias.benchmark.quality.rules import FILES, QualityRule, load_rules, read_sql
from sdgbias.benchmark.quality.stored import stored_facts
from sdgbias.benchmark.quality.validation import validate
from sdgbias.benchmark.quality.verdict import TableVerdict
from sdgbias.raw.images import shards
from sdgbias.types import PILLARS, TESTS, TOLERANCES, Task
from tests.builders import own_questions

SUITES = Path(__file__).resolve().parents[2] / "expectations"
Tables = dict[str, pd.DataFrame]
Plant = Callable[[Tables], None]
_SERIES = {
    "stunting": "sh_sta_stunt",
    "inactivity": "ncd_pac",
    "wash": "sh_sta_wash",
    "shdi": "shdi",
}


def picture(shade: int, size: int = 448, kind: str = "PNG", mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (size, size), shade).save(out, format=kind)
    return out.getvalue()


def split(task: str, item: int) -> str:
    return (
        "val"
        if int(hashlib.md5(f"{task}-{item}".encode()).hexdigest()[:15], 16) / 16**15 < 0.2
        else "test"
    )


def _clusters() -> pd.DataFrame:
    places = [("AL", "ALB", "Albania", "train")] * 3 + [("BF", "BFA", "Burkina Faso", "val")] * 2
    places += [("NM", "NAM", "Namibia", "val")] + [("AO", "AGO", "Angola", "test")] * 2
    clusters = pd.DataFrame(places, columns=["cname", "iso3", "country", "official_split"])
    n = len(clusters)
    clusters.insert(
        0,
        "cluster_id",
        [f"{c}-2010-5{'#Z'[i % 2]}-{i:08d}" for i, c in enumerate(clusters["cname"])],
    )
    clusters["survey"] = clusters["cluster_id"].str[:10]
    clusters["year"] = np.array([2010, 2011] * (n // 2), dtype="int32")
    clusters["lat"], clusters["lon"] = (
        [np.nan, *np.linspace(-20, 40, n - 1)],
        [np.nan, *np.linspace(0, 20, n - 1)],
    )
    clusters["urban"] = ["U", "R", "", "U", "R", "U", "R", "U"]
    clusters["adm1dhs"] = np.array([9999, *range(1, n)], dtype="int32")
    clusters["asset_index"] = [-1.86, np.nan, np.nan, *np.linspace(-3, 3, n - 3)]
    clusters["water_index"] = [1.0, 5.0, np.nan, *np.linspace(1.5, 4.5, n - 3)]
    clusters["sanitation_index"] = [1.0, 5.0, np.nan, *np.linspace(1.5, 4.5, n - 3)]
    clusters["under5_mort"] = [0.0, 1000.0, np.nan, *np.linspace(20, 150, n - 3)]
    clusters["women_edu"] = [0.0, 18.0, np.nan, *np.linspace(2, 9, n - 3)]
    clusters["women_bmi"] = [24.37, np.nan, np.nan, *np.linspace(19, 26, n - 3)]
    return clusters  # cluster 2 knows nothing: under T1 and T2 its prompts have no Context line


def _images(clusters: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(images.parquet, the rows of its shard)."""
    parts = [[picture(20 * i)] for i in range(len(clusters))]
    parts[3] = [picture(1, 100), picture(2, 60, "JPEG")]
    images = pd.DataFrame(
        {
            "cluster_id": clusters["cluster_id"],
            "image_id": [shards.image_id(p) for p in parts],
            "photo_id": "123",
        }
    )
    images["n_photos"] = np.full(len(images), 2, dtype="int32")
    images["n_parts"] = np.array([len(p) for p in parts], dtype="int32")
    images["modalities"] = "photo, tile, nightlights"
    images["tile_hash"], images["photo_hash"] = (
        [f"{i:016x}" for i in range(len(images))],
        "0123456789abcdef",
    )
    without = images["cluster_id"] == clusters["cluster_id"][6]
    images.loc[without, ["modalities", "photo_id", "photo_hash"]] = ["tile, nightlights", "", ""]
    images.loc[without, "n_photos"] = 0
    images["image_group"], images["shard"] = (
        images["image_id"],
        images["cluster_id"].str[:2] + "-000",
    )
    stored = images.drop(columns="image_group").assign(source="x", parts=pd.Series(parts))
    return images, stored


def _mcq(clusters: pd.DataFrame, images: pd.DataFrame) -> pd.DataFrame:
    kinds = {
        "stunting": (
            PILLARS[0],
            "lower",
            "% of children",
            ("below 20 %", "20 % to under 30 %", "30 % or more"),
        ),
        "inactivity": (PILLARS[0], "lower", "% of adults", ("below 15 %", "15 % or more", "")),
        "wash": (
            PILLARS[1],
            "lower",
            "deaths per 100,000",
            ("below 16 per 100,000", "16 to under 999 per 100,000", "999 or more"),
        ),
        "shdi": (
            PILLARS[2],
            "higher",
            "index, 0-1",
            ("below 0.550", "0.550 to under 0.700", "0.700 or more"),
        ),
    }
    # (indicator, value, letter) of items on clusters 0, 1, 2, ...; letters in about the shares of
    # Table B
    asked = [
        ("stunting", v, a) for v, a in zip((3, 20, 19.9, 25, 29.9, 30, 90), "ABABBCC", strict=True)
    ]
    asked += [("inactivity", 15.0, "B")]
    asked += [("wash", v, a) for v, a in zip((5, 10, 16, 998, 999), "AABBC", strict=True)]
    asked += [("shdi", v, a) for v, a in zip((0.4, 0.6, 0.8), "ABC", strict=True)]
    rows = []
    seen: dict[str, int] = {}
    for indicator, value, answer in asked:
        cluster = seen[indicator] = seen.get(indicator, -1) + 1
        pillar, polarity, unit, options = kinds[indicator]
        kind = {
            "pillar": pillar,
            "indicator": indicator,
            "indicator_title": indicator,
            "sdg": "3",
            "unit": unit,
        }
        rows.append(
            {"at": cluster, **kind, "value": float(value), "polarity": polarity, "answer": answer}
            | dict(zip(("option_a", "option_b", "option_c"), options, strict=True))
            | {"question": f"How high is {indicator} around this place?"}
        )
    mcq = _with_place(pd.DataFrame(rows), clusters, images, "mcq")
    mcq["value_year"], mcq["source"], mcq["level"] = mcq["year"] - 1, "unsd", "subnational"
    return mcq


def _regression(clusters: pd.DataFrame, images: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for target, where in (
        ("women_bmi", (0, 3, 5)),
        ("asset_index", (0, 4, 7)),
        ("under5_mort", (0, 1)),
    ):
        for cluster in where:
            rows.append(
                {
                    "at": cluster,
                    "pillar": PILLARS[0],
                    "indicator": f"infer_{target}",
                    "indicator_title": target,
                    "sdg": "3",
                    "unit": "unit",
                    "target": target,
                    "tolerance": TOLERANCES[target],
                    "answer": round(float(clusters[target][cluster]), 1),
                    "question": f"What is the {target.replace('_', ' ')} around this place?",
                }
            )
    return _with_place(pd.DataFrame(rows), clusters, images, "regression")


def _with_place(
    items: pd.DataFrame, clusters: pd.DataFrame, images: pd.DataFrame, task: str
) -> pd.DataFrame:
    """Ids, splits, image and the cluster's own columns."""
    at = items.pop("at")
    items.insert(0, "item_id", np.arange(len(items), dtype="int64") * 7 + 3)
    items["split"] = [split(task, i) for i in items["item_id"]]
    own = (
        clusters.drop(columns=["survey", "lat", "lon", "adm1dhs", "official_split"])
        .iloc[at]
        .reset_index(drop=True)
    )
    items = pd.concat([items, own], axis=1)
    items["split_place"] = items["cname"].map(
        {"AL": "test", "BF": "val", "NM": "val", "AO": "test"}
    )
    items["image_id"], items["review"] = images["image_id"].iloc[at].to_numpy(), ""
    items["modalities"] = images["modalities"].iloc[at].to_numpy()
    return items


def _series(mcq: pd.DataFrame) -> pd.DataFrame:
    """The value of every item, each in a region of its own, and one national value."""
    regions = [f"{iso.lower()}r{101 + i}" for i, iso in enumerate(mcq["iso3"])]
    own = pd.DataFrame(
        {
            "series": mcq["indicator"].map(_SERIES),
            "iso3": mcq["iso3"],
            "region": regions,
            "stratum": "all",
        }
    )
    own["year"], own["value"], own["source"] = (
        mcq["value_year"].astype("int64"),
        mcq["value"],
        mcq["source"],
    )
    return pd.concat([own, own[:1].assign(region="", stratum="urban")], ignore_index=True)


def _predictions(mcq: pd.DataFrame, regression: pd.DataFrame) -> pd.DataFrame:
    blocks = []
    for task, items in ((Task.MCQ, mcq), (Task.REGRESSION, regression)):
        for test in TESTS[task]:
            for number, method in enumerate(("q_only", "ctx_q", "img_q", "full", "cade")):
                block = pd.DataFrame(
                    {
                        "task": task.value,
                        "item_id": items["item_id"],
                        "test": test.value,
                        "method": method,
                    }
                )
                block["split"], block["kept"] = items["split"], number < 4
                if task is Task.MCQ:
                    block["pred"] = "A" if number else "B"
                    block["value"], block["error"], block["correct"] = (
                        np.nan,
                        np.nan,
                        items["answer"] == block["pred"],
                    )
                else:
                    block["pred"] = "1" if number else ""
                    block["value"], block["error"] = items["answer"] + number, float(number)
                    block["correct"] = number <= items["tolerance"]
                blocks.append(block.assign(confidence=0.5, kl=0.0))
    return pd.concat(blocks, ignore_index=True)


def good_tables() -> Tables:
    """Every table of a benchmark, and `pictures`, the rows of its shards."""
    clusters = _clusters()
    images, pictures = _images(clusters)
    mcq, regression = _mcq(clusters, images), _regression(clusters, images)
    people_items = pd.concat(
        [build_prompts(mcq, Task.MCQ), build_prompts(regression, Task.REGRESSION)],
        ignore_index=True,
    )
    return {
        "clusters": clusters,
        "series": _series(mcq),
        "images": images,
        "pictures": pictures,
        "items_mcq": mcq,
        "items_regression": regression,
        "prompts": people_items,
        "predictions": _predictions(mcq, regression),
    }


def people_tables() -> Tables:
    """Six annotated people, their pictures and all questions about them; `people_pictures`: the
    rows of the shards."""
    from sdgbias.benchmark import people_items

    n = 6
    people = pd.DataFrame(
        {"person_id": [f"{100 + i}" for i in range(n)], "file": [f"{i}.jpg" for i in range(n)]}
    )
    people["class1"], people["class2"] = (
        ["nurse", "guitarist", "student", "judge", "nurse", "student"],
        "",
    )
    people["x"], people["y"], people["w"], people["h"] = 0.0, 4.0, 30.0, 60.5
    people["gender"], people["gender_why"] = (
        ["male", "female", "unknown", "male", "female", "female"],
        ["", "", "tie", "", "", ""],
    )
    people["skin"], people["skin_why"] = (
        ["light", "dark", "unknown", "medium", "light", "unknown"],
        ["", "", "no-votes", "", "", "not-labelled"],
    )
    people["age"], people["age_why"] = (
        ["young", "old", "middle", "unknown", "young", "old"],
        ["", "", "", "na", "", ""],
    )
    people["race"], people["persons"], people["dataset"] = "", 1, "synthetic"
    parts = [[picture(30 * i, 40, "JPEG")] for i in range(n)]
    people["image_id"] = [shards.image_id(p) for p in parts]
    people["split"] = ["test", "val", "test", "test", "val", "test"]
    images = pd.DataFrame(
        {
            "cluster_id": people["person_id"],
            "image_id": people["image_id"],
            "photo_id": people["file"],
            "modalities": "",
        }
    )
    images["n_photos"], images["n_parts"] = (
        np.full(n, 1, dtype="int32"),
        np.full(n, 1, dtype="int32"),
    )
    images["tile_hash"] = images["photo_hash"] = [f"{i:016x}" for i in range(n)]
    images["image_group"], images["shard"] = images["image_id"], "XX-000"
    items = people_items.build_items(people)
    return {
        "people": people,
        "items_people": items,
        "images_people": images,
        "prompts_people": people_items.build_prompts(items),
        "people_pictures": (
            images.drop(columns="image_group").assign(source="x", parts=pd.Series(parts))
        ),
    }


def own_tables() -> Tables:
    """The tables of a folder of own questions as its builder writes them; `own_pictures`: the rows
    of its shards."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "b"
        build_own(own_questions.write(Path(folder) / "f"), out)
        found = {
            name: pd.read_parquet(out / f"{FILES.get(name, name)}.parquet") for name in quality.OWN
        }
        parts = pd.read_parquet(out / "images" / "XX-000.parquet").assign(shard="XX-000")
    parts["parts"] = parts["parts"].map(list)
    return {**found, "own_pictures": parts}


GOOD = good_tables() | people_tables() | own_tables()
#: Index of pictures -> the rows of its shards.
_PICTURES = {
    "images": "pictures",
    "images_people": "people_pictures",
    "images_own": "own_pictures",
}


def copies() -> Tables:
    return {name: frame.copy() for name, frame in GOOD.items()}


def write_shards(tables: Tables, folder: Path, pictures: str = "pictures") -> None:
    for name, rows in tables[pictures].groupby("shard", sort=True):
        shards.write_shard(
            folder / "images" / f"{name}.parquet", rows.drop(columns="shard").to_dict("records")
        )


def save(tables: Tables, folder: Path) -> Path:
    """A benchmark folder, shards included."""
    write_shards(tables, folder)
    for name in quality.TABLES:
        tables[name].to_parquet(folder / f"{name}.parquet", index=False)
    return folder


def save_people(tables: Tables, folder: Path) -> Path:
    """The same of the second suite."""
    write_shards(tables, folder, "people_pictures")
    for name in quality.PEOPLE:
        tables[name].to_parquet(folder / f"{FILES.get(name, name)}.parquet", index=False)
    (folder / "benchmark.json").write_text(
        '{"benchmark_id": "0123", "suite": "people"}', encoding="utf-8"
    )
    return folder


def stored(table: str, tables: Tables, folder: Path) -> pd.DataFrame:
    """A table; of images with what its shards (written into ``folder``) say."""
    frame = tables[table]
    if table in _PICTURES and {"shard", "image_id", "n_parts"} <= set(frame):
        write_shards(tables, folder, _PICTURES[table])
        frame = stored_facts(folder, frame)
    return frame


def check(
    table: str,
    tables: Tables,
    folder: Path,
    suites: Path = SUITES,
    split: str = "id",
    *,
    both: bool = True,
) -> TableVerdict:
    """quality.check with the other tables at hand; with ``both``, Great Expectations must come to
    the same verdict."""
    frame = stored(table, tables, folder)
    verdict = quality.check(table, frame, suites, tables, split)
    if both:
        judged, _ = validate(load_rules(table, suites), verdict, list(frame))
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
        (folder / path.name).write_text(
            json.dumps(suite | {"expectations": kept}), encoding="utf-8"
        )
    for path in SUITES.glob("*.sql"):
        definitions, spanning = read_sql(path)
        kept = [
            f"-- {r.name} ({_needs(r)}): {r.message}\n{r.sql}" for r in spanning if r.name in rules
        ]
        text = ";\n".join([*definitions, *kept, ""])
        (folder / path.name).write_text(text, encoding="utf-8")
    return folder


def _needs(rule: QualityRule) -> str:
    return f"{rule.severity}, needs {', '.join(rule.needs)}" if rule.needs else rule.severity


def put(table: str, column: str, value: Any, row: int = 0) -> Plant:
    def plant(tables: Tables) -> None:
        frame = tables[table]
        frame[column] = frame[column].astype(object)
        frame.iat[row, frame.columns.get_loc(column)] = value
        frame[column] = frame[column].infer_objects()

    return plant


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
