"""Metadata of a model repository on the hub: commit, configuration, size. Never weights, never
code.

Every failure is one plain line: not found, gated (not logged in, expired token, no access),
withdrawn, unreachable. HF_ENDPOINT sets another hub, HF_HUB_ETAG_TIMEOUT the seconds to wait
(default 10). A token is sent, and never shown.
"""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from sdgbias.errors import ExpiredToken, Gated, HubUnreachable, RegistryError, SdgbiasError
from sdgbias.registry import machine
from sdgbias.registry.spec import DTYPES
from sdgbias.registry.weights import matters

#: Seconds before a request whose connection broke off is sent again.
PAUSE = 1.0
_LARGEST_JSON = 4 * 2**20
_LISTED = ("sha", "createdAt", "pipeline_tag", "safetensors", "cardData", "gated")
_SORTS = {"trending_score": "trendingScore", "created_at": "createdAt"}

#: Pipeline tags of models that answer.
_ANSWERING = (
    *("", "image-text-to-text", "image-to-text", "video-text-to-text", "any-to-any"),
    *("visual-question-answering", "text-generation"),
)
_T = TypeVar("_T")


class NoRevision(RegistryError):
    """The repository exists, the revision doesn't."""


class BadResponse(HubUnreachable):
    """The hub is reachable, but answers this request with a server error."""


def ends_all(error: Exception) -> bool:
    """Whether an error concerns every repository, not only the one that was asked about."""
    return isinstance(error, HubUnreachable | ExpiredToken) and not isinstance(error, BadResponse)


class NoRepository(RegistryError):
    """The repository doesn't exist, at least for this account."""


class AccessDenied(RegistryError):
    """The repository doesn't exist or is private: without a login, the hub doesn't distinguish the
    two."""


