"""Parity check: does a model give the same scores on every engine that can serve it, and on one
engine whatever else is in the batch?

A fixed set of probes, drawn from a benchmark's prompts by seed, is scored by the model's engine
three times (each prompt alone, in batches, in batches of another order) and by every other engine
of the same weights. engines/agreement.py defines the comparison and its tolerances. `sdgbias models
check` runs it; `evaluate` publishes nothing for a model whose stored verdict is `disagree`.

Whether a model may be enabled for the nightly run is decided by a few probes on its engine alone:
each alone, in batches, and in batches of another order. A model whose probes differ or have no
score, or that can't run here, stays a candidate with that as its reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from sdgbias import __version__, templates
from sdgbias.engines import BACKENDS, Backend, load, vllm_support
from sdgbias.engines.agreement import (
    AGREE,
    ALONE,
    DISAGREE,
    TOLERANCES,
    Comparison,
    compare,
    log_shares,
    read_verdict,
    verdict_path,
)
from sdgbias.engines.fingerprint import installed
from sdgbias.engines.options import Options, read
from sdgbias.errors import (
    InfrastructureError,
    InputError,
    ModelError,
    OutOfMemory,
    RegistryError,
    SdgbiasError,
    StoreError,
    UsageError,
)
from sdgbias.files import write_json
from sdgbias.progress import Progress, each, silent
from sdgbias.registry import entries, machine
from sdgbias.registry.propose import Host
from sdgbias.scoring import admission
from sdgbias.scoring.probes import Probes, probes
from sdgbias.scoring.scorer import NOT_FINITE, scored
from sdgbias.types import ModelSpec, Prompt, ScoreBatch

#: Which other engines serve the same weights.
SAME_WEIGHTS = {"hf": ("vllm",), "vllm": ("hf",)}
#: Options of an entry that remain valid when another engine takes its place.
_KEPT_OPTIONS = {*Options.model_fields, "max_images"}


def counterparts(spec: ModelSpec, root: Path, against: Sequence[str] = ()) -> dict[str, ModelSpec]:
    """Name -> entry to compare with: `against`, else the entry's option `parity`, else every other
    engine of the same weights. A name is an engine's (the same entry on that engine) or that of
    another entry."""
    listed = read(spec, Options).parity
    found: dict[str, ModelSpec] = {}
    for name in against or listed or SAME_WEIGHTS.get(spec.backend, ()):
        if name in BACKENDS:
            served = SAME_WEIGHTS.get(spec.backend, ())
            if name not in served:
                valid = f"valid: {', '.join(served)}, or" if served else "name"
                raise UsageError(
                    f"{spec.name}: backend {name} can't serve what {spec.backend} does; {valid}"
                    " another registered model"
                )
            kept = {k: v for k, v in spec.options.items() if k in _KEPT_OPTIONS}
            found[name] = replace(spec, backend=name, options=kept)
        elif name == spec.name:
            raise UsageError(f"{spec.name}: compared with itself; name an engine or another model")
        else:
            found[name] = entries.load(root, name)
    return found


def score(
    engine: Backend, prompts: Sequence[Prompt], order: Sequence[int], size: int
) -> tuple[ScoreBatch, list[str]]:
    """(scores in the order of the prompts, failures) when they are sent in another order and
    ``size`` at a time. A prompt that fails alone has NaN, one with a score that is NaN or infinite
    fails; when all do, the first error is
    raised, as a ModelError where it is not the package's own."""
    found = ScoreBatch.empty(prompts)
    failures: list[Exception] = []

    def ask(rows: Sequence[int]) -> None:
        try:
            batch = engine.candidate_scores([prompts[row] for row in rows])
        except Exception as error:
            stops = isinstance(error, InputError | RegistryError | StoreError)
            if stops or (
                isinstance(error, InfrastructureError) and not isinstance(error, OutOfMemory)
            ):
                raise
            if len(rows) > 1:
                for row in rows:
                    ask([row])
            else:
                failures.append(error)
            return
        widths = np.array([len(prompts[row].candidates) for row in rows])
        failures.extend(ModelError(": ".join(NOT_FINITE)) for ok in scored(batch, widths) if not ok)
        for at, row in enumerate(rows):
            found.logits[row, : batch.logits.shape[1]] = batch.logits[at]
            found.mass[row], found.n_tokens[row] = batch.mass[at], batch.n_tokens[at]
            found.top_token[row] = batch.top_token[at]

    for start in range(0, len(order), size):
        ask(order[start : start + size])
    said = [_line(error) for error in failures]
    if len(failures) == len(prompts):
        if isinstance(failures[0], SdgbiasError):
            raise failures[0]
        raise ModelError(f"each of {len(prompts)} probes fails, the first: {said[0]}")
    return found, said


