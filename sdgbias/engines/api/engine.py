"""The engine behind an OpenAI-compatible /chat/completions: pictures as data URLs, first-token
scores from top_logprobs.

Such an endpoint returns only the k likeliest first tokens. A candidate among them has a score; any
other is *censored*: its logit is -inf here and `upper` is its largest possible value. A candidate
among them also has an `upper` where another spelling of it (" A" beside "A") may lie below the k-th
token. sdgbias/methods/bounds.py derives what CADE can decide from that. See
docs/how-to/api-models.md for options, costs and the limits of closed endpoints.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from sdgbias.engines import Backend
from sdgbias.engines.api.http import PromptRefused, Transport, count
from sdgbias.engines.fingerprint import VERSIONS
from sdgbias.engines.hf.tokens import SPACE_MARKS
from sdgbias.engines.options import SPELLINGS, ApiOptions, read
from sdgbias.engines.requests import Requests
from sdgbias.errors import ModelError, NoScores
from sdgbias.methods.answers import FILTERED, begins_thought
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, Generated, Prompt, ScoreBatch

_VERSION = VERSIONS["api"]
#: Precision of the remaining probability mass, because returned log-probabilities are rounded.
RESOLUTION = 1e-5
#: Placeholder with which endpoints report a negligible log-probability.
NOTHING = -9999.0
#: Fields of a message that hold a reasoning model's thoughts, apart from its answer.
_THOUGHTS = ("reasoning_content", "reasoning")
#: Options that scores depend on.
_OF_SCORES = (
    *("model", "served_model", "top_logprobs", "candidate_ids", "spellings", "detail", "body"),
)
#: Gemini's reasons to end an answer that are a content filter's.
_FILTERS = (
    *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
    *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
)
#: How vLLM names a token where its server was started so, instead of its text.
_BY_NUMBER = re.compile(r"token_id:\d+")
#: Answers of which most must not begin with the mark of a thought.
_PROBES = 8
Job = tuple[Prompt, str, int]  # prompt, forced start, most new tokens; 0 = score it


@dataclass(frozen=True)
class FirstToken:
    """First-token scores of one answer: logits (K,), log-probabilities over the whole vocabulary,
    -inf where censored; upper (K,), the largest value that each can truly have, the logit itself
    where it is exact; mass (of the returned tokens), minus_logit, top_token."""

    logits: np.ndarray
    upper: np.ndarray
    mass: float
    minus_logit: float
    top_token: str


def first_token(
    named: Sequence[tuple[str, float]],
    candidates: str,
    exact: bool = False,
    spellings: int = SPELLINGS,
    chosen: tuple[str, float] | None = None,
) -> FirstToken:
    """Scores and bounds of K candidates from the returned tokens, (text, log-probability) each, the
    most likely ones of a vocabulary, and the token that was ``chosen``, which some servers name
    apart from these.

    Spellings of a candidate are summed. Every other token lies below the least likely returned one,
    and all of them together below the mass that the returned ones leave of 1; a lone space may
    still be followed by a digit (SentencePiece), so for digits its probability counts as possible.
    `spellings`: how many tokens of the vocabulary may be one candidate. `exact`: all spellings of
    all candidates were requested by id, so there is no slack.
    """
    # some servers list the sampled token a second time
    once = dict.fromkeys(named)
    if chosen is not None and chosen[0] not in dict(once):
        once[chosen] = None
    likely = [(token, min(float(value), 0.0)) for token, value in once if value > NOTHING]
    share = np.exp([value for _, value in likely])
    left = max(0.0, 1.0 - float(share.sum())) + RESOLUTION
    # a chosen token that was sampled may lie far below the others, and bounds no other token
    ranked = [np.exp(value) for token, value in likely if chosen is None or token != chosen[0]]
    least = float(min(ranked or share, default=1.0))
    bare = [token.lstrip(SPACE_MARKS) for token, _ in likely]
    lone = [not token.strip(" \u2581\u0120") for token, _ in likely]
    spaces = float(share[lone].sum())
    logits, upper = np.full(len(candidates), -np.inf), np.full(len(candidates), -np.inf)
    for j, candidate in enumerate(candidates):
        alike = [value for (_, value), text in zip(likely, bare, strict=True) if text == candidate]
        seen = float(np.exp(alike).sum())
        unseen = 0.0
        if not exact:
            unseen = min(left, max(0, spellings - len(alike)) * least)
            unseen += spaces if candidate in DIGITS else 0.0
        with np.errstate(divide="ignore"):
            logits[j] = np.logaddexp.reduce(alike, initial=-np.inf)
            upper[j] = min(0.0, float(np.log(seen + unseen))) if unseen else logits[j]
    minus = [value for (_, value), text in zip(likely, bare, strict=True) if text == "-"]
    top = likely[int(np.argmax(share))][0].strip() if likely else ""
    mass = min(1.0, float(np.exp(logits).sum()))
    return FirstToken(
        logits, upper, mass, float(np.logaddexp.reduce(minus)) if minus else float("nan"), top
    )


class Api(Backend):
    """One endpoint. `forces_starts` says whether `generate` can take forced starts
    (options.prefill)."""

    sends = True

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        self.name = spec.name
        o = read(spec, ApiOptions)
        self.options = o = o.model_copy(update={"model": o.model or spec.repo})
        self.transport = Transport(o, spec.name)
        self.forces_starts, self.gives_scores = o.prefill, o.top_logprobs > 0
        self._served = o.served_model
        self._requests: Requests[Job] = Requests(self._one)
        self._scored_any = False
        self._first_tokens: list[str] = []  # of the first answers, in which thoughts are looked for
        # On this machine the port does not identify the model; elsewhere one name may mean other
        # weights on another host.
        url = urlsplit(o.base_url)
        where = "local" if o.local else f"{url.hostname}{url.path}"
        settings = {name: getattr(o, name) for name in _OF_SCORES}
        if o.temperature != 0:
            settings["temperature"] = o.temperature
        named = json.dumps(settings, sort_keys=True, default=str)
        identity = [_VERSION, spec.repo, spec.revision, where, named]
        self.fingerprint = hashlib.sha256("|".join(identity).encode()).hexdigest()[:16]

    def close(self) -> None:
        """Drops the connections; not needed at the end of a process."""
        self._requests.run(self.transport.close())
        self._requests.close()

    def prefetch(
        self, prompts: Sequence[Prompt], starts: Sequence[str] = (), max_new_tokens: int = 0
    ) -> None:
        if starts:
            self._requests.begin([(p, start, max_new_tokens) for p in prompts for start in starts])
        else:
            self._requests.begin([(p, "", 0) for p in prompts])

    @property
    def counts(self) -> Mapping[str, float]:  # type: ignore[override]
        return self.transport.counts

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        """Scores of N prompts, bounds where the endpoint withholds them. ModelError when it gives
        no log-probabilities."""
        answers = self._ask_all([(p, "", 0) for p in prompts])
        batch = ScoreBatch.empty(prompts)
        upper = batch.logits.copy()
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            k = len(prompt.candidates)
            one = first_token(
                answer["named"],
                prompt.candidates,
                self._by_id(prompt),
                self.options.spellings,
                answer["chosen"],
            )
            batch.logits[i, :k] = one.logits
            rounded = one.upper.astype(np.float32)
            above = np.nextafter(rounded, np.float32(np.inf))
            rounded = np.where(rounded < one.upper, above, rounded)
            upper[i, :k] = np.where(one.upper > one.logits, rounded, np.nan)
            batch.mass[i], batch.minus_logit[i] = one.mass, one.minus_logit
            batch.top_token[i], batch.n_tokens[i] = one.top_token, answer["n_tokens"]
        return replace(batch, upper=upper)

    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        """Greedy answers, one per start; a start other than '' needs options.prefill."""
        if any(starts) and not self.forces_starts:
            raise ModelError(
                f"{self.name}: this endpoint can't continue an answer that begins with a given"
                " digit (options.prefill is false), so CADE's digit can only replace that of the"
                f" free answer: sdgbias evaluate {self.name} --mode replace"
            )
        answers = self._ask_all([(p, start, max_new_tokens) for p in prompts for start in starts])
        rows = [answers[i : i + len(starts)] for i in range(0, len(answers), len(starts))]
        return Generated(
            [[answer["text"] for answer in row] for row in rows],
            [[answer["truncated"] for answer in row] for row in rows],
        )

    def _ask_all(self, jobs: list[Job]) -> list[dict[str, Any]]:
        """All answers in the order of the jobs. When some fail, the first failure is raised:
        failures that stop everything before those of a single prompt."""
        results = self._requests.answers(jobs)
        failures = [r for r in results if isinstance(r, Exception)]
        if not failures:
            return results
        if any(isinstance(f, NoScores) for f in failures):
            self._requests.forget()  # it may still be asked for text
        raise next((f for f in failures if isinstance(f, ModelError)), failures[0])

    async def _one(self, job: Job) -> dict[str, Any]:
        prompt, start, limit = job
        try:
            answer = await self.transport.ask(
                lambda: self._body(prompt, start, limit), scores=limit == 0
            )
            return self._scored(answer) if limit == 0 else self._said(answer, start)
        except ModelError as error:
            self.transport.stop(error)
            raise

    def _by_id(self, prompt: Prompt) -> bool:
        """Whether the entry gives token ids for all candidates of a prompt, so that these ids are
        requested instead of the top k."""
        return set(prompt.candidates) <= set(self.options.candidate_ids)

    def _body(self, prompt: Prompt, start: str, limit: int) -> dict[str, Any]:
        o = self.options
        content: list[dict[str, Any]] = []
        for image in prompt.images:
            kind = "jpeg" if image.startswith(b"\xff\xd8") else "png"
            shown = {"url": f"data:image/{kind};base64,{base64.b64encode(image).decode()}"}
            detail = {"detail": o.detail} if o.detail else {}
            content.append({"type": "image_url", "image_url": shown | detail})
        content.append({"type": "text", "text": prompt.text})
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        body: dict[str, Any] = {
            **o.body,
            "model": o.model,
            "messages": messages,
            o.limit_field: max(limit, 1),
        }
        if o.temperature == 0:
            body["temperature"] = 0
        if limit == 0:
            body |= {"logprobs": True, "top_logprobs": o.top_logprobs}
            if self._by_id(prompt):
                body["logprob_token_ids"] = sorted(
                    {i for c in prompt.candidates for i in o.candidate_ids[c]}
                )
        if start:
            messages.append({"role": "assistant", "content": start})
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        return body

    def _choice(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The only choice of an answer, from the requested model. PromptRefused without a
        message."""
        served = str(answer.get("model") or "")
        if self._served and served != self._served:
            raise ModelError(
                f"{self.name}: an answer came from {served!r}, not from {self._served!r}: the"
                " endpoint changed its model; pin a dated one in options.model and"
                " options.served_model, then score again"
            )
        self._served = served
        choice = answer["choices"][0]
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            raise PromptRefused(f"{self.name}: an answer without a message")
        return {**choice, "message": message}

    def _scored(self, answer: dict[str, Any]) -> dict[str, Any]:
        """named: (token, log-probability) of the first token's alternatives; n_tokens: prompt
        tokens."""
        choice = self._choice(answer)
        if _filtered(choice) or choice["message"].get("refusal"):
            self.transport.counts["refused"] += 1
            raise PromptRefused(f"{self.name}: the endpoint's content filter took the answer")
        given = choice.get("logprobs")
        places = given.get("content") if isinstance(given, dict) else None
        if places == [] or (not places and self._scored_any and not _text(choice["message"])):
            raise PromptRefused(
                f"{self.name}: an empty answer, so there is no first token to score"
            )
        first = places[0] if isinstance(places, list) and isinstance(places[0], dict) else {}
        top = first.get("top_logprobs")
        if not isinstance(top, list) or not top:
            raise NoScores(
                f"{self.name}: this endpoint gives no log-probabilities of tokens (top_logprobs),"
                " so its candidates can't be scored; to measure it by its answers alone, set"
                f" options.top_logprobs to 0 in registry/models/{self.name}.yaml"
            )
        if not _text(choice["message"]) and any(choice["message"].get(n) for n in _THOUGHTS):
            raise ModelError(self._thinks("thinks before it answers"))
        try:
            # JSON has no -inf: servers write null for a token that can't come
            with_logprob = [t for t in top if t["logprob"] is not None]
            named = [(str(t["token"]), float(t["logprob"])) for t in with_logprob or top]
            chosen = None
            if first.get("token") is not None and first.get("logprob") is not None:
                chosen = (str(first["token"]), float(first["logprob"]))
            # false for NaN
            fair = all(value <= 0.01 for _, value in [*named, *([chosen] if chosen else [])])
        except (KeyError, TypeError, ValueError, OverflowError):
            fair = False
        if not fair:
            raise ModelError(
                f"{self.name}: top_logprobs hold what is no log-probability; this endpoint is not"
                " OpenAI-compatible in this"
            )
        self._check_first_token(named, chosen)
        self._scored_any = True
        n_tokens = count(answer.get("usage"), "prompt_tokens")
        return {"named": named, "chosen": chosen, "n_tokens": n_tokens}

    def _check_first_token(
        self, named: list[tuple[str, float]], chosen: tuple[str, float] | None
    ) -> None:
        """Raises ModelError where tokens are named by number, and where most of the first answers
        begin with the mark of a thought: such first tokens are scores of no answer."""
        if all(_BY_NUMBER.fullmatch(token) for token, _ in named):
            raise ModelError(
                f"{self.name}: the endpoint names tokens by number ({named[0][0]!r}), so no"
                " candidate can be found among them; start the server without"
                " --return-tokens-as-token-ids"
            )
        if len(self._first_tokens) >= _PROBES:
            return
        self._first_tokens.append(chosen[0] if chosen else max(named, key=lambda one: one[1])[0])
        thoughts = [token for token in self._first_tokens if begins_thought(token)]
        if len(self._first_tokens) == _PROBES and len(thoughts) * 2 > _PROBES:
            raise ModelError(self._thinks(f"begins its answers with {thoughts[0]!r}"))

    def _thinks(self, why: str) -> str:
        return (
            f"{self.name}: this model {why}, so its first token is none of an answer; switch that"
            " off by the endpoint's own field in options.body, e.g. {reasoning_effort: none} or"
            " {chat_template_kwargs: {enable_thinking: false}}"
        )

    def _said(self, answer: dict[str, Any], start: str) -> dict[str, Any]:
        """text, and truncated. An answer that a content filter removed is a refusal, like one in
        words."""
        choice = self._choice(answer)
        refusal, filtered = choice["message"].get("refusal"), _filtered(choice)
        self.transport.counts["refused"] += bool(refusal or filtered)
        text = start + (_text(choice["message"]) or str(refusal or ""))
        if filtered:
            text = f"{text} {FILTERED}"
        return {"text": text.strip(), "truncated": choice.get("finish_reason") == "length"}


def _filtered(choice: dict[str, Any]) -> bool:
    """Whether a content filter ended the answer; some endpoints add the reason, Gemini's name it
    alone."""
    reason = str(choice.get("finish_reason") or "")
    return reason.startswith("content_filter") or reason.upper() in _FILTERS


def _text(message: dict[str, Any]) -> str:
    """The content of a message, a text or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(
            str(part.get("text") or "") if isinstance(part, dict) else str(part) for part in content
        )
    return str(content or "")
