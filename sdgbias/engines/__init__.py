"""The interface of an engine, and the one place that builds an engine from a registry entry.

Engines score prompts. Only this package imports torch or transformers.

* hf: transformers, in this process
* vllm, vllm_server, vllm_support: vLLM, as a server that is started here
* api, client: endpoints that speak the OpenAI format, and the client of them and of that server
* planted: no weights, known biases
* agreement, fingerprint: two ways of scoring compared, and what scores depend on
* options, hub_errors, torchvision_ops: options of entries, errors told apart, an import mended
"""

from __future__ import annotations

import gc
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from sdgbias.engines import torchvision_ops as torchvision_ops  # before any transformers
from sdgbias.engines.fingerprint import local_folder
from sdgbias.engines.options import Options, read
from sdgbias.errors import RegistryError, one_of
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import Generated, Prompt, ScoreBatch

#: Backend -> the module of this package that has its class, imported where it is needed, and the
#: class. A text encoder of the registry reads answers instead (hf/zero_shot.py).
_CLASSES = {
    "api": ("api", "Api"),
    "clip-zero-shot": ("hf.zero_shot", "ClipZeroShot"),
    "hf": ("hf.engine", "HuggingFace"),
    "planted": ("planted", "Planted"),
    "planted-people": ("planted", "Planted"),
    "vit-zero-shot": ("hf.zero_shot", "VitZeroShot"),
    "vllm": ("vllm", "VLLM"),
}
#: Backends that answer prompts.
BACKENDS = tuple(_CLASSES)


class Backend(ABC):
    """A loaded model, in this process or in others, that gives scores and answers. A prompt's score
    doesn't depend on its neighbours in the batch (to 1e-4).

    The defaults are those of one engine on this machine that writes its answers.
    """

    #: 16 hex digits over everything but the prompt that can change a score: weights, processor,
    #: dtype, engine, versions.
    fingerprint: str
    #: Whether `candidate_scores` works. An endpoint that gives text only has answers, no scores.
    gives_scores: bool = True
    #: Whether `generate` takes forced starts.
    forces_starts: bool = True
    #: Whether it only chooses one of the labels listed in a prompt, and scores no candidates.
    chooses_labels: bool = False
    #: The labels that it can answer with; None: any.
    names: Collection[str] | None = None
    #: Whether prompts are sent to another process, one by one, and answered there.
    sends: bool = False
    #: Work done since it was loaded (prompts, tokens_prefilled, images_encoded, ...), from which
    #: `sdgbias plan` estimates the time of the next run.
    counts: Mapping[str, float] = MappingProxyType({})

    def prefetch(  # noqa: B027 (most engines have nothing to do here)
        self, prompts: Sequence[Prompt], starts: Sequence[str] = (), max_new_tokens: int = 0
    ) -> None:
        """Prepares prompts that are scored soon, or with ``starts`` answered, or sends them, in
        another thread than the one that asks. Raises nothing: a prompt that can't be prepared
        fails when it is asked."""

    def other_attention(self) -> AbstractContextManager[bool]:
        """Inside, attention is computed by other kernels, which round otherwise; False where there
        are none."""
        return nullcontext(False)

    def close(self) -> None:  # noqa: B027
        """Releases processes and connections."""

    @abstractmethod
    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        """Exact first-token scores of N prompts over their candidates."""

    @abstractmethod
    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        """Greedy answers of N prompts, one per forced start ('' = free decoding)."""


class Restartable(Backend):
    """An engine whose work is done by another process, which can end without this one."""

    @abstractmethod
    def restart(self) -> None:
        """Starts the process anew, in place of one that ended or was killed."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the process at once; a call that waits for its answer raises EngineDied."""


def check(spec: ModelSpec, root: Path) -> None:
    """Refuses what needs no library of models to be refused: a backend that scores nothing, a bad
    option, a folder of weights that isn't there. Raises RegistryError, ModelError."""
    where = f"registry/models/{spec.name}.yaml"
    if spec.backend == "text-encoder":
        raise RegistryError(
            f"{where}: a text encoder reads answers and answers nothing itself; it is no model to"
            " score"
        )
    if spec.backend not in _CLASSES:
        raise RegistryError(f"{where}: {one_of('backend', spec.backend, BACKENDS)}")
    read(spec, Options)
    if spec.backend == "hf":
        local_folder(spec, root)


def load(spec: ModelSpec, root: Path) -> Backend:
    """The engine of a registry entry. 'local:' repositories are relative to `root`."""
    check(spec, root)
    module, name = _CLASSES[spec.backend]
    engine: Backend = getattr(import_module(f"{__name__}.{module}"), name)(spec, root)
    return engine


def release_memory() -> None:
    """Gives the memory of engines that nothing holds any more back to the device."""
    gc.collect()  # a model refers to itself
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
