"""The page on new releases, line by line, against a hub on loopback: from an empty registry to the
first published night, in which two other models can't be evaluated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdgbias import store
from sdgbias.nightly import watch
from sdgbias.registry import entries
from tests.builders import commands
from tests.builders.hub import Hub, Repo, commit, folder, weights
from tests.builders.webhook import webhook
from tests.test_docs import FENCE, TEXT, blocks, lines

PAGE = "docs/how-to/new-releases.md"
TINY = commands.REPOSITORY / "registry" / "weights" / "tiny-llava"
LOOK, PLAN = "sdgbias models watch", "sdgbias nightly --dry-run"
NIGHT = "sdgbias nightly --fetch yes --report reports/latest"
FEW = "--passes none --generated none --draws 50"
DUE = "--timezone Africa/Nairobi --scheduled-for 2026-11-20T22:30:00+00:00"
#: Command of the page -> what the test adds: a message to look at, fewer prompts, a due night.
MORE = {LOOK: "--webhook-env SDGBIAS_WEBHOOK", PLAN: "--json", NIGHT: f"{FEW} {DUE} --json"}


def test_from_an_empty_registry_to_the_first_published_night(
    tmp_path: Path, tiny_benchmark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "benchmark").symlink_to(tiny_benchmark)
    monkeypatch.delenv("SDGBIAS_REGISTRY", raising=False)
    [policy] = [body for language, body in FENCE.findall(TEXT[PAGE]) if language == "yaml"]
    assert "questions: 200" in policy
    files = folder(TINY)
    tiny, newer = commit(files), commit({**files, "model.safetensors": weights(10)})
    repos = {
        "llava-hf/llava-tiny": Repo([tiny], params=1_850_000),
        "llava-hf/llava-huge": Repo([tiny], params=90_000_000_000),
        "llava-hf/llava-closed": Repo([tiny], params=1_850_000, licence="other"),
    }
    printed: dict[str, str] = {}
    with Hub(repos) as hub, webhook() as (address, messages):
        monkeypatch.setenv("SDGBIAS_WEBHOOK", address)
        hub.into(monkeypatch, tmp_path / "hf")
        for command in (line for block in blocks(PAGE) for line in lines(block)):
            if command == PLAN:
                gone = {"repo": "path:/nowhere/at/all", "notes": "gone"}
                commands.add_model(tmp_path, "absent", backend="hf", **gone)
                (tmp_path / "registry/models/torn.yaml").write_text("name: [")
                hub.repos["llava-hf/llava-tiny"].commits.append(newer)
            if command.startswith("sdgbias "):  # not `serve`, which doesn't end
                line = f"{command} {MORE.get(command, '')}".removeprefix("sdgbias ")
                printed[command] = commands.ok(line, cwd=tmp_path)
            if command == "sdgbias init":
                rules = tmp_path / "registry" / "watch.yaml"
                rules.write_text(policy.replace("questions: 200", "questions: 12"))
        again = commands.ok(f"{NIGHT} {FEW} {DUE}".removeprefix("sdgbias "), cwd=tmp_path)

    assert "candidate llava-tiny" in printed[f"{LOOK} --dry-run"]
    assert ": llava-tiny: enabled: evaluated from tonight on" in printed[LOOK]
    message = messages.get_nowait()
    assert "new repository" in message and "admitted" in message, "one message with both"
    assert set(watch.read_ledger(tmp_path)) == {"llava-hf/llava-tiny"}, "the others are not wanted"
    assert entries.load(tmp_path, "llava-tiny").enabled

    planned = json.loads(printed[PLAN])
    assert [job["model"] for job in planned["jobs"]] == ["absent", "llava-tiny"]
    assert [skipped["model"] for skipped in planned["skipped"]] == ["torn"]
    night = json.loads(printed[NIGHT])
    assert (night["night"], night["status"]) == ("2026-11-21T0130", "done")
    assert set(night["steps"].values()) == {"done"}
    assert {o["model"]: (o["outcome"], o["kind"]) for o in night["outcomes"]} == {
        "absent": ("failed", "ModelError"),
        "llava-tiny": ("published", ""),
        "torn": ("failed", "RegistryError"),
    }
    assert entries.load(tmp_path, "absent").state == "quarantined"
    line = commands.refused(4, f"register-model {TINY} --name absent --candidate", cwd=tmp_path)
    assert "exists already; replace it: --overwrite" in line
    assert "done already" in again
    assert "llava-tiny" in printed["sdgbias results"]
    sql = "SELECT model, revision, n_failed FROM runs"
    runs = store.query(tmp_path / "results" / "sdgbias.duckdb", sql)
    assert runs.values.tolist() == [["llava-tiny", tiny.sha, 0]], "as pinned, whatever is newer"
    page = (tmp_path / "reports/latest/night.html").read_text(encoding="utf-8")
    assert "absent" in page and "llava-tiny" in page
    front = (tmp_path / "reports/latest/index.html").read_text(encoding="utf-8")
    assert '<a href="night.html">Last night</a>' in front
