"""The options of registry entries: one model per backend, which is the parser, the source of the
message about a bad value, of the JSON Schema for editors (scripts/schemas.py) and of the tables in
docs/ (scripts/option_tables.py). They are checked before an engine is loaded."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
)

from sdgbias import formats
from sdgbias.errors import RegistryError
from sdgbias.files import confine
from sdgbias.registry.spec import ModelSpec

#: Fields of a request that the engine sets itself.
_SET_HERE = (
    *("logit_bias", "logprob_token_ids", "logprobs", "max_completion_tokens", "max_tokens"),
    *("messages", "model", "n", "stream", "temperature", "top_logprobs"),
)
#: Single tokens that mean one candidate in any known vocabulary, at most: bare, and after a space,
#: a newline or a tab.
SPELLINGS = 4

Count = Annotated[int, Field(ge=1)]
Size = Annotated[float, Field(gt=0)]
Amount = Annotated[float, Field(ge=0)]


class Options(BaseModel):
    """Options of every backend."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    chunk_timeout: Amount = 1800
    """seconds that a chunk of prompts may take before the engine counts as hung; 0: no limit"""
    gpu: str | int = "cpu"
    """kind of GPU of the work pool that runs the model, such as h100"""
    num_gpus: Annotated[int, Field(ge=0)] | None = None
    """GPUs that the model takes where there are any; default: vLLM's parallel sizes, else 1"""
    parity: list[str] = Field([], examples=[["vllm"]])
    """engines or models that sdgbias models parity compares with"""
    suites: list[str] = Field(["sdg"], examples=[["sdg", "people"]])
    """suites that a night runs"""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_null(cls, given: Any) -> Any:
        """YAML reads an empty value as null, and would so hide a default."""
        if given is None:
            raise ValueError("has no value; leave the option out for its default")
        return given


class TemplateArguments(BaseModel):
    """Arguments of the chat template, which are texts, numbers, true or false, and two more."""

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, use_attribute_docstrings=True
    )
    __pydantic_extra__: dict[str, str | bool | int | float] = Field(init=False)

    system: str = ""
    """a system prompt before the question"""
    answer_prefix: str = ""
    """what the answer begins with"""

    @property
    def arguments(self) -> dict[str, str | bool | int | float]:
        return self.model_extra or {}


class WeightOptions(Options):
    """Options of the engines that load a vision-language or language model."""

    max_images: Count | None = None
    """pictures that one prompt may show; default: no limit"""
    processor: dict[str, JsonValue] = Field({}, examples=[{"max_pixels": 200704}])
    """settings of the image processor"""
    template: TemplateArguments = Field(TemplateArguments(), examples=[{"enable_thinking": False}])
    """arguments of the chat template (texts, numbers, true or false); system and answer_prefix are
    texts: see registry/README.md"""


class HfOptions(WeightOptions):
    device_map: Literal["", "auto", "balanced", "sequential"] = ""
    """how a model is split over the GPUs that its process sees; default: it stays on one"""
    share_prefix: bool | None = None
    """whether what the prompts about one picture begin with is computed once; admission writes it,
    and without it an evaluation probes the model first"""


class VllmOptions(WeightOptions):
    python: str | None = None
    """interpreter of the environment that has vLLM, absolute or below the project; default: see
    docs/how-to/vllm.md"""
    block_size: Count | None = None
    """tokens per cache block, of which only whole ones are shared; on CPU a multiple of 32, and 32
    by default"""
    data_parallel_size: Count = 1
    """copies of the model that share the prompts, each on devices of its own"""
    distributed_executor_backend: Literal["mp", "ray"] | None = None
    """how the devices of one model are reached: ray for those of several machines; default: vLLM's
    choice"""
    enforce_eager: bool | None = None
    """no compiled graphs: starts sooner and runs slower on a GPU; default: true on CPU, false on a
    GPU"""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """share of the device's memory"""
    kv_cache_gib: Size | None = None
    """GiB for the key-value cache, in place of the share; default: 1 on CPU"""
    max_model_len: Count | None = None
    """longest prompt and answer in tokens, smaller needs less memory; default: the model's own"""
    max_num_batched_tokens: Count | None = None
    """tokens per step"""
    max_num_seqs: Count | None = None
    """prompts per step"""
    pipeline_parallel_size: Count = 1
    """devices that hold one part of the layers each"""
    quantization: Annotated[str, Field(min_length=1)] | None = None
    """how vLLM quantises weights while it loads them, such as fp8: scores are then others than
    those of hf; default: as the repository says"""
    tensor_parallel_size: Count = 1
    """devices that share one model"""


def _free(name: str) -> str:
    if name in _SET_HERE:
        raise ValueError(f"{name} is set by the engine")
    return name


