"""The validated options of a registry entry with backend api; and the key, which is read from the
environment only."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from sdgbias.errors import ModelError, RegistryError, one_of
from sdgbias.types import ModelSpec

#: Single tokens that mean one candidate in any known vocabulary, at most: bare, and after a space,
#: a newline or a tab.
SPELLINGS = 4
_FIXED = frozenset(
    [
        "model",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "logprobs",
        "top_logprobs",
        "logprob_token_ids",
        "logit_bias",
        "n",
        "stream",
    ]
)


@dataclass(frozen=True)
class ApiOptions:
    """The `options` of a registry entry with backend api. Times in seconds; prices per million
    tokens, in any one currency, which is also that of budget; limits are per minute. See
    docs/how-to/api-models.md for each."""

    api_key_env: str
    base_url: str
    model: str = ""
    served_model: str = ""
    top_logprobs: int = 20
    candidate_ids: Mapping[str, list[int]] = field(default_factory=dict)
    spellings: int = SPELLINGS
    prefill: bool = False
    detail: str = ""
    limit_field: str = "max_tokens"
    temperature: float | str = 0
    body: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int = 8
    limits: Mapping[str, float] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    budget: float | None = None
    image_tokens: int = 1500
    timeout: float = 60.0
    retries: int = 6
    backoff: float = 1.0
    patience: float = 600.0

    @property
    def local(self) -> bool:
        return _loopback(urlsplit(self.base_url).hostname or "")


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _number(value: object, low: float) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and low <= value < float("inf")
    )


def _numbers(names: tuple[str, ...]) -> Callable[[Any], bool]:
    return lambda v: (
        isinstance(v, dict) and set(v) <= set(names) and all(_number(x, 0) for x in v.values())
    )


def _whole(low: int, high: int = 10**9) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high


def _ids(value: Any) -> bool:
    whole = _whole(0)
    return isinstance(value, dict) and all(
        len(str(k)) == 1 and isinstance(v, list) and v and all(map(whole, v))
        for k, v in value.items()
    )


def _text(value: Any) -> bool:
    return isinstance(value, str)


#: option -> (check, the valid values in words)
CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "api_key_env": (
        lambda v: _text(v) and v.replace("_", "").isalnum(),
        "the NAME of an environment variable",
    ),
    "base_url": (_text, "an address that ends before /chat/completions"),
    "model": (_text, "the name that the endpoint knows the model by"),
    "served_model": (_text, "the name that every answer must carry"),
    "top_logprobs": (
        _whole(0, 1000),
        "a whole number from 1 on, or 0 for an endpoint that gives text only",
    ),
    "candidate_ids": (_ids, "token ids by candidate, e.g. {A: [34, 362]}"),
    "spellings": (
        _whole(1, 100),
        "how many tokens of its vocabulary mean one candidate, from 1 on",
    ),
    "prefill": (lambda v: isinstance(v, bool), "true or false"),
    "detail": (lambda v: v in ("", "low", "high", "auto"), "low, high or auto"),
    "limit_field": (
        lambda v: v in ("max_tokens", "max_completion_tokens"),
        "max_tokens or max_completion_tokens",
    ),
    "temperature": (
        lambda v: v == "default" or (v == 0 and _number(v, 0)),
        "0, or default for a model that takes none",
    ),
    "body": (
        lambda v: isinstance(v, dict) and not set(v) & _FIXED,
        f"fields of the request other than {', '.join(sorted(_FIXED))}",
    ),
    "concurrency": (_whole(1, 1000), "a whole number from 1 to 1000"),
    "limits": (_numbers(("requests", "tokens")), "{requests: N, tokens: N} per minute"),
    "prices": (
        _numbers(("input", "cached", "output")),
        "{input: X, cached: X, output: X} per million tokens",
    ),
    "budget": (lambda v: v is None or _number(v, 0), "a number in the currency of prices"),
    "image_tokens": (_whole(0), "the most tokens that one picture costs"),
    "timeout": (lambda v: _number(v, 0.001), "seconds"),
    "retries": (_whole(0, 100), "a whole number from 0 to 100"),
    "backoff": (lambda v: _number(v, 0), "seconds"),
    "patience": (lambda v: _number(v, 0), "seconds"),
}


#: option -> its meaning; scripts/option_tables.py writes the table of docs/how-to/api-models.md.
ABOUT = {
    "api_key_env": "the variable that holds the key; the key itself is never written or logged",
    "base_url": "https, or http on this machine",
    "model": "without one the entry's `repo`",
    "served_model": "an answer with another name stops the run; default the first answer's name",
    "top_logprobs": "tokens whose log-probabilities are requested; most endpoints allow 20 or 5",
    "candidate_ids": "for servers that take `logprob_token_ids` (vLLM): exact scores, see below",
    "spellings": "`A`, ` A`, ...; 4 if the vocabulary isn't known",
    "prefill": "true where an answer can be continued after given digits (vLLM)",
    "detail": "resolution at which the endpoint reads pictures, where it has this field",
    "limit_field": (
        "the endpoint's name of the limit of answer tokens; one that refuses the first name gets"
        " the second"
    ),
    "temperature": (
        "`default` sends none: answers are then sampled at the endpoint's own, and the same"
        " question may get another answer"
    ),
    "body": "further fields of the request, e.g. `{seed: 1}`",
    "concurrency": "requests in flight at most; `batch_size` should be several times that",
    "limits": "requests are spaced so that no minute holds more",
    "prices": "in any one currency",
    "budget": "the most that the runs on one benchmark may spend",
    "image_tokens": "for `limits` and `budget`, before the first answers",
    "timeout": "of one request",
    "retries": "after the first attempt",
    "backoff": "first wait before a retry; it doubles, with jitter",
    "patience": "longest wait that the endpoint may request",
}


def read_options(spec: ModelSpec) -> ApiOptions:
    """The checked options of a registry entry. RegistryError names the option, its value and what
    is valid."""
    where = f"registry/models/{spec.name}.yaml"
    for name, value in _own(spec).items():
        if name not in CHECKS:
            raise RegistryError(
                f"{where}: {one_of('option', name, CHECKS)}; see docs/how-to/api-models.md"
            )
        check, valid = CHECKS[name]
        if not check(value):
            raise RegistryError(f"{where}: option {name} is {value!r}; valid: {valid}")
    for name in [f.name for f in fields(ApiOptions)][:2]:
        if not spec.options.get(name):
            raise RegistryError(
                f"{where}: option {name} is missing; valid: {CHECKS[name][1]}; see"
                " docs/how-to/api-models.md"
            )
    given = _own(spec)
    options = ApiOptions(
        **{
            **given,
            "model": given.get("model") or spec.repo,
            "base_url": str(given["base_url"]).rstrip("/"),
        }
    )
    _check_address(options, where)
    if options.budget is not None and "input" not in options.prices:
        raise RegistryError(
            f"{where}: budget is {options.budget} without prices; valid: prices: {{input: X,"
            " output: X}"
        )
    return options


def _own(spec: ModelSpec) -> dict[str, Any]:
    """The options of this engine: chunk_timeout belongs to the scorer (scoring/scorer.py)."""
    return {name: value for name, value in spec.options.items() if name != "chunk_timeout"}


def _check_address(options: ApiOptions, where: str) -> None:
    try:
        url = urlsplit(options.base_url)
        host, _ = url.hostname or "", url.port
    except ValueError:
        url, host = urlsplit(""), ""
    plain = not (url.username or url.password or url.query or url.fragment)
    if not plain:
        raise RegistryError(
            f"{where}: base_url holds a user name, a query or a fragment; valid: https://HOST/v1,"
            f" the key in {options.api_key_env}"
        )
    if not host or not (url.scheme == "https" or (url.scheme == "http" and _loopback(host))):
        raise RegistryError(
            f"{where}: base_url is {options.base_url!r}; valid: https://HOST/v1, or http:// on this"
            " machine (127.0.0.1)"
        )


def read_key(options: ApiOptions, name: str) -> str:
    """The key; ModelError that names the variable, never its value."""
    key = os.environ.get(options.api_key_env, "").strip()
    if not key:
        raise ModelError(
            f"{name}: environment variable {options.api_key_env} is not set; set it to the key of"
            " this endpoint, then again"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ModelError(
            f"{name}: environment variable {options.api_key_env} holds characters that no key has;"
            " set it again"
        )
    return key
