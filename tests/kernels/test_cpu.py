"""The kernels for the CPU, and their plain forms, against loops and by hand."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from segcal.functional.counting import percentile_edges
from segcal.functional.pixels import all_finite
from segcal.kernels.cpu import compiling
from segcal.kernels.dispatch import plain_only
from support import references
from support.engines import CPU, PLAIN
from support.kernel_inputs import Scene

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ENGINES = pytest.mark.parametrize("engine", [CPU, PLAIN], ids=["cpu", "plain"])
EXACT = {"rtol": 1e-13, "atol": 1e-14}


def scene(classes: int, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """A row of logits and labels."""
    return Scene((n,), dtype, classes).flat


# ---------------------------------------------------------------------------------------------------------------------
# elementary functions


def relative_error(found: list[float], expected: np.ndarray) -> float:
    return float(np.max(np.abs(np.array(found) - expected) / expected))


def test_exp_is_accurate(rng: np.random.Generator) -> None:
    x = -np.concatenate([[0.0, 1e-300, 1e-17, 700.0], np.linspace(0, 700, 5001), 10 ** rng.uniform(-18, 2.8, 5000)])
    x = np.maximum(x, -700.0)
    assert relative_error([compiling.exp_below_zero(v) for v in x], np.exp(x)) < 2e-15
    assert compiling.exp_below_zero(0.0) == 1.0


@pytest.mark.parametrize("x", [-701.0, -1e4, -1e38, -np.inf])
def test_exp_far_below_is_next_to_nothing(x: float) -> None:
    assert 0 <= compiling.exp_below_zero(x) < 1e-300


def test_log_is_accurate(rng: np.random.Generator) -> None:
    # 1 + tiny: the sum of exponentials of a confident pixel
    x = np.concatenate([1 + 10.0 ** np.arange(-15, 1), rng.uniform(1, 200, 5000), 2.0 ** np.arange(1, 60)])
    assert relative_error([compiling.log_above_one(v) for v in x], np.log(x)) < 2e-15
    assert compiling.log_above_one(1.0) == 0.0


# ---------------------------------------------------------------------------------------------------------------------
# per pixel


@ENGINES
@pytest.mark.parametrize("classes", [1, 2, 3, 8, 13])
def test_describe_agrees_with_loops(engine: object, classes: int) -> None:
    logits, labels = scene(classes, 300, torch.float64)
    valid = labels.numpy() >= 0
    z, y = logits.numpy()[:, valid], labels.numpy()[valid]
    probs, predicted, confidence = references.confidences(z)
    entropy = [references.total_entropy(z[:, [n]], y[[n]], 1.0) for n in range(len(y))]
    nll = [references.total_nll(z[:, [n]], y[[n]], 1.0) for n in range(len(y))]
    brier = ((probs - np.eye(classes)[y].T) ** 2).sum(axis=0)
    found = engine.pixel_statistics(logits, labels)
    for values, expected in zip(found, (confidence, predicted, nll, brier, entropy), strict=True):
        np.testing.assert_allclose(values.numpy()[valid], expected, rtol=1e-13, atol=1e-14)


@ENGINES
@pytest.mark.parametrize("classes", range(1, 41))
def test_equal_logits_give_exactly_one_over_their_number(engine: object, classes: int) -> None:
    confidence, predicted, *_ = engine.pixel_statistics(
        torch.full((classes, 3), 7.25), torch.zeros(3, dtype=torch.int64)
    )
    assert confidence.tolist() == [1 / classes] * 3
    assert predicted.tolist() == [0] * 3


@ENGINES
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_huge_logits_by_hand(engine: object, dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4, 1e4], [-1e4, 1e4, 1e4]], dtype=dtype)
    gap = float(logits[0, 0].double() - logits[1, 0].double())
    confidence, predicted, nll, brier, entropy = engine.pixel_statistics(logits, torch.zeros(3, dtype=torch.int64))
    assert confidence.tolist() == [1, 1, 0.5]
    assert predicted.tolist() == [0, 1, 0]
    np.testing.assert_allclose(nll, [0, gap, np.log(2)], **EXACT)
    np.testing.assert_allclose(brier, [0, 2, 0.5], **EXACT)
    np.testing.assert_allclose(entropy, [0, 0, np.log(2)], **EXACT)


# ---------------------------------------------------------------------------------------------------------------------
# percentiles

unit = st.floats(0, 1)
VALUES = st.one_of(
    st.lists(unit, min_size=1, max_size=60),
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0, 1 - 2**-53, 5e-324]), min_size=1, max_size=60),
    st.builds(lambda value, n: [value] * n, unit, st.integers(1, 60)),
)


def mass_edges(engine: object, confidence: Tensor, index: Tensor, bins: int) -> Tensor:
    """The edges that an engine finds."""
    with plain_only() if engine is PLAIN else nullcontext():
        return percentile_edges(confidence, index, bins)


@ENGINES
@example(values=[0.25, 0.5, 0.5, 0.5], bins=3)
@example(values=list(np.linspace(0, 1, 20)), bins=19)
@given(values=VALUES, bins=st.integers(1, 40))
def test_edges_are_those_of_numpy_to_the_last_bit(engine: object, values: list[float], bins: int) -> None:
    confidence = torch.tensor([0.5, *values], dtype=torch.float64)
    found = mass_edges(engine, confidence, torch.arange(1, len(confidence)), bins)
    np.testing.assert_array_equal(found, references.equal_mass_edges(np.array(values), bins))


@ENGINES
@pytest.mark.parametrize("n", [1, 2, 257, 5000, (1 << 16) + 7])
@pytest.mark.parametrize("rounded", [False, True], ids=["continuous", "tied"])
@pytest.mark.parametrize("bins", [1, 7, 10, 15])
def test_edges_of_many_values(rng: np.random.Generator, engine: object, n: int, rounded: bool, bins: int) -> None:
    values = 1 - rng.random(n) ** 4
    values = values.round(2) if rounded else values
    found = mass_edges(engine, torch.from_numpy(values), torch.arange(n), bins)
    np.testing.assert_array_equal(found, references.equal_mass_edges(values, bins))


@ENGINES
def test_no_pixels_have_no_edges(engine: object) -> None:
    edges = mass_edges(engine, torch.ones(3).double(), torch.empty(0, dtype=torch.int64), 4)
    assert edges.shape == (5,)
    assert edges.isnan().all()


# ---------------------------------------------------------------------------------------------------------------------
# per region


def test_a_long_sum_of_equal_confidences_stays_exact() -> None:
    """Each addition of the same number to a growing sum rounds the same way; partial sums keep that small."""
    n, value = 4_000_000, 0.7310585786300049
    confidence = torch.full((n,), value, dtype=torch.float64)
    zeros = torch.zeros(n, dtype=torch.int64)
    edges = torch.tensor([0.0, 1.0]).double()
    pixels = (confidence, zeros.int(), zeros, *[confidence] * 3)
    count, hit, total, support, sums = CPU.count_regions([torch.arange(n)], pixels, edges.expand(1, 2, -1), 1)
    assert {*count.flatten().tolist(), *hit.flatten().tolist(), support.item()} == {n}
    for found in (*total.flatten(), *sums.flatten()):
        assert found.item() == pytest.approx(n * value, rel=1e-12)


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), -float("inf")])
def test_entropy_shows_what_is_not_finite(bad: float | None) -> None:
    logits = torch.randn(5, 700)
    if bad is not None:
        for c, at in ((0, 3), (4, 511)):
            spoilt = logits.clone()
            spoilt[c, at] = bad
            for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
                assert not all_finite(spoilt.to(dtype))
                assert not all_finite(spoilt.to(dtype).T)
            for engine in (CPU, PLAIN):
                entropy = engine.pixel_statistics(spoilt, torch.zeros(700, dtype=torch.int64))[4]
                assert (~torch.isfinite(entropy)).nonzero().flatten().tolist() == [at]
    else:
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            assert all_finite(logits.to(dtype))
            assert all_finite(torch.full((3, 700), torch.finfo(dtype).max, dtype=dtype)), "though their sum is not"
        assert bool(torch.isfinite(CPU.pixel_statistics(logits, torch.zeros(700, dtype=torch.int64))[4]).all())


# ---------------------------------------------------------------------------------------------------------------------
# likelihood


@ENGINES
@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5])
def test_likelihood_agrees_with_differences(rng: np.random.Generator, engine: object, alpha: float) -> None:
    """The slope and the curvature are those of the NLL that loops compute."""
    z, y = rng.normal(scale=2, size=(4, 60)), rng.integers(-1, 4, 60)
    one = torch.empty(0).double(), torch.tensor([alpha], dtype=torch.float64)
    sums = engine.binned_sums(torch.from_numpy(z), torch.from_numpy(y), *one)[0]
    pixels, nll, slope, curvature, at_zero, at_infinity = sums.tolist()
    below, middle, above = (references.total_nll(z, y, alpha + h) for h in (-1e-4, 0, 1e-4))
    assert pixels == (y >= 0).sum()
    assert nll == pytest.approx(middle, rel=1e-13)
    assert slope == pytest.approx((above - below) / 2e-4, abs=1e-5)
    assert curvature == pytest.approx((above - 2 * middle + below) / 1e-8, rel=1e-4)
    kept = [(z[:, n], label) for n, label in enumerate(y) if label >= 0]
    assert at_zero == pytest.approx(sum(v.mean() - v[label] for v, label in kept), rel=1e-12)
    assert at_infinity == pytest.approx(sum(v.max() - v[label] for v, label in kept), rel=1e-12)
