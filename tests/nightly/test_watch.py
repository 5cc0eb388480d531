"""The watch against a hub on loopback: new commits and new repositories; a month of it, in which
each piece of news is told once and candidates are tried within a budget; its rules."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from sdgbias.cli.models import models_app
from sdgbias.errors import ExpiredToken, HubUnreachable, InfrastructureError, RegistryError
from sdgbias.nightly import watch
from sdgbias.nightly.watch import (
    ADMITTED,
    NOT_ADMITTED,
    NOT_HERE,
    REFUSED,
    TROUBLE,
    WAITING,
    Everyone,
    Owner,
    Probe,
    Release,
    Rules,
)
from sdgbias.registry import entries
from sdgbias.scoring import admission
from tests.builders import night_stubs
from tests.builders.commands import REPOSITORY
from tests.builders.hub import Hub, Repo, commit
from tests.builders.hub_repositories import BIG, VLM

HERE = replace(BIG, versions={"transformers": "5.19.0", "vllm": "0.32.0"})
MONTH = Rules(
    owners=(Owner("lab"),),
    everyone=(Everyone(max_params_b=100.0, limit=4, licences=("apache-2.0",)),),
    probe=Probe(questions=200, minutes=20.0),
    enable="when_admitted",
)
FIRST = date(2026, 11, 1)
MEMBER, EXPIRED = "hf_member0000000000", "hf_old0000000000000"


def files(weights: str = "", **config: Any) -> dict[str, Any]:
    return {"config.json": {**VLM, **config}, "model.safetensors": f"w{weights}".encode() * 100}


def model(name: str = "", params: float = 7, **fields: Any) -> Repo:
    return Repo([commit(files(name), name)], params=int(params * 10**9), **fields)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub({"lab/vlm": model()}, {EXPIRED: "expired", MEMBER: "member"}) as running:
        running.into(monkeypatch, tmp_path / "hf")
        yield running


def put(
    root: Path, name: str, repo: str, revision: str, state: str = "enabled", **more: Any
) -> None:
    fields = {"title": name.upper(), "backend": "hf", "repo": repo, "revision": revision}
    night_stubs.entry(root, name, state=state, reason="x", **fields, **more)


def texts(root: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in (root / "registry" / "models").iterdir()}


def verdicts(releases: list[Release]) -> list[tuple[str, str]]:
    return [(one.verdict, one.name) for one in releases]


def test_given_a_new_commit_then_it_becomes_a_candidate(root: Path, hub: Hub) -> None:
    repo = hub.repos["lab/vlm"]
    inherited = {"batch_size": 3, "dtype": "float32", "options": {"suites": ["people"]}}
    put(root, "vlm", "lab/vlm", repo.commits[0].sha, **inherited)
    before = texts(root)
    assert watch.look(root, Rules(), HERE) == [], "the newest commit is registered"
    repo.commits.append(commit(files("new"), "third"))
    head = repo.commits[-1].sha
    [dry] = watch.look(root, Rules(), HERE, dry_run=True)
    assert verdicts([dry]) == [(WAITING, f"vlm-{head[:8]}")] and texts(root) == before
    [new] = watch.look(root, Rules(), HERE)
    assert new.name == dry.name and f"@{head[:8]}" in new.line()
    spec = entries.load(root, new.name)
    assert (spec.state, spec.revision, spec.title) == ("candidate", head, f"VLM ({head[:8]})")
    assert {name: getattr(spec, name) for name in inherited} == inherited
    assert spec.reason.startswith("new commit of vlm; ")
    assert spec.reason.endswith(f"models enable {spec.name}")
    assert texts(root)["vlm"] == before["vlm"], "an entry never changes in place"
    for name in ("vlm", spec.name):
        entries.set_state(root, name, "retired", reason="superseded")
    repo.commits.append(commit(files("newer"), "fourth"))
    assert watch.look(root, Rules(), HERE) == [], "a retired model isn't watched"


def test_given_a_withdrawn_commit_then_the_entry_stays_and_it_is_told(
    root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights may be in the cache; a night that lacks them says so."""
    repo = hub.repos["lab/vlm"]
    put(root, "vlm", "lab/vlm", repo.commits[0].sha)
    before = texts(root)["vlm"]
    repo.commits[:] = [commit(files("other"), "forced")]
    forced = watch.look(root, Rules(), HERE)
    assert verdicts(forced) == [(WAITING, f"vlm-{repo.commits[0].sha[:8]}")]
    del hub.repos["lab/vlm"]
    for token, why in (("", "not logged in"), (MEMBER, "not on the hub")):
        monkeypatch.setenv("HF_TOKEN", token)
        [gone] = watch.look(root, Rules(), HERE)
        assert gone.verdict == REFUSED and why in gone.why and gone.news
    assert texts(root)["vlm"] == before


