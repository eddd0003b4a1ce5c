"""Offsets for pairs of classes: the margin by hand, derivatives by differences, and what they must keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.functional.pairs import PairPixels, fit_pairs, pair_margins, pair_path

CLASSES = 4


def pixels(count: int = 3000, seed: int = 0, offset: float = -1.5) -> PairPixels:
    """Where class 0 is predicted, class 1 is truly more likely than its scores say."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(CLASSES, count, generator=generator).double()
    cold = torch.full((count,), 1 / 1.3).double()
    true = torch.zeros(CLASSES, CLASSES).double()
    true[0, 1] = offset
    drawn = torch.softmax(pair_margins(logits.T, 1 / cold[:, None], true), dim=1)
    labels = torch.multinomial(drawn, 1, generator=generator).squeeze(1)
    return PairPixels.of(logits, labels, logits.argmax(dim=0), cold)


def test_a_margin_by_hand() -> None:
    z, heat = torch.tensor([[3.0, 1.0, -2.0]]), torch.tensor([[2.0]])
    offsets = torch.tensor([[0.0, -1.0, 2.0], [9.0, 9.0, 9.0], [9.0, 9.0, 9.0]])  # class 0 is predicted
    found = pair_margins(z, heat, offsets)[0]
    expected = [np.log(1 + np.exp(b) * (np.exp(m / 2) - 1)) for m, b in ((2.0, -1.0), (5.0, 2.0))]
    assert float(found[0]) == pytest.approx(1.5)
    assert (found[0] - found[1:]).tolist() == pytest.approx(expected, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 20.0))
def test_labels_stay_and_no_offset_is_plain_scaling(seed: int, heat: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = 5 * torch.randn(1, CLASSES, 50, generator=generator).double()
    warm = torch.full((1, 1, 50), heat).double()
    offsets = 4 * torch.randn(CLASSES, CLASSES, generator=generator).double()
    found = pair_margins(z, warm, offsets)
    assert torch.equal(found.argmax(dim=1), z.argmax(dim=1))
    torch.testing.assert_close(pair_margins(z, warm, 0 * offsets), z / warm)
    lowered = torch.softmax(pair_margins(z, warm, -offsets.abs()), dim=1).amax(dim=1)
    assert (lowered <= torch.softmax(z / warm, dim=1).amax(dim=1) + 1e-12).all(), "never more confident"


@pytest.mark.parametrize("offset", [-1e4, -100.0, -20.0, -8.0, 100.0, 1e4])
@pytest.mark.parametrize("scale", [1.0, 300.0, 1e30])
def test_no_rival_is_above_the_winner_by_rounding(offset: float, scale: float) -> None:
    """In float32, where `z / T` and the logarithm of the margin cancel, and `exp(offset)` may be 0 or infinite."""
    z = scale * torch.randn(1, CLASSES, 2000, generator=torch.Generator().manual_seed(0))
    z = torch.cat([z, (z / scale).round()], dim=2)  # among them ties
    found = pair_margins(z, torch.full_like(z[:, :1], 1.3), torch.full((CLASSES, CLASSES), offset))
    assert found.isfinite().all()
    winner = z.argmax(dim=1, keepdim=True)
    assert (found <= found.gather(1, winner)).all()
    assert torch.equal(found.gather(1, winner), z.gather(1, winner) / 1.3)


def test_sums_are_those_of_the_margins_and_their_derivatives_are_true() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(CLASSES, 200, generator=generator)
    labels = torch.randint(-1, CLASSES, (200,), generator=generator)
    heat = 1 + torch.rand(200, generator=generator).double()
    offsets = 0.5 * torch.randn(CLASSES, CLASSES, generator=generator).double()
    data = PairPixels.of(logits, labels, logits.argmax(dim=0), 1 / heat)
    found = data.sums(offsets)
    mapped = pair_margins(logits.double().T, heat[:, None], offsets)
    loss = torch.nn.functional.cross_entropy(mapped, labels, ignore_index=-1, reduction="sum")
    assert float(found.nll.sum()) == pytest.approx(float(loss), rel=1e-9)
    assert found.pixels == int((labels >= 0).sum())
    for k, j in np.ndindex(CLASSES, CLASSES):
        step = torch.zeros_like(offsets)
        step[k, j] = 1e-6
        slope = float(data.sums(offsets + step).nll.sum() - data.sums(offsets - step).nll.sum()) / 2e-6
        assert float(found.gradient[k, j]) == pytest.approx(slope if k != j else 0.0, abs=1e-5)
        if k != j:
            bend = (data.sums(offsets + step).gradient[k] - data.sums(offsets - step).gradient[k]) / 2e-6
            torch.testing.assert_close(found.curvature[k, j], bend, rtol=1e-6, atol=1e-5)


def test_newton_finds_what_made_the_labels_from_any_start() -> None:
    data, generator = pixels(20_000), torch.Generator().manual_seed(0)
    zero, most = torch.zeros(CLASSES, CLASSES).double(), float("inf")
    one = fit_pairs(data.sums, zero, 1e-4, upper=most, tolerance=1e-12)
    assert one.converged
    assert float(one.offsets[0, 1]) == pytest.approx(-1.5, abs=0.2)
    assert float(one.offsets[1:].abs().max()) < 0.3
    for _ in range(3):
        start = 1.5 * torch.randn(CLASSES, CLASSES, generator=generator).double().fill_diagonal_(0)
        other = fit_pairs(data.sums, start, 1e-4, upper=most, tolerance=1e-12)
        torch.testing.assert_close(other.offsets, one.offsets, rtol=0, atol=1e-4)
        held = [fit_pairs(data.sums, begin, 1e-4, tolerance=1e-12) for begin in (start, zero)]
        assert max(fit.steps for fit in held) <= 8
        offsets = held[0].offsets
        assert float(offsets.max()) <= 0
        slope = data.sums(offsets).gradient / 20_000 + 1e-4 * offsets
        assert float(slope[offsets < 0].abs().max()) < 1e-6
        assert float(slope[offsets == 0].max()) < 1e-6, "at the bound, only an offset above it would do better"
        torch.testing.assert_close(held[0].offsets, held[1].offsets, rtol=0, atol=1e-4)


def test_the_ridge_is_infinite_where_nothing_holds_and_finite_where_something_does() -> None:
    among = (np.inf, 0.1, 0.01, 1e-3)

    def chosen(offset: float) -> float:
        folds = [pixels(2000, seed, offset=offset) for seed in range(5)]
        rest = [[other for other in folds if other is not left] for left in folds]
        picked = pair_path(rest, folds, among).choice(cautious=True)
        assert [row.strength for row in picked.tried] == list(among)
        return picked.strength

    assert chosen(0.0) == np.inf
    assert chosen(-2.0) < np.inf
