"""Shrinkage of a trained tree: the share of the way from temperature scaling to it that has the least loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from segcal.calibrators.shared.tree import TemperatureTree


def shrink_to_best(tree: TemperatureTree, shares: Sequence[float], loss: Callable[[], float]) -> tuple[float, float]:
    """Shrink a tree to the share at which `loss`, which reads the tree, is least; return that share and its loss."""
    learned = {name: values.clone() for name, values in tree.state_dict().items()}
    losses = dict[float, float]()

    def shrink(share: float) -> None:
        tree.load_state_dict(learned)
        tree.shrink(share)

    for share in shares:
        shrink(share)
        losses[share] = loss()
    best = min(losses, key=lambda share: (math.isnan(losses[share]), losses[share]))
    shrink(best)
    return best, losses[best]
