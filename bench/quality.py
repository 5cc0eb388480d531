"""How long the quality gate takes over a full-size benchmark, beside the same rules as plain DuckDB
SQL.

    python bench/quality.py [--clusters 117644] [--folder DIR]

Builds the benchmark from `sdgbias sample --no-images` at a quarter, half and full size (100,000
multiple-choice and 50,000 regression questions; prompts: one row per item and test, four views
each), then judges each in a process of its own: all suites by Great Expectations, then a good part
of the same rules by SQL on the Parquet files, as the floor. Peak memory is the process's own. CPU
seconds beside the wall's are for machines that others use. Importing Great Expectations is timed
apart; every figure but those of the largest size is the median of three. `sift` is what a stage of
the build pays for its own table. A folder that is kept is not built again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import summary

SIZES = (0.25, 0.5, 1.0)
FULL = {"mcq": 100_000, "regression": 50_000}
LABELS = ("asset_index", "water_index", "sanitation_index", "under5_mort", "women_edu", "women_bmi")
SHOWN = dict(
    zip(
        (*LABELS, "urban"),
        (
            "asset_index",
            "water_index",
            "sanitation_index",
            "under_5_mortality_rate",
            "woman_education_years",
            "woman_bmi",
            "urban",
        ),
        strict=True,
    )
)
RANGES = (
    "asset_index NOT BETWEEN -100 AND 100",
    "water_index NOT BETWEEN 1 AND 5",
    "sanitation_index NOT BETWEEN 1 AND 5",
    "under5_mort NOT BETWEEN 0 AND 1000",
    "women_edu NOT BETWEEN 0 AND 18",
    "women_bmi NOT BETWEEN 12 AND 60",
)
NUMBER = "CAST(regexp_extract(o, '([0-9.]+)', 1) AS DOUBLE)"
SAME_CONTEXT = ", ".join(f"round({name}, 1)" for name in LABELS) + ", urban"


def of_items(table: str, task: str, other: str) -> dict[str, str]:
    """rule -> query that counts the rows that break it."""
    words = "question, option_a, option_b, option_c" if task == "mcq" else "question"
    kept = f"row_number() OVER (PARTITION BY {words}, image_id ORDER BY cluster_id, item_id)"
    near = (
        f"row_number() OVER (PARTITION BY {words}, image_group, {SAME_CONTEXT} ORDER BY cluster_id,"
        " item_id)"
    )
    names = ("cname", "iso3", "country", "year", "urban", *LABELS)
    differs = " OR ".join(f"i.{name} IS DISTINCT FROM c.{name}" for name in names)
    md5 = f"('0x' || left(md5('{task}-' || item_id), 15))::BIGINT / pow(16, 15) < 0.2"
    return {
        "item-id-unique": f"SELECT count(*) - count(DISTINCT item_id) FROM {table}",
        "item-cluster-exists": (
            f"SELECT count(*) FROM {table} ANTI JOIN clusters USING (cluster_id)"
        ),
        "item-image-exists": f"SELECT count(*) FROM {table} ANTI JOIN images USING (image_id)",
        "image-of-cluster": (
            f"SELECT count(*) FROM {table} i JOIN images m USING (cluster_id) WHERE i.image_id <>"
            " m.image_id"
        ),
        "labels-of-cluster": (
            f"SELECT count(*) FROM {table} i JOIN clusters c USING (cluster_id) WHERE {differs}"
        ),
        "pillar-known": (
            f"SELECT count(*) FROM {table} WHERE pillar NOT IN ('Health & Nutrition', 'Basic"
            " Services & Infrastructure', 'Human Capital & Development')"
        ),
        "indicator-slug": (
            f"SELECT count(*) FROM {table} WHERE NOT regexp_full_match(indicator,"
            " '[a-z0-9]+(_[a-z0-9]+)*')"
        ),
        "indicator-uniform": (
            f"SELECT coalesce(sum(n - 1), 0) FROM (SELECT count(DISTINCT (pillar, unit, {words})) n"
            f" FROM {table} GROUP BY indicator)"
        ),
        "question-present": (
            f"SELECT count(*) FROM {table} WHERE coalesce(length(question), 0) < 10"
        ),
        "split-by-id": (
            f"SELECT count(*) FROM {table} WHERE split <> CASE WHEN {md5} THEN 'val' ELSE"
            " 'test' END"
        ),
        "split-place-by-country": (
            "SELECT coalesce(sum(n - 1), 0) FROM (SELECT count(DISTINCT split_place) n FROM"
            f" {table} GROUP BY cname)"
        ),
        "split-place-across-tasks": (
            f"SELECT count(*) FROM (SELECT DISTINCT cname, split_place FROM {table}) a JOIN (SELECT"
            f" DISTINCT cname, split_place FROM {other}) b USING (cname) WHERE a.split_place <>"
            " b.split_place"
        ),
        "item-has-prompts": (
            f"SELECT count(*) FROM {table} i ANTI JOIN (FROM prompts WHERE task = '{task}') p USING"
            " (item_id)"
        ),
        "duplicate-item": f"SELECT count(*) FROM (SELECT {kept} n FROM {table}) WHERE n > 1",
        "near-duplicate-item": (
            f"SELECT count(*) FROM (SELECT {near} n FROM {table} JOIN (SELECT image_id, image_group"
            " FROM images) USING (image_id)) WHERE n > 1"
        ),
        **{
            f"{n.replace('_', '-')}-range": f"SELECT count(*) FROM {table} WHERE {r}"
            for n, r in zip(LABELS, RANGES, strict=True)
        },
    }


def rules() -> dict[str, dict[str, str]]:
    """table -> rule -> query that counts the rows that break it."""
    values = " OR ".join(
        (
            f"((t.text LIKE '%{shown}=%') IS DISTINCT FROM (i.{name} IS NOT NULL AND"
            f" i.{name}::VARCHAR <> '' AND i.target <> '{name}'))"
            if name == "urban"
            else (
                f"abs(TRY_CAST(regexp_extract(t.text, '[ ,]{shown}=([^,\\n]*)', 1) AS DOUBLE) -"
                f" i.{name}) > 0.0501"
            )
        )
        for name, shown in SHOWN.items()
    )
    leak = " OR ".join(
        f"(i.target = '{name}' AND regexp_matches(t.text, 'Context: .*\\b{SHOWN[name]}\\b'))"
        for name in LABELS
    )
    both = (
        "(SELECT 'mcq' task, item_id, image_id, question, urban, '' target, "
        + ", ".join(LABELS)
        + " FROM items_mcq UNION ALL "
    )
    both += (
        "SELECT 'regression', item_id, image_id, question, urban, target, "
        + ", ".join(LABELS)
        + " FROM items_regression) i"
    )
    of_item = f"FROM prompts t JOIN {both} USING (task, item_id)"
    bare = "regexp_replace(text, '\\nContext: [^\\n]*', '')"
    gold = "CASE answer WHEN 'A' THEN option_a WHEN 'B' THEN option_b ELSE option_c END"
    return {
        "clusters": {
            "cluster-id-unique": "SELECT count(*) - count(DISTINCT cluster_id) FROM clusters",
            "cluster-id-format": (
                "SELECT count(*) FROM clusters WHERE NOT regexp_full_match(cluster_id,"
                " '[A-Z]{2}-\\d{4}-\\d[#A-Z]-\\d{8}')"
            ),
            "cluster-id-agrees": (
                "SELECT count(*) FROM clusters WHERE left(cluster_id, 2) <> cname OR"
                " left(cluster_id, 10) <> survey OR abs(substr(cluster_id, 4, 4)::INT - year) > 1"
            ),
            "country-has-series": "SELECT count(*) FROM clusters ANTI JOIN series USING (iso3)",
            "year-range": "SELECT count(*) FROM clusters WHERE year NOT BETWEEN 1996 AND 2019",
            "urban-known": "SELECT count(*) FROM clusters WHERE urban NOT IN ('U', 'R', '')",
            "adm1dhs-range": "SELECT count(*) FROM clusters WHERE adm1dhs NOT BETWEEN 0 AND 9999",
            "coordinates-on-earth": (
                "SELECT count(*) FROM clusters WHERE abs(lat) > 90 OR abs(lon) > 180 OR (lat = 0"
                " AND lon = 0)"
            ),
            "missing-code": "SELECT count(*) FROM clusters WHERE asset_index IN (-9, -99, -999)",
            **{
                f"{n.replace('_', '-')}-range": f"SELECT count(*) FROM clusters WHERE {r}"
                for n, r in zip(LABELS, RANGES, strict=True)
            },
        },
        "series": {
            "series-key-unique": (
                "SELECT count(*) - count(DISTINCT (series, iso3, region, stratum, year)) FROM"
                " series"
            ),
            "stratum-known": (
                "SELECT count(*) FROM series WHERE stratum NOT IN ('all', 'urban', 'rural')"
            ),
            "region-of-country": (
                "SELECT count(*) FROM series WHERE region <> '' AND (NOT regexp_full_match(region,"
                " '[a-z]{3}r\\d{3}') OR upper(left(region, 3)) <> iso3 OR stratum <> 'all')"
            ),
            "year-range": "SELECT count(*) FROM series WHERE year NOT BETWEEN 1950 AND 2030",
            "value-present": "SELECT count(*) FROM series WHERE value IS NULL",
            "source-present": "SELECT count(*) FROM series WHERE coalesce(source, '') = ''",
        },
        "images": {
            "image-per-cluster": "SELECT count(*) - count(DISTINCT cluster_id) FROM images",
            "image-id-format": (
                "SELECT count(*) FROM images WHERE NOT regexp_full_match(image_id,"
                " '[0-9a-f]{64}|pending:[0-9a-f]{32}')"
            ),
            "image-cluster-exists": (
                "SELECT count(*) FROM images ANTI JOIN clusters USING (cluster_id)"
            ),
            "image-group-known": (
                "SELECT count(*) FROM images i ANTI JOIN (FROM images WHERE image_id = image_group)"
                " g ON i.image_group = g.image_id"
            ),
            "image-shared": (
                "SELECT count(*) FROM (SELECT count(*) OVER (PARTITION BY image_id) n FROM images)"
                " WHERE n > 1"
            ),
        },
        "items_mcq": {
            **of_items("items_mcq", "mcq", "items_regression"),
            "level-known": (
                "SELECT count(*) FROM items_mcq WHERE level NOT IN ('national', 'urban-rural',"
                " 'subnational')"
            ),
            "options-present": (
                "SELECT count(*) FROM items_mcq WHERE option_a = '' OR option_b = ''"
            ),
            "options-distinct": (
                "SELECT count(*) FROM items_mcq WHERE option_a IN (option_b, option_c) OR (option_b"
                " = option_c)"
            ),
            "answer-among-options": (
                f"SELECT count(*) FROM items_mcq WHERE answer NOT IN ('A', 'B', 'C') OR {gold} = ''"
            ),
            "gold-in-option": (
                f"SELECT count(*) FROM (SELECT value, {gold} AS o FROM items_mcq) WHERE (o LIKE"
                f" 'below%' AND value >= {NUMBER}) OR (o NOT LIKE 'below%' AND value < {NUMBER}) OR"
                " (o LIKE '%to under%' AND value >= CAST(regexp_extract(o, 'under ([0-9.]+)', 1)"
                " AS DOUBLE))"
            ),
            "value-present": "SELECT count(*) FROM items_mcq WHERE value IS NULL",
            "value-from-series": (
                "SELECT count(*) FROM items_mcq i ANTI JOIN series s ON i.iso3 = s.iso3 AND"
                " i.value_year = s.year AND i.value = s.value AND i.source = s.source"
            ),
            "value-year-near": "SELECT count(*) FROM items_mcq WHERE abs(value_year - year) > 15",
        },
        "items_regression": {
            **of_items("items_regression", "regression", "items_mcq"),
            "answer-present": "SELECT count(*) FROM items_regression WHERE answer IS NULL",
            "answer-is-label": (
                "SELECT count(*) FROM items_regression WHERE abs(answer - CASE target "
                + " ".join(f"WHEN '{name}' THEN {name}" for name in LABELS)
                + " END) > 0.0501"
            ),
        },
        "prompts": {
            "task-known": "SELECT count(*) FROM prompts WHERE task NOT IN ('mcq', 'regression')",
            "candidates-known": (
                "SELECT count(*) FROM prompts WHERE candidates NOT IN ('AB', 'ABC', '0123456789')"
            ),
            "prompt-text-form": (
                "SELECT count(*) FROM prompts WHERE NOT regexp_matches(text, '^Question: .{10}')"
            ),
            "prompt-key-unique": (
                "SELECT count(*) - count(DISTINCT (task, item_id, test)) FROM prompts"
            ),
            "prompts-complete": (
                "SELECT count(*) FROM (SELECT task, count(*) n FROM prompts GROUP BY task, item_id)"
                " WHERE n <> CASE task WHEN 'mcq' THEN 5 ELSE 2 END"
            ),
            "prompt-item-exists": (
                f"SELECT count(*) FROM prompts ANTI JOIN {both} USING (task, item_id)"
            ),
            "prompt-image-of-item": f"SELECT count(*) {of_item} WHERE t.image_id <> i.image_id",
            "prompt-text-of-item": (
                f"SELECT count(*) {of_item} WHERE NOT starts_with(t.text, 'Question: ' ||"
                " i.question || chr(10))"
            ),
            "tests-differ-in-context-only": (
                f"SELECT coalesce(sum(n - 1), 0) FROM (SELECT count(DISTINCT {bare}) n FROM prompts"
                " GROUP BY task, item_id)"
            ),
            "context-line-unexpected": (
                "SELECT count(*) FROM prompts WHERE test = 'T5' AND contains(text, 'Context: ')"
            ),
            "context-values": (
                f"SELECT count(*) {of_item} WHERE t.test = 'T1' AND contains(t.text, 'Context: ')"
                f" AND ({values})"
            ),
            "target-leak": f"SELECT count(*) {of_item} WHERE i.target <> '' AND ({leak})",
        },
    }


def peak_gib() -> float:
    """Largest resident set of this process; getrusage's would be that of the parent where it is
    larger (Linux)."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) / 2**20


