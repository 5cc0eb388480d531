"""Sends a message about a night (chat, mail or any web address, by Apprise) and records it in table
``announcements``.

The address is a secret: it comes from an environment variable, and only its host and a digest are
stored or shown.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pandas as pd

from sdgbias import store, templates
from sdgbias.analysis import night_text as words
from sdgbias.analysis import nights
from sdgbias.analysis.nights import NightRecord
from sdgbias.errors import UsageError

if TYPE_CHECKING:
    import apprise

#: Seconds before the second and third attempts, and the timeout of one request.
WAITS, TIMEOUT = (1.0, 4.0), 10.0
#: Maximum number of earlier nights whose failed message is sent again.
KEPT = 7
#: Slack rejects longer texts (limit 3,000).
_LONGEST = 2900
#: Part of the message -> its most lines, and what those left out are called.
_MOST = {"In breach": (12, " breaches"), "No new result": (10, "")}
#: Of Apprise's JSON, a web address that is no known service gets the field ``text`` alone.
_TEXT_ONLY = "%3Aversion=&%3Atitle=&%3Aattachments=&%3Atype=&%3Amessage=text"


@dataclass(frozen=True)
class SentMessage:
    """night; status: sent, failed, skipped, or known (sent before); why: reason of a failure or a
    skip."""

    night: str
    status: str
    why: str = ""


def service(address: str) -> apprise.NotifyBase:
    """The service behind an address: any of Apprise's (slack://, msteams://, mailto://, ..., also
    the https addresses of their webhooks), else a web address that takes JSON. Raises UsageError,
    without the address, for anything else."""
    import apprise

    for logs_addresses in ("apprise", "urllib3"):
        logging.getLogger(logs_addresses).setLevel(logging.CRITICAL)
    try:
        parts = urlsplit(address)
        target = apprise.Apprise.instantiate(address, suppress_exceptions=True)
        if target is None and parts.scheme in ("http", "https") and parts.hostname:
            query = "".join(f"-{pair}&" for pair in parts.query.split("&") if pair)
            plain = f"{parts.netloc}{parts.path}?{query}{_TEXT_ONLY}"
            target = apprise.Apprise.instantiate(
                f"{parts.scheme.replace('http', 'json')}://{plain}"
            )
    except ValueError:
        target = None
    if target is None:
        raise UsageError(
            "the webhook's address is no http or https URL and none of Apprise's; it isn't repeated"
            " here because it may be a secret"
        )
    target.redirects = False
    target.socket_connect_timeout = target.socket_read_timeout = TIMEOUT
    return target


def target(address: str) -> str:
    """'hooks.example.org#1a2b3c4d' for an address, by its host or else its service. Raises
    UsageError, without the address, for one that `service` refuses."""
    name = str(service(address).service_name).lower().replace(" ", "-")
    host = urlsplit(address).hostname if address.startswith("http") else name
    return f"{host}#{hashlib.sha256(address.encode()).hexdigest()[:8]}"


def message(night: NightRecord, link: str = "") -> str:
    """Plain text. link: URL of the report's page; default: as recorded for the night."""
    report = str(night.row.get("report") or "")  # the folder of the report, or the page itself
    link = link or (
        report if report.endswith(".html") or not report else f"{report.rstrip('/')}/night.html"
    )
    steps = nights.failed_steps(night.row).items()
    parts = {
        "In breach": [
            f"{m.label}, {m.suite}: {words.moved(r)}"
            for m in night.breached
            for r in sorted(m.breaches, key=words.directions_first)
        ],
        "What to do": [line for m in night.breached for line in words.ways_on(m)],
        "Steps that failed": [f"{name}: {why[:400]}" for name, why in steps if name != "announce"],
        "No new result": [
            f"{m.label}, {m.suite}: {words.why(m)[:240]}" for m in night.of("failed", "skipped")
        ],
        "Quarantined": list(
            dict.fromkeys(
                f"{m.model}: quarantined until {m.until or 'a person enables it'};"
                f" {words.back(m.model)}"
                for m in night.models
                if m.until or m.quarantines
            )
        ),
    }
    headline = words.headline(night)
    lines = templates.lines(
        "night_message", night=night.night, headline=headline, parts=parts, most=_MOST, link=link
    )
    return "\n".join(lines)[:_LONGEST]


def announce(
    results: Path,
    variable: str,
    now: datetime,
    *,
    night: str = "",
    link: str = "",
    sleep: Callable[[float], None] = time.sleep,
) -> list[SentMessage]:
    """Send the message of a night (default: the newest) and those of earlier nights that failed, at
    this target or at another one and reached nobody; each night is sent to a target once.

    A webhook that doesn't answer raises nothing: the message is recorded as failed, and the next
    call tries again. Raises UsageError for an invalid address, StoreError (unknown night).
    """
    chosen = nights.load(results, night)
    if chosen is None:
        raise UsageError(f"{results}: no night to report; run `sdgbias nightly` first")
    address = os.environ.get(variable, "").strip()
    if not address:
        _keep(results, chosen.night, "", "skipped", 0, "", now)
        why = f"no address in the environment variable {variable}"
        return [SentMessage(chosen.night, "skipped", why)]
    to = target(address)
    rows = store.query(results, "FROM announcements").to_dict("records")
    before = {row["night"]: row for row in rows if row["target"] == to}
    status = {night: row["status"] for night, row in before.items()}
    tried, sent = ({r["night"] for r in rows if r["status"] == s} for s in ("failed", "sent"))
    # one that reached nobody is for this address, too: another one may have been mended
    due = (tried - sent) | {name for name in tried if status.get(name) == "failed"}
    failed = [name for name in nights.names(results) if name in due and name != chosen.night]
    done = []
    for name in [*failed[-KEPT:], chosen.night]:
        if status.get(name) == "sent":
            done.append(SentMessage(name, "known"))
            continue
        record = chosen if name == chosen.night else nights.load(results, name)
        assert record is not None
        text = message(record, link)
        tries, why = post(address, text, sleep)
        total = tries + (int(before[name]["attempts"]) if name in before else 0)
        done.append(SentMessage(name, "failed" if why else "sent", why))
        _keep(results, name, to, done[-1].status, total, text, now)
    return done


def post(address: str, text: str, sleep: Callable[[float], None] = time.sleep) -> tuple[int, str]:
    """(attempts, '' or the reason of failure). Up to three attempts; errors that a retry can't fix
    (HTTP 3xx, and 4xx except 408 and 429) are not retried."""
    import apprise

    to, why = service(address), ""
    for at in range(len(WAITS) + 1):
        if at:
            sleep(WAITS[at - 1])
        with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as log:
            if to.notify(body=text):
                return at + 1, ""
            code = re.search(r"error=(\d{3})\b", log.getvalue())  # the rest may name the address
        why = f"HTTP {code[1]}" if code else "no answer"
        if code and 300 <= int(code[1]) < 500 and code[1] not in ("408", "429"):
            return at + 1, why
    return len(WAITS) + 1, why


def _keep(
    results: Path, night: str, to: str, status: str, attempts: int, text: str, now: datetime
) -> None:
    columns = ["night", "target", "status", "attempts", "message", "sent_at"]
    row = pd.DataFrame([(night, to, status, attempts, text, now)], columns=columns)
    store.upsert(results, {"announcements": row})
