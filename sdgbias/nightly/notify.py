"""Sends a message about a night to a webhook (Slack's format, plain text included) and records it
in table ``announcements``.

The address is a secret: it comes from an environment variable, and only its host and a digest are
stored or shown.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pandas as pd

from sdgbias import store
from sdgbias.analysis import night_text as words
from sdgbias.analysis import nights
from sdgbias.analysis.nights import NightRecord
from sdgbias.errors import UsageError

#: Seconds before the second and third attempts, and the timeout of one request.
WAITS, TIMEOUT = (1.0, 4.0), 10.0
#: Maximum number of earlier nights whose failed message is sent again.
KEPT = 7
#: Slack rejects longer texts (limit 3,000) and more blocks (limit 50).
_LONGEST, _BREACHES, _LISTED = 2900, 12, 10


@dataclass(frozen=True)
class SentMessage:
    """night; status: sent, failed, skipped, or known (sent before); why: reason of a failure or a
    skip."""

    night: str
    status: str
    why: str = ""


def target(address: str) -> str:
    """'hooks.example.org#1a2b3c4d' for an http(s) address. Raises UsageError, without the address,
    for anything else."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        _ = parts.port  # raises if it is not a number
    except ValueError:
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(
            "the webhook's address is no http or https URL; it isn't repeated here because it may"
            " be a secret"
        )
    return f"{host}#{hashlib.sha256(address.encode()).hexdigest()[:8]}"


def message(night: NightRecord, link: str = "") -> dict[str, Any]:
    """Slack's JSON: text (plain) and blocks. link: URL of the report's page; default: as recorded
    for the night."""
    told = str(night.row.get("report") or "")  # the folder of the report, or the page itself
    link = link or (
        told if told.endswith(".html") or not told else f"{told.rstrip('/')}/night.html"
    )
    title = f"sdgbias, night {night.night}"
    lines = [words.headline(night)]
    steps = [
        f"• {name}: {reason[:400]}"
        for name, reason in nights.failed_steps(night.row).items()
        if name != "announce"
    ]
    breaches = [
        f"• {m.label}, {m.suite}: {words.moved(r)}" for m in night.breached for r in m.breaches
    ]
    if len(breaches) > _BREACHES:
        breaches = [*breaches[:_BREACHES], f"• and {len(breaches) - _BREACHES} more breaches"]
    out = [f"• {m.label}, {m.suite}: {words.why(m)[:240]}" for m in night.of("failed", "skipped")]
    out = [*out[:_LISTED], f"• and {len(out) - _LISTED} more"] if len(out) > _LISTED else out
    held = [
        f"• {m.model}: quarantined"
        f" {f'until {m.until}' if m.until else 'until a person enables it'}; {words.back(m.model)}"
        for m in night.models
        if m.until or m.quarantines
    ]
    parts = [
        ("", lines),
        ("Steps that failed", steps),
        ("In breach", breaches),
        ("No new result", out),
        ("Quarantined", list(dict.fromkeys(held))),
    ]
    shown = [(head, listed) for head, listed in parts if listed]
    where = f"Morning page: {link}" if link else ""
    plain = "\n".join(
        [
            title,
            *(line for head, listed in shown for line in ([head + ":"] if head else []) + listed),
            *([where] if where else []),
        ]
    )
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": title[:150]}}
    ]
    for head, listed in shown:
        blocks.append(
            _section("\n".join([f"*{head}*"] * bool(head) + [_escaped(line) for line in listed]))
        )
    if link:
        url = urlsplit(link).scheme in ("http", "https") and not set(link) & set("<>| ")
        blocks.append(_section(f"<{link}|Morning page>" if url else _escaped(where)))
    return {"text": plain[:_LONGEST], "blocks": blocks}


def _section(text: str) -> dict[str, Any]:
    return {
        "type": "section",
        "text": {
            "type": "mrkdwn",
            "text": text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…",
        },
    }


def _escaped(text: str) -> str:
    """Escape text so that a model's name or an error can't become a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def announce(
    results: Path,
    variable: str,
    now: datetime,
    *,
    night: str = "",
    link: str = "",
    sleep: Callable[[float], None] = time.sleep,
) -> list[SentMessage]:
    """Send the message of a night (default: the newest) and those of earlier nights that failed;
    each night is sent to a target once.

    A webhook that doesn't answer raises nothing: the message is recorded as failed, and the next
    call tries again. Raises UsageError for an unknown night or an invalid address, StoreError.
    """
    chosen = nights.load(results, night)
    if chosen is None:
        raise UsageError(f"{results}: no night to report; run `sdgbias nightly` first")
    address = os.environ.get(variable, "").strip()
    if not address:
        _keep(results, chosen.night, "", "skipped", 0, "", now)
        return [
            SentMessage(
                chosen.night, "skipped", f"no address in the environment variable {variable}"
            )
        ]
    to = target(address)
    before = store.query(
        results, "SELECT night, status, attempts FROM announcements WHERE target = ?", [to]
    ).set_index("night")
    failed = [
        n
        for n in nights.known(results)
        if n in before.index and before.loc[n, "status"] == "failed" and n != chosen.night
    ][-KEPT:]
    done = []
    for name in [*failed, chosen.night]:
        if name in before.index and before.loc[name, "status"] == "sent":
            done.append(SentMessage(name, "known"))
            continue
        told = chosen if name == chosen.night else nights.load(results, name)
        assert told is not None
        body = message(told, link)
        tries, why = post(address, body, sleep)
        total = tries + (int(before.loc[name, "attempts"]) if name in before.index else 0)  # type: ignore[arg-type]
        _keep(results, name, to, "failed" if why else "sent", total, body["text"], now)
        done.append(SentMessage(name, "failed" if why else "sent", why))
    return done


def post(
    address: str, body: dict[str, Any], sleep: Callable[[float], None] = time.sleep
) -> tuple[int, str]:
    """(attempts, '' or the reason of failure). Up to three attempts; errors that a retry can't fix
    (HTTP 3xx, and 4xx except 408 and 429) are not retried."""
    import logging

    import httpx

    logging.getLogger("httpx").setLevel(
        logging.WARNING
    )  # at INFO it logs every address, which is a secret here
    why = ""
    for at in range(len(WAITS) + 1):
        if at:
            sleep(WAITS[at - 1])
        try:
            answer = httpx.post(address, json=body, timeout=TIMEOUT, follow_redirects=False)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            why = type(error).__name__  # the error's text may contain the address
            continue
        if answer.is_success:
            return at + 1, ""
        why = f"HTTP {answer.status_code}"
        if 300 <= answer.status_code < 500 and answer.status_code not in (408, 429):
            return at + 1, why
    return len(WAITS) + 1, why


def _keep(
    results: Path, night: str, to: str, status: str, attempts: int, text: str, now: datetime
) -> None:
    row = {
        "night": night,
        "target": to,
        "status": status,
        "attempts": attempts,
        "message": text,
        "sent_at": now,
    }
    store.upsert(results, {"announcements": pd.DataFrame([row])})
