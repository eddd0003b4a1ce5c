"""Slopes of the likelihood against automatic differentiation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from segcal.functional import slopes
from segcal.functional.slopes import likelihood_slopes


@pytest.mark.parametrize(("classes", "count"), [(1, 3), (4, 200), (57, 70)])
def test_slopes_are_derivatives_of_the_log_likelihood(
    classes: int, count: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of log p(label) in 1/T, for few pixels at a time and for many, and 0 for ignored pixels."""
    logits = torch.from_numpy(rng.normal(scale=3.0, size=(classes, count)))
    labels = torch.from_numpy(rng.integers(-1, classes, count))
    monkeypatch.setattr(slopes, "_CHUNK", 100)
    for kind in (torch.float16, torch.float32, torch.float64):
        given = logits.to(kind)
        for k, slope in enumerate(likelihood_slopes(given, labels, 0.125, 6)):
            inverse = torch.full((count,), 1 / (0.125 * 2 ** (k / 2)), dtype=torch.float64, requires_grad=True)
            own = torch.log_softmax(given.double() * inverse, dim=0).gather(0, labels.clamp(min=0)[None])[0]
            (expected,) = torch.autograd.grad(own.sum(), inverse)
            expected = expected * (labels >= 0)
            torch.testing.assert_close(slope, expected.float(), rtol=1e-5, atol=1e-6)


def test_a_correct_pixel_never_has_a_negative_slope(rng: np.random.Generator) -> None:
    """Not even by rounding, or windows without errors would have an optimum."""
    logits = torch.from_numpy(rng.normal(scale=20.0, size=(5, 400)).astype(np.float32))
    assert (likelihood_slopes(logits, logits.argmax(dim=0), 0.125, 6) >= 0).all()
