"""Few penalties for contextual temperature scaling to choose from, where the choice is not what is tested."""

from __future__ import annotations

import numpy as np
import pytest

from segcal.calibrators.shared import context_fit


def choose_among_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try none and one penalty of each kind: 4 fits for each fold instead of 30."""
    monkeypatch.setattr(context_fit, "FEATURE_RIDGES", (np.inf, 0.1))
    monkeypatch.setattr(context_fit, "CLASS_RIDGES", (np.inf, 0.01))
    monkeypatch.setattr(context_fit, "PAIR_RIDGES", (np.inf, 0.03))
