"""The policy file is read strictly, and its published schema says the same."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from sdgbias import formats
from sdgbias.errors import UsageError
from sdgbias.nightly.regression import policy
from tests.builders.commands import REPOSITORY


def test_given_the_packages_policy_then_it_is_the_repositorys_and_fits_the_schema() -> None:
    shipped = (REPOSITORY / "registry" / "policy.yaml").read_bytes()
    assert shipped == policy.DEFAULT.read_bytes()
    data, schema = yaml.safe_load(shipped), formats.schema(policy.Policy)
    jsonschema.validate(data, schema)
    chosen = policy.load(policy.DEFAULT)
    assert {r.suite for r in chosen.rules} == {"sdg", "people"}
    assert chosen.webhook == "SDGBIAS_WEBHOOK"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "address": "https://hooks.example.org"}, schema)


def test_given_a_registry_then_its_policy_comes_before_the_packages(tmp_path: Path) -> None:
    assert policy.find(tmp_path) == policy.DEFAULT
    path = tmp_path / "registry" / "policy.yaml"
    path.parent.mkdir()
    path.write_text("rules: []")
    assert policy.find(tmp_path) == path


def test_given_a_rule_then_what_it_leaves_out_follows_from_its_metric() -> None:
    named = [{"name": m, "metric": m, "allowed": 0.1} for m in ("mae", "signature")]
    mae, signature = policy.parse({"rules": named}, "here").rules
    assert (mae.task, mae.methods, mae.tests) == ("regression", ("full",), ("all",))
    assert signature.metrics == ("share_pessimistic", "share_conservative", "share_optimistic")


METHODS = "unknown methods 'cade+'; valid: cade, ctx_q"
TESTS = "unknown tests 'T9'; valid: T1, T2, T3, T4, T5, all, each"
FIELDS = "rules[0] (one): unknown field 'worst'; valid: allowed, at_least, at_most, by, methods"
VARIABLE = "never the address"


@pytest.mark.parametrize(
    ("rule", "fields", "words"),
    [
        ({"worst": "lower"}, {}, FIELDS),
        ({"metric": "f1"}, {}, "unknown metric of suite sdg 'f1'; valid: accuracy"),
        ({"suite": "peoples"}, {}, "unknown suite 'peoples'; valid: people, sdg"),
        ({"methods": ["full", "cade+"]}, {}, METHODS),
        ({"tests": "T9"}, {}, TESTS),
        ({"worse": "down"}, {}, "unknown worse 'down'; valid: either, higher, lower"),
        ({"then": "page"}, {}, "unknown then 'page'; valid: alarm, quarantine"),
        ({"allowed": -1}, {}, "rules[0] (one): allowed is -1; valid: 0 or more"),
        ({"allowed": None}, {}, "nothing to judge by"),
        ({"by": "urban"}, {}, "knows no by"),
        ({"metric": "disparity"}, {}, "add by: country, urban, wealth"),
        ({"metric": "failed_share"}, {}, "use at_most instead of allowed"),
        ({"metric": "failed_share", "within": "urban"}, {}, "no answers of one group alone"),
        ({"min_n": 1}, {}, "min_n is 1"),
        ({"name": "Two Words"}, {}, "name is 'Two Words'"),
        ({}, {"alpha": 5}, "alpha is 5; valid: below 1"),
        ({}, {"correction": "none"}, "unknown correction 'none'; valid: holm"),
        ({}, {"baseline": "newest"}, "unknown baseline 'newest'; valid: last-good"),
        ({}, {"webhook": "https://hooks.example.org/T0/s3cret"}, VARIABLE),
    ],
)
def test_given_a_fault_then_it_is_named_with_the_valid_values(
    rule: dict[str, object], fields: dict[str, object], words: str
) -> None:
    first = {"name": "one", "metric": "accuracy", "allowed": 0.02, **rule}
    with pytest.raises(UsageError) as refused:
        policy.parse({"rules": [first], **fields}, "policy.yaml")
    text = str(refused.value)
    assert words in text and text.startswith("policy.yaml") and "\n" not in text
    assert "s3cret" not in text


def test_given_two_rules_of_a_name_then_they_are_refused() -> None:
    rules = [{"name": "one", "metric": "accuracy", "allowed": 0.02}] * 2
    with pytest.raises(UsageError, match="two rules are named 'one'"):
        policy.parse({"rules": rules}, "policy.yaml")
