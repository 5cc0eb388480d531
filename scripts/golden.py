"""Golden numbers: every number that the package computes from a few stored scores.

    python scripts/golden.py numbers "why they change"      tests/golden/numbers.parquet
    python scripts/golden.py build "why it changes"         tests/golden/full_size.json
    python scripts/golden.py scores                      asks the models again for the stored scores

`numbers` and `build` print what differs from the file before they replace it, and add the reason to
tests/golden/REASONS.md. No model runs for them, so they write the same numbers on every machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import yaml
from PIL import Image

from sdgbias import store, suites
from sdgbias.analysis.analyse import analyse
from sdgbias.analysis.rows import AnalysisSettings
from sdgbias.analysis.run import load
from sdgbias.methods.cade import score_terms
from sdgbias.progress import silent
from sdgbias.suites import rows
from sdgbias.suites.facet_groups import PAIRS
from sdgbias.suites.suite import EvalSettings, StoredScores

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "golden"
STUDIES = AnalysisSettings(draws=300, seed=0, bootstrap=200)
#: What identifies a number, and what is compared of it.
KEY = ["run_id", *rows.KEY]
COUNTS, VALUES, INTERVALS = ["n", "clusters"], ["value", "p", "p_adjusted"], ["low", "high"]
#: Largest difference: an interval comes from more operations than its value does.
TOLERANCES = (
    dict.fromkeys(COUNTS, 0.0) | dict.fromkeys(VALUES, 1e-12) | dict.fromkeys(INTERVALS, 1e-9)
)
#: Benchmarks that are counted -> clusters, multiple-choice and regression questions.
SIZES = {"full size": (117_644, 100_000, 50_000), "a hundredth": (1_200, 1_000, 500)}
#: Tables of a benchmark that results are computed from.
TABLES = ("benchmark.json", "items*.parquet", "people.parquet", "quarantine.parquet")


def runs() -> dict[str, dict[str, Any]]:
    """Run -> its benchmark, its settings, and what its engine can do (tests/golden/runs.yaml)."""
    described: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "runs.yaml").read_text("utf-8"))
    return described


def settings_of(run: Mapping[str, Any]) -> EvalSettings:
    settings = dict(run["settings"])
    return EvalSettings(**settings | {"passes": tuple(settings.get("passes", ()))})


def blank_pictures() -> Mapping[str, tuple[bytes, ...]]:
    """One grey picture in place of all: the previews of questions, which no number depends on."""
    png = BytesIO()
    Image.new("RGB", (8, 8), "grey").save(png, "PNG")
    return defaultdict(lambda: (png.getvalue(),))


def stored_scores(name: str, near: float) -> StoredScores:
    cells, scores, generations = (
        pd.read_parquet(FOLDER / "scores" / f"{name}-{part}.parquet")
        for part in ("cells", "scores", "generations")
    )
    return StoredScores(cells, scores, generations, near)


def varied(benchmark: Path, scored: StoredScores, out: Path) -> StoredScores:
    """Write the benchmark with what the sample lacks, and return its scores: every third indicator
    asks with two options, every second place has no photo; people's groups are of one size."""
    shutil.copytree(benchmark, out)
    if (out / "items_people.parquet").exists():
        people = pd.read_parquet(out / "items_people.parquet")
        at = pd.factorize(people["person_id"], sort=True)[0]
        for name, pair, each in zip(PAIRS, PAIRS.values(), (at, at // 2, at // 4), strict=True):
            people[name] = np.array(pair, dtype=object)[each % 2]
        people.to_parquet(out / "items_people.parquet", index=False)
        return scored
    items = pd.read_parquet(out / "items_mcq.parquet")
    two = pd.factorize(items["indicator"], sort=True)[0] % 3 == 0
    bare = pd.factorize(items["cluster_id"], sort=True)[0] % 2 == 0
    items["option_c"] = items["option_c"].mask(two, "")
    items["answer"] = items["answer"].mask(two & (items["answer"] == "C"), "B")
    items["modalities"] = items["modalities"].mask(bare, "tile, nightlights")
    items.to_parquet(out / "items_mcq.parquet", index=False)
    cut = scored.cells["task"].eq("mcq") & scored.cells["item_id"].isin(items.loc[two, "item_id"])
    scores = scored.scores.copy()
    of_two = scores["key"].isin(scored.cells.loc[cut, "key"])
    for name in ("candidates", "logits"):
        scores[name] = scores[name].where(~of_two, scores[name].str[:2])
    return StoredScores(scored.cells, scores, scored.generations, scored.near)


def publish(results: Path, name: str, run: Mapping[str, Any]) -> None:
    """The run as `sdgbias evaluate` publishes it, from its stored scores."""
    benchmark, settings = FOLDER / run["benchmark"], settings_of(run)
    suite, card = suites.of(benchmark), suites.benchmark_card(benchmark)
    scored = stored_scores(run.get("scores", name), run["near"])
    if run.get("varied"):
        scored = varied(benchmark, scored, results.parent / name)
        benchmark = results.parent / name
        card = card | {"benchmark_id": f"{card['benchmark_id']}-varied"}
    tables = suite.tables(benchmark, scored, settings, blank_pictures(), silent)
    tables["scores"] = scored.cells.merge(scored.scores, on="key").drop(columns="key")
    config = suite.identity(settings) | suite.noted(card)
    config |= {"gives_scores": run["gives_scores"], "synthetic": True, "spec": run["spec"]}
    finished = datetime(2026, 1, 1, tzinfo=UTC)
    record = {
        **{"run_id": name, "model": name, "title": name, "backend": run["spec"]["backend"]},
        **{"suite": suite.name, "benchmark_id": str(card["benchmark_id"])},
        "provenance": "planted" if run["spec"]["backend"].startswith("planted") else "measured",
        **{"seed": settings.seed, "numerics": settings.numerics},
        **{"started_at": finished, "finished_at": finished},
        "config": json.dumps(config, sort_keys=True, default=str),
    }
    store.publish(results, record, tables)


def numbers(folder: Path, names: Collection[str]) -> pd.DataFrame:
    """Every number of these runs, computed from the stored scores: rows by `KEY`, with n, clusters,
    value, p, p_adjusted, low, high; study 'cade': tuned parameters and the terms of the score."""
    results = folder / "results.duckdb"
    chosen = {name: run for name, run in runs().items() if name in names}
    for name, run in chosen.items():
        publish(results, name, run)
    analyse(results, list(chosen), STUDIES)
    stored = store.query(results, "FROM numbers")
    params = store.query(results, "SELECT * FROM cade_params").melt(
        id_vars=["run_id", "task", "test"],
        value_vars=["alpha", "lambda_kl", "beta", "tau", "val_value", "n_val", "n_draws"],
        var_name="metric",
    )
    frame = pd.concat([stored, params.assign(study="cade")], ignore_index=True)
    frame = pd.concat([frame, cade_terms(results)], ignore_index=True)
    frame = frame.reindex(columns=[*KEY, *TOLERANCES])
    texts = [name for name in KEY if name != "x"]
    frame[texts] = frame[texts].fillna("").astype("str")
    frame[list(TOLERANCES)] = frame[list(TOLERANCES)].astype("float64")
    return frame.sort_values(KEY, ignore_index=True)


def cade_terms(results: Path) -> pd.DataFrame:
    """The three terms of CADE's score (Eq. 9) at the tuned parameters, their means over all
    questions and candidates of a test: a fault too small to change an answer shows here."""
    terms = []
    for run_id in sorted(store.query(results, "SELECT DISTINCT run_id FROM cade_params")["run_id"]):
        for (task, test), cell in load(results, run_id).cells.items():
            if cell.params is None:
                continue
            streams = cell.streams()
            for term, values in zip(
                ("img", "ctx", "prior"), score_terms(streams, cell.params), strict=True
            ):
                mean = float(np.abs(values[streams.valid]).mean())
                row = {"run_id": run_id, "study": "cade", "task": task.value, "test": test.value}
                terms.append(row | {"metric": f"mean |{term}|", "value": mean})
    return pd.DataFrame(terms)


def differences(before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    """One line for each number that is gone, new or different, and by how much; [] when all are
    equal."""
    left, right = (_by_key(frame) for frame in (before, after))
    lines = [f"gone: {key}" for key in left.index.difference(right.index)]
    lines += [f"new: {key}" for key in right.index.difference(left.index)]
    common = left.index.intersection(right.index)
    for column, tolerance in TOLERANCES.items():
        was, now = left.loc[common, column].to_numpy(), right.loc[common, column].to_numpy()
        with np.errstate(invalid="ignore"):
            differs = ~(
                (np.abs(now - was) <= tolerance) | (np.isnan(was) & np.isnan(now)) | (was == now)
            )
        lines += [
            f"{column} {was[at]!r} -> {now[at]!r} ({now[at] - was[at]:+.3g}): {common[at]}"
            for at in np.flatnonzero(differs)
        ]
    return lines


def _by_key(frame: pd.DataFrame) -> pd.DataFrame:
    x = frame["x"].map(lambda number: "" if np.isnan(number) else f"{number:.9g}")
    first, *others = KEY
    key = frame[first].str.cat(frame.assign(x=x)[others], sep="|")
    if key.duplicated().any():
        raise ValueError(f"two numbers with one key: {key[key.duplicated()].iloc[0]}")
    return frame.set_index(key)


# ----------------------------------------------------------------------
# the benchmark


def build_counts(clusters: int, mcq: int, regression: int, folder: Path) -> dict[str, Any]:
    """Questions by pillar, indicator, level and letter, and digests of items and prompts, of a
    benchmark without pictures that is built from the synthetic sample."""
    from sdgbias.benchmark.build import Draw, build
    from sdgbias.raw.synthetic import write_sample

    raw, out = folder / "raw", folder / "benchmark"
    write_sample(raw, clusters, 0, images=False)
    build(raw, raw / "indicators", out, Draw(mcq=mcq, regression=regression))
    counts: dict[str, Any] = {"clusters": clusters, "mcq": mcq, "regression": regression}
    for table, columns in (
        ("items_mcq", ["pillar", "indicator", "level", "answer", "split"]),
        ("items_regression", ["pillar", "indicator", "target", "split"]),
    ):
        items = pd.read_parquet(out / f"{table}.parquet")
        counts[table] = {
            column: {str(k): int(v) for k, v in items[column].value_counts().sort_index().items()}
            for column in columns
            if column in items
        }
    for table in ("items_mcq", "items_regression", "prompts"):
        counts[table] = counts.get(table, {}) | {"digest": digest(out / f"{table}.parquet")}
    return counts


def digest(table: Path) -> str:
    """sha256 of a table's rows as CSV, in the order of the file. Numbers have nine digits: the last
    ones depend on the processor."""
    rows = duckdb.read_parquet(str(table))
    floats = [
        name
        for name, kind in zip(rows.columns, rows.types, strict=True)
        if str(kind) in ("DOUBLE", "FLOAT")
    ]
    nine = ", ".join(f'format(\'{{:.9g}}\', "{name}") AS "{name}"' for name in floats)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        rows.project(f"* REPLACE ({nine})" if floats else "*").write_csv(str(path))
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


# ----------------------------------------------------------------------
# writing the files anew


def write_numbers(reason: str) -> None:
    path = FOLDER / "numbers.parquet"
    with tempfile.TemporaryDirectory() as folder:
        after = numbers(Path(folder), runs())
    lines = differences(pd.read_parquet(path), after) if path.exists() else []
    print("\n".join(lines[:200] or ["no number differs"]))
    after.to_parquet(path, compression="zstd", index=False)
    kinds = ", ".join(f"{n} {kind}" for kind, n in _kinds(lines).items())
    _note(f"numbers ({len(after)}: {kinds or 'written whole'}): {reason}")


def _kinds(lines: list[str]) -> dict[str, int]:
    kinds = [
        line.split(":")[0] if line.startswith(("gone", "new")) else "changed" for line in lines
    ]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def write_build(reason: str) -> None:
    counts = {}
    for name, size in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            counts[name] = build_counts(*size, Path(folder))
    (FOLDER / "full_size.json").write_text(json.dumps(counts, indent=1) + "\n", "utf-8")
    _note(f"build: {reason}")


def _note(line: str) -> None:
    with (FOLDER / "REASONS.md").open("a", encoding="utf-8") as file:
        file.write(f"* {line}\n")


def write_scores() -> None:
    """Build the three benchmarks, ask every model of runs.yaml, and keep scores and answers."""
    from sdgbias import engines
    from sdgbias.registry.spec import ModelSpec
    from sdgbias.scoring.session import Evaluation, score_model
    from tests.builders.text_only import Endpoint

    os.environ["GOLDEN_KEY"] = "not-a-real-key"
    server = Endpoint()
    shutil.rmtree(FOLDER / "scores", ignore_errors=True)
    (FOLDER / "scores").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        benchmarks = _benchmarks(Path(scratch))
        for name, run in runs().items():
            if "scores" in run:  # those of another run
                continue
            given = dict(run["spec"])
            if given["backend"] == "api":
                given["options"] = given["options"] | {"base_url": server.url}
            if "oracle" in given.get("options", {}):
                given["options"] = given["options"] | {"oracle": str(benchmarks[run["benchmark"]])}
            spec = ModelSpec(**given)
            engine = engines.load(spec, ROOT)
            results = Path(scratch) / name / "r.duckdb"
            evaluation = Evaluation(spec, benchmarks[run["benchmark"]], results, settings_of(run))
            scoring = score_model(engine, evaluation)
            _keep(name, scoring.scored)
            print(f"{name}: {len(scoring.scored.cells)} cells, gives_scores {scoring.gives_scores}")
    server.close()


def _benchmarks(scratch: Path) -> dict[str, Path]:
    from typer.testing import CliRunner

    from sdgbias.cli import app

    commands = """
        sample --out {0}/raw --clusters 30 --seed 20260
        build --raw {0}/raw --out {0}/sdg --mcq 90 --regression 30
        sample --suite people --out {0}/people-raw --people 120
        people build --raw {0}/people-raw --out {0}/people
        sample --suite questions --out {0}/questions
        suite build {0}/questions --out {0}/own
    """
    for line in commands.strip().splitlines():
        result = CliRunner().invoke(app, line.format(scratch).split())
        if result.exit_code:
            raise SystemExit(f"{line}: {result.output}{result.exception!r}")
    folders = {name: scratch / name for name in ("sdg", "people", "own")}
    for name, folder in folders.items():
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        (FOLDER / name).mkdir(parents=True)
        for pattern in TABLES:
            for path in folder.glob(pattern):
                if path.suffix == ".parquet":
                    pd.read_parquet(path).to_parquet(
                        FOLDER / name / path.name, compression="zstd", index=False
                    )
                else:
                    shutil.copyfile(path, FOLDER / name / path.name)
    return folders


def _keep(name: str, scored: StoredScores) -> None:
    """The three tables of a run's scores; keys of prompts are short, in their order."""
    short = {key: f"{at:05d}" for at, key in enumerate(sorted(scored.cells["key"].unique()))}
    for part in ("cells", "scores", "generations"):
        table = getattr(scored, part)
        table = table.assign(key=table["key"].map(short))
        table = table.drop(columns=["text"] if part == "cells" else [], errors="ignore")
        table.to_parquet(
            FOLDER / "scores" / f"{name}-{part}.parquet", compression="zstd", index=False
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["numbers", "build", "scores"])
    parser.add_argument("reason", nargs="?", default="")
    given = parser.parse_args()
    if given.what == "scores":
        write_scores()
    elif not given.reason.strip():
        parser.error("say why the golden file changes: the reason is stored beside it")
    elif given.what == "numbers":
        write_numbers(given.reason)
    else:
        write_build(given.reason)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # the stand-in of an endpoint is a builder of the tests
    main()
