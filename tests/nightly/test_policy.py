"""The policy file is read strictly, and its published schema says the same."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from sdgbias import formats
from sdgbias.errors import UsageError
from sdgbias.nightly.regression import policy

REPOSITORY = Path(__file__).resolve().parents[2]


def rules(**fields: object) -> dict[str, object]:
    return {"rules": [{"name": "one", "metric": "accuracy", "allowed": 0.02, **fields}]}


def test_the_policy_of_the_repository_is_the_packages_own() -> None:
    assert (REPOSITORY / "registry" / "policy.yaml").read_bytes() == policy.DEFAULT.read_bytes()


def test_the_policy_fits_the_schema_and_the_reader() -> None:
    data = yaml.safe_load(policy.DEFAULT.read_text())
    schema = formats.schema(policy.Policy)
    jsonschema.validate(data, schema)
    read = policy.load(policy.DEFAULT)
    assert {r.suite for r in read.rules} == {"sdg", "people"} and read.webhook == "SDGBIAS_WEBHOOK"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "address": "https://hooks.example.org"}, schema)


def test_a_registry_without_a_policy_takes_the_packages(tmp_path: Path) -> None:
    assert policy.find(tmp_path) == policy.DEFAULT
    (tmp_path / "registry").mkdir()
    own = tmp_path / "registry" / "policy.yaml"
    own.write_text("rules: []")
    assert policy.find(tmp_path) == own


def test_what_a_rule_leaves_out_follows_from_its_metric() -> None:
    named = [{"name": m, "metric": m, "allowed": 0.1} for m in ("mae", "signature")]
    mae, signature = policy.parse({"rules": named}, "here").rules
    assert (mae.task, mae.methods, mae.tests) == ("regression", ("full",), ("all",))
    assert signature.metrics == ("share_pessimistic", "share_conservative", "share_optimistic")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            rules(worst="lower"),
            "rules[0]: unknown field 'worst'; valid: allowed, at_least, at_most, by, methods",
        ),
        (rules(metric="f1"), "unknown metric of suite sdg 'f1'; valid: accuracy"),
        (rules(suite="peoples"), "unknown suite 'peoples'; valid: people, sdg"),
        (rules(methods=["full", "cade+"]), "unknown methods 'cade+'; valid: cade, ctx_q"),
        (rules(tests="T9"), "unknown tests 'T9'; valid: T1, T2, T3, T4, T5, all, each"),
        (rules(worse="down"), "unknown worse 'down'; valid: either, higher, lower"),
        (rules(then="page"), "unknown then 'page'; valid: alarm, quarantine"),
        (rules(allowed=-1), "rules[0]: allowed is -1; valid: 0 or more"),
        (rules(allowed=None), "nothing to judge by"),
        (rules(by="urban"), "knows no by"),
        (rules(metric="disparity"), "add by: country, urban, wealth"),
        (rules(metric="failed_share"), "use at_most instead of allowed"),
        (rules(metric="throughput", worse="higher"), "worse: lower"),
        (rules(min_n=1), "min_n is 1"),
        (rules(name="Two Words"), "name is 'Two Words'"),
        ({"rules": rules()["rules"] * 2}, "two rules are named 'one'"),  # type: ignore[operator]
        ({**rules(), "alpha": 5}, "alpha is 5; valid: below 1"),
        ({**rules(), "correction": "none"}, "unknown correction 'none'; valid: holm"),
        ({**rules(), "baseline": "newest"}, "unknown baseline 'newest'; valid: last-good"),
    ],
)
def test_a_fault_is_named_with_what_is_valid(data: object, words: str) -> None:
    with pytest.raises(UsageError) as told:
        policy.parse(data, "policy.yaml")
    assert (
        words in str(told.value)
        and str(told.value).startswith("policy.yaml")
        and "\n" not in str(told.value)
    )


def test_an_address_in_the_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "webhook: https://hooks.example.org/T0/secret\nrules: [{name: a, metric: accuracy, allowed:"
        " 0.1}]\n"
    )
    with pytest.raises(UsageError, match="never the address") as told:
        policy.load(file)
    assert "secret" not in str(told.value)
