"""`sdgbias models fetch`: the weights of registered models into the local cache."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from sdgbias.errors import InfrastructureError, UsageError
from sdgbias.progress import update

if TYPE_CHECKING:
    from sdgbias.registry.fetch import Unnamed


def fetch_models(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    enabled: Annotated[bool, typer.Option("--enabled")] = False,
    disk: Annotated[float | None, typer.Option(min=0, envvar="SDGBIAS_DISK_GIB")] = None,
    prune: Annotated[bool, typer.Option("--prune")] = False,
    verify: Annotated[bool, typer.Option("--verify")] = False,
) -> None:
    """Download the pinned revisions of registered models from the hub, and compare them with its
    hashes.

    Uses the network whatever HF_HUB_OFFLINE says; evaluations use the cache alone. Stopped, it goes
    on where it was when it is run again. Exit code 8 if a model isn't there in the end.

    Args:
        names: Names of registered models (sdgbias models).
        enabled: Every model that tonight's run would evaluate.
        disk: GiB that the cache may have; default: what the disk has, less 2 GiB.
        prune: Remove what no entry names, without asking, when room is short.
        verify: Compare files of earlier downloads with the hub, too.
    """
    from sdgbias.registry import entries
    from sdgbias.registry import fetch as fetching

    root = entries.find_root()
    chosen = {name: entries.load(root, name) for name in names or ()}
    if enabled:
        chosen |= entries.due(root, date.today())
    if not chosen and not enabled:
        raise UsageError("name a model (sdgbias models), or give --enabled")
    rows = fetching.fetch(
        root,
        list(chosen.values()),
        fetching.Disk(fetching.disk_limit(disk), lambda found: prune or _may_remove(found), verify),
        update,
    )
    typer.echo("\n".join(row.line() for row in rows) or "no model is enabled")
    failed = [row for row in rows if row.verdict not in fetching.GOOD]
    if failed:
        raise InfrastructureError(
            f"{len(failed)} of {len(rows)} are not in the cache, the first: {failed[0].line()}"
        )


def _may_remove(found: Sequence[Unnamed]) -> bool:
    if not sys.stdin.isatty():
        return False
    shown = ", ".join(f"{one.repo}@{one.commit[:8]}" for one in found)
    size = sum(one.bytes for one in found) / 2**30
    return typer.confirm(f"Remove {shown} ({size:.1f} GiB), which no entry names?", default=False)
