"""The weights of tonight's models, fetched before the hours of a night begin, where its options
ask for it. The hub may be away, a disk full, a licence unaccepted: each such model is left out
tonight with its reason, and the others are scored."""

from __future__ import annotations

from collections.abc import Callable

from sdgbias.errors import SdgbiasError
from sdgbias.nightly import process
from sdgbias.nightly.night_options import NightOptions
from sdgbias.nightly.plan import Night
from sdgbias.registry import entries, hub
from sdgbias.registry.fetch import fetch, is_cached


def lacking(options: NightOptions, night: Night, tell: Callable[[str], None]) -> dict[str, str]:
    """Fetch what tonight's jobs need; model -> why it can't be run. Nothing is asked of the hub for
    models that did not change."""
    if options.fetch == "no":
        return {}
    reasons, gone = {}, ""
    for name, entry in {job.model: job.entry for job in night.jobs if not job.run_id}.items():
        spec, why = entries.read(entry), gone
        if not gone:  # a hub that is away is waited for once
            try:
                fetch(spec, lambda line: tell(f"weights: {line}"))
            except SdgbiasError as error:
                why = str(error)
                gone = why if hub.ends_all(error) else ""
                tell(f"weights: {name}: {why}")
        if why and not is_cached(spec):
            reasons[name] = process.redact(f"not fetched: {why}; then: sdgbias models fetch {name}")
    return reasons
