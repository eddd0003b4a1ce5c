"""Which differences are real: Mann-Whitney U (the paper's test), the paired Wilcoxon test, Benjamini and Hochberg.

Every method is measured on the same images, so the values of two methods come in pairs. Mann-Whitney U does not know of
the pairs: what makes an image hard for all methods counts as noise. Wilcoxon's signed-rank test looks at the difference
within each pair, in which that noise is gone, and so finds smaller differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import stats

from segcal.types import Array

Test = Literal["mann-whitney", "wilcoxon"]
TESTS: dict[Test, str] = {"mann-whitney": "Mann-Whitney U", "wilcoxon": "paired Wilcoxon"}


def mean_std(values: Sequence[float] | Array) -> tuple[float, float]:
    """Mean and standard deviation (of the sample itself, not of a population behind it), without the NaNs.

    >>> mean_std([1.0, 3.0, float("nan")])
    (2.0, 1.0)
    """
    kept = _finite(values)
    return (float(kept.mean()), float(kept.std())) if kept.size else (float("nan"), float("nan"))


def mann_whitney_p(ours: Sequence[float] | Array, theirs: Sequence[float] | Array) -> float:
    """Two-sided p-value of the Mann-Whitney U test; 1 where there is nothing to tell apart."""
    a, b = _finite(ours), _finite(theirs)
    if not a.size or not b.size or np.ptp(np.concatenate([a, b])) == 0:
        return 1.0
    return float(stats.mannwhitneyu(a, b, alternative="two-sided").pvalue)


def wilcoxon_p(ours: Sequence[float] | Array, theirs: Sequence[float] | Array) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test of pairs; 1 where there is nothing to tell apart.

    Pairs of which one value is NaN are left out, and pairs of equal values too, as Wilcoxon did.
    """
    off = _differences(ours, theirs)
    off = off[off != 0]
    return float(stats.wilcoxon(off).pvalue) if off.size else 1.0


def adjusted_p(pairs: Sequence[tuple[Array, Array]], test: Test = "mann-whitney") -> Array:
    """P-values of pairs (ours, theirs), adjusted by Benjamini and Hochberg for a false discovery rate over all."""
    if not pairs:
        return np.empty(0)
    p_of = {"mann-whitney": mann_whitney_p, "wilcoxon": wilcoxon_p}[test]
    return np.asarray(stats.false_discovery_control([p_of(*pair) for pair in pairs], method="bh"))


def significantly_better(
    pairs: Sequence[tuple[Array, Array]],
    *,
    lower_is_better: Sequence[bool],
    rate: float = 0.05,
    test: Test = "mann-whitney",
) -> list[bool]:
    """For each pair (ours, theirs): are ours better, at a false discovery rate of `rate` over all pairs?

    Differences are told by the test with Benjamini and Hochberg's correction (Sec. 4, "Statistical Considerations"),
    their direction by the ranks that the test is about.
    """
    tends_lower = {"mann-whitney": _tends_lower, "wilcoxon": _pairs_lower}[test]
    return [
        bool(p <= rate) and (tends_lower(*pair) if wanted else tends_lower(*pair[::-1]))
        for p, pair, wanted in zip(adjusted_p(pairs, test), pairs, lower_is_better, strict=True)
    ]


def _tends_lower(ours: Array, theirs: Array) -> bool:
    a, b = _finite(ours), _finite(theirs)
    ranks = stats.rankdata(np.concatenate([a, b]))
    return bool(a.size and b.size and ranks[: a.size].mean() < ranks[a.size :].mean())


def _pairs_lower(ours: Array, theirs: Array) -> bool:
    off = _differences(ours, theirs)
    off = off[off != 0]
    return bool(off.size and np.sum(np.sign(off) * stats.rankdata(np.abs(off))) < 0)


def _differences(ours: Sequence[float] | Array, theirs: Sequence[float] | Array) -> Array:
    return _finite(np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64))


def _finite(values: Sequence[float] | Array) -> Array:
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]
