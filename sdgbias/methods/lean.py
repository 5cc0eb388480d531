"""Which way answers without evidence go, as a verdict on three shares with their intervals.

The shares are of pessimistic, conservative and optimistic answers to questions with three options.
Their intervals count what a direction could have been drawn for: distinct prompts, and of several
wordings of one question, indicators. A model that draws one direction for each of these leans
nowhere (tests/methods/test_lean.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from sdgbias.methods.stats import Estimate

#: Five prompts, or indicators, fall into one direction by chance too often for a sentence about a
#: model.
FEWEST_UNITS = 6
UNJUDGED = "can't be judged"
UNCLEAR = "shows no clear direction"
FOLLOWS_ORDER = "follows the order of options"


def verdict(
    shares: Mapping[str, Estimate],
    unit: str = "prompt",
    ties: float = 0.0,
    reordered: Mapping[str, Estimate] | None = None,
) -> str:
    """'leans X': X lies above one third and above every other share, intervals not overlapping.

    ``reordered``: the shares with the options in another order, which control for selection bias
    (App. E.3). A lean is stated where X has the most answers in that order, too, and either not
    measurably fewer or measurably more than a third; else the model 'follows the order of options'
    where X has measurably fewer, and 'shows no clear direction' where it hasn't.

    'splits between X and Y': the third option lies below one third and below both. Else 'shows no
    clear direction'. 'N prompts: too few to say' below ``FEWEST_UNITS`` clusters, each a ``unit``;
    'can't be judged' without three shares, or when the clusters weren't counted. ``ties``: the
    share of answers of which two options score alike; the first one is taken, so that such answers
    say nothing: what is stated holds wherever they had gone.
    """
    counted = min((e.clusters for e in shares.values()), default=0)
    if len(shares) < 3 or counted == 0:
        return UNJUDGED
    if counted < FEWEST_UNITS:
        return f"{counted} {unit}{'' if counted == 1 else 's'}: too few to say"
    if any(e.low != e.low for e in shares.values()):
        return UNJUDGED
    first, second, third = sorted(shares, key=lambda d: (-shares[d].value, d))
    if shares[first].low - ties > max(1 / 3, shares[second].high + ties):
        control = (reordered or shares)[first]
        fewer = control.high + ties < shares[first].low - ties
        ahead = control.value >= max(e.value for e in (reordered or shares).values())
        if ahead and (not fewer or control.low - ties > 1 / 3):
            return f"leans {first}"
        return FOLLOWS_ORDER if fewer else UNCLEAR
    if shares[third].high + ties < min(1 / 3, shares[second].low - ties):
        return f"splits between {min(first, second)} and {max(first, second)}"
    return UNCLEAR
