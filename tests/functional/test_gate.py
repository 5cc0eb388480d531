"""Two nights of planted models, as a team meets them: a loss is caught, told and explained; no
change is no alarm."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from sdgbias import store
from sdgbias.registry import entries
from sdgbias.scoring import evaluate
from sdgbias.suites.suite import EvalSettings
from tests.builders.commands import add_model, ok, refused, sdgbias

FIRST, SECOND = "2026-11-20T0130", "2026-11-21T0130"
HABITS = {
    "prior": {"all": [0.0, 0.2, 0.5]},
    "context_weight": 1.0,
    "image_weight": 1.6,
    "noise": 0.3,
}
POLICY = {
    "examples": 10,
    "rules": [
        {
            "name": "accuracy",
            "metric": "accuracy",
            "methods": ["full"],
            "allowed": 0.02,
            "min_n": 60,
            "required": True,
        },
        {
            "name": "optimism",
            "metric": "share_optimistic",
            "worse": "higher",
            "allowed": 0.05,
            "min_n": 60,
            "then": "quarantine",
        },
        {"name": "mae", "metric": "mae", "worse": "higher", "allowed": 0.1, "min_n": 60},
        {"name": "mass", "metric": "candidate_mass", "at_least": 0.2, "min_n": 60},
        {"name": "failed", "metric": "failed_share", "at_most": 0.05, "min_n": 60},
    ],
}


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
        return evaluate.evaluate(
            entries.load(folder, name), folder, tiny_benchmark, results, EvalSettings(draws=50)
        ).run_id

    for day, night in enumerate((FIRST, SECOND)):
        worse = {"prior": {"all": [-0.5, 0.2, 2.2]}, "image_weight": 0.6} if day else {}
        published = {"drifter": run("drifter", **worse), "twin": run("twin", noise=1e-4, seed=day)}
        start = datetime(2026, 11, 20, 0, 30) + timedelta(days=day)
        rows = [
            {
                "night": night,
                "model": m,
                "suite": "sdg",
                "run_id": r,
                "outcome": "published",
                "attempts": 1,
            }
            for m, r in published.items()
        ]
        row = {
            "night": night,
            "started_at": start,
            "finished_at": start + timedelta(hours=1),
            "by": "cli",
            "status": "done",
            "steps": {"analyse": "done"},
            "step_states": {"analyse": "done"},
        }
        store.upsert(results, {"nights": pd.DataFrame([row]), "night_outcomes": pd.DataFrame(rows)})
    policy = folder / "policy.yaml"
    policy.write_text(yaml.safe_dump(POLICY))
    return Stack(folder, results, policy)


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[int], list[dict[str, Any]]]]:
    """(address, the codes it answers with in turn, what was sent) of a receiver on loopback."""
    codes, bodies = [200], []  # type: ignore[var-annotated]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(codes.pop(0) if len(codes) > 1 else codes[0])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/s3cret", codes, bodies
    server.shutdown()
    server.server_close()


def test_a_planted_loss_is_caught_told_and_explained(
    nights: Stack,
    webhook: tuple[str, list[int], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    common = ("--results", nights.results, "--policy", nights.policy)
    gate = ("gate", *common)
    first = ok(*gate, "--night", FIRST, registry=nights.folder)
    assert "first run: nothing to compare with yet" in first and "MISSING  accuracy" not in first

    done = sdgbias(*gate, "--json", registry=nights.folder)
    assert done.returncode == 6, done.stderr
    assert "error: in breach: drifter: accuracy, optimism" in done.stderr
    told = [line for line in sdgbias(*gate, registry=nights.folder).stdout.splitlines() if line]
    assert [line.split()[0] for line in told[-2:]] == ["BREACH", "BREACH"], (
        "breaches end the list, though twin comes after drifter"
    )
    heads = [line.split(":")[0] for line in told if not line.startswith(" ")]
    assert heads == ["twin (sdg)", "drifter (sdg)"]
    found = {j["model"]: j for j in json.loads(done.stdout)}
    lost = {r["rule"]: r for r in found["drifter"]["rules"]}
    assert (
        lost["accuracy"]["verdict"] == "BREACH"
        and lost["accuracy"]["before"] > 0.9
        and lost["accuracy"]["value"] < 0.7
    )
    assert lost["accuracy"]["ci_high"] < -0.02 and lost["accuracy"]["n"] >= 60
    assert (
        found["twin"]["verdict"] != "BREACH"
        and found["twin"]["baseline"].startswith("twin-")
        and found["twin"]["baseline"] != found["twin"]["run_id"]
    )
    assert found["drifter"]["flips"] and not found["twin"]["flips"]
    assert entries.load(nights.folder, "drifter").state == "quarantined"
    assert (
        entries.load(nights.folder, "drifter").reason
        == f"gate: optimism in breach, run {found['drifter']['run_id']}"
    )

    address, codes, bodies = webhook
    monkeypatch.setenv("SDGBIAS_WEBHOOK", address)
    codes[:] = [404]
    said = refused(8, "gate", "announce", *common, registry=nights.folder)
    assert "HTTP 404" in said and "s3cret" not in said
    codes[:] = [500, 200]
    assert "2026-11-21T0130: sent" in ok(
        "gate",
        "announce",
        *common,
        "--link",
        "https://reports.example.org/night.html",
        registry=nights.folder,
    )
    assert (
        len(bodies) == 3
        and "1 model in breach: drifter" in bodies[-1]["text"]
        and "accuracy, Full, choice" in bodies[-1]["text"]
    )

    out = nights.folder / "report"
    only = ("report", "--last-night", "--results", nights.results)
    ok(*only, "--out", out, registry=nights.folder)
    page = (out / "night.html").read_text(encoding="utf-8")
    assert (
        "1 model in breach: drifter" in page
        and "right to wrong" in page
        and "accuracy, Full, choice, all tests" in page
    )

    run = found["drifter"]["run_id"]
    ok(
        "gate",
        "accept",
        run,
        "--reason",
        "wanted: new prompts",
        "--results",
        nights.results,
        registry=nights.folder,
    )
    assert "accepted: wanted: new prompts" in ok(*gate, registry=nights.folder)
