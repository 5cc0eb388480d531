"""Thirty days of the watch against a hub on loopback: what is new is announced once, tried within a
budget, enabled when it passes, and asked again after an upgrade."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from sdgbias.cli.models import models_app
from sdgbias.errors import RegistryError
from sdgbias.nightly import watch
from sdgbias.nightly.watch import ADMITTED, NOT_ADMITTED, WAITING
from sdgbias.nightly.watch_rules import Everyone, Owner, Probe, Rules
from sdgbias.registry import changes, entries
from sdgbias.scoring import admission
from tests.builders.hub import Hub, Repo, commit
from tests.builders.hub_repositories import BIG, VLM

HERE = replace(BIG, versions={"transformers": "5.19.0", "vllm": "0.32.0"})
RULES = Rules(
    owners=(Owner("lab"),),
    everyone=(Everyone(max_params_b=100.0, limit=4, licences=("apache-2.0",)),),
    probe=Probe(questions=200, minutes=20.0),
    enable="when_admitted",
)
FIRST = date(2026, 11, 1)


def model(name: str, params: int = 7, **config: Any) -> Repo:
    files = {"config.json": {**VLM, **config}, "model.safetensors": name.encode() * 100}
    return Repo([commit(files, name)], params=params * 10**9)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    repos = {
        "lab/good": model("good"),
        "lab/odd": model("odd", model_type="brandnew"),
        "lab/huge": model("huge", 900),
    }
    with Hub(repos, {"hf_member0000000000": "member"}) as made:
        made.into(monkeypatch, tmp_path / "hf")
        yield made


def answers(
    root: Path, asked: list[str]
) -> Callable[[str, int, bool, float], tuple[bool | None, str]]:
    """What `models enable` does to a model whose probes pass; those named weak don't."""

    def ask(name: str, questions: int, enable: bool, seconds: float) -> tuple[bool | None, str]:
        assert questions == 200 and enable and 0 < seconds <= 1200
        asked.append(name)
        if name.startswith("weak"):
            return False, "candidate mass 0.01 is below the floor"
        changes.set_state(root, name, "enabled")
        return True, ""

    return ask


