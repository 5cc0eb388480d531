"""The transport of the API engine: rate limits, retries and typed failures.

One request is in flight per slot. A reply is an answer, a reason to wait and retry (429, 5xx,
time-outs, dropped connections, broken JSON), a refusal of this one prompt, or a reason to stop
(key, model name, account). The key goes into one header and is removed from every message.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    RetryError,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from sdgbias.engines.options import ApiOptions
from sdgbias.errors import (
    InfrastructureError,
    KeyRefused,
    ModelError,
    NoScores,
    SdgbiasError,
)

#: After this many consecutive prompts that used up their attempts, the endpoint counts as down for
#: the rest of the process.
DOWN_AFTER = 16
LONGEST_BACKOFF = 60.0
_REFUSALS = (
    "content_filter",
    "content_policy_violation",
    "invalid_prompt",
    "context_length_exceeded",
)
_TOO_LONG = ("context length", "maximum context", "too long", "max_model_len")
_LOG_PROBABILITIES = re.compile(r"log[ _-]?prob", re.IGNORECASE)
#: How an endpoint says how many of them it names at most.
_AT_MOST = re.compile(
    r"(?:less than or equal to|at most|max\w*(?: \w+){0,2}:?|up to|between 0 and|\[0,|<=)\s*(\d+)",
    re.IGNORECASE,
)
_PICTURES = re.compile(r"\b(image|picture|vision|multi-?modal)", re.IGNORECASE)
#: Names of the limit of answer tokens; an endpoint that refuses the first gets the second.
_LIMIT, _NEWER_LIMIT = "max_tokens", "max_completion_tokens"
#: No prompt has so many tokens.
_MOST_TOKENS = 2**31
_NO_ACCOUNT = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")


class PromptRefused(SdgbiasError):
    """The endpoint refuses this prompt (content filter, too long, empty answer); the other prompts
    continue."""


class _Again(Exception):
    """Retry; `wait` seconds if the server sent a delay."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class Transport:
    """Sends request bodies to one endpoint; everything in it runs on one event loop, so plain
    attributes are safe."""

    def __init__(self, options: ApiOptions, name: str, key: str = "") -> None:
        """key: in place of the one in the environment variable that the options name."""
        self.options, self.name = options, name
        self._key = key or read_key(options, name)
        #: Requests, retries, answers, refused ones, and tokens of all answers.
        self.counts: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(options.concurrency)
        self._next = self._hold = 0.0
        #: Tokens of a request, for the limit: the most of any answer so far.
        self._tokens = options.image_tokens
        self._limit_field: str = options.limit_field
        self._failed = 0
        self._fatal: SdgbiasError | None = None
        self._no_scores: NoScores | None = None
        self._backoff = wait_random_exponential(options.backoff, LONGEST_BACKOFF)
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"},
            timeout=options.timeout,
            follow_redirects=False,
            trust_env=not options.local,
            limits=httpx.Limits(
                max_connections=options.concurrency, max_keepalive_connections=options.concurrency
            ),
        )

    async def close(self) -> None:
        await self._http.aclose()

    def stop(self, error: SdgbiasError) -> None:
        """Ends all further requests, to which the error applies: those for scores where the
        endpoint gives none, else every one."""
        if isinstance(error, NoScores):
            self._no_scores = error
        else:
            self._fatal = error

    def resume(self) -> None:
        """Takes requests again."""
        self._fatal = None

    async def ask(self, make: Callable[[], dict[str, Any]], scores: bool = True) -> dict[str, Any]:
        """The parsed answer to one request. `make` builds the body when the request's turn comes;
        `scores`: whether it asks for log-probabilities. Raises PromptRefused, ModelError or
        InfrastructureError."""
        again = AsyncRetrying(
            retry=retry_if_exception_type(_Again),
            wait=self._wait,
            stop=stop_after_attempt(self.options.retries + 1),
            before_sleep=self._count_retry,
        )
        async with self._slots:
            try:
                return await again(self._try, make, scores)
            except ModelError as error:
                self.stop(error)
                raise
            except RetryError as error:
                why = str(error.last_attempt.exception())
            self._failed += 1
            if self._failed >= DOWN_AFTER:
                words = f"{self._failed} prompts in a row failed, the last with {why}"
                self.stop(
                    InfrastructureError(
                        f"{self.name}: the endpoint is down: {words}; run the same command later"
                    )
                )
            raise InfrastructureError(
                f"{self.name}: no answer after {self.options.retries + 1} tries, the last: {why}"
            )

    async def _try(self, make: Callable[[], dict[str, Any]], scores: bool) -> dict[str, Any]:
        """One attempt. Raises _Again where another one may help."""
        fatal = self._fatal or (self._no_scores if scores else None)
        if fatal is not None:
            raise type(fatal)(str(fatal))
        await self._turn()
        self.counts["requests"] += 1
        answer = await self._send(make())
        self._account(answer)
        self._failed = 0
        return answer

    def _count_retry(self, _: RetryCallState) -> None:
        self.counts["retries"] += 1

    def _wait(self, state: RetryCallState) -> float:
        """Seconds until the next attempt: what the server asks for, else a random backoff."""
        failed = state.outcome.exception() if state.outcome else None
        delay = failed.wait if isinstance(failed, _Again) else None
        if delay is None:
            return self._backoff(state)
        if delay > self.options.patience:
            late = InfrastructureError(
                f"{self.name}: the endpoint asks to wait {delay:.0f} s, more than"
                f" options.patience ({self.options.patience:.0f} s); run the same command later"
            )
            self.stop(late)
            raise late
        # all requests wait, not only this one
        self._hold = max(self._hold, time.monotonic() + delay)
        self._next = max(self._next, self._hold)
        return delay

    async def _turn(self) -> None:
        """Waits for this request's slot in the per-minute limits: requests are spaced, so that no
        window exceeds them."""
        limits, needs = self.options.limits, {"requests": 1, "tokens": self._tokens}
        spacing = max((60.0 * needs[k] / most for k, most in limits.items() if most), default=0.0)
        start = max(time.monotonic(), self._next)
        self._next = start + spacing
        while (wait := max(start, self._hold) - time.monotonic()) > 0:
            await asyncio.sleep(wait)

    def _account(self, answer: dict[str, Any]) -> None:
        """Counts one answer."""
        usage, counts = answer.get("usage"), self.counts
        used = {name: count(usage, name) for name in ("prompt_tokens", "completion_tokens")}
        self._tokens = max(sum(used.values()), self._tokens if counts["answers"] else 1)
        counts.update(used)
        counts["answers"] += 1
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        counts["cached_tokens"] += count(details, "cached_tokens")

    async def _send(self, body: dict[str, Any]) -> dict[str, Any]:
        field = self._limit_field
        reply, answer = await self._post(body, field)
        if reply.status_code == 400 and field == _LIMIT and _NEWER_LIMIT in _message(answer):
            self._limit_field = _NEWER_LIMIT  # of all further requests
            self.counts["requests"] += 1
            reply, answer = await self._post(body, _NEWER_LIMIT)
        problem = answer.get("error") if isinstance(answer, dict) else None
        if reply.status_code == 200 and not problem:
            choices = answer.get("choices") if isinstance(answer, dict) else None
            if isinstance(answer, dict) and isinstance(choices, list) and choices:
                return answer
            if choices == []:  # a filter's way to say nothing
                self.counts["refused"] += 1
                raise PromptRefused(f"{self.name}: an answer without a choice")
            kind = reply.headers.get("content-type", "none").split(";")[0]
            raise _Again(f"an answer that is not a chat completion (content type {kind})")
        raise self._failure(reply, answer)

    async def _post(self, body: dict[str, Any], field: str) -> tuple[httpx.Response, Any]:
        """The reply and its JSON, None where it holds none. ``field``: the name of the limit of
        answer tokens."""
        given = self.options.limit_field
        body = {field if name == given else name: value for name, value in body.items()}
        try:
            reply = await self._http.post(f"{self.options.base_url}/chat/completions", json=body)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise _Again(f"no connection ({type(error).__name__})") from None
        except httpx.TimeoutException:
            raise _Again(f"no answer within {self.options.timeout:g} s") from None
        except httpx.TransportError as error:
            raise _Again(f"the connection broke ({type(error).__name__})") from None
        except httpx.DecodingError:
            raise _Again("an answer that can't be unpacked") from None
        try:
            answer = json.loads(reply.content)
        except (ValueError, RecursionError):
            return reply, None
        if isinstance(answer, list) and len(answer) == 1:  # Gemini's errors
            answer = answer[0]
        return reply, answer

    def _failure(self, reply: httpx.Response, answer: object) -> Exception:
        """The exception for a reply that is not an answer."""
        problem = answer.get("error") if isinstance(answer, dict) else None
        error = problem if isinstance(problem, dict) else {}
        code, status, inner = str(error.get("code") or ""), reply.status_code, error.get("code")
        if status == 200:
            status = inner if isinstance(inner, int) else 502
        text = self._clean(_message(answer))
        where = f"{self.name}: the endpoint says {status}" + (f": {text}" if text else "")
        var = self.options.api_key_env
        if (
            code in _REFUSALS
            or status == 413
            or (status in (400, 422) and any(words in text.lower() for words in _TOO_LONG))
        ):
            self.counts["refused"] += 1
            return PromptRefused(f"{where} ({code or 'this prompt'})")
        if status in (401, 403) or code in _NO_ACCOUNT:
            return KeyRefused(
                f"{where}; the key in environment variable {var}, or the account behind it, is not"
                f" accepted for {self.options.model}"
            )
        entry = f"registry/models/{self.name}.yaml"
        if status in (400, 404, 422, 501) and _LOG_PROBABILITIES.search(text):
            most = _AT_MOST.search(text)
            if most and 0 < int(most[1]) < self.options.top_logprobs:
                return ModelError(f"{where}; set options.top_logprobs to {most[1]} in {entry}")
            return NoScores(
                f"{where}; to measure the model by its answers alone, set options.top_logprobs to 0"
                f" in {entry}"
            )
        if status == 404:
            return ModelError(
                f"{where}; no model {self.options.model!r} at options.base_url: fix options.model"
                " or options.base_url"
            )
        if status in (408, 409, 425, 429) or status >= 500:
            why = f"HTTP {status}" + (f": {text}" if text else "")
            return _Again(why, _requested_wait(reply.headers, error))
        if "temperature" in text and self.options.temperature == 0:
            return ModelError(
                f"{where}; to let it answer at its own temperature, set options.temperature to"
                f" default in {entry}"
            )
        if _PICTURES.search(text):
            return ModelError(
                f"{where.rstrip('.')}; if it takes no pictures, write views: [q_only, ctx_q] into"
                f" {entry}, else fix its options"
            )
        return ModelError(f"{where}; fix the options of {entry}")

    def _clean(self, text: str) -> str:
        one_line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return one_line.replace(self._key, "***")[:200]


