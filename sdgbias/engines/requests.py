"""Requests on an event loop of their own: those of the next chunk are sent while one is answered,
so that no server waits at a chunk's end for its last answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Requests(Generic[Key]):
    """Requests by what they ask. The loop runs on a separate thread, so that an engine also works
    where a loop is already running (notebooks). ``send``: makes a request."""

    def __init__(self, send: Callable[[Key], Coroutine[Any, Any, Any]]) -> None:
        self.send = send
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="requests", daemon=True).start()
        self._begun: dict[Key, Future[Any]] = {}
        self._lock = threading.Lock()  # begun by a reader's thread, answered in another

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of other work on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def begin(self, keys: Sequence[Key]) -> None:
        """Sends requests whose answers are asked for later."""
        for key in keys:
            with self._lock:
                if key not in self._begun:
                    self._begun[key] = self._submit(key)

    def answers(self, keys: Sequence[Key]) -> list[Any]:
        """The answer to each request, or the exception that it ended with. Where any failed, all
        answers are kept until they are asked for again, one by one or in parts, so that nothing is
        paid twice."""
        with self._lock:
            futures = [
                self._begun.pop(key) if key in self._begun else self._submit(key) for key in keys
            ]
        try:
            answers = [future.exception() or future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        if len(keys) > 1 and any(isinstance(answer, Exception) for answer in answers):
            with self._lock:
                self._begun |= dict(zip(keys, futures, strict=True))
        return answers

    def forget(self) -> None:
        """Drops all requests that were sent and not asked for."""
        with self._lock:
            for future in self._begun.values():
                future.cancel()
            self._begun.clear()

    def close(self) -> None:
        self.forget()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _submit(self, key: Key) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(self.send(key), self._loop)
