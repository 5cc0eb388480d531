"""Which views a run's model was asked, read from the run alone: why a number of it is missing."""

from __future__ import annotations

import json

from sdgbias.types import IMAGE_FREE, VIEWS, View


def language_model(config: object) -> bool:
    """Whether a run's model was asked no view with a picture. ``config``: the run's JSON; runs of
    before there was a choice of views were asked all."""
    spec = json.loads(config).get("spec") if isinstance(config, str) and config else None
    views = (spec or {}).get("views") or VIEWS
    return not any(View(view).has_image for view in views)


def needs_pictures(config: object, method: str) -> bool:
    """Whether a run can't have a number of this method because its model is shown no pictures:
    every method but the two views without one rests on them."""
    return method not in IMAGE_FREE and language_model(config)