def test_thirty_days(root: Path, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    here, asked = HERE, list[str]()
    news: dict[int, list[tuple[str, str]]] = {}
    tried: dict[int, list[tuple[str, str]]] = {}
    for day in range(1, 31):
        if day == 5:  # a release of an account that nobody watches, on the hub's list
            served.repos["else/trendy"] = replace(model("trendy", 8), trend=99)
        if day == 9:
            served.repos["lab/weak"] = model("weak")
        if day == 12:  # a transformers that knows the family
            known = BIG.families() | {"brandnew"}
            here = replace(
                here, families=lambda known=known: known, versions={"transformers": "5.20.0"}
            )
        if day == 15:
            served.repos["lab/gated"] = replace(model("gated"), gated=True)
        if day == 18:
            monkeypatch.setenv("HF_TOKEN", "hf_member0000000000")
        if day == 20:
            good = served.repos["lab/good"].commits
            good.append(commit({**good[-1].files, "README.md": b"words"}, "words"))
        if day == 23:
            good.append(commit({**good[-1].files, "model.safetensors": b"better"}, "better"))
        if day == 27:
            del served.repos["else/trendy"]
        found = watch.look(root, RULES, here, today=FIRST + timedelta(days=day - 1))
        told = [(one.kind, one.repo.split("/")[1]) for one in found if one.news]
        done = [
            (one.kind, one.name)
            for one in watch.try_candidates(root, RULES, here.versions, answers(root, asked))
        ]
        news |= {day: told} if told else {}
        tried |= {day: done} if done else {}
    better = f"good-{good[-1].sha[:8]}"
    assert news == {
        1: [("new repository", "good"), ("new repository", "huge"), ("refused", "odd")],
        5: [("new repository", "trendy")],
        9: [("new repository", "weak")],
        12: [("new repository", "odd")],
        15: [("trouble", "gated")],
        18: [("new repository", "gated")],
        23: [("new commit", "good")],
        27: [("gone", "trendy")],
    }
    assert tried == {
        1: [(ADMITTED, "good")],
        5: [(ADMITTED, "trendy")],
        9: [(NOT_ADMITTED, "weak")],
        12: [(ADMITTED, "odd"), (NOT_ADMITTED, "weak")],
        18: [(ADMITTED, "gated")],
        23: [(ADMITTED, better)],
    }
    states = {name: spec.state for name, spec in entries.load_all(root).items()}
    on = {name for name, state in states.items() if state == "enabled"}
    assert on == {"good", "odd", "gated", better}
    assert (states["trendy"], states["weak"]) == ("quarantined", "candidate")
    assert entries.load(root, "weak").reason == (
        "not admitted: candidate mass 0.01 is below the floor"
    )
    huge = entries.load(root, "huge")
    assert huge.state == "candidate" and "too large" in huge.reason and "huge" not in asked
    ledger = watch.read_ledger(root)
    assert ledger["lab/odd"].first_seen == "2026-11-01", "though it was registered on the 12th"
    assert ledger["lab/gated"].first_seen == "2026-11-15"
    assert {one.versions.get("transformers") for one in ledger.values()} == {"5.19.0", "5.20.0"}


def test_what_a_look_may_spend(root: Path, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    served.repos["lab/second"] = model("second")
    watch.look(root, RULES, HERE, today=FIRST)
    now, asked = [0.0], list[str]()
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    patient = answers(root, asked)

    def slow(name: str, questions: int, enable: bool, seconds: float) -> tuple[bool | None, str]:
        now[0] += 1200.0
        return patient(name, questions, enable, seconds)

    assert watch.next_tried(root, RULES) == ["good", "second"]
    assert watch.next_tried(root, replace(RULES, probe=None)) == []
    first = watch.try_candidates(root, RULES, HERE.versions, slow)
    assert watch.next_tried(root, RULES) == ["second"], "the other one is enabled"
    assert [(one.name, one.kind) for one in first] == [("good", ADMITTED), ("second", WAITING)]
    assert "20 minutes of this look are spent" in first[1].text
    assert [one.name for one in watch.try_candidates(root, RULES, HERE.versions, slow)] == [
        "second"
    ]
    assert watch.try_candidates(root, RULES, HERE.versions, slow) == [] and asked == [
        "good",
        "second",
    ]

    served.repos["lab/third"] = model("third")
    watch.look(root, RULES, HERE, today=FIRST)
    with monkeypatch.context() as full:
        full.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
        (waits,) = watch.try_candidates(root, RULES, HERE.versions, slow)
    assert waits.kind == WAITING and "has 0.0 GiB left" in waits.text and asked[-1] != "third"
    (stuck,) = watch.try_candidates(
        root, RULES, HERE.versions, lambda *_: (None, "no expectations folder")
    )
    assert (stuck.kind, stuck.text) == (WAITING, "no expectations folder"), "not its fault"
    assert watch.try_candidates(root, replace(RULES, probe=None), HERE.versions, slow) == []


def test_what_was_tried_is_in_the_answer(
    root: Path, served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "registry" / "watch.yaml").write_text(
        "{owners: [{owner: lab}], probe: {}, enable: when_admitted}"
    )
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    monkeypatch.setattr(admission, "here", lambda _: HERE)
    monkeypatch.setattr(watch.try_candidates, "__defaults__", (answers(root, []),))
    told = CliRunner().invoke(models_app, ["watch", "--json"])
    found = json.loads(told.stdout)
    assert [(one["kind"], one["name"]) for one in found] == [
        ("new repository", "good"),
        ("new repository", "huge"),
        ("refused", ""),
        (ADMITTED, "good"),
    ]
    assert len({frozenset(one) for one in found}) == 1, "rows of one table"


def test_of_a_gated_release_everything_is_told_that_a_person_decides_by(
    root: Path, served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.repos = {f"lab/{n}": replace(model(n, b), gated=True) for n, b in (("a", 7), ("z", 900))}
    (root / "registry" / "watch.yaml").write_text("owners: [{owner: lab}]")
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    monkeypatch.setattr(admission, "here", lambda _: HERE)
    small, large = CliRunner().invoke(models_app, ["watch"]).stdout.splitlines()[:2]
    assert "gated" in small.split("(7 ")[0], "why it can't be read"
    assert "(7 billion parameters, apache-2.0, gated, 1 x 16 GiB in bfloat16)" in small
    assert "gated, too large for this machine in bfloat16)" in large


def test_a_broken_ledger_is_one_line(root: Path) -> None:
    (root / watch.LEDGER).write_text("{")
    with pytest.raises(RegistryError, match=r"seen.json: not a ledger .* remove it"):
        watch.look(root, Rules(), HERE)
