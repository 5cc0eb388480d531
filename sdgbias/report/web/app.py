"""`sdgbias serve`: a small read-only web application over the results file. It shows stored results
and computes no new ones.

This module: routes, headers, accepted hosts, and the error pages for missing or unreadable data.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from sdgbias.errors import StoreError, UsageError
from sdgbias.report import layout
from sdgbias.report.web import routes, routes_questions
from sdgbias.report.web.site import REPORT_POLICY, Missing, Refused, Site

logger = logging.getLogger(__name__)
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
#: Seconds after which a page that could not be read is reloaded.
RETRY = 5
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def answers_to(host: str, allowed: Iterable[str]) -> list[str]:
    """Accepted values of a request's Host header: loopback names, the listening host, and those
    allowed explicitly.

    This rejects pages of other sites that point their own name at this machine (DNS rebinding).
    Raises UsageError if the server listens on every address of the machine and no name was allowed.
    """
    allowed = [a.strip().lower() for a in allowed if a.strip()]
    bad = next((a for a in allowed if "*" in a or "/" in a or " " in a), None)
    if bad is not None:
        raise UsageError(
            f"--allowed-host {bad!r}: write a bare name or address, without port and wildcard, e.g."
            " --allowed-host bias.example.org"
        )
    if _wildcard(host):
        if not allowed:
            raise UsageError(
                f"--host {host} listens everywhere: name how people will call it, e.g."
                " --allowed-host bias.example.org"
            )
        return [*LOOPBACK, *allowed]
    return [*LOOPBACK, f"[{host}]" if ":" in host else host.lower(), *allowed]


def _wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == ""


def create(site: Site, hosts: Iterable[str] = LOOPBACK) -> FastAPI:
    """The application over one results file. It only serves GET and HEAD and never writes."""
    app = FastAPI(
        title="sdgbias", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.site = site
    app.include_router(routes_questions.routes)
    app.include_router(routes.routes)  # its last route takes every other name
    app.mount("/static", StaticFiles(directory=layout.STATIC), name="static")
    if site.report is not None:
        app.mount(
            "/report", StaticFiles(directory=site.report, html=True, check_dir=False), name="report"
        )
    _say_no(app, site)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)

    @app.middleware("http")
    async def guard(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = await call_next(request)
        of_report = request.url.path == "/report" or request.url.path.startswith("/report/")
        policy = response.headers.get("Content-Security-Policy", POLICY)
        response.headers["Content-Security-Policy"] = REPORT_POLICY if of_report else policy
        response.headers.update(HEADERS)
        return response

    return app


#: Status of an error -> the heading and the sentence of its page.
_NO = {
    404: ("No such page", "There is nothing at {path}."),
    405: ("Read only", "These pages can only be read: GET and HEAD."),
}
_UNSHOWN = "This can’t be shown"
_BROKEN = "This page is broken; the server’s log has the cause. Other pages still work."


def _say_no(app: FastAPI, site: Site) -> None:
    def page(
        status: int, heading: str, message: str, headers: Mapping[str, str] | None = None, **of: Any
    ) -> HTMLResponse:
        shown = {"title": heading, "heading": heading, "every": "/", "retry": 0, **of}
        response = site.html("error.html.j2", layout.ERROR, status=status, message=message, **shown)
        response.headers.update(headers or {})
        return response

    @app.exception_handler(Missing)
    def missing(request: Request, error: Missing) -> HTMLResponse:
        return page(404, f"No such {error.what}", str(error), every=error.every)

    @app.exception_handler(Refused)
    def refused(request: Request, error: Refused) -> HTMLResponse:
        return page(400, _UNSHOWN, str(error))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> HTMLResponse:
        first = error.errors()[0]
        value = str(first.get("input", ""))[:80]
        return page(400, _UNSHOWN, f"{first['loc'][-1]} {value!r}: {first['msg']}")

    @app.exception_handler(HTTPException)
    def other(request: Request, error: HTTPException) -> HTMLResponse:
        heading, sentence = _NO.get(error.status_code, (_UNSHOWN, "{detail}"))
        message = sentence.format(path=request.url.path[:200], detail=error.detail)
        return page(error.status_code, heading, message, error.headers)

    @app.exception_handler(StoreError)
    def unavailable(request: Request, error: StoreError) -> HTMLResponse:
        state, message = site.fault(error)
        if state == "broken":
            logger.warning("%s: %s", request.url.path, error)
            return page(500, "The results can’t be read", message, {"Cache-Control": "no-store"})
        heading = "No results yet" if state == "missing" else "The results are being written"
        headers = {"Retry-After": str(RETRY), "Cache-Control": "no-store"}
        return page(503, heading, message, headers, retry=RETRY)

    @app.exception_handler(Exception)
    def broken(request: Request, error: Exception) -> HTMLResponse:
        policy = {"Content-Security-Policy": POLICY}
        return page(500, "This page failed", _BROKEN, HEADERS | policy)
