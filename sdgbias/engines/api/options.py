"""The validated options of a registry entry with backend api; and the key, which is read from the
environment only."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sdgbias.engines.entry_options import checked, described
from sdgbias.errors import ModelError, RegistryError
from sdgbias.types import ModelSpec

#: Single tokens that mean one candidate in any known vocabulary, at most: bare, and after a space,
#: a newline or a tab.
SPELLINGS = 4


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


def read_options(spec: ModelSpec) -> ApiOptions:
    """The checked options of a registry entry. RegistryError names the option, its value and what
    is valid."""
    where = f"registry/models/{spec.name}.yaml"
    given = checked(spec, "api", "chunk_timeout")  # which belongs to the scorer
    for name in ("api_key_env", "base_url"):
        if not given.get(name):
            raise RegistryError(
                f"{where}: option {name} is missing; valid: {described('api')[name]['valid']}; see"
                " docs/how-to/api-models.md"
            )
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
    if url.path.endswith("/chat/completions"):
        raise RegistryError(
            f"{where}: base_url is {options.base_url!r}; valid: what stands before"
            " /chat/completions, which is added"
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