def judge_by_gx(folder: Path) -> dict[str, Any]:
    from sdgbias.benchmark import quality
    from sdgbias.benchmark.quality import checkpoints

    began = time.perf_counter()
    checkpoints.gx()
    imported, cpu = time.perf_counter(), time.process_time()
    report = quality.run_gate(folder)
    spent = {
        "s": time.perf_counter() - imported,
        "cpu": time.process_time() - cpu,
        "import": imported - began,
    }
    return {**spent, "gib": peak_gib(), "counts": report.counts}


def judge_by_sql(folder: Path) -> dict[str, Any]:
    began, cpu = time.perf_counter(), time.process_time()
    counts: dict[str, dict[str, int]] = {}
    with duckdb.connect() as connection:
        for path in sorted(folder.glob("*.parquet")):
            connection.execute(f"CREATE VIEW {path.stem} AS FROM read_parquet('{path}')")
        for table, queries in rules().items():
            counts[table] = {
                rule: int(connection.execute(query).fetchall()[0][0])
                for rule, query in queries.items()
            }
    return {
        "s": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "gib": peak_gib(),
        "counts": counts,
    }


def sift_tables(folder: Path) -> dict[str, Any]:
    import pandas as pd

    from sdgbias.benchmark import quality
    from sdgbias.benchmark.quality import checkpoints

    tables = {
        name: pd.read_parquet(folder / f"{name}.parquet")
        for name in ("clusters", "images", "items_mcq", "items_regression")
    }
    checkpoints.gx()
    seconds = {}
    for name, frame in tables.items():
        began = time.perf_counter()
        quality.sift(name, frame, {k: v for k, v in tables.items() if k in ("clusters", "images")})
        seconds[f"{name} ({len(frame):,})"] = time.perf_counter() - began
    return seconds