def test_given_the_rules_of_an_owner_then_new_repositories_become_candidates(
    root: Path, hub: Hub
) -> None:
    pickles = commit({"config.json": VLM, "x.bin": b""})
    hub.repos |= {
        "lab/vlm-3b": model(params=3),
        "lab/vlm-15b": model(params=15, created="2026-02-01T00:00:00.000Z"),
        "lab/vlm-15b-more": model(params=15.000000001),
        "lab/vlm-that-day": model(params=3, created="2026-01-31T12:00:00.000Z"),
        "lab/vlm-3b.gguf": model(params=3),
        "lab/VLM-Cased": model(params=3),
        "lab/vlm-30b": model(params=30),
        "lab/vlm-unknown-size": model(params=0),
        "lab/vlm-closed": model(params=3, licence="other"),
        "lab/asr-3b": model(params=3, pipeline="automatic-speech-recognition"),
        "lab/vlm-gated": model(params=3, gated=True),
        "lab/vlm-pickles": Repo([pickles], params=3 * 10**9),
        "else/vlm-3b": model(params=3),
        "lab/vlm-down": model(params=3, broken=500),
    }
    for name, repo in (("vlm-3b", "else/vlm-3b"), ("mine", "lab/vlm"), ("cased", "LAB/VLM-cased")):
        put(root, name, repo, "ab" * 20, "retired")
    conditions = {"max_params_b": 15, "licences": ("apache-2.0",), "newer_than": "2026-01-31"}
    owner = Owner(
        "lab", match=re.compile("(?i)vlm[a-z0-9-]*"), suites=("people",), gpu="a100", **conditions
    )
    releases = watch.look(root, Rules(owners=(owner,)), HERE)
    assert {one.repo: one.verdict for one in releases} == {
        "lab/vlm-3b": WAITING,
        "lab/vlm-15b": WAITING,
        "lab/vlm-down": TROUBLE,
        "lab/vlm-gated": TROUBLE,
        "lab/vlm-pickles": REFUSED,
    }
    spec = entries.load(root, "lab-vlm-3b")  # its own name is taken by another repository
    assert (spec.state, spec.repo) == ("candidate", "lab/vlm-3b")
    assert spec.options == {"suites": ["people"], "gpu": "a100", "max_images": 1}
    assert spec.reason == "new repository of lab; not checked yet: sdgbias models enable lab-vlm-3b"

    def repositories(owner: Owner) -> set[str]:
        rules = Rules(commits=False, owners=(owner,))
        return {one.repo for one in watch.look(root, rules, HERE, dry_run=True)}

    assert "lab/vlm-3b" not in repositories(owner)
    everything = repositories(Owner("lab"))
    assert {"lab/vlm-30b", "lab/vlm-that-day", "lab/vlm-3b.gguf"} <= everything
    assert "lab/asr-3b" not in everything and repositories(Owner("nobody")) == set()


