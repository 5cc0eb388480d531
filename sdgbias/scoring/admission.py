"""Whether a model may run at night: a few probes on its engine, and a hundred questions in all
views.

A model whose probes differ (alone, in batches, in another order) or have no score, or that can't
run here, stays a candidate with that as its reason. So does one that thinks aloud or talks before
it answers: it puts little probability on the candidates, and its nights would cost as much as any
and be quarantined afterwards. Admission names the option of its registry entry that would change
that, and finds out how its prompts may be scored together (engines/hf/ways.py).
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdgbias.engines import Backend, check, load, vllm_support
from sdgbias.engines.agreement import rounding, same_score, score_three_times
from sdgbias.engines.fingerprint import installed
from sdgbias.engines.options import HfOptions, read
from sdgbias.errors import (
    EnginesDisagree,
    InfrastructureError,
    ModelError,
    RegistryError,
    SdgbiasError,
    first_line,
)
from sdgbias.methods.answers import begins_thought, closing_mark, thought_left_open
from sdgbias.methods.metrics import tie_flags
from sdgbias.progress import Progress, silent
from sdgbias.registry import machine
from sdgbias.registry.propose import Host
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.parity import describe
from sdgbias.types import MASS_FLOOR, Prompt, ScoreBatch

if TYPE_CHECKING:
    from sdgbias.engines.hf.ways import Ways
    from sdgbias.scoring.probes import Probes

PROBES, QUESTIONS = 12, 100
#: Backends whose probes are informative about the entry; those of others cost money, or send
#: prompts that the engine isn't made for.
PROBED = ("hf", "planted", "vllm")
_SWITCH = re.compile(r"think|reason", re.I)


@dataclass(frozen=True)
class Verdict:
    """passed: nothing prevents enabling the model; line: the reason, in one line; stored: what
    parity.save stores, None without a probe; entry: the model's, with the ways of scoring that
    the probes showed to be right; kind: the error that the reason is."""

    passed: bool
    line: str
    stored: Mapping[str, Any] | None = None
    entry: ModelSpec | None = None
    kind: type[SdgbiasError] = ModelError


def probe(
    spec: ModelSpec,
    root: Path,
    benchmark: Path | None = None,
    n: int = PROBES,
    floor: float = MASS_FLOOR,
    progress: Progress = silent,
) -> Verdict:
    """Loads the model, scores n prompts of a benchmark (None: of one generated for this) and asks
    admission's questions; below ``floor`` of candidate mass it doesn't pass. Never raises for a
    fault of the model."""
    try:
        check(spec, root)  # before probes are made, which takes seconds
    except (ModelError, RegistryError) as error:
        return _refused(error)
    if spec.backend not in PROBED:
        return Verdict(True, f"not probed: backend {spec.backend}")
    from sdgbias.scoring.probes import probes  # an environment for vLLM alone has no pandas

    chosen = probes(benchmark, n, 0, spec.views, QUESTIONS)
    try:
        with closing(load(spec, root)) as engine:
            return _probe(engine, spec, root, chosen, floor, progress)
    except (ModelError, InfrastructureError, RegistryError) as error:
        return _refused(error)
    except SdgbiasError:
        raise
    except Exception as error:  # the code of a model raises anything
        return _refused(error, 200)


def _refused(error: Exception, longest: int | None = None) -> Verdict:
    kind = type(error) if isinstance(error, SdgbiasError) else ModelError
    return Verdict(False, f"{type(error).__name__}: {first_line(error)[:longest]}", kind=kind)


def _probe(
    engine: Backend,
    spec: ModelSpec,
    root: Path,
    probes: Probes,
    floor: float,
    progress: Progress,
) -> Verdict:
    n = len(probes.prompts)
    progress(f"{spec.name}: probing", 0, 0)
    entry, ways = spec, decide(engine, probes.prompts, probes.seed)
    if ways:
        options = {**spec.options, "share_prefix": ways.share_prefix}
        entry = replace(spec, batch_size=ways.batch_size, options=options)
        itself, limit = ways.itself, ways.limit
    else:
        itself = score_three_times(engine, probes.prompts, spec.batch_size, probes.seed)
        limit = same_score(spec.dtype, rounding(engine, probes.prompts, itself.alone.scores))
    stored = describe(entry, engine.fingerprint, probes, limit, itself)
    if ways:
        settings = {"batch_size": entry.batch_size, "options": entry.options, "line": ways.line}
        stored["ways"] = settings
    rows, failed = stored["itself"], stored["probes"]["failed"]
    worst = max(rows, key=lambda row: float(row["logp_max"]))
    kind: type[SdgbiasError] = ModelError
    why = ""
    if failed:
        why = f"{len(failed)} of {n} probes have no score, the first: {failed[0]}"
    elif not all(row["agrees"] for row in rows):
        kind = EnginesDisagree
        why = (
            f"probes differ: {worst['what']}: log-probabilities by up to {worst['logp_max']:.2g}"
            f" (tolerance {limit:.2g}), {worst['flips']} of {worst['n']} best candidates"
        )
    line = (
        f"{n} of {probes.origin} agree alone, in batches and shuffled: log-probabilities to"
        f" {worst['logp_max']:.2g}"
    )
    if probes.questions:
        admission = ask(engine, probes.questions, probes.views, probes.items)
        stored["admission"] = asdict(admission)
        line += f"; {admission.line()}"
        why = why or refusal(admission, spec, root, floor)
    line += f"; {ways.line}" if ways else ""
    return Verdict(not why, why or line, stored, entry, kind)


def here(root: Path) -> Host:
    """This machine, as registry/propose.py needs it."""
    vllm = ModelSpec(name="vllm", title="", backend="vllm", repo="", revision="", state="")
    python, no_vllm, versions = None, "", {"transformers": installed("transformers")}
    try:
        python = vllm_support.interpreter(vllm, root)
        versions["vllm"] = vllm_support.version(python)
    except InfrastructureError:
        no_vllm = "vLLM isn't installed here"
    served = cache(lambda: vllm_support.served(python))
    return Host(machine.this(), _visual_types, no_vllm, _language_types, served, versions)


# the import takes seconds, and a hub without anything new asks for neither


def _visual_types() -> frozenset[str]:
    from sdgbias.engines.hf import load

    return load.visual()


def _language_types() -> frozenset[str]:
    from sdgbias.engines.hf import load

    return load.language()


@dataclass(frozen=True)
class Admission:
    """questions, prompts: how many; mass: mean candidate mass over the prompts, with its 95 %
    interval (mass_low, mass_high; questions are the units); by_view: the mean of each view; first:
    the commonest first tokens with their counts; ties: prompts whose best two candidates have
    exactly the same score; thinks: prompts answered first by a reasoning tag; seconds: time to
    score them all."""

    questions: int
    prompts: int
    mass: float
    mass_low: float
    mass_high: float
    by_view: Mapping[str, float]
    first: tuple[tuple[str, int], ...]
    ties: int
    thinks: int
    seconds: float

    def line(self) -> str:
        views = ", ".join(f"{view} {mass:.2f}" for view, mass in self.by_view.items())
        first = ", ".join(f"{token!r} {n}" for token, n in self.first)
        return (
            f"{self.questions} questions, {self.prompts} prompts: candidate mass {self.mass:.3f}"
            f" (95 % {self.mass_low:.3f} to {self.mass_high:.3f}; {views}), first tokens {first},"
            f" ties at the top {self.ties} of {self.prompts}, {self.seconds:.1f} s"
        )


def undecided(spec: ModelSpec) -> bool:
    """Whether it is open which ways of scoring give the model's scores: no admission has written
    `share_prefix` into the entry."""
    return spec.backend == "hf" and read(spec, HfOptions).share_prefix is None


def decide(engine: Backend, prompts: Sequence[Prompt], seed: int = 0) -> Ways | None:
    """How the model's prompts may be scored together, by these prompts; None for an engine that has
    no such choice. Raises what the engine raises for a prompt alone."""
    from sdgbias.engines.hf import ways
    from sdgbias.engines.hf.engine import HuggingFace

    return ways.decide(engine, prompts, seed) if isinstance(engine, HuggingFace) else None


def ask(
    engine: Backend, prompts: Sequence[Prompt], views: Sequence[str], items: Sequence[str]
) -> Admission:
    """Scores N prompts; views, items: the view and the question of each. Raises what the engine
    raises."""
    began = time.perf_counter()
    scored = engine.candidate_scores(prompts)
    return summary(scored, views, items, time.perf_counter() - began)


def summary(
    scored: ScoreBatch, views: Sequence[str], items: Sequence[str], seconds: float = 0.0
) -> Admission:
    """What N scored prompts say; views, items: the view and the question of each."""
    mass = scored.mass.astype(float)
    units = list(_means(mass, items).values())
    mean, n = float(np.nanmean(mass)), len(units)
    half = 1.96 * float(np.std(units, ddof=1)) / n**0.5 if n > 1 else 1.0
    tokens = Counter(scored.top_token)
    return Admission(
        questions=n,
        prompts=len(mass),
        mass=mean,
        mass_low=max(0.0, mean - half),
        mass_high=min(1.0, mean + half),
        by_view=_means(mass, views),
        first=tuple(sorted(tokens.items(), key=lambda pair: (-pair[1], pair[0]))[:5]),
        ties=int(np.nansum(tie_flags(scored.logits, 0.0)[0])),
        thinks=sum(count for token, count in tokens.items() if begins_thought(token)),
        seconds=seconds,
    )


def _means(values: np.ndarray, of: Sequence[str]) -> dict[str, float]:
    """The mean of the values (N,) of each name, in order of appearance."""
    names = np.array(of)
    return {name: float(np.nanmean(values[names == name])) for name in dict.fromkeys(of)}


def refusal(admission: Admission, spec: ModelSpec, root: Path, floor: float = MASS_FLOOR) -> str:
    """Why the model may not run at night, with the option that would change it; '' where it may."""
    often = admission.thinks * 2 > admission.prompts
    switches, begun = _template(spec, root)
    if admission.mass >= floor and not often and not begun:
        return ""
    why = f"candidate mass {admission.mass:.3f} of {admission.prompts} prompts is below {floor:g}"
    if often:
        why = (
            f"it thinks before it answers: {admission.thinks} of {admission.prompts} prompts"
            f" begin with a reasoning tag, candidate mass {admission.mass:.3f}"
        )
    elif begun:
        why = (
            f"its prompts end inside a thought, which {begun} begins, so that no answer is scored:"
            f" candidate mass {admission.mass:.3f}"
        )
    token = admission.first[0][0]
    option = _option(spec, switches, begun, often)
    return f"{why}, the commonest first token is {token!r}; {option}"


def _option(spec: ModelSpec, switches: list[str], begun: str, thinks: bool) -> str:
    """The option of the registry entry to try next, by what the chat template reads and writes."""
    where = f"in registry/models/{spec.name}.yaml set options: template:"
    again = f"then again: sdgbias models enable {spec.name}"
    given = spec.options.get("template", {})
    unset = [name for name in switches if not isinstance(given, dict) or name not in given]
    if unset:
        value = "low" if unset[0].endswith("effort") else "false"
        return f"{where} {{{unset[0]}: {value}}}, {again}"
    if begun:
        return f'{where} {{answer_prefix: "\\n{closing_mark(begun)}\\n\\n"}}, {again}'
    if thinks:
        return f'{where} {{answer_prefix: "<think>\\n\\n</think>\\n\\n"}}, {again}'
    return (
        f'{where} {{system: "Answer with the letter or number alone."}} or {{answer_prefix:'
        f' "Answer: "}}, look at it: sdgbias models prompt {spec.name}, {again}'
    )


def _template(spec: ModelSpec, root: Path) -> tuple[list[str], str]:
    """(arguments of the chat template that turn thinking on and off, such as enable_thinking; the
    mark of a thought that a rendered prompt leaves open, or '')."""
    import jinja2
    from jinja2 import meta

    if spec.backend not in ("hf", "vllm"):
        return [], ""
    from sdgbias.engines.hf.chat import PROBES as TWO_PROMPTS
    from sdgbias.engines.hf.processor import load_chat

    try:
        chat = load_chat(spec, root)
        text = str(chat.template or "")
        environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
        names = meta.find_undeclared_variables(environment.parse(text))
        shown = chat.render(TWO_PROMPTS[0])
    except (SdgbiasError, jinja2.TemplateError):
        return [], ""
    return sorted(name for name in names if _SWITCH.search(name)), thought_left_open(shown)
