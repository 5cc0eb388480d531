"""Time of every page of `sdgbias serve` at a year's results: a real server process, asked again and
again.

    python bench/pages.py [--results FILE] [--nights 365] [--models 12] [--times 12]

A year is fabricated first, unless FILE is there: every model is scored anew every night (the worst
case), 4,080 metric rows a run, single answers of the newest two nights. With --results it stays for
the next time.
cold: the file has changed since the page was last asked for, so that nothing kept can be used (the
operating system's own cache stays warm). warm: the file is as it was. cold CPU: of the server, by
request; on a busy machine the only figure to trust.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import duckdb
import httpx
import numpy as np
import pandas as pd
import summary

from sdgbias import store
from sdgbias.raw.indicators import load_indicators
from sdgbias.types import PILLARS

BENCHMARK, START, ITEMS = "0123456789abcdef", datetime(2026, 1, 1, 0, 30), 1320
TESTS, METHODS = ("T1", "T2", "T3", "T4", "T5"), ("q_only", "ctx_q", "img_q", "full", "cade")
METRICS = (
    "accuracy",
    "share_pessimistic",
    "share_conservative",
    "share_optimistic",
    "candidate_mass",
    "off_candidate_rate",
)
OF_CADE = ("accuracy_gain", "changed_rate", "fixed_rate", "broken_rate", "kept_rate")


def cells() -> pd.DataFrame:
    """The keys of one run's metric rows, about as many and in the same order as a run of the first
    suite has."""
    groups = [
        ("all", "all"),
        *((p, "all") for p in PILLARS),
        *((i.pillar, i.slug) for i in load_indicators()[:12]),
    ]
    rows = [
        ("mcq", t, m, p, i, k)
        for t in (*TESTS, "all")
        for m in METHODS
        for p, i in groups
        for k in (*METRICS, *(OF_CADE * (m == "cade")))
    ]
    rows += [
        ("regression", t, m, p, i, k)
        for t in ("T2", "T5", "all")
        for m in METHODS
        for p, i in groups
        for k in ("mae", "interval_accuracy", "unparsed_rate")
    ]
    return pd.DataFrame(rows, columns=["task", "test", "method", "pillar", "indicator", "metric"])


def fabricate(path: Path, nights: int, models: int) -> None:
    names = [f"planted-{i:02d}" for i in range(models)]
    runs = [(n, f"{m}-{n:012x}", m) for n in range(nights) for m in names]
    starts = [START + timedelta(days=n) for n, _, _ in runs]
    table = pd.DataFrame(
        {
            "n": [n for n, _, _ in runs],
            "run_id": [r for _, r, _ in runs],
            "model": [m for _, _, m in runs],
            "at": starts,
        }
    )
    with store.connect(path, details=()) as con:
        con.execute("SET enable_progress_bar = false")
        con.register("made", table)
        con.register("cells", cells())
        con.execute(
            f"""INSERT INTO runs BY NAME SELECT run_id, 'sdg' AS suite, model, 'planted' AS
                provenance, '{BENCHMARK}' AS benchmark_id,
            "at" AS started_at, "at" + INTERVAL 20 MINUTE AS finished_at, 9196 AS
            n_prompts_planned, 9196 AS n_scored, 0 AS n_failed, '{{}}' AS config FROM made"""
        )
        for night in range(nights):  # as nights are published
            con.execute(
                """CREATE OR REPLACE TEMP TABLE incoming AS
                   SELECT run_id, model, 'sdg' AS suite, c.*, v AS "value", 1056 AS n, v - 0.03 AS
                   ci_low, v + 0.03 AS ci_high FROM (SELECT run_id, model, c, 0.4 + 0.2 * random()
                   AS v FROM made, cells c WHERE n = ? ORDER BY run_id) t(run_id, model, c, v)""",
                [night],
            )
            con.execute("INSERT INTO metric_rows BY NAME FROM incoming")
        con.execute(
            """INSERT INTO nights BY NAME SELECT DISTINCT strftime("at", '%Y-%m-%dT%H%M') AS
                night, "at" AS started_at,
            "at" + INTERVAL 2 HOUR AS finished_at, 'cli' AS "by", 'done' AS status,
            '{}' AS steps FROM made"""
        )
        con.execute(
            """INSERT INTO night_models BY NAME SELECT strftime("at", '%Y-%m-%dT%H%M') AS night,
               model, 'sdg' AS suite, 'published' AS outcome, run_id,
            1 AS attempts, 600.0 AS seconds, 9196 AS scored, 9196 AS planned, 0 AS failed, '' AS
            kind, '' AS message, '' AS quarantined_until FROM made"""
        )
        con.execute(
            """INSERT INTO verdicts BY NAME SELECT strftime("at", '%Y-%m-%dT%H%M') AS night, model,
               'sdg' AS suite, run_id, 'rule ' || k AS rule,
            'mcq' AS task, 'all' AS test, 'full' AS method, '' AS level, '' AS side,
            'accuracy' AS metric, 'PASS' AS verdict, 0.5 AS before, 0.5 AS "value", 0.0 AS change
            FROM made, range(12) r(k)"""
        )
        con.unregister("made")
        con.unregister("cells")
    for n, run_id, model in runs[-2 * models :]:
        detail(path, run_id, model, n, first=n == nights - 2)


def detail(path: Path, run_id: str, model: str, seed: int, first: bool) -> None:
    """Single answers of a published run: ITEMS questions, five tests, five methods; the questions
    themselves once."""
    rng = np.random.default_rng(seed)
    gold = np.random.default_rng(0).choice(list("ABC"), ITEMS)
    items = pd.DataFrame(
        {
            "task": "mcq",
            "item_id": np.arange(ITEMS),
            "cluster_id": [f"KE{i % 280:06d}" for i in range(ITEMS)],
            "country": "Kenya",
            "year": 2014,
            "urban": "U",
            "pillar": PILLARS[0],
            "indicator": "stunting",
            "indicator_title": "Stunting",
            "unit": "%",
            "question": (
                "What share of the children under five in the area around this place are stunted?"
            ),
            "gold": gold,
            "gold_value": 20.0,
            "split": np.where(np.arange(ITEMS) % 5, "test", "val"),
            "polarity": "lower",
            "image_id": "image",
            "options": [["below 20 %", "20-40 %", "above 40 %"]] * ITEMS,
            "context": [{"T1": "Given: urban=Urban"}] * ITEMS,
        }
    )
    keys = pd.MultiIndex.from_product(
        [range(ITEMS), TESTS, METHODS], names=["item_id", "test", "method"]
    ).to_frame(index=False)
    pred = rng.choice(list("ABC"), len(keys))
    answers = keys.assign(
        task="mcq",
        pred=pred,
        correct=pred == gold[keys["item_id"]],
        split=items["split"].to_numpy()[keys["item_id"]],
        confidence=0.5,
        kl=0.1,
        kept=True,
    )
    views = keys[keys["method"] != "cade"].rename(columns={"method": "view"})
    scores = views.assign(
        task="mcq",
        logits=list(rng.normal(size=(len(views), 3))),
        candidates="ABC",
        mass=0.99,
        top_token="A",
        n_tokens=120,
    )
    weights = {"alpha": 0.8, "lambda_kl": 0.5, "beta": 0.9, "tau": 0.85}
    tuned = {"mode": "", "objective": "accuracy", "val_value": 0.5, "n_val": 100, "n_draws": 500}
    params = pd.DataFrame({"task": "mcq", "test": TESTS}).assign(
        **weights, **tuned, seed=0, note=""
    )
    if first and model.endswith("00"):
        record = store.RunRecord(
            run_id="items-only",
            model="planted-00",
            benchmark_id=BENCHMARK,
            provenance="planted",
            started_at=START,
        )
        store.publish(path, record, {"items": items})
    store.replace(path, run_id, {"predictions": answers, "scores": scores, "cade_params": params})


def pages(path: Path) -> dict[str, list[str]]:
    """Kind of page -> addresses, from whatever the results hold."""
    runs = store.query(
        path,
        "SELECT run_id, model FROM runs WHERE suite = 'sdg' AND finished_at IS NOT NULL ORDER BY"
        " finished_at DESC LIMIT 40",
    )
    nights = list(
        store.query(path, "SELECT night FROM nights ORDER BY started_at DESC LIMIT 5")["night"]
    )
    run, model = runs.iloc[0]
    before = runs[(runs["model"] == model) & (runs["run_id"] != run)]["run_id"]
    other = runs[runs["model"] != model]["run_id"]
    item = store.query(
        path, "SELECT min(item_id) AS i FROM predictions WHERE run_id = ? AND task = 'mcq'", [run]
    )["i"][0]
    narrow = store.query(
        path,
        "SELECT pillar, indicator FROM metric_rows WHERE run_id = ? AND indicator NOT LIKE 'all%'"
        " LIMIT 1",
        [run],
    )
    asked = {
        "last night": ["/"],
        "one number, 90 nights": ["/numbers"],
        "one number, 365 nights": ["/numbers?nights=365"],
        "365 nights, one indicator": [
            f"/numbers?{urlencode({'nights': 365, **r})}" for r in narrow.to_dict("records")
        ],
        "models": ["/models"],
        "model": [f"/models/{m}" for m in dict.fromkeys(runs["model"][:3])],
        "questions": [
            f"/questions?run={run}",
            f"/questions?run={run}&flipped=true&outcome=wrong",
            f"/questions?run={run}&q=share&page=2",
        ],
        "question": (
            []
            if pd.isna(item)
            else [f"/questions/{run}/mcq/{int(item)}", f"/questions/{run}/mcq/{int(item)}?test=T2"]
        ),
        "compare, nights": [f"/compare?a={before.iloc[0]}&b={run}"] if len(before) else [],
        "compare, models": [f"/compare?a={other.iloc[0]}&b={run}"] if len(other) else [],
        "runs": ["/runs", "/runs?page=3", f"/runs?model={model}"],
        "nights": ["/nights", "/nights?page=2"],
        "night": [f"/nights/{n}" for n in nights],
        "health": ["/health"],
    }
    return {kind: addresses for kind, addresses in asked.items() if addresses}


def cpu(pid: int) -> float:
    """Milliseconds of CPU that a process has used, to 10 ms; 0 where the system doesn't say (only
    Linux does)."""
    stat = Path(f"/proc/{pid}/stat")
    fields = stat.read_text().rsplit(")", 1)[1].split() if stat.exists() else []
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def bare(path: Path, times: int) -> float:
    """Median milliseconds in which DuckDB alone opens the file and reads one number of one
    indicator of every run."""
    [(indicator, pillar)] = store.query(
        path, "SELECT indicator, pillar FROM metric_rows WHERE indicator NOT LIKE 'all%' LIMIT 1"
    ).itertuples(index=False)
    sql = """SELECT run_id, "value" FROM metric_rows WHERE task = 'mcq' AND metric = 'accuracy' AND
             method = 'full' AND test = 'all' AND pillar = ? AND indicator = ?"""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        with duckdb.connect(str(path), read_only=True) as connection:
            assert connection.execute(sql, [pillar, indicator]).fetchall()
        took.append(1000 * (time.perf_counter() - began))
    return float(np.median(took))


def measure(path: Path, times: int) -> dict[str, tuple[float, ...]]:
    """Kind of page -> its figures, printed as well."""
    rows = {}
    command = [sys.executable, "-m", "sdgbias.cli", "serve", "--results", str(path), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found, "the server did not say where it listens"
        with httpx.Client(base_url=found.group(), timeout=60) as client:
            client.get("/health")
            heads = ("cold p50", "cold p95", "cold CPU", "warm p50", "warm p95", "kB")
            print(f"\n{'ms':<26}{''.join(f'{h:>10}' for h in heads)}")
            for kind, addresses in pages(path).items():
                took: dict[bool, list[float]] = {True: [], False: []}
                spent = []
                for i in range(times):
                    for cold in (True, False):
                        if cold:
                            os.utime(path)
                        began, before = time.perf_counter(), cpu(server.pid)
                        answer = client.get(addresses[i % len(addresses)])
                        took[cold].append(1000 * (time.perf_counter() - began))
                        if cold:
                            spent.append(cpu(server.pid) - before)
                        assert answer.status_code == 200, (
                            addresses[i % len(addresses)],
                            answer.status_code,
                            answer.text[:300],
                        )
                cold50, cold95, warm50, warm95 = (
                    np.percentile(took[cold], q) for cold in (True, False) for q in (50, 95)
                )
                figures = (
                    cold50,
                    cold95,
                    float(np.median(spent)),
                    warm50,
                    warm95,
                    len(answer.content) / 1000,
                )
                rows[kind] = figures
                print(f"{kind:<26}{''.join(f'{x:>10.0f}' for x in figures)}")
    finally:
        server.terminate()
        server.wait(20)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="results file to serve; a year is fabricated there if it isn't there",
    )
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument(
        "--times", type=int, default=12, help="requests of each kind of page, cold and warm"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.results or Path(folder) / "sdgbias.duckdb"
        if not path.exists():
            began = time.perf_counter()
            fabricate(path, given.nights, given.models)
            print(
                f"fabricated {given.nights} nights x {given.models} models in"
                f" {time.perf_counter() - began:.0f} s: {path.stat().st_size / 1e6:.0f} MB"
            )
        load = os.getloadavg()[0]
        took = measure(path, given.times)
        alone = f"DuckDB alone, one SELECT over the same rows: {bare(path, given.times):.0f} ms"
        sql = """SELECT (SELECT count(*) FROM nights) AS nights, (SELECT count(*) FROM metric_rows)
                 AS n, count(DISTINCT model) AS models FROM runs"""
        [(nights, n, models)] = store.query(path, sql).itertuples(index=False)
        load = (load + os.getloadavg()[0]) / 2
        slow = ("365 nights, one indicator", "model")
        slowest = max(took.keys() - slow, key=lambda kind: took[kind][1])
        parts = (
            ("page of one indicator over the year", slow[0]),
            ("page of a model", slow[1]),
            ("slowest of the other pages", slowest),
        )
        rows = []
        for what, kind in parts:
            cold50, cold95, spent, *_ = took[kind]
            figure = f"{kind}: p50 {cold50:.0f} ms, p95 {cold95:.0f} ms, {spent:.0f} ms CPU"
            size = f"{n / 1e6:.1f} million rows, {given.times} requests"
            name = f"{what}, {nights} nights x {models} models, cold"
            rows.append(summary.Row(name, size, figure, "300 ms", alone, load))
        if nights >= 365:
            summary.record("pages", rows)


if __name__ == "__main__":
    main()
