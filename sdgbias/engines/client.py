"""The client of one server that speaks the OpenAI format: requests in flight, limits, retries and
typed failures.

A reply is an answer, a reason to try again (429, 5xx, time-outs, dropped connections, what is no
chat completion), a refusal of this one prompt, or a reason to stop (key, model name, account). The
key goes into one header and is removed from every message.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Annotated, Any, Generic, TypeVar

import httpx
import tenacity
from pydantic import AfterValidator, AliasPath, BaseModel, BeforeValidator, Field, ValidationError

from sdgbias.engines.options import ApiOptions
from sdgbias.errors import (
    EndpointUnavailable,
    InfrastructureError,
    KeyRefused,
    ModelError,
    NoScores,
    SdgbiasError,
)

#: After this many consecutive prompts that used up their attempts, the endpoint counts as down for
#: the rest of the process; after as many pictures (prompts, where they show none) that were refused
#: without an answer in between, it refuses all.
DOWN_AFTER = 16
LONGEST_BACKOFF = 60.0  # seconds


class PromptRefused(SdgbiasError):
    """The endpoint refuses this prompt (content filter, too long, empty answer); the other prompts
    continue."""


class _OneOrAll(ModelError):
    """A request is refused for a reason that may be this prompt's or that of all."""


#: What a reply that is not an answer means: the first pattern found in 'STATUS CODE: TEXT', its
#: error (None: a reason to try again), and what to do about it.
_MEANINGS: tuple[tuple[str, type[SdgbiasError] | None, str], ...] = (
    (
        r"^413\b|^\d+ (content_filter|content_policy_violation|invalid_prompt"
        r"|context_length_exceeded)\b|^4(00|22)\b.*(context length|maximum context|too long"
        r"|max_model_len)|may be provided in one prompt",
        PromptRefused,
        "the endpoint takes other prompts",
    ),
    (
        r"^40[123]\b|^\d+ (insufficient_quota|billing_hard_limit_reached|billing_not_active)\b",
        KeyRefused,
        "the key in environment variable {variable}, or the account behind it, is not accepted for"
        " {model}",
    ),
    (
        r"^4\d\d\b.*log[ _-]?prob.*(less than or equal to|at most|max\w*(?: \w+){0,2}:?|up to"
        r"|between 0 and|\[0,|<=)\s*[1-9]",
        ModelError,
        "set options.top_logprobs to as many as the endpoint names in {entry}",
    ),
    (
        r"^(400|404|422|501)\b.*log[ _-]?prob",
        NoScores,
        "to measure the model by its answers alone, set options.top_logprobs to 0 in {entry}",
    ),
    (r"^3\d\d\b", ModelError, "set options.base_url of {entry} to the address that answers"),
    (
        r"^404\b",
        ModelError,
        "no model {model!r} at options.base_url: fix options.model or options.base_url",
    ),
    (r"^(408|409|425|429|5\d\d)\b", None, ""),
    (
        "max_completion_tokens|temperature",
        ModelError,
        "set options.limit_field to max_completion_tokens, or options.temperature to default, in"
        " {entry}",
    ),
    (
        r"\b(image|picture|vision|multi-?modal)",
        _OneOrAll,
        "if it takes no pictures, write views: [q_only, ctx_q] into {entry}, else fix its options",
    ),
    ("", _OneOrAll, "fix the options of {entry}"),
)
_SECONDS = r"(\d{1,9}(?:\.\d+)?)"

# null and absent are the same
_Count = Annotated[int, BeforeValidator(lambda value: value or 0), Field(ge=0, lt=2**31)]
_Ids = Annotated[list[int], BeforeValidator(lambda value: value or [])]


def _at(first: str, *path: str | int, default: Any = None) -> Any:
    return Field(default, validation_alias=AliasPath(first, *path))


def _read_byte(token: str) -> str:
    """The character of a byte-fallback token (<0x41> of SentencePiece) in ASCII; else the token."""
    byte = re.fullmatch("<0x([0-7][0-9A-Fa-f])>", token)
    return chr(int(byte[1], 16)) if byte else token


class Token(BaseModel):
    """The first token of an answer, or an alternative to it. logprob: null for one that can't come,
    since JSON has no -inf."""

    token: Annotated[str, AfterValidator(_read_byte)]
    logprob: Annotated[float, Field(le=0.01)] | None = None


