"""A model's life as a person sees it: found on a hub, registered, evaluated at its commit, put
aside, retired, reopened; and bad input."""

from __future__ import annotations

import json
import shutil
from datetime import date, timedelta
from pathlib import Path

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


def entry(root: Path, name: str) -> dict[str, object]:
    return yaml.safe_load((root / "registry" / "models" / f"{name}.yaml").read_text())


@pytest.mark.long
def test_from_the_hub_to_the_results(
    root: Path, tiny_benchmark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = folder(TINY)
    pinned = commit(files, "first")
    repos = {
        "demo/Tiny-LLaVA": Repo([pinned], params=1_850_000),
        "demo/gated": Repo([commit(files)], gated=True),
    }
    results = root / "out" / "r.duckdb"
    where = ("--results", results, "--benchmark", tiny_benchmark)
    with Hub(repos, {TOKEN: "stranger"}) as hub:
        hub.into(monkeypatch, root / "hf")
        said = ok(
            "register-model",
            "demo/Tiny-LLaVA",
            "--suites",
            "sdg",
            "--dtype",
            "float32",
            "--probes",
            6,
            *where,
            registry=root,
        )
        assert (
            pinned.sha in said and "6 of" in said and "agree alone, in batches and shuffled" in said
        )
        assert "Next: sdgbias evaluate tiny-llava" in said
        made = entry(root, "tiny-llava")
        assert (made["state"], made["repo"], made["revision"], made["backend"]) == (
            "enabled",
            "demo/Tiny-LLaVA",
            pinned.sha,
            "hf",
        )
        assert (root / "out" / "parity" / "tiny-llava.json").is_file()
        again = refused(4, "register-model", "demo/Tiny-LLaVA", "--candidate", registry=root)
        assert "exists already; replace it: --overwrite" in again

        hub.repos["demo/Tiny-LLaVA"].commits.append(
            commit({**files, "README.md": b"news"}, "second")
        )
        (root / "registry" / "watch.yaml").write_text("commits: true\n")
        seen = json.loads(ok("models", "watch", "--json", registry=root))
        assert [(one["kind"], one["written"]) for one in seen] == [("same", False)]
        hub.repos["demo/Tiny-LLaVA"].commits.append(
            commit({**files, "model.safetensors": weights(10)}, "third")
        )
        ok("evaluate", "tiny-llava", "--draws", 20, "--passes", "none", *where, registry=root)
        runs = store.query(results, "SELECT model, revision, n_failed FROM runs")
        assert runs.values.tolist() == [["tiny-llava", pinned.sha, 0]], (
            "the pinned commit, whatever is newer"
        )
        shown = ok("models", "show", "tiny-llava", "--results", results, registry=root)
        assert (
            pinned.sha in shown
            and "memory   about 0.5 GiB" in shown
            and "check    " in shown
            and "runs     \n" in shown
        )

        monkeypatch.setenv("HF_TOKEN", TOKEN)
        told = refused(8, "register-model", "demo/gated", registry=root)
        assert "gated, and your account has no access" in told and TOKEN not in told
    assert "can't be reached" in refused(8, "models", "watch", registry=root)
    assert entry(root, "tiny-llava") == made, "nobody is put aside because the hub is down"


def test_the_states_by_hand(root: Path) -> None:
    path = add_model(root, "m", title="M", options={"suites": ["sdg", "people"]})
    path.write_text("# kept\n" + path.read_text())
    add_model(root, "shy", state="candidate", reason="not looked at")
    table = ok("models", registry=root)
    assert table.splitlines()[0].split() == [
        "model",
        "backend",
        "state",
        "until",
        "suites",
        "reason",
    ]
    candidates = ok("models", "list", "--state", "candidate", registry=root).splitlines()
    assert [line.split()[0] for line in candidates[:2]] == ["model", "shy"]
    assert candidates[-1] == "1 models: 1 candidate. Next: sdgbias models show NAME"

    before = date.today()
    said = ok("models", "quarantine", "m", "--reason", "OOM at 40 GiB", "--days", 1, registry=root)
    tomorrow = entry(root, "m")["until"]
    assert tomorrow in {(day + timedelta(days=1)).isoformat() for day in (before, date.today())}, (
        "the test may run over midnight"
    )
    assert f"tried again from {tomorrow}" in said and entry(root, "m")["state"] == "quarantined"
    assert path.read_text().startswith("# kept\n")
    listed = json.loads(ok("models", "list", "--json", registry=root))
    assert [(m["name"], m["state"], m["until"]) for m in listed["models"]] == [
        ("m", "quarantined", tomorrow),
        ("shy", "candidate", ""),
    ]
    assert "is enabled" in ok("models", "enable", "m", "--no-check", registry=root)
    assert "reason" not in entry(root, "m")
    ok("models", "retire", "m", "--reason", "superseded by n", registry=root)
    assert (
        "retired can't become enabled; valid: retired, candidate; first: sdgbias models reopen m"
        in refused(4, "models", "enable", "m", registry=root)
    )
    ok("models", "reopen", "m", registry=root)
    assert entry(root, "m")["state"] == "candidate"

    assert "--reason is empty" in refused(2, "models", "quarantine", "m", registry=root)
    add_model(root, "m")
    for until, words, code in (
        ("2020-01-01", "not after today", 2),
        ("soon", "such as 2026-11-30", 4),
        ("2026-02-30", "such as", 4),
    ):
        assert words in refused(
            code, "models", "quarantine", "m", "--reason", "x", "--until", until, registry=root
        )
    assert entry(root, "m")["state"] == "enabled"
    assert "candidate can't become quarantined" in refused(
        4, "models", "quarantine", "shy", "--reason", "x", registry=root
    )
    assert "unknown value 'asleep'; valid: candidate, enabled, quarantined, retired" in refused(
        2, "models", "list", "--state", "asleep", registry=root
    )
    assert "unknown model 'x'; valid: m, shy" in refused(
        4, "models", "retire", "x", "--reason", "x", registry=root
    )


def test_a_model_added_by_mistake_is_removed(root: Path, tmp_path: Path) -> None:
    path = add_model(root, "typo")
    add_model(root, "m")
    assert "unknown model 'tpyo'" in refused(4, "models", "remove", "tpyo", registry=root)
    results = tmp_path / "r.duckdb"
    record = {"run_id": "typo-1", "model": "typo", "benchmark_id": "b", "suite": "sdg"}
    store.publish(results, record | {"finished_at": "2026-11-20T00:00:00"}, {})
    said = ok("models", "remove", "typo", "--results", results, registry=root)
    assert not path.exists() and (root / "registry/models/m.yaml").exists()
    assert f"1 of its runs stay in {results}. Next: sdgbias store remove typo-1" in said
    said = ok("store", "remove", "typo-1", "--results", results)
    assert "1 runs of typo are removed" in said and store.run_ids(results) == []
    assert "unknown run 'typo-1'" in refused(7, "store", "remove", "typo-1", "--results", results)


def test_entries_edited_into_nonsense(root: Path) -> None:
    add_model(root, "good")
    models = root / "registry" / "models"
    add_model(root, "sleepy", state="asleep")
    add_model(root, "silent", state="quarantined")
    add_model(root, "late", state="quarantined", reason="x", until="next week")
    (models / "torn.yaml").write_text("name: torn\nstate: [\n")
    add_model(root, "twice")
    shutil.copy(models / "twice.yaml", models / "Twice.yml")
    done = sdgbias("models", registry=root)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines()[:2]]
    assert listed == ["model", "good"], "the others are listed"
    for words in (
        "unknown state 'asleep'; valid: candidate, enabled, quarantined, retired",
        "silent.yaml: state is quarantined without a reason",
        "until is 'next week'",
        "torn.yaml: line",
        "duplicate of",
    ):
        assert words in done.stderr, done.stderr
    assert "error: 6 of 7 entries can't be read" in done.stderr