class ApiOptions(Options):
    """Times in seconds; limits are per minute. See docs/how-to/api-models.md for each."""

    api_key_env: str = Field(pattern="^[A-Za-z0-9_]+$", examples=["OPENAI_API_KEY"])
    """the NAME of an environment variable that holds the key, which is never written or logged"""
    base_url: str = Field(min_length=1, examples=["https://HOST/v1"])
    """what stands before /chat/completions: https, or http on this machine"""
    model: str = ""
    """the name that the endpoint knows the model by; default: the entry's `repo`"""
    served_model: str = ""
    """the name that every answer must carry, another one stops the run; default: the first one's"""
    top_logprobs: int = Field(20, ge=0, le=1000)
    """tokens whose log-probabilities are requested, most endpoints allow 20 or 5; 0 for an endpoint
    that gives text only"""
    candidate_ids: dict[
        Annotated[str, Field(min_length=1, max_length=1)],
        Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)],
    ] = Field({}, examples=[{"A": [34, 362]}])
    """token ids by candidate, for servers that take `logprob_token_ids` (vLLM): exact scores, see
    below"""
    spellings: int = Field(SPELLINGS, ge=1, le=100)
    """how many tokens of its vocabulary mean one candidate: `A`, ` A`, ..."""
    prefill: bool = False
    """whether an answer can be continued after given digits (vLLM)"""
    detail: Literal["", "low", "high", "auto"] = ""
    """resolution at which the endpoint reads pictures, where it has this field"""
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """the endpoint's name of the limit of answer tokens; an error names the other one where it is
    needed"""
    temperature: Annotated[
        Literal[0, "default"],
        BeforeValidator(lambda v: str(v) if isinstance(v, bool) else v),  # False == 0
    ] = 0
    """`default` sends none: answers are then sampled at the endpoint's own, and the same question
    may get another answer"""
    body: dict[Annotated[str, AfterValidator(_free)], JsonValue] = Field(
        {},
        examples=[{"seed": 1}],
        description=f"further fields of the request, other than {', '.join(_SET_HERE)}",
        json_schema_extra={"propertyNames": {"not": {"enum": [*_SET_HERE]}}},
    )
    concurrency: int = Field(8, ge=1, le=1000)
    """requests in flight at most; `batch_size` should be several times that"""
    limits: dict[Literal["requests", "tokens"], Amount] = Field(
        {}, examples=[{"requests": 500, "tokens": 30000}]
    )
    """requests are spaced so that no minute holds more"""
    max_requests: Count | None = None
    """requests of one start at most, retries included; the same command continues after them"""
    image_tokens: int = Field(1500, ge=0)
    """tokens of one request, for `limits` before the first answer; later the most of any answer"""
    timeout: float = Field(60, ge=0.001)
    """seconds of one request"""
    retries: int = Field(6, ge=0, le=100)
    """tries after the first attempt"""
    backoff: Amount = 1
    """seconds of the first wait before a retry; it doubles, with jitter"""
    patience: Amount = 600
    """seconds of the longest wait that the endpoint may request"""

    @property
    def local(self) -> bool:
        return _loopback(urlsplit(self.base_url).hostname or "")

    @field_validator("base_url")
    @classmethod
    def _check_address(cls, given: str) -> str:
        try:
            url = urlsplit(given)
            host, _ = url.hostname or "", url.port
        except ValueError:
            url, host = urlsplit(""), ""
        if url.username or url.password or url.query or url.fragment:
            raise ValueError(
                "it holds a user name, a query or a fragment; valid: https://HOST/v1, the key in"
                " the variable that api_key_env names"
            )
        if url.path.rstrip("/").endswith("/chat/completions"):
            raise ValueError(
                f"{given!r} is too long; valid: what stands before /chat/completions, which is"
                " added"
            )
        if not host or not (url.scheme == "https" or (url.scheme == "http" and _loopback(host))):
            raise ValueError(
                f"{given!r} is not taken; valid: https://HOST/v1, or http:// on this machine"
                " (127.0.0.1)"
            )
        return given.rstrip("/")


class VitOptions(Options):
    labels: Annotated[dict[str, str | list[str]], Field(min_length=1)] | None = Field(
        None, examples=[{"doctor": ["lab coat", "stethoscope"]}]
    )
    """person class -> names of the head's outputs that mean it; default: the packaged map for
    ImageNet-1k"""


class TextEncoderOptions(Options):
    kind: Literal["clip", "t5"]
    """what kind of text encoder it is"""
    floor: Annotated[float, Field(ge=-1, le=1)] | None = None
    """a cosine, below which an answer is no label; default: as suites/facet_floor.py finds it"""


class PlantedOptions(Options):
    """The planted biases are checked by their engine."""

    model_config = ConfigDict(extra="ignore")


#: Backend -> its options.
MODELS: Mapping[str, type[Options]] = {
    "api": ApiOptions,
    "clip-zero-shot": Options,
    "hf": HfOptions,
    "planted": PlantedOptions,
    "planted-people": PlantedOptions,
    "text-encoder": TextEncoderOptions,
    "vit-zero-shot": VitOptions,
    "vllm": VllmOptions,
}
T = TypeVar("T", bound=Options)


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read(spec: ModelSpec, kind: type[T]) -> T:
    """The options of an entry, whose backend has options of this kind. RegistryError names the
    entry's file, the option, its value and what is valid, for an unknown option all names."""
    where = f"registry/models/{spec.name}.yaml: options"
    settings = formats.parse(dict(spec.options), MODELS[spec.backend], where, RegistryError)
    assert isinstance(settings, kind), f"{spec.backend} has no {kind.__name__}"
    return settings


def of_engine(spec: ModelSpec) -> dict[str, Any]:
    """The options of a planted engine that only it has."""
    return {name: v for name, v in spec.options.items() if name not in Options.model_fields}


def oracle_folder(named: str, root: Path) -> Path:
    """The folder of option ``oracle``, relative to the project's root."""
    return Path(named) if Path(named).is_absolute() else confine(root, named)


@cache
def schema(model: type[Options]) -> dict[str, dict[str, Any]]:
    """Option -> JSON Schema of its value, with its description."""
    properties: dict[str, dict[str, Any]] = model.model_json_schema()["properties"]
    for about in properties.values():
        about["description"] = " ".join(about["description"].split())
    return properties