@dataclass(frozen=True)
class ModelFacts:
    """What the hub's list, a repository at a commit, or a folder of weights says about its model.

    params: as the hub counted them in the safetensors, else as their headers say; 0: unknown.
    licence: several with commas. created: None if the hub doesn't report it. config, processor:
    config.json and the processor's, {} where they are missing or weren't read; files: name ->
    digest of its bytes, '' in a folder; weight_bytes: of the safetensors; unread: why the
    repository wasn't read; now: of a commit, what the hub calls the repository today."""

    repo: str
    commit: str = ""
    params: int = 0
    pipeline: str = ""
    licence: str = ""
    gated: bool = False
    created: date | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    processor: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    weight_bytes: int = 0
    unread: str = ""
    now: str = ""

    def that_matter(self) -> dict[str, str]:
        """The files that can change a score, with the digest of their bytes."""
        return {name: digest for name, digest in self.files.items() if matters(name)}

    @property
    def family(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def sees(self) -> bool:
        """Whether its configuration has a part for pictures; a language model's may be null."""
        return self.config.get("vision_config") is not None

    @property
    def architecture(self) -> str:
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    @property
    def purpose(self) -> str:
        """The hub's pipeline tag, where it is that of no model that answers."""
        return "" if self.pipeline in _ANSWERING else self.pipeline

    @property
    def quantised(self) -> str:
        """How the stored weights are quantised, such as fp8; '' where they aren't."""
        stated = self.config.get("quantization_config")
        return str((stated or {}).get("quant_method") or "yes") if isinstance(stated, dict) else ""

    def weights(self, dtype: str, params: int) -> float:
        """GiB of the weights once loaded: as stored where they are quantised."""
        if "quantization_config" in self.config or not params:
            return self.weight_bytes / machine.GIB
        return machine.weights_gib(params, dtype)

    @property
    def stated_dtype(self) -> str:
        """The dtype of config.json; '' where it states none of ours."""
        text = self.config.get("text_config")
        for config in (self.config, text if isinstance(text, dict) else {}):
            stated = str(config.get("dtype") or config.get("torch_dtype") or "")
            if stated in DTYPES:
                return stated
        return ""

    @property
    def dtype(self) -> str:
        if self.stated_dtype:
            return self.stated_dtype
        return "float32" if self.params and self.weight_bytes / self.params > 3 else "bfloat16"


def weight_files(names: Iterable[str]) -> list[str]:
    """The safetensors among a repository's files from which transformers loads: others beside them
    (Mistral's consolidated.safetensors) hold the same weights once more."""
    shards = [name for name in names if name.endswith(".safetensors")]
    whole = [name for name in shards if name == "model.safetensors"]
    return whole or [s for s in shards if re.fullmatch(r"model-\d+-of-\d+\.\w+", s)] or shards


def commit(repo: str, revision: str | None = None) -> ModelFacts:
    """The commit that a branch, tag or commit stands for (default: the main branch), and its files.
    One request. Errors: RegistryError (no such repository or revision), Gated, ExpiredToken,
    HubUnreachable."""
    from huggingface_hub import constants

    at = f"/revision/{quote(revision, safe='')}" if revision else ""
    try:
        answer = _get(f"{constants.ENDPOINT}/api/models/{repo}{at}", {"blobs": True})
        info = _info(answer.json())
    except Exception as error:
        raise plain(repo, revision, error) from None
    files = info.siblings or ()
    shards = weight_files(f.rfilename for f in files)
    return replace(
        _stated(info),
        repo=repo,
        now=info.id,
        files={f.rfilename: str(f.lfs.sha256 if f.lfs else f.blob_id or "") for f in files},
        weight_bytes=sum(int(f.size or 0) for f in files if f.rfilename in shards),
    )


def count_parameters(repo: str, revision: str) -> int:
    """Parameters in the headers of the safetensors of a repository; 0 where they can't be read.
    Errors: as commit."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    try:
        metadata = _try_twice(
            lambda: HfApi().get_safetensors_metadata(repo, revision=revision, timeout=seconds())
        )
    except (NotASafetensorsRepoError, SafetensorsParsingError, ValueError, struct.error):
        return 0
    except Exception as error:
        raise plain(repo, revision, error) from None
    return sum(metadata.parameter_count.values())


def listed(
    pipeline: str, owner: str = "", apps: Sequence[str] = (), sort: str = "", limit: int = 0
) -> list[ModelFacts]:
    """The repositories of one pipeline tag: an owner's, by name; without one the first ``limit`` of
    the hub's list by ``sort`` (trending_score or created_at, largest first). Errors: as commit."""
    from huggingface_hub import constants

    listing: list[ModelFacts] = []
    page: str | None = f"{constants.ENDPOINT}/api/models"
    which = {"author": owner} if owner else {"apps": apps, "sort": _SORTS[sort], "limit": limit}
    params: dict[str, Any] | None = {"pipeline_tag": pipeline, "expand": list(_LISTED), **which}
    try:
        # the client's own paging has no timeout
        while page and (owner or len(listing) < limit):
            response = _get(page, params)
            listing += [_stated(_info(one)) for one in response.json()]
            # a mirror may name another host, which gets no token
            rest = urlsplit(response.links.get("next", {}).get("url", "")).query
            page, params = rest and f"{constants.ENDPOINT}/api/models?{rest}", None
    except Exception as error:
        raise plain(owner or "the hub's list", None, error, "sdgbias models watch") from None
    return sorted(listing, key=lambda one: one.repo) if owner else listing[:limit]


def _info(record: Mapping[str, Any]) -> Any:
    """The hub's record of a repository; its client fails at a count of parameters that is not
    whole."""
    from huggingface_hub import ModelInfo

    counted = record.get("safetensors") or {}
    whole = counted if {"parameters", "total"} <= counted.keys() else None
    return ModelInfo(**{"siblings": None, **record, "safetensors": whole})  # type: ignore[no-untyped-call]


def _stated(info: Any) -> ModelFacts:
    """What the hub's own record of a repository states."""
    licences = getattr(info.card_data, "license", "") or ""
    return ModelFacts(
        info.id,
        str(info.sha or ""),
        int(info.safetensors.total) if info.safetensors else 0,
        info.pipeline_tag or "",
        ", ".join(map(str, licences)) if isinstance(licences, list) else str(licences),
        bool(info.gated),
        info.created_at.date() if info.created_at else None,
    )


def _try_twice(request: Callable[[], _T]) -> _T:
    """The answer to a request, which is sent once more where its connection breaks off: one of the
    few that a registration needs must not end it."""
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]

    try:
        return request()
    except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
        time.sleep(PAUSE)
        return request()


