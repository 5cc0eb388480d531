"""The page on new releases, line by line, against a hub on loopback: from an empty registry to the
first published night."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias import store
from sdgbias.nightly import watch
from sdgbias.registry import entries
from tests.builders import commands
from tests.builders.hub import Hub, Repo, commit, folder
from tests.builders.webhook import webhook
from tests.test_docs import FENCE, TEXT, blocks, lines

PAGE = "docs/how-to/new-releases.md"
TINY = commands.REPOSITORY / "registry" / "weights" / "tiny-llava"
FEW = "--passes none --generated none --draws 50"
#: Command of the page -> what the test adds: a message to look at, and fewer prompts.
MORE = {
    "sdgbias models watch": "--webhook-env SDGBIAS_WEBHOOK",
    "sdgbias nightly --fetch yes --report reports/latest": FEW,
}


@pytest.mark.slow  # tests/nightly/test_watch.py takes every turn of it without models
def test_from_an_empty_registry_to_the_first_published_night(
    tmp_path: Path, tiny_benchmark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "benchmark").symlink_to(tiny_benchmark)
    monkeypatch.delenv("SDGBIAS_REGISTRY", raising=False)
    [policy] = [body for language, body in FENCE.findall(TEXT[PAGE]) if language == "yaml"]
    assert "questions: 200" in policy
    tiny = commit(folder(TINY))
    repos = {
        "llava-hf/llava-tiny": Repo([tiny], params=1_850_000),
        "llava-hf/llava-huge": Repo([tiny], params=90_000_000_000),
        "llava-hf/llava-closed": Repo([tiny], params=1_850_000, licence="other"),
    }
    said: dict[str, str] = {}
    with Hub(repos) as hub, webhook() as (address, messages):
        monkeypatch.setenv("SDGBIAS_WEBHOOK", address)
        hub.into(monkeypatch, tmp_path / "hf")
        for command in (line for block in blocks(PAGE) for line in lines(block)):
            if command.startswith("sdgbias "):  # not `serve`, which doesn't end
                line = f"{command} {MORE.get(command, '')}".removeprefix("sdgbias ")
                said[command] = commands.ok(line, cwd=tmp_path)
            if command == "sdgbias init":
                rules = tmp_path / "registry" / "watch.yaml"
                rules.write_text(policy.replace("questions: 200", "questions: 12"))

    assert MORE.keys() <= said.keys()
    assert "candidate llava-tiny" in said["sdgbias models watch --dry-run"]
    assert ": llava-tiny: enabled: evaluated from tonight on" in said["sdgbias models watch"]
    message = messages.get_nowait()
    assert "new repository" in message and "admitted" in message, "one message with both"
    assert set(watch.read_ledger(tmp_path)) == {"llava-hf/llava-tiny"}, "the others are not wanted"
    assert entries.load(tmp_path, "llava-tiny").enabled
    assert "will be scored" in said["sdgbias nightly --dry-run"]
    assert "llava-tiny" in said["sdgbias results"]
    results = tmp_path / "results" / "sdgbias.duckdb"
    rows = store.query(results, "SELECT model, outcome FROM night_outcomes")
    assert rows.values.tolist() == [["llava-tiny", "published"]]
    assert "llava-tiny" in (tmp_path / "reports/latest/night.html").read_text(encoding="utf-8")