def _line(error: Exception) -> str:
    """An error in one line: its kind and the first line of its message."""
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{getattr(error, 'kind', type(error).__name__)}: {first}"


def check(
    spec: ModelSpec,
    root: Path,
    found: Probes,
    others: Mapping[str, ModelSpec],
    *,
    must: bool = False,
    tolerance: float | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The verdict on one model as it is stored. ``found``: probes; those with questions for
    admission also decide how prompts are scored together (ways: batch_size, options, line).
    ``others``: see counterparts; one that can't be loaded here is recorded as missing, or with
    ``must`` raises."""
    prompts, size = found.prompts, spec.batch_size
    batched = list(range(len(prompts)))
    shuffled = np.random.default_rng(found.seed).permutation(len(prompts)).tolist()
    with closing(load(spec, root)) as engine:
        fingerprint, ways = engine.fingerprint, ""
        if found.questions:
            spec, ways = admission.decide(engine, spec, prompts)
            size = spec.batch_size
        orders = [(batched, size), (batched, 1), (shuffled, size)]
        (own, failed), (alone, _), (mixed, _) = (
            score(engine, prompts, order, at_once)
            for order, at_once in each(progress, f"{spec.name}: probing", orders)
        )
        asked = None
        if found.questions:
            asked = admission.ask(
                engine,
                [q.prompt for q in found.questions],
                [q.view for q in found.questions],
                [q.item for q in found.questions],
            )
    limit = TOLERANCES[spec.dtype] if tolerance is None else tolerance

    def compared(name: str, one: ScoreBatch, two: ScoreBatch) -> dict[str, Any]:
        return _row(compare(f"{spec.backend}{name}", one, two, limit), limit, prompts, one, two)

    itself = [
        compared(": alone / in batches", alone, own),
        compared(": shuffled / in order", mixed, own),
    ]
    against: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name, other in each(progress, f"{spec.name}: other engines", others.items()):
        try:
            with closing(load(other, root)) as engine:
                theirs, lost = score(engine, prompts, batched, other.batch_size)
                against[name] = {
                    "backend": other.backend,
                    "fingerprint": engine.fingerprint,
                    "failed": lost,
                    "probes": found.digest,
                    **compared(f" / {name}", own, theirs),
                }
        except (InfrastructureError, ModelError) as error:
            if must:
                raise
            missing[name] = str(error)
    return {
        "model": spec.name,
        "backend": spec.backend,
        "dtype": spec.dtype,
        "fingerprint": fingerprint,
        "tolerance": limit,
        "seed": found.seed,
        "probes": {
            "n": len(prompts),
            "of": found.origin,
            "digest": found.digest,
            "kinds": found.strata,
            "failed": failed,
        },
        "itself": itself,
        "against": against,
        "missing": missing,
        **({"admission": asdict(asked)} if asked else {}),
        **({"ways": _ways(spec, ways)} if ways else {}),
    }


def _ways(spec: ModelSpec, line: str) -> dict[str, Any]:
    return {"batch_size": spec.batch_size, "options": spec.options, "line": line}


def _row(
    c: Comparison, limit: float, prompts: Sequence[Prompt], one: ScoreBatch, two: ScoreBatch
) -> dict[str, Any]:
    """A comparison as it is stored: with its tolerance, whether it holds, and the probe that
    differs most."""
    row: dict[str, Any] = {**asdict(c), "tolerance": limit, "agrees": c.agrees(limit)}
    if c.worst >= 0:
        p = prompts[c.worst]
        named = {
            side: np.round(log_shares(s.logits)[c.worst, : len(p.candidates)], 6).tolist()
            for side, s in (("one", one), ("two", two))
        }
        row["worst"] = {
            "probe": c.worst,
            "text": p.text,
            "candidates": p.candidates,
            "image_id": p.image_id,
            **named,
        }
    else:
        row["worst"] = None
    return row


def save(folder: Path, told: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    """Completes a verdict and writes it (atomically) to parity/<model>.json below ``folder``;
    returns (the stored verdict, its path).

    Earlier comparisons of the same fingerprint that were not repeated now are kept and still count.
    The digest excludes the date.
    """
    model = str(told["model"])
    before = read_verdict(folder, model)
    kept = before.get("against", {}) if before.get("fingerprint") == told["fingerprint"] else {}
    told = {**told, "against": dict(sorted({**kept, **told["against"]}.items()))}
    rows = [*told["itself"], *told["against"].values()]
    bad = [row for row in rows if not row["agrees"]]
    told["verdict"] = DISAGREE if bad else AGREE if told["against"] else ALONE
    told["reasons"] = [_reason(row) for row in bad]
    names = [name for name, row in told["against"].items() if not row["agrees"]]
    told["again"] = " --against ".join([f"sdgbias models parity {model}", *names])
    told["digest"] = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
    told |= {"sdgbias": __version__, "checked_at": datetime.now(UTC).isoformat(timespec="seconds")}
    path = verdict_path(folder, model)
    write_json(path, told, "give a writable folder with --results")
    return told, path


def _reason(row: Mapping[str, Any]) -> str:
    if not row["n"]:
        return f"{row['what']}: no probe has a score on both sides"
    first = row["worst"]["text"].splitlines()[0][:80]
    return (
        f"{row['what']}: log-probabilities differ by up to {row['logp_max']:.2g}, candidate mass by"
        f" {row['mass_max']:.2g} (tolerance {row['tolerance']:.3g}), {row['flips']} of {row['n']}"
        f" best candidates differ; the worst probe is {row['worst']['probe']} ({first!r})"
    )


def lines(told: Mapping[str, Any]) -> list[str]:
    """The verdict as a table."""
    failed = {told["backend"]: told["probes"]["failed"]}
    failed |= {name: row["failed"] for name, row in told["against"].items()}
    return templates.lines("parity", t=told, failed=failed)


PROBES = 12
#: Backends whose probes are informative about the entry; those of others cost money, or send
#: prompts that the engine isn't made for.
PROBED = ("hf", "planted", "vllm")


@dataclass(frozen=True)
class Verdict:
    """passed: nothing prevents enabling the model; line: the reason, in one line; told: the verdict
    that `save` stores, None without a probe."""

    passed: bool
    line: str
    told: Mapping[str, Any] | None = None

    def applied_to(self, spec: ModelSpec) -> ModelSpec:
        """The entry with the ways of scoring that the probes showed to be right."""
        ways = (self.told or {}).get("ways")
        if not ways:
            return spec
        return replace(spec, batch_size=ways["batch_size"], options=ways["options"])


def here(root: Path) -> Host:
    """This machine, as registry/propose.py needs it."""
    vllm = ModelSpec(name="vllm", title="", backend="vllm", repo="", revision="", state="")
    python, no_vllm, versions = None, "", {"transformers": installed("transformers")}
    try:
        python = vllm_support.interpreter(vllm, root)
        versions["vllm"] = vllm_support.version(python)
    except InfrastructureError:
        no_vllm = "vLLM isn't installed here"
    asked = cache(lambda: vllm_support.served(python))
    known, language = partial(_types, "known"), partial(_types, "language")
    return Host(machine.this(), known, no_vllm, language, asked, versions)


def _types(kind: str) -> frozenset[str]:
    from sdgbias.engines.hf import auto_class  # seconds, and nothing new on the hub asks for it

    found: frozenset[str] = getattr(auto_class, kind)()
    return found


def probe(
    spec: ModelSpec,
    root: Path,
    benchmark: Path | None = None,
    n: int = PROBES,
    seed: int = 0,
    floor: float = admission.FLOOR,
    progress: Progress = silent,
) -> Verdict:
    """Loads the model, scores n prompts of a benchmark (None: of one generated for this) and asks
    admission's questions; below ``floor`` of candidate mass it doesn't pass. Never raises for a
    fault of the model."""
    if spec.backend not in PROBED:
        return Verdict(True, f"not probed: backend {spec.backend}")
    found = probes(benchmark, n, seed, spec.views, admission.QUESTIONS)
    try:
        told = check(spec, root, found, {}, progress=progress)
    except (ModelError, InfrastructureError, RegistryError) as error:
        return Verdict(False, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    except SdgbiasError:
        raise
    except Exception as error:  # the code of a model raises anything
        return Verdict(False, _line(error))
    failed, bad = told["probes"]["failed"], [row for row in told["itself"] if not row["agrees"]]
    if failed:
        return Verdict(
            False,
            f"{len(failed)} of {len(found.prompts)} probes have no score, the first: {failed[0]}",
            told,
        )
    if bad:
        worst = max(bad, key=lambda row: float(row["logp_max"]))
        return Verdict(
            False,
            f"probes differ: {worst['what']}: log-probabilities by up to {worst['logp_max']:.2g}"
            f" (tolerance {worst['tolerance']:g}), {worst['flips']} of {worst['n']} best"
            " candidates",
            told,
        )
    asked = admission.Admission(**told["admission"]) if "admission" in told else None
    refused = admission.refusal(asked, spec, root, floor) if asked else ""
    if refused:
        return Verdict(False, refused, told)
    most = max(float(row["logp_max"]) for row in told["itself"])
    ways = f"; {told['ways']['line']}" if "ways" in told else ""
    return Verdict(
        True,
        f"{len(found.prompts)} of {found.origin} agree alone, in batches and shuffled:"
        f" log-probabilities to {most:.2g}{f'; {asked.line()}' if asked else ''}{ways}",
        told,
    )
