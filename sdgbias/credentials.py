"""What looks like a credential: names such as ``auth_token``, and values by the patterns of
detect-secrets and a few of our own (the hub's, Google's, W&B's, webhook addresses).

The patterns of the installed detect-secrets are kept in the user's cache folder, because its import
takes half a second, and every command that reads the registry needs them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module, metadata
from pkgutil import iter_modules
from typing import Any, cast

from sdgbias.files import cached_text

#: Names that look like a credential; counts such as ``num_image_tokens: 1`` are let through.
_NAME = re.compile(r"key|token|secret|passw", re.IGNORECASE)
#: Fields that hold commits, which look like a W&B key.
COMMITS = ("revision", "code_revision")
_OURS = (
    r"\b(?:sk-|hf_|gh[pousr]_|github_pat_|AIza|xox[a-z]-|glpat-|wandb_v\d_)[A-Za-z0-9_-]{10,}",
    r"(?<=[Bb]earer )[^\s*]{8,}",
    r"(?i)https?://[^\s/]*(?:hooks?\b|webhook)\S*|https?://\S*/(?:api/)?webhooks?/\S+",
    r"(?i)\b(?:wandb|w&b|key|token|secret|login|password)\b.{0,20}\b[0-9a-f]{40}\b",
)
_HEXADECIMAL = re.compile(r"[0-9a-f]{40}")


def find(data: Mapping[Any, Any], allowed: Collection[str] = ()) -> str:
    """The first name in nested data whose name or value looks like a credential; '' if none does.
    ``allowed``: names that are exempt."""
    for name, value in _walk(data):
        is_count = name.endswith("tokens") and isinstance(value, int)
        named = _NAME.search(name) and not (name in allowed or is_count or isinstance(value, dict))
        if named or (isinstance(value, str) and _is_credential(name, value)):
            return name
    return ""


def hide(text: str) -> str:
    """The text with *** for everything in it that looks like a credential."""
    for pattern in patterns():
        text = pattern.sub("***", text)
    return text


def cleaned(data: Any, name: str = "") -> Any:
    """Nested data that may leave this machine: *** for texts below a name that looks like a
    credential (names of environment variables stay) and for what `hide` hides, and of the path of a
    ``path:`` model only the last folder."""
    if isinstance(data, Mapping):
        return {str(k): cleaned(v, str(k)) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [cleaned(v, name) for v in data]
    if not isinstance(data, str):
        return data
    if _NAME.search(name) and not name.endswith("_env"):
        return "***"
    return hide(re.sub(r"^path:.*/", "path:.../", data))


@cache
def patterns() -> tuple[re.Pattern[str], ...]:
    """Expressions for values that look like a credential."""
    name = f"secret-patterns-{metadata.version('detect-secrets')}.json"
    theirs = json.loads(cached_text(name, _extract_patterns, json.loads))
    return tuple(re.compile(text, flags) for text, flags in [*((t, 0) for t in _OURS), *theirs])


def _extract_patterns() -> str:
    """[[expression, flags], ...] of the detectors of detect-secrets that are expressions."""
    import detect_secrets.plugins
    from detect_secrets.plugins.base import RegexBasedDetector
    from detect_secrets.plugins.ip_public import IPPublicDetector

    for module in iter_modules(detect_secrets.plugins.__path__):
        import_module(f"detect_secrets.plugins.{module.name}")
    detectors = sorted(RegexBasedDetector.__subclasses__(), key=lambda detector: detector.__name__)
    return json.dumps(
        [
            [pattern.pattern, pattern.flags & ~re.UNICODE]
            for detector in detectors
            if detector is not IPPublicDetector
            for pattern in cast(Iterable[re.Pattern[str]], detector.denylist)
        ]
    )


def _is_credential(name: str, value: str) -> bool:
    if _HEXADECIMAL.fullmatch(value.strip()):
        return name not in COMMITS
    return any(pattern.search(value) for pattern in patterns())


def _walk(data: object, name: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield str(key), value
            yield from _walk(value, str(key))
    elif isinstance(data, list):
        for value in data:
            yield name, value
            yield from _walk(value, name)
