"""Mean(std), bootstrap intervals over images or groups, and tests of significance with a false discovery rate."""

from segcal.statistics.bootstrap import (
    Drawing,
    Interval,
    IntervalKind,
    bootstrap_doubts,
    bootstrap_interval,
    bootstrap_intervals,
    bootstrap_weights,
    clusters_of,
    weighted_ratio,
    weighted_sums,
)
from segcal.statistics.selection import Difference, Selection, mean_of, paired_difference, simplest_good
from segcal.statistics.significance import (
    TESTS,
    SignificanceTest,
    Test,
    adjusted_p,
    mann_whitney_p,
    mean_std,
    significantly_better,
    wilcoxon_p,
)

__all__ = [
    "TESTS",
    "Difference",
    "Drawing",
    "Interval",
    "IntervalKind",
    "Selection",
    "SignificanceTest",
    "Test",
    "adjusted_p",
    "bootstrap_doubts",
    "bootstrap_interval",
    "bootstrap_intervals",
    "bootstrap_weights",
    "clusters_of",
    "mann_whitney_p",
    "mean_of",
    "mean_std",
    "paired_difference",
    "significantly_better",
    "simplest_good",
    "weighted_ratio",
    "weighted_sums",
    "wilcoxon_p",
]
