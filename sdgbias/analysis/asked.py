"""Why a number of a run is missing, read from the run's config alone: its model is shown no
pictures, or gives no scores."""

from __future__ import annotations

import json
from typing import Any

from sdgbias.types import GENERATED, IMAGE_FREE, NEEDS_PICTURES, NEEDS_SCORES, VIEWS, View


def _config(config: object) -> dict[str, Any]:
    return json.loads(config) if isinstance(config, str) and config else {}


def language_model(config: object) -> bool:
    """Whether a run's model was asked no view with a picture. ``config``: the run's JSON; runs of
    before there was a choice of views were asked all."""
    views = (_config(config).get("spec") or {}).get("views") or VIEWS
    return not any(View(view).has_image for view in views)


def gives_scores(config: object) -> bool:
    """Whether a run's model gave scores of candidates; False where only its answers were read."""
    return bool(_config(config).get("gives_scores", True))


def needs(config: object, method: str, task: str = "") -> str:
    """What a run's model lacks for a number of this method, '' if nothing: every method but the two
    views without a picture rests on pictures, and every one but generated answers on scores. Of
    regression, generated numbers are the views themselves."""
    if method not in IMAGE_FREE and language_model(config):
        return NEEDS_PICTURES
    read = method.endswith(GENERATED) or (task == "regression" and method in VIEWS)
    return "" if read or gives_scores(config) else NEEDS_SCORES
