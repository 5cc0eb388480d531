"""The weights of tonight's models, fetched before the hours of a night begin, where its settings
ask for it. The hub may be away, a disk full, a licence unaccepted: each such model is left out
tonight with its reason, and the others are scored."""

from __future__ import annotations

import os
from collections.abc import Callable

from sdgbias import progress
from sdgbias.errors import ExpiredToken, HubUnreachable, RegistryError
from sdgbias.nightly import process
from sdgbias.nightly.plan import Night, Settings
from sdgbias.registry import entries
from sdgbias.registry.fetch import ENV_DISK, GOOD, NOTHING, Disk, disk_limit, fetch, is_cached
from sdgbias.types import ModelSpec


def lacking(settings: Settings, night: Night, tell: Callable[[str], None]) -> dict[str, str]:
    """Fetch what tonight's jobs need; model -> why it can't be run. Nothing is asked of the hub for
    models that did not change."""
    if settings.fetch == "no":
        return {}
    limit = disk_limit(os.environ.get(ENV_DISK))
    disk, found, gone = Disk(limit, lambda unnamed: settings.fetch == "prune"), {}, ""
    for name, entry in {job.model: job.entry for job in night.jobs if not job.run_id}.items():
        spec = entries.read(entry)
        why = ""
        if not gone:  # a hub that is away is waited for once
            try:
                why = _fetched(settings, spec, disk, tell)
            except (HubUnreachable, ExpiredToken) as error:
                gone = str(error)
                tell(f"weights: {gone}")
            except RegistryError as error:  # of another entry: what it names must not be pruned
                why = str(error)
        if gone and not is_cached(spec):
            why = gone
        if why:
            found[name] = process.redact(f"not fetched: {why}; then: sdgbias models fetch {name}")
    return found


def _fetched(settings: Settings, spec: ModelSpec, disk: Disk, tell: Callable[[str], None]) -> str:
    """Why it can't be fetched, '' if it is there."""
    rows = fetch(settings.root, [spec], disk, progress.update)
    for row in rows:
        if row.verdict != NOTHING:
            tell(f"weights: {row.line()}")
    return "; ".join(row.line() for row in rows if row.verdict not in GOOD)