def _requested_wait(headers: Mapping[str, str], error: Mapping[str, Any]) -> float | None:
    """Seconds to wait by a reply's Retry-After, or by the `retryDelay` of Google's errors, such as
    '34.5s'; None where it has neither."""
    details = error.get("details")
    delays = [headers.get("retry-after", "")]
    for detail in details if isinstance(details, list) else ():
        delay = str(detail.get("retryDelay", "")) if isinstance(detail, dict) else ""
        delays.append(delay.removesuffix("s"))
    return next((float(d) for d in delays if re.fullmatch(r"\d{1,9}(\.\d+)?", d)), None)


def _message(answer: object) -> str:
    """What a reply that is not an answer says is wrong: OpenAI's error object, its text alone, or
    the fields `detail` and `message` of other servers; with the parameter where one is named."""
    if not isinstance(answer, dict):
        return ""
    problem = answer.get("error") or answer.get("detail") or answer.get("message") or ""
    if not isinstance(problem, dict):
        return problem if isinstance(problem, str) else json.dumps(problem)
    text, about = str(problem.get("message") or ""), str(problem.get("param") or "")
    return f"{text} ({about})" if about and about not in text else text


def count(usage: object, name: str) -> int:
    """A number of tokens in an answer's account; 0 for what can't be one."""
    value = usage.get(name) if isinstance(usage, dict) else None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _MOST_TOKENS:
        return 0
    return value


def read_key(options: ApiOptions, name: str) -> str:
    """The key; ModelError that names the variable, never its value."""
    key = os.environ.get(options.api_key_env, "").strip()
    if not key:
        raise ModelError(
            f"{name}: environment variable {options.api_key_env} is not set; set it to the key of"
            " this endpoint, then again"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ModelError(
            f"{name}: environment variable {options.api_key_env} holds characters that no key has;"
            " set it again"
        )
    return key
