"""Names into disjoint parts, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from segcal.types import InputError


def shuffled_parts(names: Sequence[str], sizes: Sequence[int], *, seed: int = 0) -> tuple[tuple[str, ...], ...]:
    """Disjoint parts of the given sizes, drawn from the sorted names with numpy's generator; what is left is left out.

    >>> shuffled_parts(["d", "c", "b", "a"], (2, 1))
    (('c', 'a'), ('b',))
    """
    if len(set(names)) < len(names):
        raise InputError("names must be unique to be split, got some twice; rename them")
    if min(sizes, default=0) < 0:
        raise InputError(f"parts must have 0 names or more, got {', '.join(map(str, sizes))}")
    if sum(sizes) > len(names):
        raise InputError(f"parts of {', '.join(map(str, sizes))} need {sum(sizes)} names, got {len(names)}")
    order = np.random.default_rng(seed).permutation(len(names))
    ordered, ends = sorted(names), np.cumsum([0, *sizes])
    return tuple(tuple(ordered[k] for k in order[a:b]) for a, b in pairwise(ends))