class Completion(BaseModel):
    """What is read of a chat completion and its only choice."""

    model: str | None = None
    error: Any = None
    error_of_choice: Any = _at("choices", 0, "error")
    choices: list[Any] | None = None
    message: dict[str, Any] | None = _at("choices", 0, "message")
    content: str | list[str | dict[str, Any]] | None = _at("choices", 0, "message", "content")
    refusal: str | None = _at("choices", 0, "message", "refusal")
    reasoning_content: Any = _at("choices", 0, "message", "reasoning_content")
    reasoning: Any = _at("choices", 0, "message", "reasoning")
    finish_reason: str | None = _at("choices", 0, "finish_reason")
    tokens: list[Any] | None = _at("choices", 0, "logprobs", "content")
    first: Token | None = _at("choices", 0, "logprobs", "content", 0)
    likeliest: list[Token] | None = _at("choices", 0, "logprobs", "content", 0, "top_logprobs")
    token_ids: _Ids = _at("choices", 0, "token_ids", default=[])
    prompt_tokens: _Count = _at("usage", "prompt_tokens", default=0)
    completion_tokens: _Count = _at("usage", "completion_tokens", default=0)
    cached_tokens: _Count = _at("usage", "prompt_tokens_details", "cached_tokens", default=0)

    @property
    def text(self) -> str:
        parts = self.content if isinstance(self.content, list) else [self.content or ""]
        return "".join(p if isinstance(p, str) else str(p.get("text") or "") for p in parts)


class _Again(Exception):
    """Why to try again."""


Key = TypeVar("Key", bound=Hashable)


@cache
def _certificates(trust_env: bool) -> ssl.SSLContext:
    """Those that this machine trusts: reading them takes 25 ms, more than the rest of a client."""
    return httpx.create_ssl_context(trust_env=trust_env)