def build_one(folder: Path, clusters: int, share: float) -> None:
    from sdgbias.benchmark.build import Draw, build
    from sdgbias.raw.synthetic import write_sample
    from sdgbias.raw.synthetic.series import crosswalk

    raw = folder / "raw"
    write_sample(
        raw, int(clusters * share), 1, countries=sorted(crosswalk()), images=False, workers=1
    )
    sizes = {task: int(n * share * clusters / 117_644) for task, n in FULL.items()}
    build(raw, raw / "indicators", folder / "benchmark", Draw(**sizes), images=False)


WORK = {"gx": judge_by_gx, "sql": judge_by_sql, "sift": sift_tables}


def in_a_process(what: str, folder: Path, repeats: int) -> dict[str, Any]:
    """Results of the median run by seconds."""
    found = []
    for _ in range(repeats):
        command = [sys.executable, __file__, "--judge", what, "--folder", str(folder)]
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            cwd=Path(__file__).resolve().parents[1],
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    if what == "sift":
        return {name: statistics.median(one[name] for one in found) for name in found[0]}
    return dict(sorted(found, key=lambda one: float(one["s"]))[len(found) // 2])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=117_644)
    parser.add_argument("--folder", type=Path, help="where the benchmarks are built and kept")
    parser.add_argument("--judge", choices=WORK, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.judge:
        print(json.dumps(WORK[given.judge](given.folder)))
        return
    with tempfile.TemporaryDirectory(prefix="sdgbias-quality-") as temporary:
        print(
            "| clusters | items | prompt rows | GE rules | GE s | GE CPU s | import s | GE GiB |"
            " SQL rules | SQL s | SQL CPU s | SQL GiB |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|---|---|")
        for share in SIZES:
            folder = (given.folder or Path(temporary)) / f"{share:g}"
            if not (folder / "benchmark" / "benchmark.json").is_file():
                build_one(folder, given.clusters, share)
            benchmark, repeats = folder / "benchmark", 1 if share == 1 else 3
            gx, sql = (in_a_process(what, benchmark, repeats) for what in ("gx", "sql"))
            card = json.loads((benchmark / "benchmark.json").read_text(encoding="utf-8"))["counts"]
            written = {
                rule: n
                for table, found in sql["counts"].items()
                for rule, n in found.items()
                if n != gx["counts"][table].get(rule)
            }
            if written:
                raise SystemExit(f"SQL and Great Expectations disagree: {written}")
            many = [sum(map(len, one["counts"].values())) for one in (gx, sql)]
            items = card["items_mcq"] + card["items_regression"]
            print(
                f"| {card['clusters']:,} | {items:,} | {card['prompts']:,} | {many[0]} |"
                f" {gx['s']:.1f} | {gx['cpu']:.1f} | {gx['import']:.1f} | {gx['gib']:.2f} |"
                f" {many[1]} | {sql['s']:.1f} | {sql['cpu']:.1f} | {sql['gib']:.2f} |",
                flush=True,
            )
        if given.clusters >= 117_644:
            figure = f"{gx['s']:.1f} s, {gx['cpu']:.1f} CPU s, {gx['gib']:.2f} GiB"
            sql_alone = f"{many[1]} rules as SQL: {sql['s']:.1f} s, {sql['cpu']:.1f} CPU s"
            n = f"{card['prompts']:,} prompt rows, {many[0]} rules, once"
            row = summary.Row("Great Expectations' suites", n, figure, "20 s, 2 GiB", sql_alone)
            summary.record("quality", [row])
        seconds = in_a_process("sift", benchmark, 3)
        print("\n| sift of | s |\n|---|---|")
        print("\n".join(f"| {name} | {s:.2f} |" for name, s in seconds.items()))


if __name__ == "__main__":
    main()
