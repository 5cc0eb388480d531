"""What the watch looks for: the rules of registry/watch.yaml (watch.schema.json describes them)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sdgbias import formats
from sdgbias.errors import RegistryError
from sdgbias.formats import STRICT, Count, Day, Flag, Positive, Text
from sdgbias.registry import entries, hub


def _suites(names: tuple[str, ...]) -> tuple[str, ...]:
    for fault in filter(None, map(entries.suite_fault, names)):
        raise ValueError(fault)
    return names


@dataclass(frozen=True)
class Owner:
    """An owner whose new repositories become candidates, and the conditions on them. Empty or null:
    no condition."""

    __pydantic_config__ = STRICT
    owner: Annotated[str, Field(pattern="^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    """An account of the hub, such as llava-hf."""
    pipelines: tuple[Text, ...] = ("image-text-to-text",)
    """Pipeline tags, one of which the repository has."""
    max_params_b: Positive | None = None
    """At most so many billion parameters, by the hub's count of its safetensors."""
    licences: tuple[Text, ...] = ()
    """Licences, one of which its card names; empty: any."""
    match: re.Pattern[str] = re.compile("")
    """A regular expression that the whole name (without the owner) has to match; empty: any."""
    newer_than: Day = ""
    """Created after this day, such as 2026-01-31; empty: any."""
    suites: Annotated[tuple[Text, ...], AfterValidator(_suites)] = ()
    """The suites that the nightly scores; empty: the default."""
    gpu: str = ""
    """GPU kind of the work pool that would run it; empty: cpu."""

    def listed(self, pipeline: str) -> list[hub.ModelFacts]:
        """The repositories that the hub lists. Errors: as hub.listed."""
        return hub.listed(pipeline, self.owner)

    def admits(self, one: hub.ModelFacts) -> bool:
        """Whether a repository meets every condition. A value missing on the hub doesn't meet its
        condition."""
        name = one.repo.split("/")[-1]
        return (
            (self.max_params_b is None or 0 < one.params <= self.max_params_b * 1e9)
            and (not self.licences or one.licence in self.licences)
            and (not self.match.pattern or self.match.fullmatch(name) is not None)
            and (not self.newer_than or str(one.created or "") > self.newer_than)
        )


@dataclass(frozen=True)
class Everyone(Owner):
    """The first repositories of the hub's own list, of any account, and the conditions on them."""

    owner: Literal[""] = ""
    apps: tuple[Text, ...] = ("vllm",)
    """Software that the hub lists it for; empty: any."""
    sort: Literal["trending_score", "created_at"] = "trending_score"
    """Which come first."""
    limit: Count = 50
    """So many repositories are looked at."""

    def listed(self, pipeline: str) -> list[hub.ModelFacts]:
        return hub.listed(pipeline, "", self.apps, self.sort, self.limit)


@dataclass(frozen=True)
class Probe:
    """How new candidates that fit this machine are tried, and what a look may spend on that."""

    __pydantic_config__ = STRICT
    questions: Count = 200
    """Questions per model."""
    minutes: Positive = 20.0
    """Of a look, for all models together."""


@dataclass(frozen=True)
class Rules:
    """What `sdgbias models watch` looks for (registry/watch.yaml)."""

    __pydantic_config__ = STRICT
    commits: Flag = True
    """Look for new commits of the registered hub models."""
    skip: tuple[Text, ...] = ()
    """Names of entries that are not watched."""
    owners: tuple[Owner, ...] = ()
    """Accounts whose new repositories become candidates, each with `owner`."""
    everyone: tuple[Everyone, ...] = ()
    """Lists of the hub whose repositories become candidates, of any account."""
    probe: Probe | None = None
    """Fetch and try new candidates; null: only register them."""
    enable: Literal["", "when_admitted"] = ""
    """when_admitted: candidates that pass are enabled; empty: by hand."""


def read(path: Path) -> Rules:
    """The rules of a YAML file. RegistryError names the file and the invalid value."""
    data = formats.load(path, RegistryError, "give the rules with --rules FILE")
    return formats.parse({} if data is None else data, Rules, path, RegistryError)