def seconds() -> float:
    """How long an answer of the hub may take."""
    from huggingface_hub import constants

    return float(constants.HF_HUB_ETAG_TIMEOUT)


def _get(url: str, params: dict[str, Any] | None = None) -> Any:
    from huggingface_hub import utils as client

    session = client.get_session()  # type: ignore[attr-defined]
    headers = client.build_hf_headers()  # type: ignore[attr-defined]
    response = _try_twice(
        lambda: session.get(url, params=params, headers=headers, timeout=seconds())
    )
    client.hf_raise_for_status(response)  # type: ignore[attr-defined]
    return response


def read_json(repo: str, revision: str, name: str) -> dict[str, Any]:
    """The object in a small JSON file of a repository. Errors: as commit."""
    from huggingface_hub import hf_hub_url

    try:
        response = _get(hf_hub_url(repo, name, revision=revision))
    except Exception as error:
        raise plain(repo, revision, error) from None
    content = None
    with suppress(ValueError):
        content = json.loads(response.content) if len(response.content) <= _LARGEST_JSON else None
    if not isinstance(content, dict):
        raise RegistryError(
            f"{repo}: {name} of revision {revision} is not a JSON object of at most 4 MiB; choose"
            " another repository"
        )
    return content


def plain(repo: str, revision: str | None, error: BaseException, again: str = "") -> SdgbiasError:
    """The error of the package for an error of the hub's client, in plain words. ``again``: the
    command to give again; default: the model's registration."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page = f"{constants.ENDPOINT}/{'datasets/' if again else ''}{repo}"
    onward = f"later again: {again}"
    if not again:
        again = f"sdgbias register-model {repo}"
        onward = (
            f"later again, or offline: {again} --revision COMMIT (40 hex digits, from the model's"
            " page)"
        )
    status = int(getattr(getattr(error, "response", None), "status_code", 0))
    if isinstance(error, RevisionNotFoundError):
        return NoRevision(
            f"{repo}: no revision {revision!r} on the hub; valid: its branches, tags, commits, see"
            f" {page}/commits/main"
        )
    if status == 401 and get_token():
        return ExpiredToken(
            f"{repo}: the hub refuses your token: expired or revoked; make a new one: hf auth login"
        )
    if isinstance(error, GatedRepoError) and status == 401:
        return Gated(
            f"{repo}: gated, and you are not logged in; accept its terms at {page}, then: hf auth"
            " login"
        )
    if isinstance(error, GatedRepoError):
        return Gated(
            f"{repo}: gated, and your account has no access; request it at {page}, then: {again}"
        )
    if status == 401:
        return AccessDenied(
            f"{repo}: not on the hub, or private and you are not logged in; check the id, or: hf"
            " auth login"
        )
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return NoRepository(f"{repo}: not on the hub; check the id (OWNER/NAME)")
    if status == 403:
        return Gated(f"{repo}: the hub denies access (403); request it at {page}, then: {again}")
    why = f"answers {status}" if status else f"can't be reached ({type(error).__name__})"
    # 429: too many requests, whatever they ask about
    kind = BadResponse if status not in (0, 429) else HubUnreachable
    return kind(f"{repo}: the hub {why}; {onward}")
