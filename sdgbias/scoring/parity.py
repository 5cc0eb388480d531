"""Parity check: does a model give the same scores on every engine that can serve it, and on one
engine whatever else is in the batch?

A fixed set of probes, drawn from a benchmark's prompts by seed, is scored by the model's engine
three times (each prompt alone, in batches, in batches of another order) and by every other engine
of the same weights. engines/agreement.py defines the comparison and its tolerances. `sdgbias models
parity` runs it and stores the verdict beside the results, as parity/<model>.json; `evaluate`
publishes nothing for a model whose stored verdict is `disagree`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdgbias import __version__, templates
from sdgbias.engines import BACKENDS, load
from sdgbias.engines.agreement import (
    Itself,
    compare,
    rounding,
    same_score,
    score,
    score_three_times,
)
from sdgbias.engines.options import Options, read
from sdgbias.errors import (
    EnginesDisagree,
    InfrastructureError,
    ModelError,
    StoreError,
    UsageError,
)
from sdgbias.files import json_file, understood, write_json
from sdgbias.progress import Progress, each, silent
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec

if TYPE_CHECKING:
    from sdgbias.scoring.probes import Probes

#: Which other engines serve the same weights.
SAME_WEIGHTS = {"hf": ("vllm",), "vllm": ("hf",)}
#: Options of an entry that remain valid when another engine takes its place.
_KEPT_OPTIONS = {*Options.model_fields, "max_images"}
AGREE, DISAGREE, ALONE = "agree", "disagree", "only one backend here"


def counterparts(spec: ModelSpec, root: Path, against: Sequence[str] = ()) -> dict[str, ModelSpec]:
    """Name -> entry to compare with: `against`, else the entry's option `parity`, else every other
    engine of the same weights. A name is an engine's (the same entry on that engine) or that of
    another entry."""
    served = SAME_WEIGHTS.get(spec.backend, ())
    others: dict[str, ModelSpec] = {}
    for name in against or read(spec, Options).parity or served:
        if name == spec.name:
            raise UsageError(f"{spec.name}: compared with itself; name an engine or another model")
        if name not in BACKENDS:
            others[name] = entries.load(root, name)
            continue
        if name not in served:
            valid = f"valid: {', '.join(served)}, or" if served else "name"
            raise UsageError(
                f"{spec.name}: backend {name} can't serve what {spec.backend} does; {valid}"
                " another registered model"
            )
        kept = {k: v for k, v in spec.options.items() if k in _KEPT_OPTIONS}
        others[name] = replace(spec, backend=name, options=kept)
    return others


def check(
    spec: ModelSpec,
    root: Path,
    probes: Probes,
    others: Mapping[str, ModelSpec],
    *,
    must: bool = False,
    tolerance: float | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The verdict on one model as it is stored. ``others``: see counterparts; one that can't be
    loaded here is recorded as missing, or with ``must`` raises."""
    prompts = probes.prompts

    def limit(*roundings: float | None) -> float:
        return same_score(spec.dtype, *roundings) if tolerance is None else tolerance

    with closing(load(spec, root)) as engine:
        progress(f"{spec.name}: probing", 0, 0)
        itself = score_three_times(engine, prompts, spec.batch_size, probes.seed)
        ours = rounding(engine, prompts, itself.alone.scores)
        verdict = describe(spec, engine.fingerprint, probes, limit(ours), itself)
    for name, other in each(progress, f"{spec.name}: other engines", others.items()):
        try:
            with closing(load(other, root)) as engine:
                theirs = score(engine, prompts, range(len(prompts)), other.batch_size)
                what, both = f"{spec.backend} / {name}", limit(ours, rounding(engine, prompts))
                verdict["against"][name] = {
                    "backend": other.backend,
                    "fingerprint": engine.fingerprint,
                    "failed": theirs.failures,
                    "probes": probes.digest,
                    **compare(what, prompts, itself.batched.scores, theirs.scores, both),
                }
        except (InfrastructureError, ModelError) as error:
            if must:
                raise
            verdict["missing"][name] = str(error)
    return verdict


