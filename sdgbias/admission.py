"""May this model be asked every night? A few probes on its own engine decide: each alone, in batches, and in batches of another order.

A model whose probes differ, or have no score, stays a candidate with that as its reason; so does one that can't run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdgbias import machine, parity
from sdgbias.backends import families
from sdgbias.backends.elsewhere import interpreter
from sdgbias.errors import InfrastructureError, ModelError, RegistryError
from sdgbias.register import Here
from sdgbias.types import ModelSpec

PROBES = 12
#: Backends whose probes say something about the entry; those of others cost money, or ask what the engine isn't made for.
PROBED = ("hf", "planted", "vllm")


@dataclass(frozen=True)
class Verdict:
    """passed: nothing speaks against enabling the model; line: why, in one line; told: what parity.keep stores, None without a probe."""

    passed: bool
    line: str
    told: Mapping[str, Any] | None = None


def here(root: Path) -> Here:
    """This machine, as register.propose wants it."""
    vllm = ModelSpec(name="vllm", title="", backend="vllm", repo="", revision="", state="")
    try:
        interpreter(vllm, root)
        no_vllm = ""
    except InfrastructureError:
        no_vllm = "vLLM isn't installed here"
    return Here(machine.this(), families.known, no_vllm)


def probe(
    spec: ModelSpec,
    root: Path,
    benchmark: Path | None = None,
    n: int = PROBES,
    seed: int = 0,
    progress: parity.Progress = lambda what, done, total: None,
) -> Verdict:
    """Loads the model and asks it n prompts of a benchmark (None: of one made for this). Never raises for what the model does."""
    if spec.backend not in PROBED:
        return Verdict(True, f"not probed: backend {spec.backend}")
    found = parity.probes(benchmark, n, seed)
    try:
        told = parity.check(spec, root, found, {}, seed=seed, progress=progress)
    except (ModelError, InfrastructureError, RegistryError) as error:
        return Verdict(False, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    failed, bad = told["probes"]["failed"], [row for row in told["itself"] if not row["agrees"]]
    if failed:
        return Verdict(False, f"{len(failed)} of {len(found.prompts)} probes have no score, the first: {failed[0]}", told)
    if bad:
        worst = max(bad, key=lambda row: float(row["logp_max"]))
        return Verdict(
            False,
            f"probes differ: {worst['what']}: log-probabilities by up to {worst['logp_max']:.2g} (tolerance {worst['tolerance']:g}), "
            f"{worst['flips']} of {worst['n']} best candidates",
            told,
        )
    most = max(float(row["logp_max"]) for row in told["itself"])
    return Verdict(
        True, f"{len(found.prompts)} of {found.origin} agree alone, in batches and shuffled: log-probabilities to {most:.2g}", told
    )
