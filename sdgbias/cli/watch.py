"""`sdgbias models watch`: new releases on the hub become candidates, and are tried where the rules
say so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from sdgbias.cli.options import DryRunOption, JsonOption, print_json
from sdgbias.errors import InfrastructureError, UsageError


def watch_models(
    rules: Annotated[Path | None, Option(help="Rules; default: registry/watch.yaml.")] = None,
    dry_run: DryRunOption = False,
    webhook_env: Annotated[
        str, Option(help="Variable with the address that news are sent to, in one message.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Register new releases on the hub as candidates.

    New commits of registered models, and new repositories of watched owners and lists. Each is
    announced once, and examined again when it or a library changed (registry/seen.json). With
    `probe` in the rules, candidates that fit are fetched and asked a few questions; with `enable:
    when_admitted`, one that passes is enabled. Registered models stay unchanged, except that a
    model whose commit is gone from the hub is quarantined.
    """
    from sdgbias.nightly import notify, watch, watch_rules
    from sdgbias.registry import entries
    from sdgbias.scoring import admission

    address = os.environ.get(webhook_env, "") if webhook_env else ""
    if webhook_env and not address:
        raise UsageError(f"--webhook-env {webhook_env}: not set; export it: the address is secret")
    root = entries.find_root()
    given = watch_rules.read(rules or root / "registry" / "watch.yaml")
    here = admission.here(root)
    findings = watch.look(root, given, here, dry_run)
    tried = [] if dry_run else watch.try_candidates(root, given, here.versions)
    lines = [one.line() for one in (*findings, *tried) if one.news]
    if as_json:
        print_json([*findings, *tried])
    else:
        quiet = f"nothing new in {len(findings)} repositories" if findings else ""
        typer.echo("\n".join(lines) or quiet or "nothing to watch: no pinned hub models, no owners")
    if address and lines and not dry_run:
        notify.target(address)
        if why := notify.post(address, "\n".join(["New on the hub:", *lines]))[1]:
            raise InfrastructureError(f"the news could not be sent: {why}; they are printed above")
    failed = [one for one in findings if one.kind == watch.TROUBLE]
    if failed:
        raise InfrastructureError(
            f"{len(failed)} of {len(findings)} could not be queried, the first: {failed[0].repo};"
            " later again: sdgbias models watch"
        )