def describe(
    spec: ModelSpec,
    fingerprint: str,
    probes: Probes,
    limit: float,
    itself: Itself,
) -> dict[str, Any]:
    """A verdict that compares an engine with itself alone."""
    return {
        "model": spec.name,
        "backend": spec.backend,
        "dtype": spec.dtype,
        "fingerprint": fingerprint,
        "tolerance": limit,
        "seed": probes.seed,
        "probes": {
            "n": len(probes.prompts),
            "of": probes.origin,
            "digest": probes.digest,
            "kinds": probes.kinds,
            "failed": itself.batched.failures,
        },
        "itself": itself.rows(spec.backend, probes.prompts, limit),
        "against": {},
        "missing": {},
    }


# ----------------------------------------------------------------------
# the stored verdict


def verdict_path(folder: Path, model: str) -> Path:
    """Path of a model's verdict; `folder` is that of the results file."""
    return folder / "parity" / f"{model}.json"


def read_verdict(folder: Path, model: str) -> dict[str, Any]:
    """The stored verdict; {} without one. Raises StoreError for one that can't be read."""
    path = verdict_path(folder, model)
    if not path.exists():
        return {}
    fault, onward = "can't be read as a verdict", f"remove it, then: sdgbias models parity {model}"
    with understood(path, fault, onward, StoreError):
        verdict = json_file(path, fault, onward, StoreError)
        for name in ("fingerprint", "verdict", "reasons"):
            verdict[name]
    return verdict


def save(folder: Path, verdict: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    """Completes a verdict and writes it (atomically) to parity/<model>.json below ``folder``;
    returns (the stored verdict, its path).

    Earlier comparisons of the same fingerprint that were not repeated now are kept and still count.
    The digest excludes the date.
    """
    model = str(verdict["model"])
    before = read_verdict(folder, model)
    same = before.get("fingerprint") == verdict["fingerprint"]
    against = {**(before.get("against", {}) if same else {}), **verdict["against"]}
    verdict = {**verdict, "against": dict(sorted(against.items()))}
    bad = [row for row in (*verdict["itself"], *against.values()) if not row["agrees"]]
    verdict["verdict"] = DISAGREE if bad else AGREE if against else ALONE
    verdict["reasons"] = [_reason(row) for row in bad]
    names = [name for name, row in verdict["against"].items() if not row["agrees"]]
    verdict["again"] = " --against ".join([f"sdgbias models parity {model}", *names])
    text = json.dumps(verdict, sort_keys=True)
    verdict["digest"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    verdict |= {"sdgbias": __version__, "checked_at": now}
    path = verdict_path(folder, model)
    write_json(path, verdict, "give a writable folder with --results")
    return verdict, path


def _reason(row: Mapping[str, Any]) -> str:
    if not row["n"]:
        return f"{row['what']}: no probe has a score on both sides"
    first = row["worst"]["text"].splitlines()[0][:80]
    return (
        f"{row['what']}: log-probabilities differ by up to {row['logp_max']:.2g}, candidate mass by"
        f" {row['mass_max']:.2g} (tolerance {row['tolerance']:.3g}), {row['flips']} of {row['n']}"
        f" best candidates differ; the worst probe is {row['worst']['probe']} ({first!r})"
    )


def lines(verdict: Mapping[str, Any]) -> list[str]:
    """The verdict as a table."""
    failed = {verdict["backend"]: verdict["probes"]["failed"]}
    failed |= {name: row["failed"] for name, row in verdict["against"].items()}
    return templates.lines("parity", t=verdict, failed=failed)


def require_agreement(folder: Path, model: str, fingerprint: str) -> None:
    """The check before a run is published: EnginesDisagree when the engines of exactly this model
    were found to disagree. A model that was never checked passes, and so does one whose weights,
    versions or settings have changed since."""
    verdict = read_verdict(folder, model)
    if verdict.get("verdict") != DISAGREE or verdict["fingerprint"] != fingerprint:
        return
    onward = verdict.get("again") or f"sdgbias models parity {model}"
    raise EnginesDisagree(
        f"{model}: {verdict['reasons'][0]}; nothing is published, scores are kept: fix or disable"
        f" that engine, then check again: {onward}"
    )
