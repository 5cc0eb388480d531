"""Parts of the names of metrics and figures in W&B."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable


def slug(text: str) -> str:
    """``text`` in lower case, anything but letters, digits and dots as a hyphen."""
    return re.sub(r"[^\w.]+|_+", "-", text.lower()).strip("-")


def distinct_slugs(texts: Iterable[str]) -> dict[str, str]:
    """text -> its slug; equal slugs of different texts each end in a hash of the text."""
    found = {text: slug(text) for text in sorted(set(texts))}
    counts = Counter(found.values())
    return {
        text: short
        if short and counts[short] == 1
        else f"{short}-{hashlib.sha256(text.encode()).hexdigest()[:8]}".strip("-")
        for text, short in found.items()
    }
