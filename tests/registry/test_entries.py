"""The model registry: what a YAML entry may say, how entries are found, written and moved from
state to state."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sdgbias import files
from sdgbias.analysis.paper import numbers as printed
from sdgbias.errors import RegistryError
from sdgbias.registry import entries
from sdgbias.types import IMAGE_FREE, VIEWS
from tests.builders.entries import GOOD, OFF, QUARANTINED, REPOSITORY, put
from tests.builders.refusals import Refusal

#: Verdict -> case -> what differs from GOOD (None: a field is missing).
CASES: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("entries.yaml").read_text("utf-8")
)
MISSING = {f"no {field}": {field: None} for field in entries.REQUIRED}
REFUSED = CASES["refused"] | CASES["refused by conditions between fields"] | MISSING
SCHEMA = json.loads((REPOSITORY / "registry" / "model.schema.json").read_text(encoding="utf-8"))


def entry(change: dict[str, Any]) -> dict[str, Any]:
    missing = [field for field in entries.REQUIRED if change.get(field, "") is None]
    return {name: value for name, value in (GOOD | change).items() if name not in missing}


@pytest.mark.parametrize("case", CASES["accepted"])
def test_an_entry_is_read_as_it_is_written(case: str, root: Path) -> None:
    data = entry(CASES["accepted"][case])
    put(root, data)
    spec = entries.load(root, "m")
    assert {field: getattr(spec, field) for field in data} == data


@pytest.mark.parametrize("case", REFUSED)
def test_an_entry_that_can_not_be_is_refused(case: str, root: Path, refusal: Refusal) -> None:
    data = entry(REFUSED[case])
    name = str(data.get("name", "m"))
    put(root, data, name)
    with refusal():
        entries.load(root, name)


@pytest.mark.parametrize("verdict", [*CASES, "missing"])
def test_the_schema_agrees_with_the_code(verdict: str) -> None:
    """It refuses nothing that the code accepts, and all that a single field can get wrong."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    cases = CASES.get(verdict, MISSING)
    judged_right = verdict in ("accepted", "refused by conditions between fields")
    fits = {name: validator.is_valid(entry(change)) for name, change in cases.items()}
    assert fits == dict.fromkeys(cases, judged_right)


def test_two_views_are_written_and_all_four_are_not(root: Path) -> None:
    path = put(root, {**GOOD, "views": list(IMAGE_FREE)}, "m")
    spec = entries.read(path)
    assert spec.views == IMAGE_FREE and not spec.pictured
    assert entries.parse(yaml.safe_load(entries.to_yaml(spec)), path) == spec
    assert "views:\n- q_only\n- ctx_q\n" in entries.to_yaml(spec)
    assert "views" not in entries.to_dict(replace(spec, views=VIEWS))
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid({**GOOD, "views": list(IMAGE_FREE)})


@pytest.mark.parametrize(("stem", "ending"), [("other", ".yaml"), ("m", ".yml"), ("M", ".yaml")])
def test_a_file_that_is_not_named_as_its_model_is_refused(
    root: Path, stem: str, ending: str
) -> None:
    put(root, GOOD)
    put(root, GOOD, stem, ending)
    for call in (lambda: entries.load_all(root), lambda: entries.load(root, stem)):
        with pytest.raises(RegistryError, match=r"the file of model m is named m\.yaml"):
            call()
    with pytest.raises(RegistryError, match="can't be read"):
        entries.read(root / "gone.yaml")


def test_an_unknown_name_lists_the_valid_ones(root: Path) -> None:
    put(root, GOOD)
    put(root, {**GOOD, "name": "tiny-llava"}, "tiny-llava")
    words = "unknown model 'x'; valid: m, tiny-llava; add one: sdgbias register-model"
    with pytest.raises(RegistryError, match=words):
        entries.load(root, "x")
    with pytest.raises(RegistryError, match="valid: m, tiny-llava; did you mean 'tiny-llava'?"):
        entries.load(root, "tiny-lava")
    assert entries.load(root, "tiny-llava").name == "tiny-llava"


def test_find_root(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = root / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert entries.find_root() == root.resolve()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(RegistryError, match="export SDGBIAS_REGISTRY="):
        entries.load_all(elsewhere)
    checkout = Path(entries.__file__).resolve().parents[2]
    assert entries.find_root() == checkout, "an editable install works from any folder"
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(root))
    assert entries.find_root() == root.resolve()
    monkeypatch.setenv("SDGBIAS_REGISTRY", str(elsewhere))
    with pytest.raises(RegistryError, match="no registry/models in it"):
        entries.find_root()


def test_whom_a_night_asks(root: Path) -> None:
    states = {
        "a": {},
        "b": OFF,
        "c": {**QUARANTINED},
        "d": {**QUARANTINED, "until": ""},
        "e": {"state": "retired", "reason": "x"},
    }
    for name, change in states.items():
        put(root, {**GOOD, **change, "name": name}, name)
    assert list(entries.due(root, date(2026, 11, 29))) == ["a"]
    assert list(entries.due(root, date(2026, 11, 30))) == ["a", "c"]
    assert list(entries.due(root, date(2027, 1, 1))) == ["a", "c"]


