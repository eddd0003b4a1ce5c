"""Splits of names into disjoint parts, the same on every machine.

A split is a list of folds, a fold three lists of names. The paper's nested cross-validation on LPBA40 (appendix
"Implementation") is `nested_cross_validation` with its defaults: two networks, trained on 17 volumes, validated on 3
and tested on the other 20; for each, two calibrators, fitted on 10 of those 20, validated on the 3 and tested on the
other 10. Together the four cover all 40 volumes once, and nothing is tested on what it was fitted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from segcal.types import InputError


@dataclass(frozen=True)
class Fold:
    """Names to fit on, to choose on and to test on."""

    fit: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True)
class NestedFold:
    """The fold of a network, and the folds of the calibrators that are fitted to its scores."""

    network: Fold
    calibration: tuple[Fold, ...]


def cross_validation(names: Sequence[str], *, validation: int = 0, seed: int = 0) -> tuple[Fold, Fold]:
    """Split names into two halves, each tested once.

    Args:
        names: What to split.
        validation: Names of each fold that are taken from what is fitted on, to choose on.
        seed: Random seed of the order.

    >>> tuple(len(fold.test) for fold in cross_validation(list("abcde")))
    (3, 2)
    """
    ordered = _shuffled(names, seed)
    one, other = ordered[::2], ordered[1::2]
    if min(len(one), len(other)) <= validation:
        raise InputError(
            f"{len(other)} names, of which {validation} are to validate on, leave none to fit on; use more names "
            "or less validation"
        )

    def fold(rest: Sequence[str], test: Sequence[str]) -> Fold:
        fitted = len(rest) - validation
        return Fold(tuple(rest[:fitted]), tuple(rest[fitted:]), tuple(test))

    return fold(other, one), fold(one, other)


def nested_cross_validation(names: Sequence[str], *, validation: int = 3, seed: int = 0) -> tuple[NestedFold, ...]:
    """Split names for two networks, and the test names of each network again for two calibrators.

    Calibrators choose on the names that their network was validated on, never on names that it was trained on.

    Args:
        names: What to split.
        validation: Names that a network and its calibrators are validated on.
        seed: Random seed of the order.
    """
    found = []
    for network in cross_validation(names, validation=validation, seed=seed):
        halves = cross_validation(network.test, seed=seed)
        calibration = tuple(Fold(half.fit, network.validation, half.test) for half in halves)
        found.append(NestedFold(network, calibration))
    return tuple(found)


def shuffled_parts(names: Sequence[str], sizes: Sequence[int], *, seed: int = 0) -> tuple[tuple[str, ...], ...]:
    """Return disjoint parts of the given sizes, drawn from the sorted names; the remaining names are in none.

    >>> shuffled_parts(["d", "c", "b", "a"], (2, 1))
    (('c', 'a'), ('b',))
    """
    if min(sizes, default=0) < 0:
        raise InputError(f"parts must have 0 names or more, got {', '.join(map(str, sizes))}")
    if sum(sizes) > len(names):
        raise InputError(f"parts of {', '.join(map(str, sizes))} need {sum(sizes)} names, got {len(names)}")
    ordered, ends = _shuffled(names, seed), np.cumsum([0, *sizes])
    return tuple(tuple(ordered[a:b]) for a, b in pairwise(ends))


def _shuffled(names: Sequence[str], seed: int) -> list[str]:
    if len(set(names)) < len(names):
        raise InputError("names must be unique to be split, got some twice; rename them")
    ordered = sorted(names)
    return [ordered[k] for k in np.random.default_rng(seed).permutation(len(ordered))]
