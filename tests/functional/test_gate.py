"""Two nights of planted models, as a team meets them: a loss is caught, told and explained; no
change is no alarm."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import yaml

from sdgbias import store
from sdgbias.registry import entries
from sdgbias.scoring import evaluate
from sdgbias.suites.suite import EvalSettings
from tests.builders.commands import REPOSITORY, add_model, ok, refused, sdgbias
from tests.builders.once import synthetic_benchmark
from tests.builders.webhook import receiving

FIRST, SECOND = "2026-11-20T0130", "2026-11-21T0130"
HABITS = {
    "prior": {"all": [0.0, 0.2, 0.5]},
    "context_weight": 1.0,
    "image_weight": 1.6,
    "noise": 0.3,
}
POLICY = """
examples: 10
rules:
- {name: accuracy, metric: accuracy, methods: [full], allowed: 0.02, min_n: 60, required: true}
- {name: optimism, metric: share_optimistic, worse: higher, allowed: 0.05, min_n: 60,
   then: quarantine}
- {name: mae, metric: mae, worse: higher, allowed: 0.1, min_n: 60}
- {name: mass, metric: candidate_mass, at_least: 0.2, min_n: 60}
- {name: failed, metric: failed_share, at_most: 0.05, min_n: 60}
"""


@dataclass(frozen=True)
class Stack:
    folder: Path
    results: Path
    policy: Path


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory, tiny_benchmark: Path) -> Stack:
    """`drifter` comes back more optimistic and sees less, `twin` with another seed of a noise that
    is next to nothing."""
    folder = tmp_path_factory.mktemp("nights")
    results = folder / "results" / "r.duckdb"

    def run(name: str, **habits: object) -> str:
        add_model(folder, name, options={"oracle": str(tiny_benchmark), **HABITS, **habits})
        spec, settings = entries.load(folder, name), EvalSettings(draws=50, passes=())
        return evaluate.evaluate(spec, folder, tiny_benchmark, results, settings).run_id

    for day, night in enumerate((FIRST, SECOND)):
        worse = {"prior": {"all": [-0.5, 0.2, 2.2]}, "image_weight": 0.6} if day else {}
        published = {"drifter": run("drifter", **worse), "twin": run("twin", noise=1e-4, seed=day)}
        start = pd.Timestamp(night[:10]) + pd.Timedelta(minutes=30)
        row = {"night": night, "started_at": start, "finished_at": start + pd.Timedelta(hours=1)}
        row |= {"by": "cli", "status": "done"}
        row |= {"steps": {"analyse": "done"}, "step_states": {"analyse": "done"}}
        common = {"night": night, "suite": "sdg", "outcome": "published", "attempts": 1}
        outcomes = [{**common, "model": m, "run_id": r} for m, r in published.items()]
        tables = {"nights": pd.DataFrame([row]), "night_outcomes": pd.DataFrame(outcomes)}
        store.upsert(results, tables)
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    return Stack(folder, results, policy)


@pytest.mark.long  # a benchmark of the demo's size
def test_the_regression_of_the_tutorial_is_a_breach_on_the_benchmark_of_the_demo(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    demo = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    sizes = (demo["sample"]["clusters"], demo["benchmark"]["mcq"], demo["benchmark"]["regression"])
    seed = demo["sample"]["seed"]
    benchmark = synthetic_benchmark(tmp_path_factory, "demo", *sizes, checked=True, seed=seed)
    tutorial = (REPOSITORY / "docs/tutorial/first-nights.md").read_text(encoding="utf-8")
    (old, new, file), back = re.findall(r"sed -i 's/(.+)/(.+)/' (\S+)", tutorial)
    entry = (REPOSITORY / file).read_text(encoding="utf-8")
    assert entry.replace(old, new).replace(*back[:2]) == entry, "the clean-up puts it back"
    (tmp_path / file).parent.mkdir(parents=True)
    settings, runs = EvalSettings(draws=50, passes=()), []
    for text in (entry, entry.replace(old, new)):
        (tmp_path / file).write_text(text, encoding="utf-8")
        spec = entries.load(tmp_path, Path(file).stem)
        results = tmp_path / "r.duckdb"
        runs.append(evaluate.evaluate(spec, tmp_path, benchmark, results, settings).run_id)
    done = sdgbias("gate --results", results, "--baseline", runs[0], "--run", runs[1])
    assert done.returncode == 6, done.stdout


def test_a_planted_loss_is_caught_told_and_explained(
    nights: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = {"registry": nights.folder}
    common = f"--results {nights.results} --policy {nights.policy}"
    first = ok(f"gate {common} --night {FIRST}", **home)
    assert "first run: nothing to compare with yet" in first and "MISSING  accuracy" not in first

    done = sdgbias(f"gate {common} --json", **home)
    assert done.returncode == 6, done.stderr
    assert "error: in breach: drifter: accuracy, optimism" in done.stderr
    lines = [line for line in sdgbias(f"gate {common}", **home).stdout.splitlines() if line]
    assert [line.split()[0] for line in lines[-2:]] == ["BREACH", "BREACH"], (
        "breaches end the list, though twin comes after drifter"
    )
    heads = [line.split(":")[0] for line in lines if not line.startswith(" ")]
    assert heads == ["twin (sdg)", "drifter (sdg)"]
    judged = {j["model"]: j for j in json.loads(done.stdout)}
    drifter, twin = judged["drifter"], judged["twin"]
    lost = {r["rule"]: r for r in drifter["rules"]}["accuracy"]
    assert lost["verdict"] == "BREACH" and lost["before"] > 0.9 and lost["value"] < 0.7
    assert lost["ci_high"] < -0.02 and lost["n"] >= 60
    assert twin["verdict"] != "BREACH" and twin["baseline"].startswith("twin-")
    assert twin["baseline"] != twin["run_id"]
    assert drifter["flips"] and not twin["flips"]
    entry = entries.load(nights.folder, "drifter")
    assert entry.state == "quarantined"
    assert entry.reason == f"gate: optimism in breach, run {drifter['run_id']}"

    with receiving(404, 500, 200) as receiver:
        monkeypatch.setenv("SDGBIAS_WEBHOOK", receiver.url)
        line = refused(8, f"gate announce {common}", **home)
        assert "HTTP 404" in line and "s3cret" not in line
        link = "https://reports.example.org/night.html"
        assert f"{SECOND}: sent" in ok(f"gate announce {common} --link {link}", **home)
    assert len(receiver.bodies) == 3
    text = receiver.bodies[-1]["text"]
    assert "1 model in breach: drifter" in text and "accuracy, Full, choice" in text

    out = nights.folder / "report"
    ok(f"report --last-night --results {nights.results} --out {out}", **home)
    page = (out / "night.html").read_text(encoding="utf-8")
    for words in (
        "1 model in breach: drifter",
        "right to wrong",
        "accuracy, Full, choice, all tests",
    ):
        assert words in page

    accept = f"gate accept {drifter['run_id']} --reason 'wanted: new prompts'"
    said = ok(f"{accept} --results {nights.results}", **home)
    assert "drifter stays quarantined (gate: optimism in breach" in said, "as if it were back"
    assert "sdgbias models enable drifter" in said
    assert "accepted: wanted: new prompts" in ok(f"gate {common}", **home)
