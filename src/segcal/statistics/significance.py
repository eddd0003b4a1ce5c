"""Tests of significance: Mann-Whitney U (the paper's), the paired Wilcoxon test, Benjamini-Hochberg correction.

Every method is measured on the same images, so the values of two methods come in pairs. Mann-Whitney U ignores the
pairs: differences in difficulty between images count as noise. Wilcoxon's signed-rank test looks at the difference
within each pair, from which that noise is gone, and so detects smaller differences.

A new test is its two functions, one line in `TESTS` and its name in `Test`; tables and messages follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from segcal.types import Array

Test = Literal["wilcoxon", "paper"]


@dataclass(frozen=True)
class SignificanceTest:
    """A test of whether ours and theirs differ.

    Attributes:
        title: Name in tables.
        p_value: Two-sided p-value of (ours, theirs); 1 where nothing differs.
        tends_lower: Whether ours tend to be lower than theirs, in the ranks that the test is about.
        paired: Whether values are compared image by image; images of one group then count once.
    """

    title: str
    p_value: Callable[[Array, Array], float]
    tends_lower: Callable[[Array, Array], bool]
    paired: bool = False


def mean_std(values: Sequence[float] | Array) -> tuple[float, float]:
    """Return mean and standard deviation (of the sample, without Bessel's correction), ignoring NaN.

    Examples:
        >>> mean_std([1.0, 3.0, float("nan")])
        (2.0, 1.0)
    """
    kept = _finite(values)
    with np.errstate(invalid="ignore"):  # infinite values, whose spread is not known
        return (float(kept.mean()), float(kept.std())) if kept.size else (float("nan"), float("nan"))


def mann_whitney_p(ours: Sequence[float] | Array, theirs: Sequence[float] | Array) -> float:
    """Return the two-sided p-value of the Mann-Whitney U test; 1 where nothing differs."""
    from scipy.stats import mannwhitneyu  # noqa: PLC0415  scipy.stats is slow to import

    a, b = _finite(ours), _finite(theirs)
    if not a.size or not b.size or np.ptp(np.concatenate([a, b])) == 0:
        return 1.0
    return float(mannwhitneyu(a, b, alternative="two-sided").pvalue)


def wilcoxon_p(ours: Sequence[float] | Array, theirs: Sequence[float] | Array) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test; 1 where nothing differs.

    Pairs in which a value is NaN are skipped, and so are pairs of equal values, as in Wilcoxon's original test.
    """
    from scipy.stats import wilcoxon  # noqa: PLC0415  as above

    difference = _differences(ours, theirs)
    return float(wilcoxon(difference).pvalue) if difference.size else 1.0


def adjusted_p(pairs: Sequence[tuple[Array, Array]], test: Test = "wilcoxon") -> Array:
    """Return the p-values of pairs (ours, theirs), adjusted by Benjamini-Hochberg over all pairs."""
    from scipy.stats import false_discovery_control  # noqa: PLC0415  as above

    if not pairs:
        return np.empty(0)
    return np.asarray(false_discovery_control([TESTS[test].p_value(*pair) for pair in pairs], method="bh"))


def significantly_better(
    pairs: Sequence[tuple[Array, Array]],
    *,
    lower_is_better: Sequence[bool],
    rate: float = 0.05,
    test: Test = "wilcoxon",
) -> list[bool]:
    """Return for each pair (ours, theirs) whether ours are better, at a false discovery rate over all pairs.

    The test with Benjamini-Hochberg correction decides whether there is a difference (Sec. 4, "Statistical
    Considerations"), and the ranks that it is about decide the direction.
    """
    tends_lower = TESTS[test].tends_lower
    return [
        bool(p <= rate) and (tends_lower(*pair) if wanted else tends_lower(*pair[::-1]))
        for p, pair, wanted in zip(adjusted_p(pairs, test), pairs, lower_is_better, strict=True)
    ]


def _tends_lower(ours: Array, theirs: Array) -> bool:
    from scipy.stats import rankdata  # noqa: PLC0415  as above

    a, b = _finite(ours), _finite(theirs)
    ranks = rankdata(np.concatenate([a, b]))
    return bool(a.size and b.size and ranks[: a.size].mean() < ranks[a.size :].mean())


def _pairs_lower(ours: Array, theirs: Array) -> bool:
    from scipy.stats import rankdata  # noqa: PLC0415  as above

    difference = _differences(ours, theirs)
    return bool(difference.size and np.sum(np.sign(difference) * rankdata(np.abs(difference))) < 0)


def _differences(ours: Sequence[float] | Array, theirs: Sequence[float] | Array) -> Array:
    """Return the differences of the pairs, without NaN and without those that are 0."""
    found = _finite(np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64))
    return np.asarray(found[found != 0])


def _finite(values: Sequence[float] | Array) -> Array:
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]


TESTS: Mapping[Test, SignificanceTest] = {
    "wilcoxon": SignificanceTest("paired Wilcoxon", wilcoxon_p, _pairs_lower, paired=True),
    "paper": SignificanceTest("Mann-Whitney U", mann_whitney_p, _tends_lower),
}
"""Every test by name, the default first."""
