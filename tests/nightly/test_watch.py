"""Watching the hub: new commits, new repositories, withdrawn commits, against a hub on loopback;
and what the rules may say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sdgbias.errors import ExpiredToken, HubUnreachable, RegistryError
from sdgbias.nightly import watch, watch_rules
from sdgbias.nightly.watch import GONE, NEW_COMMIT, NEW_REPOSITORY, REFUSED, SAME, TROUBLE, Finding
from sdgbias.nightly.watch_rules import Everyone, Owner, Rules
from sdgbias.registry import changes, entries
from sdgbias.registry.machine import Machine
from sdgbias.registry.propose import Host
from tests.builders import night_stubs
from tests.builders.hub import Hub, Repo, commit, weights

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Host(Machine((80.0,), 100.0), lambda: frozenset({"llava"}), "no vLLM")
VLM = {
    "config.json": {"model_type": "llava", "vision_config": {}, "dtype": "bfloat16"},
    "model.safetensors": weights(10),
}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(
        {"lab/vlm": Repo([commit(VLM, "first")], params=7_000_000_000)},
        {"hf_old0000000000000": "expired", "hf_member0000000000": "member"},
    ) as made:
        made.into(monkeypatch, tmp_path / "hf")
        yield made


def put(
    root: Path, name: str, repo: str, revision: str, state: str = "enabled", **more: Any
) -> None:
    fields = {"title": name.upper(), "backend": "hf", "repo": repo, "revision": revision}
    night_stubs.entry(root, name, state=state, reason="x", **fields, **more)


def texts(root: Path) -> dict[str, str]:
    return {
        path.stem: path.read_text() for path in sorted((root / "registry" / "models").iterdir())
    }


def kinds(found: list[Finding]) -> list[tuple[str, str]]:
    return [(one.kind, one.name) for one in found]


def test_a_new_commit_becomes_a_candidate_once(root: Path, served: Hub) -> None:
    repo = served.repos["lab/vlm"]
    known = {"batch_size": 3, "dtype": "float32", "options": {"suites": ["people"]}}
    put(root, "vlm", "lab/vlm", repo.commits[0].sha, **known)
    before = texts(root)
    assert kinds(watch.look(root, Rules(), HERE)) == [(SAME, "")]

    repo.commits.append(commit({**VLM, "README.md": b"new words"}, "second"))
    (same,) = watch.look(root, Rules(), HERE)
    assert (
        same.kind == SAME
        and "weights and settings are those of vlm" in same.text
        and texts(root) == before
    )

    repo.commits.append(commit({**VLM, "model.safetensors": weights(11)}, "third"))
    head = repo.commits[-1].sha
    (dry,) = watch.look(root, Rules(), HERE, dry_run=True)
    assert (dry.kind, dry.name, dry.written) == (NEW_COMMIT, f"vlm-{head[:8]}", False) and texts(
        root
    ) == before
    (seen,) = watch.look(root, Rules(), HERE)
    assert seen.written and seen.name == dry.name and f"@{head[:8]}" in seen.line()
    made = entries.load(root, seen.name)
    assert (made.state, made.revision) == ("candidate", head)
    assert {name: getattr(made, name) for name in known} == known
    assert (
        made.title == f"VLM ({head[:8]})"
        and "new commit of vlm" in made.reason
        and f"models enable {made.name}" in made.reason
    )
    assert texts(root)["vlm"] == before["vlm"], "an entry never changes in place"
    assert kinds(watch.look(root, Rules(), HERE)) == [(SAME, "")], (
        "the second time there is nothing new"
    )

    changes.set_state(root, "vlm", "retired", reason="superseded")
    changes.set_state(root, made.name, "retired", reason="superseded, too")
    assert watch.look(root, Rules(), HERE) == [], "what is retired isn't watched"


def test_a_withdrawn_commit_is_quarantined(
    root: Path, served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = served.repos["lab/vlm"].commits[0].sha
    put(root, "vlm", "lab/vlm", old)
    put(root, "try", "lab/vlm", old, "candidate")
    served.repos["lab/vlm"].commits[:] = [
        commit({**VLM, "model.safetensors": weights(12)}, "forced")
    ]
    before = texts(root)
    dry = watch.look(root, Rules(), HERE, dry_run=True)
    assert [one.kind for one in dry] == [GONE, GONE, NEW_COMMIT] and texts(root) == before
    assert not any(one.written for one in dry)
    found = watch.look(root, Rules(), HERE)
    head = served.repos["lab/vlm"].commits[0].sha
    assert kinds(found) == [(GONE, "vlm"), (GONE, "try"), (NEW_COMMIT, f"vlm-{head[:8]}")]
    vlm = entries.load(root, "vlm")
    assert (vlm.state, vlm.until) == ("quarantined", "")
    assert vlm.reason == f"commit {old[:8]} is no longer on the hub (force-pushed?)"
    assert (
        entries.load(root, "try").state == "candidate"
        and "force-pushed" in entries.load(root, "try").reason
    )
    before = texts(root)
    again = watch.look(root, Rules(), HERE)
    assert (
        kinds(again) == [(GONE, "vlm"), (GONE, "try")]
        and not any(one.written for one in again)
        and texts(root) == before
    )
    assert "still quarantined" in again[0].text

    put(root, "vlm", "lab/vlm", old)
    del served.repos["lab/vlm"]
    (seen,) = watch.look(root, Rules(), HERE)
    assert (
        seen.kind == REFUSED and "not logged in" in seen.text and entries.load(root, "vlm").enabled
    ), "it may be private"
    monkeypatch.setenv("HF_TOKEN", "hf_member0000000000")
    assert {one.kind for one in watch.look(root, Rules(), HERE)} == {GONE}
    assert "no longer on the hub, or no longer shown" in entries.load(root, "vlm").reason


def test_new_repositories_by_rule(root: Path, served: Hub) -> None:
    big, small = 30_000_000_000, 3_000_000_000
    served.repos |= {
        "lab/vlm-3b": Repo([commit(VLM)], params=small),
        "lab/VLM-Cased": Repo([commit(VLM)], params=small),
        "lab/vlm-30b": Repo([commit(VLM)], params=big),
        "lab/vlm-unknown-size": Repo([commit(VLM)]),
        "lab/vlm-closed": Repo([commit(VLM)], params=small, licence="other"),
        "lab/vlm-old": Repo([commit(VLM)], params=small, created="2025-01-01T00:00:00.000Z"),
        "lab/asr-3b": Repo([commit(VLM)], params=small, pipeline="automatic-speech-recognition"),
        "lab/other-3b": Repo([commit(VLM)], params=small),
        "lab/vlm-gated": Repo([commit(VLM)], params=small, gated=True),
        "lab/vlm-pickles": Repo(
            [commit({"config.json": VLM["config.json"], "x.bin": b""})], params=small
        ),
        "else/vlm-3b": Repo([commit(VLM)], params=small),
        "lab/vlm-down": Repo([commit(VLM)], params=small, broken=500),
    }
    put(root, "vlm-3b", "else/vlm-3b", "ab" * 20, "retired")
    put(root, "mine", "lab/vlm", "ab" * 20, "retired")
    put(root, "cased", "LAB/VLM-cased", "ab" * 20, "retired")
    owner = Owner(
        "lab",
        max_params_b=15,
        licences=("apache-2.0",),
        match="(?i)vlm.*",
        newer_than="2026-01-31",
        suites=("people",),
        gpu="a100",
    )
    found = watch.look(root, Rules(owners=(owner,)), HERE)
    assert {one.repo: one.kind for one in found} == {
        "lab/vlm-3b": NEW_REPOSITORY,
        "lab/vlm-down": TROUBLE,
        "lab/vlm-gated": TROUBLE,
        "lab/vlm-pickles": REFUSED,
    }
    made = entries.load(root, "lab-vlm-3b")  # its own name is taken by another repository
    assert (made.state, made.repo, made.options) == (
        "candidate",
        "lab/vlm-3b",
        {"suites": ["people"], "gpu": "a100", "max_images": 1},
    )
    assert made.reason == "new repository of lab; not checked yet: sdgbias models enable lab-vlm-3b"
    assert "lab/vlm-3b" not in [
        one.repo for one in watch.look(root, Rules(commits=False, owners=(owner,)), HERE)
    ]
    everything = watch.look(root, Rules(commits=False, owners=(Owner("lab"),)), HERE, dry_run=True)
    assert {"lab/vlm-30b", "lab/vlm-old", "lab/other-3b"} <= {
        one.repo for one in everything if one.kind == NEW_REPOSITORY
    }
    assert "lab/asr-3b" not in {one.repo for one in everything}
    assert watch.look(root, Rules(commits=False, owners=(Owner("nobody"),)), HERE) == []


def test_trouble_of_one_repository_stops_no_other(
    root: Path, served: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sha = served.repos["lab/vlm"].commits[0].sha
    served.repos["lab/down"] = Repo([commit(VLM)], broken=500)
    for name, repo in (("a-down", "lab/down"), ("vlm", "lab/vlm")):
        put(root, name, repo, sha)
    put(root, "folder", "local:w", "local")
    put(root, "unpinned", "lab/new", "unpinned", "candidate")
    assert [(one.kind, one.repo) for one in watch.look(root, Rules(), HERE)] == [
        (TROUBLE, "lab/down"),
        (SAME, "lab/vlm"),
    ]
    assert [one.repo for one in watch.look(root, Rules(skip=("a-down",)), HERE)] == ["lab/vlm"]
    before = texts(root)
    monkeypatch.setenv("HF_TOKEN", "hf_old0000000000000")
    with pytest.raises(ExpiredToken):
        watch.look(root, Rules(), HERE)
    monkeypatch.setenv("HF_TOKEN", "")
    served.slow = 30.0
    served.into(monkeypatch, tmp_path / "hf", seconds=1)
    several = ({"owners": (Owner("lab"),)}, {"everyone": (Everyone(),)})
    for rules in (Rules(), *(Rules(commits=False, **more) for more in several)):
        with pytest.raises(HubUnreachable, match="can't be reached"):
            watch.look(root, rules, HERE)
    assert texts(root) == before, "nobody is put aside because the hub is down"


OWNER = {
    "owner": "lab",
    "pipelines": ["image-text-to-text"],
    "max_params_b": 7,
    "licences": ["mit"],
    "match": "a.*",
    "newer_than": "2026-01-31",
    "suites": ["sdg", "people"],
    "gpu": "a100",
}
#: (rules, words of the error or None), put to the code and to the published JSON Schema; what every
#: format refuses: tests/test_formats.py.
RULES: dict[str, tuple[Any, str | None]] = {
    "nothing": (None, None),
    "all": ({"commits": False, "skip": ["a"], "owners": [OWNER]}, None),
    "owner alone": ({"owners": [{"owner": "lab"}]}, None),
    "unknown field": (
        {"organisations": []},
        "unknown field 'organisations'; valid: commits, enable, everyone, owners, probe, skip",
    ),
    "owners a mapping": ({"owners": {}}, "owners is {}; valid: a list: .*each with `owner`"),
    "owner a repository": ({"owners": [{"owner": "lab/vlm"}]}, "owner is 'lab/vlm'"),
    "owner climbs": ({"owners": [{"owner": "../x"}]}, "owner is '../x'"),
    "size 0": ({"owners": [{"owner": "lab", "max_params_b": 0}]}, "max_params_b is 0"),
}


@pytest.mark.parametrize("name", RULES)
def test_rules(name: str, tmp_path: Path) -> None:
    data, words = RULES[name]
    path = tmp_path / "watch.yaml"
    path.write_text(yaml.safe_dump(data))
    schema = json.loads((REPOSITORY / "registry" / "watch.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema.Draft202012Validator(schema).is_valid({} if data is None else data) == (
        words is None
    )
    if words is None:
        assert len(watch_rules.read(path).owners) == len((data or {}).get("owners", []))
        return
    with pytest.raises(RegistryError, match=words) as caught:
        watch_rules.read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("owners: [{owner: lab, match: '('}]", "is no regular expression"),
        ("owners: [{owner: lab, suites: [Two words]}]", "unknown suite 'Two words'"),
        ("owners: [{owner: lab, newer_than: 2026-02-30}]", "newer_than|not readable"),
    ],
)
def test_rules_that_the_schema_can_t_judge(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "watch.yaml"
    path.write_text(text)
    with pytest.raises(RegistryError, match=words):
        watch_rules.read(path)
    with pytest.raises(RegistryError, match="--rules FILE"):
        watch_rules.read(tmp_path / "gone.yaml")


def test_the_shipped_rules() -> None:
    path = REPOSITORY / "registry" / "watch.yaml"
    schema = json.loads((REPOSITORY / "registry" / "watch.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), schema)
    rules = watch_rules.read(path)
    assert rules.commits and {owner.owner for owner in rules.owners} == {
        "llava-hf",
        "Qwen",
        "OpenGVLab",
    }
    assert set(schema["properties"]) == set(Rules.__dataclass_fields__)


def test_conditions_at_their_bounds(root: Path, served: Hub) -> None:
    """At most so many parameters; created after the day; the whole name matches."""
    day = "2026-01-31T00:00:00.000Z"
    served.repos = {
        "lab/vlm-7b": Repo([commit(VLM)], params=7_000_000_000),
        "lab/vlm-7b-more": Repo([commit(VLM)], params=7_000_000_001),
        "lab/vlm-7b-same-day": Repo([commit(VLM)], params=7_000_000_000, created=day),
        "lab/vlm-7b-gguf": Repo([commit(VLM)], params=7_000_000_000),
    }

    def found(**conditions: Any) -> set[str]:
        rules = Rules(commits=False, owners=(Owner("lab", **conditions),))
        return {one.repo[8:] for one in watch.look(root, rules, HERE, dry_run=True)}

    assert found(max_params_b=7) == {"7b", "7b-same-day", "7b-gguf"}
    assert found(newer_than="2026-01-31") == {"7b", "7b-more", "7b-gguf"}
    assert found(newer_than="2026-01-30") == {"7b", "7b-more", "7b-gguf", "7b-same-day"}
    assert found(match="vlm-7b") == {"7b"}