def test_a_broken_entry_hides_no_other(root: Path) -> None:
    put(root, GOOD)
    put(root, "colour: red", "bad")
    put(root, {**GOOD, "name": "n"}, "n", ".yml")
    readable, broken = entries.load_readable(root)
    assert list(readable) == ["m"]
    assert list(broken) == ["bad", "n"] and "unknown field 'colour'" in broken["bad"]
    assert "is named n.yaml" in broken["n"]
    (root / "registry/models/n.yml").unlink()
    assert entries.load(root, "m").name == "m"
    with pytest.raises(RegistryError, match=r"bad\.yaml"):
        entries.load_all(root)


def test_shipped_entries() -> None:
    specs, validator = entries.load_all(REPOSITORY), jsonschema.Draft202012Validator(SCHEMA)
    for path in sorted((REPOSITORY / "registry" / "models").iterdir()):
        text = path.read_text(encoding="utf-8")
        assert text.startswith(entries.SCHEMA_LINE), path
        validator.validate(yaml.safe_load(text))
    on = [name for name, spec in specs.items() if spec.enabled]
    assert on == ["planted-people", "tiny-llava", "tiny-qwen"]
    assert [s.backend for s in specs.values()].count("api") == 4
    hub = {s.repo for s in specs.values() if s.backend == "hf" and not s.enabled}
    assert len(hub) == 10 + 4  # the open models of Table H, and of the fairness paper alone
    assert all(
        f"sdgbias register-model {s.repo} --revision" in s.reason
        for s in specs.values()
        if s.repo in hub
    )


def test_every_model_of_a_paper_is_asked_its_suites() -> None:
    specs = entries.load_all(REPOSITORY)
    in_sdg = {r["model"] for r in printed.rows("models")}
    in_facet = {r["registry"] for r in printed.rows("fairness/models")}
    assert "" not in in_facet and in_sdg & in_facet == {"gpt-4o", "llava-1.5-7b", "llava-1.5-13b"}
    for name in in_sdg | in_facet:
        wanted = (["sdg"] if name in in_sdg else []) + (["people"] if name in in_facet else [])
        assert list(entries.suites(specs[name])) == wanted, name
    remote = {n for n in in_facet if "remote code" in specs[n].reason}
    assert remote == {"minicpm-v-8b"} and not any(specs[n].trust_remote_code for n in in_facet)


def nasty(kind: str) -> str:
    good = yaml.safe_dump({**GOOD, "name": "bad"})
    laughs = "\n".join(
        f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9 if n else ['lol'] * 9)}]" for n in range(12)
    )
    return {
        "recursive alias": good + "options: &o {again: *o}\n",
        "billion laughs": f"{good}options:\n{laughs}\n",
        "nested lists": f"{good}options: {{a: {'[' * 3000}{']' * 3000}}}\n",
        "nested blocks": good + "options:" + "".join(f"\n{' ' * n}a:" for n in range(1, 300)),
        "many values": good + f"options: {{a: [{'1,' * 60_000}]}}\n",
        "large": good + "#" * (files.MOST_BYTES + 1),
        "large number": good + f"batch_size: {'9' * 10_000}\n",
    }[kind]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("recursive alias", "alias"),
        ("billion laughs", "alias"),
        ("nested lists", "more than 20 levels"),
        ("nested blocks", "more than 20 levels"),
        ("many values", "more than 20,000 values"),
        ("large", "larger than 256 kB"),
        ("large number", "value has 10000 digits; see"),
        ("pipe", "no regular file"),
        ("device", "no regular file"),
        ("folder", "no regular file"),
    ],
)
def test_an_entry_of_any_size_shape_or_kind_hides_no_other(
    root: Path, kind: str, words: str
) -> None:
    put(root, GOOD)
    bad = root / "registry/models/bad.yaml"
    if kind == "pipe":
        os.mkfifo(bad)
    elif kind == "device":
        bad.symlink_to("/dev/zero")
    elif kind == "folder":
        bad.mkdir()
    else:
        bad.write_text(nasty(kind))
    began = time.process_time()
    found, broken = entries.load_readable(root)
    assert list(found) == ["m"] and list(broken) == ["bad"]
    assert words in broken["bad"] and broken["bad"].count(str(bad)) == 1
    assert "\n" not in broken["bad"] and len(broken["bad"]) < 600
    assert entries.load(root, "m").name == "m"
    with pytest.raises(RegistryError, match=words):
        entries.load(root, "bad")
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "field", ["title", "notes", "reason", "licence", "family", "repo", "revision"]
)
def test_no_field_holds_a_secret(root: Path, field: str) -> None:
    spec = entries.parse({**GOOD, **OFF}, "x")
    token = "hf_" + "a1B2" * 6
    with pytest.raises(RegistryError, match=f"'{field}' looks like a secret") as caught:
        entries.write(root, replace(spec, **{field: f"made with {token}"}))
    assert token not in str(caught.value) and not list((root / "registry" / "models").iterdir())


def test_a_reason_for_a_new_state_holds_no_secret(root: Path) -> None:
    path = put(root, GOOD)
    before = path.read_bytes()
    with pytest.raises(RegistryError, match="'reason' looks like a secret"):
        entries.set_state(root, "m", "retired", reason="key sk-" + "a1B2" * 6)
    assert path.read_bytes() == before


def test_a_thousand_entries_are_read_in_a_second_or_two(root: Path) -> None:
    for n in range(1000):
        put(root, {**GOOD, "name": f"m{n}", "options": {"suites": ["sdg", "people"]}}, f"m{n}")
    began = time.process_time()
    found, broken = entries.load_readable(root)
    assert len(found) == 1000 and not broken
    assert time.process_time() - began < 2