class Client(Generic[Key]):
    """Requests to one endpoint, by what they ask. They run on an event loop of their own thread, so
    that those of the next chunks are sent while one is answered, and an engine also works where a
    loop is already running (notebooks). Everything on the loop may use plain attributes."""

    def __init__(
        self,
        options: ApiOptions,
        name: str,
        make: Callable[[Key], dict[str, Any]],
        read: Callable[[Key, Completion], Any],
        secret: str = "",
    ) -> None:
        """make: the body of a request, when its turn comes; read: what is kept of its answer. Both
        may raise PromptRefused, and ModelError, which ends all further requests. secret: in place
        of the key in the environment variable that the options name."""
        self.options, self.name, self._make, self._read = options, name, make, read
        self._secret = secret or read_key(options, name)
        # a server of our own that doesn't answer is a fault of its model
        self._unavailable = InfrastructureError if secret else EndpointUnavailable
        #: Requests, retries, answers, refused ones, and tokens of all answers.
        self.counts: Counter[str] = Counter()
        self._slots, self._line = asyncio.Semaphore(options.concurrency), asyncio.Lock()
        self._next = 0.0  # when the next request may be sent
        #: Tokens of a request, for the limit: the most of any answer so far.
        self._tokens = options.image_tokens
        self._failed = 0
        self._refused: set[str] = set()  # what was refused since the last answer
        #: What ends further requests: those for scores where the endpoint gives none, else all.
        self.stopped: list[SdgbiasError] = []
        self._backoff = tenacity.wait_random_exponential(options.backoff, LONGEST_BACKOFF)
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._secret}"},
            timeout=None,  # httpx would begin it anew with each piece of an answer
            trust_env=not options.local,
            verify=_certificates(not options.local),
            # those in flight are counted here; servers close idle connections after 5 s
            limits=httpx.Limits(keepalive_expiry=2),
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="requests", daemon=True).start()
        self._begun: dict[Key, Future[Any]] = {}
        self._lock = threading.Lock()  # begun by a reader's thread, answered in another

    def begin(self, keys: Sequence[Key]) -> None:
        """Sends requests whose answers are asked for later."""
        for key in keys:
            with self._lock:
                if key not in self._begun:
                    self._begun[key] = self._submit(self._answer(key))

    def answers(self, keys: Sequence[Key]) -> list[Any]:
        """What is kept of the answer to each request. When some fail, the first failure is raised,
        those that stop everything before those of a single prompt, and all answers are kept until
        they are asked for again, one by one or in parts, so that nothing is paid twice."""
        with self._lock:
            futures = [
                self._begun.pop(key) if key in self._begun else self._submit(self._answer(key))
                for key in keys
            ]
        try:
            answers = [future.exception() or future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        failures = [answer for answer in answers if isinstance(answer, Exception)]
        if not failures:
            return answers
        if len(keys) > 1:
            with self._lock:
                self._begun |= dict(zip(keys, futures, strict=True))
        raise next((f for f in failures if isinstance(f, ModelError)), failures[0])

    def forget(self) -> None:
        """Drops all requests that were sent and not asked for, and what stopped further ones, but
        for a lack of scores."""
        with self._lock:
            for future in self._begun.values():
                future.cancel()
            self._begun.clear()
        self.stopped = [error for error in self.stopped if isinstance(error, NoScores)]
        self._failed = 0
        self._refused.clear()

    def close(self) -> None:
        """Drops the connections; not needed at the end of a process."""
        self.forget()
        self._submit(self._http.aclose()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _answer(self, key: Key) -> Any:
        """What is kept of the answer to one request. Raises PromptRefused, ModelError or
        InfrastructureError."""
        tries = self.options.retries + 1
        again = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_Again),
            wait=self._backoff,
            stop=tenacity.stop_after_attempt(tries),
            before_sleep=lambda _: self.counts.update(retries=1),
        )
        async with self._slots:
            try:
                return self._read(key, await again(self._try, key))
            except ModelError as error:
                self.stopped.append(error)
                raise
            except tenacity.RetryError as error:
                why = str(error.last_attempt.exception())
        self._failed += 1
        if self._failed >= DOWN_AFTER:
            words = f"{self._failed} prompts in a row failed, the last with {why}"
            down = f"{self.name}: the endpoint is down: {words}; run the same command later"
            self.stopped.append(self._unavailable(down))
        raise self._unavailable(f"{self.name}: no answer after {tries} tries, the last: {why}")

    async def _try(self, key: Key) -> Completion:
        """One attempt. Raises _Again where another one may help."""
        body = self._make(key)
        await self._turn()
        for error in self.stopped:
            if body.get("logprobs") or not isinstance(error, NoScores):
                raise type(error)(str(error))
        most = self.options.max_requests
        if most is not None and self.counts["requests"] >= most:
            words = f"options.max_requests ({most}) is used up; to continue, run the same command"
            raise self._unavailable(f"{self.name}: {words}")
        self.counts["requests"] += 1
        answer = await self._send(body)
        self._failed = 0
        self._refused.clear()
        used = answer.prompt_tokens + answer.completion_tokens
        self._tokens = max(used, self._tokens if self.counts["answers"] else 1)
        kinds = {"prompt_tokens", "completion_tokens", "cached_tokens"}
        self.counts.update(answer.model_dump(include=kinds), answers=1)
        return answer

    async def _turn(self) -> None:
        """Waits in line until the next request may be sent: requests are spaced, so that no minute
        exceeds the limits."""
        async with self._line:
            while (wait := self._next - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            limits, needs = self.options.limits, {"requests": 1, "tokens": self._tokens}
            spacing = [60.0 * needs[kind] / most for kind, most in limits.items() if most]
            self._next = time.monotonic() + max(spacing, default=0.0)

    async def _send(self, body: dict[str, Any]) -> Completion:
        try:
            async with asyncio.timeout(self.options.timeout):
                url = f"{self.options.base_url}/chat/completions"
                reply = await self._http.post(url, json=body)
        except TimeoutError:
            raise _Again(f"no answer within {self.options.timeout:g} s") from None
        except httpx.RequestError as error:
            raise _Again(f"no connection, or one that broke ({type(error).__name__})") from None
        if reply.status_code != 200:
            raise self._failure(reply, body)
        try:
            answer = Completion.model_validate_json(_whole_text(reply.content))
        except ValidationError as error:
            fault = error.errors()[0]
            why = ": ".join(filter(None, [".".join(map(str, fault["loc"])), fault["msg"]]))
            raise _Again(f"an answer that is no chat completion ({why})") from None
        failed = answer.error or answer.error_of_choice or answer.finish_reason == "error"
        if failed or answer.choices is None:  # of a gateway whose provider broke off
            raise self._failure(reply, body)
        if answer.message is None:  # a filter's way to say nothing
            self.counts["refused"] += 1
            raise PromptRefused(f"{self.name}: an answer without a choice or a message")
        return answer

    def _failure(self, reply: httpx.Response, body: dict[str, Any]) -> Exception:
        """The exception for a reply that is not an answer."""
        words = _complaint(reply).replace(self._secret, "***")[:200]
        kind, advice = next((k, a) for p, k, a in _MEANINGS if re.search(p, words, re.IGNORECASE))
        if kind is None:
            delay, patience = _delay(reply), self.options.patience
            if delay > patience:
                late = f"{self.name}: the endpoint asks to wait {delay:.0f} s, more than"
                late += f" options.patience ({patience:.0f} s); run the same command later"
                self.stopped.append(self._unavailable(late))
                return self.stopped[-1]
            self._next = max(self._next, time.monotonic() + delay)  # all requests wait in line
            return _Again(f"HTTP {words}")
        if kind is _OneOrAll:
            self._refused.add(str(body["messages"][0]["content"][0]))
            of_all = reply.status_code not in (400, 422) or len(self._refused) >= DOWN_AFTER
            kind = ModelError if of_all else PromptRefused
        self.counts["refused"] += kind is PromptRefused
        advice = advice.format(
            variable=self.options.api_key_env,
            model=self.options.model,
            entry=f"registry/models/{self.name}.yaml",
        )
        return kind(f"{self.name}: the endpoint says {words.rstrip('.')}; {advice}")


def _whole_text(content: bytes) -> bytes:
    """JSON with '?' for half of a surrogate pair, as a token or a cut answer may hold one."""
    if rb"\ud" in content.lower():
        with suppress(ValueError, RecursionError):
            return json.dumps(json.loads(content), ensure_ascii=False).encode(errors="replace")
    return content


def _delay(reply: httpx.Response) -> float:
    """The seconds that a reply asks to wait: those or the date in its header, or those in one of
    the details of Google's errors, such as '34.5s'."""
    header = reply.headers.get("retry-after", "")
    wait = re.fullmatch(_SECONDS, header)
    if wait := wait or re.search(rf'"retryDelay":\s*"{_SECONDS}s"', reply.text):
        return float(wait[1])
    with suppress(ValueError):
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    return 0.0


def _complaint(reply: httpx.Response) -> str:
    """'STATUS CODE: TEXT', in one line, of a reply that is not an answer: of OpenAI's error object,
    its text alone, or the fields `detail` and `message` of other servers; with the parameter where
    one is named. Of a redirect: where to, without the query, which may hold a secret."""
    if following := reply.next_request:
        url = following.url
        return f"{reply.status_code}: moved to {url.scheme}://{url.netloc.decode()}{url.path}"
    body: Any = None
    with suppress(ValueError, RecursionError):
        body = json.loads(reply.content)
    body = body[0] if isinstance(body, list) and body else body  # Gemini's errors
    body = body if isinstance(body, dict) else {}
    problem = body.get("error") or body.get("detail") or body.get("message") or ""
    if not isinstance(problem, dict):
        problem = {"message": problem if isinstance(problem, str) else json.dumps(problem)}
    status, code = reply.status_code, problem.get("code")
    if status == 200:
        status = code if isinstance(code, int) else 502
    text, parameter = (str(problem.get(name) or "") for name in ("message", "param"))
    text += f" ({parameter})" if parameter not in text else ""
    words = f"{status} {code}" if code and isinstance(code, str) else str(status)
    words += f": {text}" if text else ""
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())


def data_url(image: bytes) -> str:
    """A PNG or JPEG as it stands in a request."""
    kind = "jpeg" if image.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def read_key(options: ApiOptions, name: str) -> str:
    """The key; ModelError that names the variable, never its value."""
    key = os.environ.get(options.api_key_env, "").strip()
    if re.fullmatch("[!-~]+", key):
        return key
    raise ModelError(
        f"{name}: environment variable {options.api_key_env} is not set, or holds characters that"
        " no key has; set it to the key of this endpoint, then again"
    )
