"""Statistics over rows that share places: intervals, paired tests, resampling, groups. Arrays in,
arrays out.

Everything is clustered: questions about one DHS cluster share a picture and survey answers, so they
are not independent. ``clusters`` is (N,) of any sortable key. NaN rows are left out and n says so;
what can't be had is NaN.

intervals   Estimate, mean(s), share, amount, fraction, macro, two_way: one number with its n, its
            clusters and a 95 % interval
resample    bootstrap over clusters, of anything that is a function of column means
paired      McNemar, clustered t test and bootstrap test of a difference, minimum detectable effect
families    Holm, Benjamini-Hochberg, letters of a leaderboard
groups      metrics by group, disparity between groups
"""

from __future__ import annotations

from sdgbias.methods.stats.bootstrap import (
    Boot,
    Interval,
    bootstrap,
    cluster_sums,
    interval,
    replicates,
    widening,
)
from sdgbias.methods.stats.groups import (
    SMALLEST,
    ByGroup,
    Disparity,
    GroupMeans,
    by_group,
    disparity,
    disparity_change,
    group_means,
    grouped,
    intersect,
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
from sdgbias.methods.stats.multiple import benjamini_hochberg, holm, leaderboard, letters
from sdgbias.methods.stats.paired import (
    McNemar,
    PairedTest,
    mcnemar,
    minimum_detectable,
    net_signs,
    paired,
    paired_bootstrap,
    sign_test,
)

__all__ = [
    "FEWEST",
    "LEVEL",
    "SMALLEST",
    "Boot",
    "ByGroup",
    "Disparity",
    "Estimate",
    "GroupMeans",
    "Interval",
    "Kind",
    "McNemar",
    "PairedTest",
    "amount",
    "benjamini_hochberg",
    "bootstrap",
    "by_group",
    "cluster_spread",
    "cluster_sums",
    "codes",
    "disparity",
    "disparity_change",
    "estimate",
    "fraction",
    "group_means",
    "grouped",
    "holm",
    "intersect",
    "interval",
    "leaderboard",
    "letters",
    "macro",
    "mcnemar",
    "mean",
    "means",
    "minimum_detectable",
    "net_signs",
    "nothing",
    "paired",
    "paired_bootstrap",
    "replicates",
    "share",
    "sign_test",
    "spread_of",
    "two_way",
    "widening",
    "wider",
    "widest",
]
