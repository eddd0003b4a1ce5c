"""Cases with further passes that help: each pass has errors of its own."""

from __future__ import annotations

import numpy as np

from segcal.types import Case

CLASSES, SIZE = 3, (24, 18)


def looks(count: int, passes: int = 2, noise: float = 3.0, seed: int = 0) -> list[Case]:
    """Overconfident networks that see the same blocks with noise of their own, so that their mean knows more."""
    random = np.random.default_rng(seed)
    cases = []
    for number in range(count):
        labels = np.kron(random.integers(0, CLASSES, (4, 3)), np.ones((6, 6), int)).astype(np.uint8)
        signal = 4.0 * np.eye(CLASSES)[labels].transpose(2, 0, 1)
        members = (signal + noise * random.normal(size=(1 + passes, CLASSES, *SIZE))).astype(np.float32)
        cases.append(Case(f"case {number}", members[0], labels, passes=members[1:]))
    return cases
