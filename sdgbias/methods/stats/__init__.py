"""Statistics over rows that share places: intervals, paired tests, resampling, groups. Arrays in,
arrays out.

Everything is clustered: questions about one DHS cluster share a picture and survey answers, so they
are not independent. ``clusters`` is (N,) of any sortable key. NaN rows are left out and n says so;
what can't be had is NaN.

intervals   Estimate, mean(s), share, amount, fraction, macro, two_way: one number with its n, its
            clusters and a 95 % interval
bootstrap   draws of clusters, intervals of anything that is a function of column means
paired      clustered t test of a difference, sign test, minimum detectable effect
multiple    Holm, letters of a leaderboard
groups      metrics by group, disparity between groups
"""

from __future__ import annotations

from sdgbias.methods.stats.bootstrap import (
    interval,
    replicates,
    widening,
)
from sdgbias.methods.stats.groups import (
    SMALLEST,
    ByGroup,
    Disparity,
    GroupMeans,
    disparity,
    disparity_change,
    group_means,
    grouped,
    wider,
)
from sdgbias.methods.stats.intervals import (
    FEWEST,
    LEVEL,
    Estimate,
    Kind,
    amount,
    cluster_spread,
    codes,
    estimate,
    fraction,
    macro,
    mean,
    means,
    nothing,
    share,
    spread_of,
    two_way,
    widest,
)
from sdgbias.methods.stats.multiple import holm, leaderboard, letters
from sdgbias.methods.stats.paired import (
    PairedTest,
    minimum_detectable,
    net_signs,
    paired,
    sign_test,
)

__all__ = [
    "FEWEST",
    "LEVEL",
    "SMALLEST",
    "ByGroup",
    "Disparity",
    "Estimate",
    "GroupMeans",
    "Kind",
    "PairedTest",
    "amount",
    "cluster_spread",
    "codes",
    "disparity",
    "disparity_change",
    "estimate",
    "fraction",
    "group_means",
    "grouped",
    "holm",
    "interval",
    "leaderboard",
    "letters",
    "macro",
    "mean",
    "means",
    "minimum_detectable",
    "net_signs",
    "nothing",
    "paired",
    "replicates",
    "share",
    "sign_test",
    "spread_of",
    "two_way",
    "widening",
    "wider",
    "widest",
]