def test_given_trouble_of_one_repository_then_it_stops_no_other_and_of_the_hub_all(
    root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.repos["lab/down"] = model(broken=500)
    for name, repo in (("a-down", "lab/down"), ("vlm", "lab/vlm")):
        put(root, name, repo, "ab" * 20)
    put(root, "folder", "local:w", "local")
    put(root, "unpinned", "lab/new", "unpinned", "candidate")
    releases = watch.look(root, Rules(), HERE, dry_run=True)
    assert [(r.verdict, r.repo) for r in releases] == [(TROUBLE, "lab/down"), (WAITING, "lab/vlm")]
    skipping = watch.look(root, Rules(skip=("a-down",)), HERE, dry_run=True)
    assert [one.repo for one in skipping] == ["lab/vlm"]
    before = texts(root)
    monkeypatch.setenv("HF_TOKEN", EXPIRED)
    with pytest.raises(ExpiredToken):
        watch.look(root, Rules(), HERE)
    monkeypatch.setenv("HF_TOKEN", "")
    hub.slow = 30.0
    hub.into(monkeypatch, tmp_path / "hf", seconds=1)
    lists = ({"owners": (Owner("lab"),)}, {"everyone": (Everyone(),)})
    for rules in (Rules(), *(Rules(commits=False, **one) for one in lists)):
        with pytest.raises(HubUnreachable, match="can't be reached") as caught:
            watch.look(root, rules, HERE)
    # of a list, which isn't a repository that could be registered
    assert str(caught.value).endswith("later again: sdgbias models watch")
    assert texts(root) == before, "nobody is put aside because the hub is down"


def test_given_a_renamed_repository_then_it_is_no_new_one(root: Path, hub: Hub) -> None:
    old = hub.repos["lab/vlm"]
    put(root, "vlm", "lab/vlm", old.commits[0].sha)
    words = commit({**old.commits[0].files, "README.md": b"our new name"})
    hub.repos["lab/vlm-2"] = Repo([*old.commits, words], params=old.params)
    hub.repos["lab/vlm"] = replace(hub.repos["lab/vlm-2"], now="lab/vlm-2")
    assert watch.look(root, Rules(owners=(Owner("lab"),)), HERE) == []


def test_given_a_card_of_two_licences_then_one_suffices(root: Path, hub: Hub) -> None:
    hub.repos["lab/vlm"].licence = ["mit", "apache-2.0"]
    for licence, n in (("apache-2.0", 1), ("mit", 1), ("other", 0)):
        rules = Rules(owners=(Owner("lab", licences=(licence,)),))
        assert len(watch.look(root, rules, HERE, dry_run=True)) == n


def test_given_too_many_requests_then_the_look_ends(root: Path, hub: Hub) -> None:
    for name in "abc":
        hub.repos[f"lab/{name}"] = model(name, broken=429)
        put(root, name, f"lab/{name}", "ab" * 20)
    with pytest.raises(HubUnreachable, match="lab/a: the hub answers 429; later again"):
        watch.look(root, Rules(), HERE)
    assert len(hub.asked) == 1 and watch.read_ledger(root) == {}


@pytest.mark.parametrize("host", ["", "https://the-real-hub.example"])
def test_given_a_listing_that_goes_on_elsewhere_then_this_hub_is_asked(
    root: Path, hub: Hub, host: str
) -> None:
    hub.repos |= {f"lab/{n}": model(str(n)) for n in range(4)}
    hub.repos["lab/0"].params = 0  # a record that counts none
    hub.host = host
    assert len(watch.look(root, Rules(owners=(Owner("lab"),)), HERE)) == 5


# ----------------------------------------------------------------------
# a month, and what candidates may cost


@pytest.fixture
def month(hub: Hub) -> Hub:
    odd = commit(files("odd", model_type="brandnew"), "odd")
    hub.repos = {
        "lab/good": model("good"),
        "lab/odd": Repo([odd], params=7 * 10**9),
        "lab/huge": model("huge", 900),
    }
    return hub


@pytest.fixture
def asked(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The candidates that were asked: `models enable` passes, but for those named weak."""
    names: list[str] = []

    def ask(name: str, rules: Rules) -> tuple[str, str]:
        names.append(name)
        if name.startswith("weak"):
            return NOT_ADMITTED, "candidate mass 0.01 is below the floor"
        entries.set_state(root, name, "enabled")
        return ADMITTED, "enabled: evaluated from tonight on"

    monkeypatch.setattr(watch, "ask", ask)
    return names


def test_given_thirty_days_then_news_are_told_once_and_candidates_tried(
    root: Path, month: Hub, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repos, here = month.repos, [HERE]
    good = repos["lab/good"].commits

    def upgrade() -> None:
        families = BIG.families() | {"brandnew"}
        versions = {"transformers": "5.20.0"}
        here[0] = replace(HERE, families=lambda: families, versions=versions)

    events: dict[int, Callable[[], object]] = {
        # a release of an account that nobody watches, on the hub's list
        5: lambda: repos.update({"else/trendy": replace(model("trendy", 8), trend=99)}),
        9: lambda: repos.update({"lab/weak": model("weak")}),
        10: lambda: repos.update({"lab/weak": replace(repos["lab/weak"], hidden=True)}),
        11: lambda: repos.update({"lab/weak": replace(repos["lab/weak"], hidden=False)}),
        12: upgrade,
        15: lambda: repos.update({"lab/gated": model("gated", gated=True)}),
        18: lambda: monkeypatch.setenv("HF_TOKEN", MEMBER),
        20: lambda: good.append(commit({**good[-1].files, "README.md": b"words"}, "words")),
        23: lambda: good.append(commit(files("better"), "better")),
        27: lambda: repos.pop("else/trendy"),
    }
    news: dict[int, list[tuple[str, str]]] = {}
    tried: dict[int, list[tuple[str, str]]] = {}
    for day in range(1, 31):
        events.get(day, lambda: None)()
        releases = watch.look(root, MONTH, here[0], today=FIRST + timedelta(days=day - 1))
        if new := [(one.verdict, one.repo.split("/")[1]) for one in releases if one.news]:
            news[day] = new
        if trials := watch.try_candidates(root, MONTH, here[0].versions):
            tried[day] = verdicts(trials)
    better = f"good-{good[-1].sha[:8]}"
    assert news == {
        1: [(WAITING, "good"), (NOT_HERE, "huge"), (REFUSED, "odd")],
        5: [(WAITING, "trendy")],
        9: [(WAITING, "weak")],
        10: [(REFUSED, "weak")],
        11: [(WAITING, "weak")],
        12: [(WAITING, "odd")],
        15: [(TROUBLE, "gated")],
        18: [(WAITING, "gated")],
        23: [(WAITING, "good")],
        27: [(REFUSED, "trendy")],
    }
    assert tried == {
        1: [(ADMITTED, "good")],
        5: [(ADMITTED, "trendy")],
        9: [(NOT_ADMITTED, "weak")],
        11: [(NOT_ADMITTED, "weak")],
        12: [(ADMITTED, "odd"), (NOT_ADMITTED, "weak")],
        18: [(ADMITTED, "gated")],
        23: [(ADMITTED, better)],
    }
    states = {name: spec.state for name, spec in entries.load_all(root).items()}
    enabled = dict.fromkeys(("good", "odd", "gated", "trendy", better), "enabled")
    assert states == enabled | {"weak": "candidate", "huge": "candidate"} and "huge" not in asked
    weak = "not admitted: candidate mass 0.01 is below the floor"
    assert entries.load(root, "weak").reason == weak
    assert "too large" in entries.load(root, "huge").reason
    ledger = watch.read_ledger(root)
    assert ledger["lab/odd"].first_seen == "2026-11-01", "though it was registered on the 12th"
    assert ledger["lab/gated"].first_seen == "2026-11-15"
    assert {one.versions.get("transformers") for one in ledger.values()} == {"5.19.0", "5.20.0"}


def test_given_a_budget_then_the_candidates_that_it_leaves_wait(
    root: Path, month: Hub, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    month.repos["lab/second"] = model("second")
    watch.look(root, MONTH, HERE, today=FIRST)
    clock, ask = [0.0], watch.ask
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock[0])

    def slow(name: str, rules: Rules) -> tuple[str, str]:
        clock[0] += 1200.0
        return ask(name, rules)

    def tries(rules: Rules = MONTH) -> list[tuple[str, str]]:
        return verdicts(watch.try_candidates(root, rules, HERE.versions))

    monkeypatch.setattr(watch, "ask", slow)
    assert tries(replace(MONTH, probe=None)) == []
    assert tries() == [(ADMITTED, "good")] and tries() == [(ADMITTED, "second")]
    assert tries() == [] and asked == ["good", "second"]

    month.repos["lab/third"] = model("third")
    watch.look(root, MONTH, HERE, today=FIRST)
    with monkeypatch.context() as full:
        full.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
        assert tries() == [(WAITING, "third")]
    assert "has 0.0 GiB left" in watch.read_ledger(root)["lab/third"].why
    assert asked == ["good", "second"]


@pytest.mark.parametrize(
    ("name", "minutes", "verdict", "why"),
    [
        # a fault of the project, not of the model
        ("nowhere", 20.0, WAITING, "unknown model 'nowhere'"),
        ("m", 20.0, NOT_ADMITTED, "m is not enabled: RegistryError: registry/models/m.yaml"),
        ("nowhere", 0.001, NOT_ADMITTED, "its questions took longer than 0.001 minutes"),
    ],
)
def test_given_questions_that_end_without_a_verdict_then_it_says_why(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, minutes: float, verdict: str, why: str
) -> None:
    """`sdgbias models enable` itself; what passes: tests/functional/test_new_releases.py."""
    put(root, "m", "lab/m", "ab" * 20, "candidate")
    path = root / "registry" / "models" / "m.yaml"
    path.write_text(path.read_text().replace("backend: hf", "backend: text-encoder"))
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    asked = watch.ask(name, Rules(probe=Probe(minutes=minutes)))
    assert asked[0] == verdict and asked[1].startswith(why)


def test_given_the_command_then_it_prints_news_trials_and_facts_of_gated_releases(
    root: Path, month: Hub, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = root / "registry" / "watch.yaml"
    rules.write_text("{owners: [{owner: lab}], probe: {}, enable: when_admitted}")
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    monkeypatch.setattr(admission, "here", lambda _: HERE)
    rows = json.loads(CliRunner().invoke(models_app, ["watch", "--json"]).stdout)
    assert [(one["verdict"], one["name"], one["news"]) for one in rows] == [
        (WAITING, "good", True),
        (NOT_HERE, "huge", True),
        (REFUSED, "", True),
        (ADMITTED, "good", True),
    ]
    assert len({frozenset(one) for one in rows}) == 1, "rows of one table"
    assert CliRunner().invoke(models_app, ["watch"]).stdout == "nothing new\n"
    month.repos = {"lab/a": model("a", gated=True)}
    rules.write_text("{commits: false, owners: [{owner: lab}]}")
    gated = CliRunner().invoke(models_app, ["watch"])
    assert "gated, and you are not logged in" in gated.stdout, "why it can't be read"
    assert gated.stdout.endswith("(7 billion parameters, apache-2.0, gated)\n")
    assert isinstance(gated.exception, InfrastructureError)
    assert "can't be read: lab/a; later again" in str(gated.exception)
    unset = CliRunner().invoke(models_app, ["watch", "--webhook-env", "NOWHERE"])
    assert "--webhook-env NOWHERE: not set" in str(unset.exception)
    (root / watch.LEDGER).write_text("{")
    with pytest.raises(RegistryError, match=r"seen.json: not a ledger .* remove it"):
        watch.look(root, Rules(), HERE)


# ----------------------------------------------------------------------
# rules

OWNER = """{owner: lab, pipelines: [image-text-to-text], max_params_b: 7, licences: [mit],
 match: a.*, newer_than: '2026-01-31', suites: [sdg, people], gpu: a100}"""
FIELDS = "valid: commits, enable, everyone, owners, probe, skip"
SHIPPED = (REPOSITORY / "registry" / "watch.yaml").read_text(encoding="utf-8")
#: (rules, words of the error or '', whether the published JSON Schema refuses them as well); what
#: every format refuses: tests/test_formats.py.
RULES = {
    "shipped": (SHIPPED, "", False),
    "none": ("{}", "", False),
    "all": (f"{{commits: false, skip: [a], owners: [{OWNER}]}}", "", False),
    "unknown field": ("organisations: []", f"unknown field 'organisations'; {FIELDS}", True),
    "a mapping": ("owners: {}", "owners is {}; valid: a list: .*each with `owner`", True),
    "a repository": ("owners: [{owner: lab/vlm}]", "owner is 'lab/vlm'", True),
    "a climb": ("owners: [{owner: ../x}]", "owner is '../x'", True),
    "size 0": ("owners: [{owner: lab, max_params_b: 0}]", "max_params_b is 0", True),
    "no expression": ("owners: [{owner: lab, match: '('}]", "valid regular expression", False),
    "a suite": ("owners: [{owner: lab, suites: [Two words]}]", "unknown suite 'Two words'", False),
}


@pytest.mark.parametrize(("text", "words", "by_schema"), RULES.values(), ids=RULES)
def test_given_rules_then_reader_and_schema_agree(
    text: str, words: str, by_schema: bool, tmp_path: Path
) -> None:
    path = tmp_path / "watch.yaml"
    path.write_text(text)
    schema = json.loads((REPOSITORY / "registry" / "watch.schema.json").read_text(encoding="utf-8"))
    valid = jsonschema.Draft202012Validator(schema).is_valid(yaml.safe_load(text))
    assert valid is not by_schema
    if not words:
        rules = watch.read_rules(path)
        assert len(rules.owners) == text.count("owner:")
        assert rules != Rules() or text == "{}"
        return
    with pytest.raises(RegistryError, match=words) as refused:
        watch.read_rules(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(RegistryError, match="--rules FILE"):
        watch.read_rules(tmp_path / "gone.yaml")
    path.write_text("")
    assert watch.read_rules(path) == Rules()
