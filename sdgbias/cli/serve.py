"""The command `sdgbias serve`: the results as pages, read-only, on loopback."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from sdgbias.cli.options import DEFAULT_RESULTS, ResultsOption
from sdgbias.errors import UsageError

#: Connections that may wait at once, in the operating system's queue and in ours.
QUEUE = 1000


def serve(
    results: ResultsOption = DEFAULT_RESULTS,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8321,
    allowed_host: Annotated[list[str] | None, typer.Option("--allowed-host")] = None,
    report: Path | None = None,
    wandb: str = "",
    wait: Annotated[float, typer.Option(min=0, max=30)] = 1.0,
) -> None:
    """Show the results as pages: last night, leaderboard over time, models, single questions, two
    runs beside each other. Read-only.

    Nobody logs in: keep it on loopback and reach it through SSH, or put a proxy with a login in
    front.

    Args:
        host: Address to listen on. Anything but loopback is seen by the network.
        port: Port; 0: any free one.
        allowed_host: Name that people call this server by; may be given several times.
        report: Folder of `sdgbias report` or of the nightly, linked and shown as well.
        wandb: Address of the team's W&B report, linked on every page.
        wait: Seconds that a page waits for a writer of the results.
    """
    import gc

    import uvicorn

    from sdgbias.errors import RegistryError
    from sdgbias.registry import entries
    from sdgbias.report.reader import Results
    from sdgbias.report.web import app as pages
    from sdgbias.report.web.site import Site

    names = pages.answers_to(host, allowed_host or [])
    if wandb and not wandb.startswith(("https://", "http://")):
        raise UsageError(f"--wandb {wandb!r}: an address that begins with https://")
    if report is not None and not report.is_dir():
        raise UsageError(
            f"--report {report}: no such folder; sdgbias report --out {report} makes it"
        )
    if results.is_dir():
        raise UsageError(
            f"--results {results}: a folder; name the results file in it, e.g."
            f" {results / DEFAULT_RESULTS.name}"
        )
    try:
        root = entries.find_root()
    except RegistryError:
        root = None
    if not results.exists():
        typer.echo(
            f"no results at {results} yet; the pages stay empty until `sdgbias evaluate` or"
            " `sdgbias nightly` has written some",
            err=True,
        )
    listening = _listen(host, port)
    site = Site(Results(results, wait=wait), registry=root, report=report, wandb=wandb)
    shown = f"[{host}]" if ":" in host else host
    if host not in ("127.0.0.1", "localhost", "::1"):
        typer.echo(
            f"warning: everyone who reaches {shown} can read these results; there is no login",
            err=True,
        )
    typer.echo(
        f"serving {results} on http://{shown}:{listening.getsockname()[1]}/ (read-only; Ctrl-C"
        " ends it)"
    )
    config = uvicorn.Config(
        pages.create(site, names),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        timeout_graceful_shutdown=3,
        limit_concurrency=_most_connections(),
    )
    # the imports stay: looking through them for garbage took 70 ms out of some requests
    gc.freeze()
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        gc.unfreeze()


def _most_connections() -> int:
    """Connections that are held at once; more get a 503. Requests wait for one of the 40 threads
    that make pages (200 connections at once: 76 MiB more, threads included). Each needs a file
    descriptor, of which the pages keep a share for themselves."""
    import resource

    return max(64, min(QUEUE, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 128))


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UsageError: port taken, address not of this machine.

    Its protocol is named, because asyncio switches off Nagle's delay (40 ms an answer) only on
    sockets that say they are TCP.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(QUEUE)
    except OSError as error:
        raise UsageError(
            f"can't listen on {host}:{port}: {error.strerror}; choose another --port (0: any free"
            " one) or --host"
        ) from None
    return made
