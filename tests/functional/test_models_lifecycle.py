"""A model's life as a person sees it: found on a hub, registered, evaluated at its commit, put
aside, retired, enabled again; entries edited into nonsense."""

from __future__ import annotations

import json
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from sdgbias import store
from tests.builders.commands import REPOSITORY, add_model, ok, refused, sdgbias
from tests.builders.hub import Hub, Repo, commit, folder, weights

TINY = REPOSITORY / "registry" / "weights" / "tiny-llava"
TOKEN = "hf_stranger00000000"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "registry" / "models").mkdir(parents=True)
    return tmp_path


def entry(root: Path, name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((root / "registry" / "models" / f"{name}.yaml").read_text()))


@pytest.mark.long
@pytest.mark.slow
def test_from_the_hub_to_the_results_at_the_pinned_commit(
    root: Path, tiny_benchmark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, results = folder(TINY), root / "out" / "r.duckdb"
    pinned = commit(files, "first")
    repos = {
        "demo/Tiny-LLaVA": Repo([pinned], params=1_850_000),
        "demo/gated": Repo([commit(files)], gated=True),
    }
    where = f"--results {results} --benchmark {tiny_benchmark}"
    register = f"register-model demo/Tiny-LLaVA --suites sdg --dtype float32 --probes 6 {where}"
    with Hub(repos, {TOKEN: "stranger"}) as hub:
        hub.into(monkeypatch, root / "hf")
        printed = ok(register, registry=root, alone=True)
        assert pinned.sha in printed and "Next: sdgbias evaluate tiny-llava" in printed
        assert "6 of" in printed and "agree alone, in batches and shuffled" in printed
        made = entry(root, "tiny-llava")
        shown = [made[name] for name in ("state", "repo", "revision", "backend")]
        assert shown == ["enabled", "demo/Tiny-LLaVA", pinned.sha, "hf"]
        assert (root / "out" / "parity" / "tiny-llava.json").is_file()
        line = refused(4, f"{register} --candidate", registry=root, alone=True)
        assert "exists already; replace it: --overwrite" in line

        news = {**files, "README.md": b"news"}, {**files, "model.safetensors": weights(10)}
        hub.repos["demo/Tiny-LLaVA"].commits.append(commit(news[0], "second"))
        (root / "registry" / "watch.yaml").write_text("commits: true\n")
        seen = json.loads(ok("models watch --json", registry=root, alone=True))
        assert seen == [], "other files than those that matter"
        hub.repos["demo/Tiny-LLaVA"].commits.append(commit(news[1], "third"))
        evaluate = f"evaluate tiny-llava --draws 20 --passes none {where}"
        ok(evaluate, registry=root, alone=True)
        runs = store.query(results, "SELECT model, revision, n_failed FROM runs")
        assert runs.values.tolist() == [["tiny-llava", pinned.sha, 0]], (
            "the pinned commit, whatever is newer"
        )
        page = ok(f"models show tiny-llava --results {results}", registry=root)
        assert pinned.sha in page and "memory   about 0.5 GiB" in page
        assert "check    " in page and "runs     \n" in page

        monkeypatch.setenv("HF_TOKEN", TOKEN)
        line = refused(8, "register-model demo/gated", registry=root, alone=True)
        assert "gated, and your account has no access" in line and TOKEN not in line
    assert "can't be reached" in refused(8, "models watch", registry=root, alone=True)
    assert entry(root, "tiny-llava") == made, "nobody is put aside because the hub is down"


def test_a_registry_without_models_says_how_to_add_one(root: Path) -> None:
    assert ok("models", registry=root) == "No model yet. Next: sdgbias register-model REPO\n"
    line = refused(4, "models show m", registry=root)
    assert line.endswith(
        "unknown model 'm'; there is none yet; add one: sdgbias register-model REPO"
    )


def test_the_states_by_hand(root: Path) -> None:
    path = add_model(root, "m", title="M", options={"suites": ["sdg", "people"]})
    path.write_text("# kept\n" + path.read_text())
    add_model(root, "shy", state="candidate", reason="not looked at")
    columns = ["model", "backend", "state", "until", "suites", "reason"]
    table = ok("models", registry=root)
    assert table == ok("models", registry=root) and table.splitlines()[0].split() == columns
    candidates = ok("models --state candidate", registry=root).splitlines()
    assert [line.split()[0] for line in candidates[:2]] == ["model", "shy"]
    assert candidates[-1] == "Models: 1 candidate. Next: sdgbias models show NAME"

    days = {(date.today() + timedelta(days=more)).isoformat() for more in (1, 2)}
    printed = ok("models quarantine m --reason 'OOM at 40 GiB' --days 1", registry=root)
    tomorrow = entry(root, "m")["until"]
    assert tomorrow in days, "the test may run over midnight"
    assert f"tried again from {tomorrow}" in printed and entry(root, "m")["state"] == "quarantined"
    assert path.read_text().startswith("# kept\n")
    listed = json.loads(ok("models --json", registry=root))["models"]
    assert [(m["name"], m["state"], m["until"]) for m in listed] == [
        ("m", "quarantined", tomorrow),
        ("shy", "candidate", ""),
    ]
    assert "is enabled" in ok("models enable m --no-check", registry=root)
    assert "reason" not in entry(root, "m")
    ok("models retire m --reason 'superseded by n'", registry=root)
    line = refused(4, "models quarantine m --reason x", registry=root)
    assert "retired can't become quarantined; valid: retired, enabled" in line
    assert "is enabled" in ok("models enable m --no-check", registry=root)


def test_a_model_added_by_mistake_is_removed(root: Path, tmp_path: Path) -> None:
    path = add_model(root, "typo")
    add_model(root, "m")
    assert "unknown model 'tpyo'" in refused(4, "models remove tpyo", registry=root)
    results = tmp_path / "r.duckdb"
    record = {"run_id": "typo-1", "model": "typo", "benchmark_id": "b", "suite": "sdg"}
    store.publish(results, record | {"finished_at": "2026-11-20T00:00:00"}, {})
    printed = ok(f"models remove typo --results {results}", registry=root)
    assert not path.exists() and (root / "registry/models/m.yaml").exists()
    assert f"1 of its runs stay in {results}. Next: sdgbias store remove typo-1" in printed
    printed = ok(f"store remove typo-1 --results {results}")
    assert "1 run of typo is removed" in printed and store.run_ids(results) == []
    assert "unknown run 'typo-1'" in refused(7, f"store remove typo-1 --results {results}")


def test_entries_edited_into_nonsense_are_named_and_the_others_listed(root: Path) -> None:
    add_model(root, "good")
    models = root / "registry" / "models"
    add_model(root, "sleepy", state="asleep")
    add_model(root, "silent", state="quarantined")
    add_model(root, "late", state="quarantined", reason="x", until="next week")
    (models / "torn.yaml").write_text("name: torn\nstate: [\n")
    shutil.copy(models / "good.yaml", models / "twice.yml")

    done = sdgbias("models", registry=root)

    assert done.returncode == 4 and "Traceback" not in done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines()[:2]]
    assert listed == ["model", "good"], "the others are listed"
    for words in (
        "unknown state 'asleep'; valid: candidate, enabled, quarantined, retired",
        "silent.yaml: state is quarantined without a reason",
        "until is 'next week'",
        "torn.yaml: line",
        "twice.yml: the file of model good is named good.yaml",
    ):
        assert words in done.stderr, done.stderr
    assert "error: 5 of 6 entries can't be read" in done.stderr
