"""Who is asked what tonight, and when a job is known to change nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sdgbias import store, suites
from sdgbias.cli import app
from sdgbias.errors import InputError, RegistryError, UsageError
from sdgbias.nightly import night_options, plan
from sdgbias.nightly.night_options import NightOptions
from sdgbias.registry import entries
from sdgbias.scoring.run_id import run_id
from sdgbias.suites import EvalSettings
from tests.builders.night_stubs import NIGHT, NOW, entry, settings


def finished(s: NightOptions, model: str, run: str, n_failed: int = 0, at: datetime = NOW) -> None:
    record = {"run_id": run, "model": model, "suite": "sdg", "benchmark_id": "b1"}
    store.publish(s.results, record | {"finished_at": at, "n_failed": n_failed}, {})


def test_given_a_registry_then_the_due_are_planned_and_the_others_say_why(tmp_path: Path) -> None:
    s = settings(tmp_path, "a")
    entry(tmp_path, "both", options={"suites": ["sdg", "people"], "gpu": "h100"})
    entry(tmp_path, "back", state="quarantined", reason="hung", until="2026-11-21")
    entry(tmp_path, "away", state="quarantined", reason="hung", until="2026-11-22")
    entry(tmp_path, "new", state="candidate", reason="look at it")
    entry(tmp_path, "torn").write_text("name: [")
    dry = plan.tonight(s, NOW, write=False)
    assert not (tmp_path / "results").exists()
    night = plan.tonight(s, NOW)
    assert dry == night
    assert [(j.model, j.suite, j.gpu) for j in night.jobs] == [
        ("a", "sdg", "cpu"),
        ("back", "sdg", "cpu"),
        ("both", "sdg", "h100"),
    ]
    assert {(k.model, k.suite, k.state) for k in night.skipped} == {
        ("torn", "sdg", "broken"),
        ("away", "sdg", "quarantined"),
        ("new", "sdg", "candidate"),
        ("both", "people", "no benchmark"),
    }
    assert night.night == NIGHT and night.benchmarks == {"sdg": "b1"}
    entry(tmp_path, "a").write_text("edited into garbage")
    assert entries.read(night.jobs[0].entry).name == "a", "the copy is what is scored"
    assert plan.load(s.results, NIGHT) == night
    by_name = plan.tonight(replace(s, model=["new"]), NOW)
    assert [j.model for j in by_name.jobs] == ["new"], "a candidate is asked by name only"


def test_given_a_dry_run_then_it_says_what_the_night_then_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = settings(tmp_path, "known", "moved", "new")
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(tmp_path))
    monkeypatch.delenv(plan.WEBHOOK, raising=False)
    key = next(j.key for j in plan.tonight(s, NOW, write=False).jobs if j.model == "known")
    for name in ("wanting", "waiting"):
        entry(tmp_path, name, state="candidate", reason=f"{name} for a GPU of its own")
    finished(s, "known", key)
    finished(s, "moved", "moved-1")
    command = ["nightly", "--dry-run", "--results", s.results, "--benchmark", s.benchmarks[0]]
    output = CliRunner().invoke(app, [str(part) for part in command], catch_exceptions=False).output
    lines = {" ".join(line.split()) for line in output.splitlines()}
    assert lines >= {
        f"known sdg unchanged: {key}",
        "moved sdg will be scored (cpu)",
        "new sdg will be scored (cpu)",
        "then: analyse, gate, report, wandb",
        f"announce: not due: no webhook address in {plan.WEBHOOK}",
        "skipped: 2 candidates, scored only when enabled: sdgbias models --state candidate",
    }
    assert "of its own" not in output, "a reason each would hide those of the enabled models"


def test_given_a_job_then_its_key_is_the_id_that_evaluate_gives_its_run(tmp_path: Path) -> None:
    """What the id hangs on: tests/scoring/test_run_id.py."""
    s = settings(tmp_path, draws=5, seed=1, passes="none", generated="all")
    weights = tmp_path / "w"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    entry(tmp_path, "m", backend="hf", repo="local:w", revision="local")
    evaluation = EvalSettings(draws=5, seed=1, passes=(), generated="all")
    spec = entries.load(tmp_path, "m")
    [job] = plan.tonight(s, NOW).jobs
    assert job.key == run_id(spec, tmp_path, "b1", suites.named("sdg"), evaluation)


def test_given_a_complete_run_of_the_same_id_then_it_is_not_scored_again(tmp_path: Path) -> None:
    """However it came about: by an earlier night, or by `sdgbias evaluate`."""
    s = settings(tmp_path, "a", "torn")
    endpoint = {"backend": "api", "repo": "x/y", "revision": "today"}
    entry(tmp_path, "api", **endpoint, options={"api_key_env": "X_KEY"})
    keys = {j.model: j.key for j in plan.tonight(s, NOW).jobs}
    for model, n_failed in (("a", 0), ("torn", 1), ("api", 0)):
        finished(s, model, keys[model], n_failed)
    unchanged = {j.model: j.run_id for j in plan.tonight(s, NOW).jobs}
    why = "failed prompts are asked again; an endpoint can change behind its name"
    assert unchanged == {"a": keys["a"], "torn": "", "api": ""}, why


def test_given_earlier_runs_then_new_models_come_first_then_the_longest_unmeasured(
    tmp_path: Path,
) -> None:
    s = settings(tmp_path, "a", "b", "c", "new")
    for day, model in ((3, "a"), (1, "b"), (2, "c")):
        finished(s, model, f"{model}-1", at=NOW + timedelta(days=day))
    assert [j.model for j in plan.tonight(s, NOW).jobs] == ["new", "b", "c", "a"]


def test_given_jobs_at_once_then_each_has_its_share_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setenv("SDGBIAS_GPUS", "1x80")
    for jobs, threads in ((0, 0), (1, 0), (2, 8), (32, 1)):
        [job] = plan.tonight(settings(tmp_path, "a", jobs=jobs), NOW, write=False).jobs
        assert job.threads == threads


def test_given_options_that_make_no_sense_then_they_are_refused_before_any_model_is_asked(
    tmp_path: Path,
) -> None:
    s = settings(tmp_path, "a")
    card = tmp_path / "benchmark" / "benchmark.json"
    for due in ("2026-11-21T01:30", "9999-12-31T23:59:59+00:00"):  # which no eastern zone has
        with pytest.raises(UsageError, match="a time with its offset"):
            night_options.parse(scheduled_for=due, timezone="Africa/Nairobi")
    for seed in (-1, 2**32):  # each model would refuse it
        with pytest.raises(UsageError, match=f"seed is {seed}"):
            night_options.parse(seed=seed)
    with pytest.raises(RegistryError, match="nobody"):
        plan.tonight(replace(s, model=["nobody"]), NOW)
    with pytest.raises(UsageError, match="sideways"):
        plan.tonight(replace(s, passes="sideways"), NOW)
    card.write_text(json.dumps({"benchmark_id": "p", "suite": "people"}))
    [skipped] = plan.tonight(s, NOW).skipped
    assert (skipped.suite, skipped.state) == ("sdg", "no benchmark")
    with pytest.raises(UsageError, match="both of suite people; name one of each suite"):
        plan.tonight(replace(s, benchmark=[*s.benchmarks, *s.benchmarks]), NOW)
    card.unlink()
    with pytest.raises(InputError, match="sdgbias build"):
        plan.tonight(s, NOW)


@pytest.mark.parametrize(
    ("text", "withheld"),
    [
        ("webhook: TEAM_ROOM\nrules: [", ("TEAM_ROOM",)),
        ('{"webhook": "TEAM_ROOM", "rules": 3}', ("TEAM_ROOM",)),
        ("webhook : 'TEAM_ROOM'\nrules: {}", ("TEAM_ROOM",)),
        ("webhook: >-\n  TEAM_ROOM\nrules: []\n", ("TEAM_ROOM",)),
        ("webhook: &team TEAM_ROOM\nrules: []\n", ("TEAM_ROOM",)),
        ("rules: []\n", ()),
    ],
    ids=["no YAML", "no list of rules", "quoted", "a folded text", "an anchor", "no address"],
)
def test_given_any_policy_then_its_variable_is_withheld_from_models(
    tmp_path: Path, text: str, withheld: tuple[str, ...]
) -> None:
    s = settings(tmp_path, "m")
    (tmp_path / "registry" / "policy.yaml").write_text(text)
    [job] = plan.tonight(s, NOW).jobs
    assert job.withheld == (*withheld, plan.WEBHOOK)


#: Runs three commands; after each, its exit code and the libraries of models that it loaded.
COMMANDS = """
import sys
from sdgbias.cli import main
plan, results, rules = sys.argv[1:]
for given in (
    ["nightly", "--dry-run", "--model", "m", "--benchmark", plan, "--results", results],
    ["models", "watch", "--rules", rules],
    ["models", "enable", "gone"],
):
    sys.argv = ["sdgbias", *given]
    try:
        main()
    except SystemExit as end:
        compilers = {"numba", "scipy"} if given[1] != "enable" else set()
        print(end.code, *(compilers | {"torch", "transformers"}) & {*sys.modules})
"""


def test_given_a_plan_or_a_look_at_the_hub_then_no_model_library_is_loaded(tmp_path: Path) -> None:
    """numba and scipy took a third of the time of a dry run over a thousand models, torch 5 of the
    6 seconds of a look at a hub with nothing new, or at a folder of weights that is gone."""
    s = settings(tmp_path, "m")
    (tmp_path / "rules.yaml").write_text("commits: true\n")
    entry(tmp_path, "gone", backend="hf", repo="local:weights/none", revision="local")
    command = [sys.executable, "-c", COMMANDS, s.benchmarks[0], s.results, tmp_path / "rules.yaml"]
    env = {**os.environ, entries.ENV_ROOT: str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    first, nothing, watched, why, refused = done.stdout.splitlines()[-5:]
    assert "m                        sdg    will be scored (cpu)" in done.stdout
    assert (nothing, watched) == ("nothing new", "0")
    assert first == "0" and "no config.json" in why and refused == "5"
