"""`sdgbias models fetch`: the weights of registered models into the local cache."""

from __future__ import annotations

from datetime import date
from typing import Annotated

import typer

from sdgbias.errors import InfrastructureError, SdgbiasError, UsageError


def fetch_models(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    enabled: Annotated[bool, typer.Option("--enabled")] = False,
) -> None:
    """Download the pinned revisions of registered models from the hub into its client's cache
    (HF_HOME). Says first how much that is.

    Uses the network whatever HF_HUB_OFFLINE says; evaluations use the cache alone. Stopped, it goes
    on where it was when it is run again. Exit code 8 if a model isn't there in the end.

    Args:
        names: Names of registered models (sdgbias models).
        enabled: Every model that tonight's run would evaluate.
    """
    from sdgbias.registry import entries, fetch, hub

    root = entries.find_root()
    chosen = {name: entries.load(root, name) for name in names or ()}
    if enabled:
        chosen |= entries.due(root, date.today())
    if not chosen:
        if not enabled:
            raise UsageError("name a model (sdgbias models), or give --enabled")
        typer.echo("No model is enabled. Next: sdgbias models enable NAME")
    failed = []
    for name, spec in chosen.items():
        if not fetch.is_on_hub(spec):
            typer.echo(f"{name}: nothing to fetch: it is no hub model")
        try:
            fetch.fetch(spec, typer.echo)
        except SdgbiasError as error:
            if hub.ends_all(error):
                raise
            failed.append(f"{name}: {error}")
            typer.echo(failed[-1])
    if failed:
        raise InfrastructureError(
            f"{len(failed)} of {len(chosen)} are not in the cache, the first: {failed[0]}"
        )
