"""Statistics over rows that share places: intervals, paired tests, resampling, groups. Arrays in,
arrays out.

Everything is clustered: questions about one DHS cluster share a picture and survey answers, so they
are not independent. ``clusters`` is (N,) of any sortable key. NaN rows are left out and n says so;
what can't be had is NaN.

intervals   Estimate: one number with its n, its clusters and a 95 % interval; the interval of each
            kind of number
bootstrap   draws of clusters
paired      tests of a difference from the sums of clusters, minimum detectable effect
multiple    Holm
measure     means and paired differences over groups, of many columns at once; mean, share, amount
            and paired: of one column in one group; macro: the mean of classes; linearised: of
            any statistic whose rows have an influence
ranks       letters of a leaderboard
groups      disparity between groups
"""

from __future__ import annotations

from sdgbias.methods.stats.bootstrap import effective as effective
from sdgbias.methods.stats.bootstrap import replicates as replicates
from sdgbias.methods.stats.bootstrap import widening as widening
from sdgbias.methods.stats.groups import Disparity as Disparity
from sdgbias.methods.stats.groups import GroupMeans as GroupMeans
from sdgbias.methods.stats.groups import disparity as disparity
from sdgbias.methods.stats.groups import disparity_change as disparity_change
from sdgbias.methods.stats.groups import group_means as group_means
from sdgbias.methods.stats.intervals import FEWEST as FEWEST
from sdgbias.methods.stats.intervals import LEVEL as LEVEL
from sdgbias.methods.stats.intervals import Estimate as Estimate
from sdgbias.methods.stats.intervals import Kind as Kind
from sdgbias.methods.stats.intervals import codes as codes
from sdgbias.methods.stats.intervals import nothing as nothing
from sdgbias.methods.stats.intervals import spread_of as spread_of
from sdgbias.methods.stats.intervals import widest as widest
from sdgbias.methods.stats.measure import SMALLEST as SMALLEST
from sdgbias.methods.stats.measure import ClusterSums as ClusterSums
from sdgbias.methods.stats.measure import MeansByGroup as MeansByGroup
from sdgbias.methods.stats.measure import ValueColumn as ValueColumn
from sdgbias.methods.stats.measure import adjusted as adjusted
from sdgbias.methods.stats.measure import amount as amount
from sdgbias.methods.stats.measure import linearised as linearised
from sdgbias.methods.stats.measure import macro as macro
from sdgbias.methods.stats.measure import mean as mean
from sdgbias.methods.stats.measure import measure as measure
from sdgbias.methods.stats.measure import measure_sums as measure_sums
from sdgbias.methods.stats.measure import paired as paired
from sdgbias.methods.stats.measure import share as share
from sdgbias.methods.stats.multiple import apart_from_zero as apart_from_zero
from sdgbias.methods.stats.multiple import holm as holm
from sdgbias.methods.stats.multiple import p_of_interval as p_of_interval
from sdgbias.methods.stats.paired import PairedTest as PairedTest
from sdgbias.methods.stats.paired import flip_test as flip_test
from sdgbias.methods.stats.paired import minimum_detectable as minimum_detectable
from sdgbias.methods.stats.paired import net_signs as net_signs
from sdgbias.methods.stats.paired import sign_test as sign_test
from sdgbias.methods.stats.ranks import leaderboard as leaderboard
from sdgbias.methods.stats.ranks import letters as letters
