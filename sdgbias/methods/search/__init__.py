"""Tuning CADE on validation rows; the test rows never enter. ``random``: the paper's protocol;
``exact``: line searches over the breakpoints of the objective; ``spread``: how far the optimum
moves when places are resampled; ``kernel``: the payoff of many settings at once."""

from sdgbias.methods.protocol import DRAWS, RANGES, Ranges
from sdgbias.methods.search.exact import KINDS, ExactResult, Kind, exact_search, held_out, tune
from sdgbias.methods.search.kernel import Packed, mean_payoff, pack, row_payoff
from sdgbias.methods.search.random import (
    SearchResult,
    SearchSettings,
    draw_settings,
    evaluate_draws,
    random_search,
    take,
)
from sdgbias.methods.search.spread import SearchSpread, search_spread

__all__ = [
    "DRAWS",
    "KINDS",
    "RANGES",
    "ExactResult",
    "Kind",
    "Packed",
    "Ranges",
    "SearchResult",
    "SearchSettings",
    "SearchSpread",
    "draw_settings",
    "evaluate_draws",
    "exact_search",
    "held_out",
    "mean_payoff",
    "pack",
    "random_search",
    "row_payoff",
    "search_spread",
    "take",
    "tune",
]
