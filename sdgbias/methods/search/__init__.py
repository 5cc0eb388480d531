"""Tuning CADE on validation rows; the test rows never enter. ``random``: the paper's protocol;
``exact``: line searches over the breakpoints of the objective; ``kernel``: the payoff of many
settings at once."""

from sdgbias.methods.protocol import DRAWS as DRAWS
from sdgbias.methods.protocol import RANGES as RANGES
from sdgbias.methods.protocol import Ranges as Ranges
from sdgbias.methods.search.exact import ExactResult as ExactResult
from sdgbias.methods.search.exact import Kind as Kind
from sdgbias.methods.search.exact import exact_search as exact_search
from sdgbias.methods.search.exact import held_out as held_out
from sdgbias.methods.search.exact import tune as tune
from sdgbias.methods.search.kernel import Packed as Packed
from sdgbias.methods.search.kernel import mean_payoff as mean_payoff
from sdgbias.methods.search.kernel import pack as pack
from sdgbias.methods.search.kernel import row_payoff as row_payoff
from sdgbias.methods.search.random import SearchResult as SearchResult
from sdgbias.methods.search.random import SearchSettings as SearchSettings
from sdgbias.methods.search.random import random_search as random_search
from sdgbias.methods.search.random import take as take
