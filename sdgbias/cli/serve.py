"""The command `sdgbias serve`: the results as pages, read-only, on loopback."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from sdgbias.cli.application import RESULTS, app
from sdgbias.cli.options import DEFAULT_RESULTS, ResultsOption
from sdgbias.errors import UsageError, argument

#: Connections that may wait at once, in the operating system's queue and in ours.
QUEUE = 1000


@app.command(rich_help_panel=RESULTS, epilog="Example: sdgbias serve --port 8321")
def serve(
    results: ResultsOption = DEFAULT_RESULTS,
    host: Annotated[
        str, Option(help="Address to listen on. All but loopback can be reached from the network.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0: any free one.")] = 8321,
    allowed_host: Annotated[
        list[str] | None,
        Option(help="Host name under which people reach this server; may be repeated."),
    ] = None,
    report: Annotated[
        Path | None, Option(help="Folder of a written report, which is linked and served as well.")
    ] = None,
    wandb: Annotated[
        str, Option(help="Address of the team's W&B Report, which every page links.")
    ] = "",
    wait: Annotated[
        float, Option(min=0, max=30, help="Seconds that a page waits while results are written.")
    ] = 1.0,
) -> None:
    """Show the results as a read-only web application.

    It shows the last night, the leaderboard over time, models, single questions, and two runs side
    by side. It has no login: keep it on loopback and reach it through SSH, or put a proxy with a
    login in front.
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
            f"--report {report}: no such folder; sdgbias report --out {argument(report)} makes it"
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
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(QUEUE)
    except OSError as error:
        raise UsageError(
            f"can't listen on {host}:{port}: {error.strerror}; choose another --port (0: any free"
            " one) or --host"
        ) from None
    return listening
