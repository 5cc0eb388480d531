"""Whole pages as they were last shown: while the results are unchanged a page is made once, and
while another process writes them, when nobody can open the file, it is shown with its time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from sdgbias.report.reader import Stamp
from sdgbias.report.web.site import Site

#: Bytes of all pages that are kept; those that nobody asked for longest go first.
LIMIT = 64_000_000
#: Where `base.html.j2` takes the sentence of a page that may be outdated.
PLACE = b"<!-- as of -->"
_NOTICE = (
    '<p class="notice" role="status">The results are being written. This page shows them as of'
    " {:%H:%M:%S} UTC.</p>"
)


@dataclass(frozen=True)
class _Page:
    stamp: Stamp
    body: bytes
    headers: dict[str, str]
    at: datetime

    def answer(self, outdated: bool = False) -> Response:
        notice = _NOTICE.format(self.at).encode()
        body = self.body.replace(PLACE, notice, 1) if outdated else self.body
        kept = {k: v for k, v in self.headers.items() if k != "content-length"}
        return Response(body, headers=kept)


@dataclass(frozen=True)
class KeptPages:
    """The pages of a site. Only those that say `no-cache` are kept: pictures are kept by browsers,
    and what tells of a running night is made anew each time."""

    site: Site
    _pages: OrderedDict[str, _Page] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def answer(
        self, request: Request, render: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """The page as it is kept, if nothing was written since; else a new one, and the kept one
        with its time where that is refused because of a writer."""
        if request.method != "GET":
            return await render(request)
        key, stamp = f"{request.url.path}?{request.url.query}", self.site.stamp()
        with self._lock:
            page = self._pages.get(key)
            if page is not None:
                self._pages.move_to_end(key)
        if page is not None and page.stamp == stamp:
            return page.answer()
        response = await render(request)
        if response.status_code == 503 and page is not None and self.site.results.path.exists():
            return page.answer(outdated=True)
        if response.status_code != 200 or response.headers.get("cache-control") != "no-cache":
            return response
        body = b"".join([part async for part in response.body_iterator])  # type: ignore[attr-defined]
        page = _Page(stamp, body, dict(response.headers), datetime.now(UTC))
        with self._lock:
            self._pages[key] = page
            while sum(len(p.body) for p in self._pages.values()) > LIMIT and len(self._pages) > 1:
                self._pages.popitem(last=False)
        return page.answer()
