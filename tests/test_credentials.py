"""Every form of a credential is refused in every field of an entry, and hidden in messages."""

from __future__ import annotations

import pytest

from sdgbias import credentials
from sdgbias.errors import RegistryError
from sdgbias.registry import entries

LETTERS = "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA1cD3"
#: Put together here, so that no scanner takes this file for a leak.
FORMS = {
    "hub": "hf_" + LETTERS[:34],
    "GitHub, classic": "ghp_" + LETTERS,
    "GitHub, fine-grained": "github_pat_" + LETTERS[:22] + "_" + LETTERS + LETTERS[:23],
    "OpenAI": "sk-" + "proj-" + LETTERS,
    "Google": "AIza" + LETTERS[:35],
    "Slack, bot": "xoxb-" + "123456789012-123456789012-" + LETTERS[:24],
    "AWS": "AKIA" + "Q3EGRFC2XFBYXMPL",
    "bearer": "Bearer " + LETTERS,
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9."
    + "eyJzdWIiOiIxMjM0NTY3ODkwIn0."
    + LETTERS
    + "aaaaaaa",
    "W&B": "WANDB key: " + "0123456789abcdef0123456789abcdef01234567",
    "webhook, Slack": "https://hooks.slack.com/services/" + "T0000/B0000/" + LETTERS[:24],
    "webhook, Discord": "https://discord.com/api/webhooks/" + "123456789/" + LETTERS,
    "webhook, Teams": "https://example.webhook.office.com/webhookb2/" + LETTERS,
    "password in an address": "https://user:" + "correcthorse@example.org/model",
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
}
ENTRY = {
    "name": "m",
    "title": "m",
    "backend": "planted",
    "repo": "planted",
    "revision": "1",
    "state": "enabled",
}


@pytest.mark.parametrize("secret", FORMS.values(), ids=FORMS)
def test_a_credential_in_any_field_is_refused_and_no_message_repeats_it(secret: str) -> None:
    text = f"see {secret} there"
    for field in ("title", "notes", "reason", "options"):
        entry = ENTRY | {field: {"deep": [{"header": text}]} if field == "options" else text}
        with pytest.raises(RegistryError, match="looks like a secret") as error:
            entries.parse(entry, "m.yaml")
        assert secret not in str(error.value), field
    assert secret not in credentials.hide(f"401: {secret} was refused")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"a": 1, "num_image_tokens": 576, "deep": [{"x": "y"}]}, ""),
        ({"deep": [{"auth_token": "x"}]}, "auth_token"),
        ({"tokens": "x"}, "tokens"),  # only a number is a count
        ({"header": "Bearer hf_abcdefghijklmnop"}, "header"),
        ({"api_key_env": "NAME"}, "api_key_env"),
        ({"revision": "0123456789abcdef0123456789abcdef01234567"}, ""),
        ({"notes": "0123456789abcdef0123456789abcdef01234567"}, "notes"),
    ],
)
def test_names_and_values_are_searched(data: dict[str, object], name: str) -> None:
    assert credentials.find(data) == name


def test_an_allowed_name_is_passed_over() -> None:
    assert credentials.find({"api_key_env": "NAME"}, allowed=("api_key_env",)) == ""
