"""The engine behind an OpenAI-compatible /chat/completions: pictures as data URLs, first-token
scores from top_logprobs.

Such an endpoint returns only the k likeliest first tokens. A candidate among them has a score; any
other is *censored*: its logit is -inf here and `upper` is its largest possible value. A candidate
among them also has an `upper` where another spelling of it (" A" beside "A") may lie below the k-th
token. sdgbias/methods/bounds.py derives what CADE can decide from that. See
docs/how-to/api-models.md for options, costs and the limits of closed endpoints.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from sdgbias.engines import Backend
from sdgbias.engines.client import DOWN_AFTER, Client, Completion, PromptRefused, data_url
from sdgbias.engines.fingerprint import VERSIONS
from sdgbias.engines.hf.tokens import SPACE_MARKS
from sdgbias.engines.options import SPELLINGS, ApiOptions, read
from sdgbias.errors import ModelError, NoScores
from sdgbias.methods.answers import FILTERED, begins_thought
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, Generated, Prompt, ScoreBatch

#: Precision of the remaining probability mass, because returned log-probabilities are rounded.
RESOLUTION = 1e-5
#: Two log-probabilities of one token that are no farther apart are the same one.
_ROUNDED = 1e-3
#: Placeholder with which endpoints report a negligible log-probability.
NOTHING = -9999.0
#: A token's text and its log-probability.
Named = tuple[str, float]
#: Options that scores depend on.
_OF_SCORES = {
    *("model", "served_model", "top_logprobs", "candidate_ids", "spellings", "detail", "body"),
}
#: Reasons to end an answer that are a content filter's: OpenAI's, to which some endpoints add why,
#: and Gemini's, which name that alone.
_FILTERED = re.compile(
    r"content_filter|(IMAGE_)?(SAFETY|RECITATION|PROHIBITED_CONTENT)$|(BLOCKLIST|SPII)$", re.I
)
#: Reasons to end an answer that are a limit of tokens: also Mistral's and Gemini's.
_CUT = re.compile("length|max_tokens", re.I)
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
    named: Sequence[Named],
    candidates: str,
    exact: bool = False,
    spellings: int = SPELLINGS,
    chosen: Named | None = None,
) -> FirstToken:
    """Scores and bounds of K candidates from the returned tokens, the most likely ones of a
    vocabulary, and the token that was ``chosen``, which some servers name apart from these.

    Spellings of a candidate are summed, and of a digit the numbers that begin with it; of these
    any may be unnamed where one of several digits is named. Every other token lies below the least
    likely returned one, and all of them together below the mass that the returned ones leave of 1;
    a lone space may still be followed by a digit (SentencePiece), so for digits its probability
    counts as possible.
    `spellings`: how many tokens of the vocabulary may be one candidate. `exact`: all spellings of
    all candidates were requested by id, so there is no slack.
    """
    # some servers list the sampled token a second time, which they may have rounded otherwise
    once: list[Named] = []
    for token, value in named:
        if not any(token == other and abs(value - v) <= _ROUNDED for other, v in once):
            once.append((token, value))
    if chosen is not None and chosen[0] not in dict(once):
        once.append(chosen)
    likely = [(token, min(value, 0.0)) for token, value in once if value > NOTHING]
    share = np.exp([value for _, value in likely])
    left = max(0.0, 1.0 - float(share.sum())) + RESOLUTION
    # a chosen token that was sampled may lie far below the others, and bounds no other token
    ranked = [np.exp(value) for token, value in likely if chosen is None or token != chosen[0]]
    least = float(min(ranked or share, default=1.0))
    spaces = float(share[[not token.strip(" \u2581\u0120") for token, _ in likely]].sum())

    texts = [token.lstrip(SPACE_MARKS) for token, _ in likely]
    begins = [text[0] if text.isascii() and text.isdecimal() else text for text in texts]

    def spelt(text: str) -> list[float]:
        return [value for begin, (_, value) in zip(begins, likely, strict=True) if begin == text]

    logits, upper = np.full(len(candidates), -np.inf), np.full(len(candidates), -np.inf)
    for j, candidate in enumerate(candidates):
        logits[j] = upper[j] = np.logaddexp.reduce(spelt(candidate), initial=-np.inf)
        unseen = min(left, max(0, spellings - len(spelt(candidate))) * least)
        if begins != texts and candidate in DIGITS:
            unseen = left
        unseen += spaces if candidate in DIGITS else 0.0
        if unseen and not exact:
            upper[j] = min(0.0, float(np.log(np.exp(spelt(candidate)).sum() + unseen)))
    minus = float(np.logaddexp.reduce(spelt("-"))) if spelt("-") else float("nan")
    top = likely[int(np.argmax(share))][0].strip() if likely else ""
    return FirstToken(logits, upper, min(1.0, float(np.exp(logits).sum())), minus, top)


def _may_be(token: str, candidates: str) -> bool:
    """Whether a token is one of these candidates, or a number that begins with one."""
    text = token.lstrip(SPACE_MARKS)
    number = text.isascii() and text.isdecimal()
    return text != "" and (text[0] if number else text) in [*candidates]


class Api(Backend):
    """One endpoint. `forces_starts` says whether `generate` can take forced starts
    (options.prefill)."""

    sends = True

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        self.name = spec.name
        o = read(spec, ApiOptions)
        self.options = o = o.model_copy(update={"model": o.model or spec.repo})
        self.client: Client[Job] = Client(o, spec.name, self._body, self._read)
        self.counts = self.client.counts
        self.forces_starts, self.gives_scores = o.prefill, o.top_logprobs > 0
        self._served = o.served_model
        self._scored_any, self._without = False, 0  # answers in a row without log-probabilities
        self._first_tokens: list[str] = []  # of the first answers, in which thoughts are looked for
        self._sure = 0  # how many of these name one token alone, as certain
        # On this machine the port does not identify the model; elsewhere one name may mean other
        # weights on another host.
        url = urlsplit(o.base_url)
        where = "local" if o.local else f"{url.hostname}{url.path}"
        scored = _OF_SCORES if o.temperature == 0 else {*_OF_SCORES, "temperature"}
        named = json.dumps(o.model_dump(include=scored), sort_keys=True)
        identity = [VERSIONS["api"], spec.repo, spec.revision, where, named]
        self.fingerprint = hashlib.sha256("|".join(identity).encode()).hexdigest()[:16]

    def close(self) -> None:
        self.client.close()

    def prefetch(
        self, prompts: Sequence[Prompt], starts: Sequence[str] = (), max_new_tokens: int = 0
    ) -> None:
        self.client.begin([(p, start, max_new_tokens) for p in prompts for start in starts or [""]])

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        """Scores of N prompts, bounds where the endpoint withholds them. ModelError when it gives
        no log-probabilities."""
        scored_before = self._scored_any
        try:
            answers = self.client.answers([(p, "", 0) for p in prompts])
        except NoScores:
            self.client.forget()  # it may still be asked for text
            if self._scored_any and not scored_before:  # only the answer that came first had none
                self.client.stopped.clear()
                return self.candidate_scores(prompts)
            raise
        batch = ScoreBatch.empty(prompts)
        upper = batch.logits.copy()
        for i, (prompt, (one, n_tokens)) in enumerate(zip(prompts, answers, strict=True)):
            k = len(prompt.candidates)
            batch.logits[i, :k] = one.logits
            rounded = one.upper.astype(np.float32)
            above = np.nextafter(rounded, np.float32(np.inf))
            rounded = np.where(rounded < one.upper, above, rounded)
            upper[i, :k] = np.where(one.upper > one.logits, rounded, np.nan)
            batch.mass[i], batch.minus_logit[i] = one.mass, one.minus_logit
            batch.top_token[i], batch.n_tokens[i] = one.top_token, n_tokens
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
        answers = self.client.answers([(p, s, max_new_tokens) for p in prompts for s in starts])
        rows = [answers[i : i + len(starts)] for i in range(0, len(answers), len(starts))]
        return Generated(
            [[text for text, _ in row] for row in rows],
            [[truncated for _, truncated in row] for row in rows],
        )

    def _by_id(self, prompt: Prompt) -> bool:
        """Whether the entry gives token ids for all candidates of a prompt, so that these ids are
        requested instead of the top k."""
        return set(prompt.candidates) <= set(self.options.candidate_ids)

    def _body(self, job: Job) -> dict[str, Any]:
        (prompt, start, limit), o = job, self.options
        detail = {"detail": o.detail} if o.detail else {}
        pictures = [
            {"type": "image_url", "image_url": {"url": data_url(image)} | detail}
            for image in prompt.images
        ]
        content = [*pictures, {"type": "text", "text": prompt.text}]
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
                ids = {i for candidate in prompt.candidates for i in o.candidate_ids[candidate]}
                body["logprob_token_ids"] = sorted(ids)
        if start:
            messages.append({"role": "assistant", "content": start})
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        return body

    def _read(self, job: Job, answer: Completion) -> tuple[Any, Any]:
        """(FirstToken, tokens of the prompt) of a request for scores, else (text, whether the limit
        ended it). An answer that a content filter removed is a refusal, like one in words."""
        prompt, start, limit = job
        if not answer.model and self.options.served_model:
            raise ModelError(
                f"{self.name}: an answer names no model, so none shows that it came from"
                f" {self.options.served_model!r}; if this endpoint never names it, take"
                " options.served_model out of the entry"
            )
        served = answer.model or self._served  # no name is no evidence of another model
        if self._served and served != self._served:
            raise ModelError(
                f"{self.name}: an answer came from {served!r}, not from {self._served!r}: the"
                " endpoint changed its model; pin a dated one in options.model and"
                " options.served_model, then score again"
            )
        self._served = served
        filtered = bool(_FILTERED.match(answer.finish_reason or ""))
        self.client.counts["refused"] += bool(filtered or answer.refusal)
        if limit:
            text = start + (answer.text or answer.refusal or "") + f" {FILTERED}" * filtered
            return text.strip(), bool(_CUT.search(answer.finish_reason or ""))
        if filtered or answer.refusal:
            raise PromptRefused(f"{self.name}: the endpoint's content filter took the answer")
        return self.first_token(prompt, answer), answer.prompt_tokens

    def first_token(self, prompt: Prompt, answer: Completion) -> FirstToken:
        if answer.tokens == [] or (not answer.tokens and self._scored_any and not answer.text):
            raise PromptRefused(
                f"{self.name}: an empty answer, so there is no first token to score"
            )
        first = answer.first
        named = [(t.token, t.logprob) for t in answer.likeliest or () if t.logprob is not None]
        if first is None or not named:
            self._without += 1
            if self._scored_any and self._without < DOWN_AFTER:  # of a gateway's other provider
                raise PromptRefused(
                    f"{self.name}: an answer without log-probabilities, which others have"
                )
            raise NoScores(
                f"{self.name}: this endpoint gives no log-probabilities of tokens (top_logprobs),"
                " so its candidates can't be scored; to measure it by its answers alone, set"
                f" options.top_logprobs to 0 in registry/models/{self.name}.yaml"
            )
        if not answer.text and (answer.reasoning_content or answer.reasoning):
            raise self._thinks("thinks before it answers")
        if all(_BY_NUMBER.fullmatch(token) for token, _ in named):
            raise ModelError(
                f"{self.name}: the endpoint names tokens by number ({named[0][0]!r}), so no"
                " candidate can be found among them; start the server without"
                " --return-tokens-as-token-ids"
            )
        chosen = None if first.logprob is None else (first.token, first.logprob)
        firsts = self._first_tokens
        if len(firsts) < _PROBES:  # first tokens of thoughts are scores of no answer
            firsts.append(chosen[0] if chosen else max(named, key=lambda one: one[1])[0])
            thoughts = [token for token in firsts if begins_thought(token)]
            if len(firsts) == _PROBES and len(thoughts) * 2 > _PROBES:
                raise self._thinks(f"begins its answers with {thoughts[0]!r}")
            self._sure += {value for _, value in named if value > NOTHING} == {0.0}
            if self._sure == _PROBES and self.options.top_logprobs > 1:
                raise ModelError(
                    f"{self.name}: the endpoint gives the chosen token a log-probability of 0"
                    " and no other token any: that is what was chosen at temperature 0, not"
                    " what the model expects; set options.temperature to default, or, to measure"
                    " it by its answers alone, options.top_logprobs to 0 in"
                    f" registry/models/{self.name}.yaml"
                )
        self._scored_any, self._without = True, 0
        # a server that doesn't know the field for ids names other tokens, too
        others = {token for token, _ in named if not _may_be(token, prompt.candidates)}
        exact = self._by_id(prompt) and others <= {first.token}
        return first_token(named, prompt.candidates, exact, self.options.spellings, chosen)

    def _thinks(self, why: str) -> ModelError:
        return ModelError(
            f"{self.name}: this model {why}, so its first token is none of an answer; switch that"
            " off by the endpoint's own field in options.body, e.g. {reasoning_effort: none} or"
            " {chat_template_kwargs: {enable_thinking: false}}"
        )
