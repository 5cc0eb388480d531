"""What a model answers before it may run at night: a hundred questions in all four views.

A model that thinks aloud or talks before it answers puts little probability on the candidates; its
nights would cost as much as any and be quarantined afterwards. Admission refuses it first, and
names the option of its registry entry that would change that.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sdgbias.engines import Backend
from sdgbias.errors import SdgbiasError
from sdgbias.methods.answers import begins_thought
from sdgbias.methods.metrics import tie_flags
from sdgbias.types import ModelSpec, Prompt

QUESTIONS = 100
#: Least candidate mass; the default policy quarantines a model below it (rule candidate-mass).
FLOOR = 0.2
_SWITCH = re.compile(r"think|reason", re.I)


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


def ask(
    engine: Backend, prompts: Sequence[Prompt], views: Sequence[str], items: Sequence[str]
) -> Admission:
    """Scores N prompts; views, items: the view and the question of each. Raises what the engine
    raises."""
    began = time.perf_counter()
    scored = engine.candidate_scores(prompts)
    seconds = time.perf_counter() - began
    mass = scored.mass.astype(float)
    units = list(_means(mass, items).values())
    mean, n = float(np.nanmean(mass)), len(units)
    half = 1.96 * float(np.std(units, ddof=1)) / n**0.5 if n > 1 else 1.0
    tokens = Counter(scored.top_token)
    return Admission(
        questions=n,
        prompts=len(prompts),
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


def refusal(found: Admission, spec: ModelSpec, root: Path, floor: float = FLOOR) -> str:
    """Why the model may not run at night, with the option that would change it; '' where it may."""
    often = found.thinks * 2 > found.prompts
    if found.mass >= floor and not often:
        return ""
    why = f"candidate mass {found.mass:.3f} of {found.prompts} prompts is below {floor:g}"
    if often:
        why = (
            f"it thinks before it answers: {found.thinks} of {found.prompts} prompts begin with a"
            f" reasoning tag, candidate mass {found.mass:.3f}"
        )
    token = found.first[0][0]
    return f"{why}, the commonest first token is {token!r}; {_option(spec, root, often)}"


def _option(spec: ModelSpec, root: Path, thinks: bool) -> str:
    """The option of the registry entry to try next, by what the chat template reads."""
    where = f"in registry/models/{spec.name}.yaml set options: template:"
    again = f"then again: sdgbias models enable {spec.name}"
    switches = _switches(spec, root)
    given = spec.options.get("template", {})
    unset = [name for name in switches if not isinstance(given, dict) or name not in given]
    if unset:
        value = "low" if unset[0].endswith("effort") else "false"
        return f"{where} {{{unset[0]}: {value}}}, {again}"
    if thinks:
        return f'{where} {{answer_prefix: "<think>\\n\\n</think>\\n\\n"}}, {again}'
    return (
        f'{where} {{system: "Answer with the letter or number alone."}} or {{answer_prefix:'
        f' "Answer: "}}, look at it: sdgbias models prompt {spec.name}, {again}'
    )


def _switches(spec: ModelSpec, root: Path) -> list[str]:
    """Arguments of the chat template that turn thinking on and off, such as enable_thinking."""
    import jinja2
    from jinja2 import meta

    if spec.backend not in ("hf", "vllm"):
        return []
    from sdgbias.engines.hf.processor import load_processor

    try:
        text = str(getattr(load_processor(spec, root), "chat_template", None) or "")
        environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
        names = meta.find_undeclared_variables(environment.parse(text))
    except (SdgbiasError, jinja2.TemplateError):
        return []
    return sorted(name for name in names if _SWITCH.search(name))
