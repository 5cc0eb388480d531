"""One model of the registry: everything needed to load and score it. The dataclass is its type in
the program, the format of its file (registry/README.md) and the source of that format's schema."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sdgbias.formats import STRICT, Count, Day, Flag, Positive, Text
from sdgbias.types import ANSWER_TOKENS, ENABLED, IMAGE_FREE, STATES, VIEWS, View

BACKENDS = (
    "hf",
    "planted",
    "planted-people",
    "vllm",
    "api",
    "clip-zero-shot",
    "vit-zero-shot",
    "text-encoder",
)
DTYPES = ("float32", "bfloat16", "float16")
if TYPE_CHECKING:  # commands and folders give any text: it is checked where an entry is parsed
    Backend = str
    Dtype = str
    State = str
    Kind = str
else:
    Backend, Dtype, State = Literal[BACKENDS], Literal[DTYPES], Literal[STATES]
    Kind = Literal[tuple(ANSWER_TOKENS)]
VALID_REPOS = "OWNER/NAME on the hub, local:FOLDER below the repository root, path:/ABSOLUTE/FOLDER"
VALID_VIEWS = f"[{', '.join(VIEWS)}] (the default), or [{', '.join(IMAGE_FREE)}]"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


_Limits = Annotated[
    dict[Kind, Count],
    BeforeValidator(
        lambda v: dict.fromkeys(ANSWER_TOKENS, v) if isinstance(v, int | float | str) else v,
        json_schema_input_type=Count | dict[Kind, Count],
    ),
]


@dataclass(frozen=True)
class ModelSpec:
    """One model of the sdgbias registry (registry/models/<name>.yaml)."""

    __pydantic_config__ = STRICT
    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    """Digits, lower-case letters, '.', '_', '-'; the file's stem."""
    title: Text
    """What tables and figures show."""
    backend: Backend
    repo: Annotated[str, Field(description=VALID_REPOS)]
    revision: str
    """Hub: a commit of 40 hex digits, or 'unpinned' for a candidate. Folder: the 40 hex digits that
    register-model writes, checked before every run; 'local' or any other text isn't checked."""
    state: State
    """candidate: not in the nightly yet. enabled: scored every night. quarantined: left out for a
    while. retired: left out for good."""
    reason: str = ""
    """One line: why it is in this state, and what would change it; needed unless enabled."""
    until: Day = ""
    """A date such as 2026-11-30 from which on the nightly scores a quarantined model again; empty:
    when a person enables it."""
    family: str = ""
    """model_type of the model's config."""
    params_b: Positive | None = None
    """Parameters in billions."""
    dtype: Dtype = "float32"
    batch_size: Count = 8
    """Prompts per batch."""
    max_new_tokens: Annotated[
        _Limits,
        Field(
            description="Longest generated answer in tokens, for all kinds of question or by kind;"
            f" default: {', '.join(f'{kind} {n}' for kind, n in ANSWER_TOKENS.items())}."
        ),
    ] = field(default_factory=dict)
    trust_remote_code: Flag = False
    licence: str = ""
    """As the publisher states it; empty: not verified."""
    notes: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of the backend. Never a credential."""
    views: Annotated[
        tuple[str, ...],
        Field(
            description=f"The views that are scored: {VALID_VIEWS}.",
            json_schema_extra={"enum": [list(VIEWS), list(IMAGE_FREE)]},
        ),
    ] = VIEWS

    @property
    def pictured(self) -> bool:
        """Whether the model is asked any view with a picture; a language model isn't."""
        return any(View(view).has_image for view in self.views)

    @property
    def enabled(self) -> bool:
        """Whether the model is scored every night."""
        return self.state == ENABLED
