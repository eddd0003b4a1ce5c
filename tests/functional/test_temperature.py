"""Theorem 1 (the temperature of least NLL), Theorem 4 (NLL equals entropy there) and the state of confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from segcal.functional.temperature import (
    Likelihood,
    Root,
    confidence_excess,
    confidence_state,
    likelihood,
    likelihood_slopes,
    optimal_inverse_temperature,
    optimal_inverse_temperatures,
    pixel_inverse_temperature,
    root_of_increasing,
)
from support import references

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Images = list[tuple[Tensor, Tensor]]


def summed(images: Images, alpha: float) -> Likelihood:
    return Likelihood(*(sum(terms) for terms in zip(*(likelihood(z, y, alpha) for z, y in images), strict=True)))


def optimum(images: Images) -> Root:
    return optimal_inverse_temperature(partial(summed, images))


def laid_flat(images: Images) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.concatenate([z.double().reshape(len(z), -1).numpy() for z, _ in images], axis=1),
        np.concatenate([y.reshape(-1).numpy() for _, y in images]),
    )


def draw(classes: int, shape: Sequence[int], *, seed: int = 0, temperature: float = 2.0) -> Images:
    """Three images whose labels are drawn from the softmax of the logits divided by a temperature."""
    rng = np.random.default_rng(seed)
    images = []
    for _ in range(3):
        z = rng.normal(scale=3, size=(classes, *shape))
        y = (z / temperature + rng.gumbel(size=z.shape)).argmax(0)
        y[rng.random(shape) < 0.1] = -1
        images.append((torch.from_numpy(z), torch.from_numpy(y)))
    return images


# one pixel of three classes for each case of Theorem 1, the label's logit being below the mean, the largest, between
CASES = {
    "zero": ([3.0, 0.0, 2.0], 1, 0.0),
    "at the mean": ([3.0, 1.0, 2.0], 2, 0.0),
    "all equal": ([2.0, 2.0, 2.0], 0, 0.0),
    "infinite": ([3.0, 0.0, 2.0], 0, math.inf),
    "tied at the top": ([3.0, 0.0, 3.0], 2, math.inf),
    # with x = e^a the slope is 0 where 3 x^3 + 2 x^2 = 2 (x^3 + 1 + x^2), so x^3 = 2
    "root": ([3.0, 0.0, 2.0], 2, math.log(2) / 3),
}


@pytest.mark.parametrize("level", ["pixel", "image", "dataset"])
@pytest.mark.parametrize(("pixel", "label", "expected"), CASES.values(), ids=CASES)
def test_the_cases_of_theorem_1(level: str, pixel: list[float], label: int, expected: float) -> None:
    logits = torch.tensor(pixel, dtype=torch.float64).view(3, 1, 1).expand(3, 4, 5)
    labels = torch.full((4, 5), label)
    if level == "pixel":
        found = pixel_inverse_temperature(logits, labels)
        assert found.shape == (4, 5)
        assert len(found.unique()) == 1
        alpha = found[0, 0].item()
    else:
        alpha = optimum([(logits, labels)] * (3 if level == "dataset" else 1)).inverse_temperature
    assert alpha == pytest.approx(expected, rel=1e-9)


def test_one_certain_image_does_not_decide_for_the_data_set() -> None:
    """Infinite for one image, zero for another, between for both."""
    right = torch.tensor([[2.0], [0.0]]).double(), torch.tensor([0])
    wrong = torch.tensor([[1.0], [0.0]]).double(), torch.tensor([1])
    assert optimum([right]).inverse_temperature == math.inf
    assert optimum([wrong]).inverse_temperature == 0
    both = optimum([right, wrong]).inverse_temperature
    # the slope is 1 / (1 + e^-a) - 2 / (1 + e^(2 a))
    assert 1 / (1 + math.exp(-both)) == pytest.approx(2 / (1 + math.exp(2 * both)), rel=1e-9)


@given(seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e4), shift=st.floats(-1e3, 1e3))
def test_scaled_logits_scale_the_temperature_and_a_shift_does_not(seed: int, scale: float, shift: float) -> None:
    images = draw(4, (30,), seed=seed)
    changed = [(scale * (z + shift), y) for z, y in images]
    one, other = optimum(images), optimum(changed)
    assert other.converged
    assert other.inverse_temperature * scale == pytest.approx(one.inverse_temperature, rel=1e-6)
    pixels, scaled = pixel_inverse_temperature(*images[0]), pixel_inverse_temperature(*changed[0])
    close = {"rtol": 1e-4, "atol": 1e-9, "equal_nan": True}  # a root next to 0 or infinity feels the rounded shift
    torch.testing.assert_close(scaled * scale, pixels, **close)


@given(seed=st.integers(0, 10**6))
def test_likelihoods_add_and_the_order_does_not_matter(seed: int) -> None:
    images = draw(3, (20,), seed=seed)
    z, y = torch.cat([z for z, _ in images], 1), torch.cat([y for _, y in images])
    order = torch.from_numpy(np.random.default_rng(seed).permutation(60))
    np.testing.assert_allclose(summed(images, 0.8), likelihood(z, y, 0.8), rtol=1e-12)
    np.testing.assert_allclose(likelihood(z[:, order], y[order], 0.8), likelihood(z, y, 0.8), rtol=1e-12)
    torch.testing.assert_close(
        pixel_inverse_temperature(z[:, order], y[order]), pixel_inverse_temperature(z, y)[order], equal_nan=True
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_logits_of_ten_thousand(dtype: torch.dtype) -> None:
    z = torch.tensor([[1e4, 1e4, 1e4], [-1e4, 6e3, -1e4], [0, 0, 0]], dtype=dtype)
    y = torch.tensor([0, 1, 2])
    found = pixel_inverse_temperature(z, y)
    assert found[[0, 2]].tolist() == [torch.inf, 0]
    root = optimum([(z, y)])
    assert root.converged
    for alpha, pixels in ((found[1].item(), slice(1, 2)), (root.inverse_temperature, slice(0, 3))):
        one = z[:, pixels].double().numpy(), y[pixels].numpy()
        assert 0 < alpha < 1
        assert references.total_nll(*one, alpha) == pytest.approx(references.total_entropy(*one, alpha), abs=1e-6)


def test_no_pixels_have_no_temperature_map() -> None:
    assert pixel_inverse_temperature(torch.zeros(3, 0), torch.zeros(0, dtype=torch.int64)).shape == (0,)
    assert likelihood(torch.zeros(3, 0), torch.zeros(0, dtype=torch.int64), 1.0).pixels == 0


# ---------------------------------------------------------------------------------------------------------------------
# root finding


@given(roots=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5))
def test_roots_of_cubes_are_found(roots: list[float]) -> None:
    wanted = torch.tensor(roots, dtype=torch.float64)
    found, steps, converged = root_of_increasing(
        lambda x: ((x / wanted) ** 3 - 1, 3 * x**2 / wanted**3), torch.ones_like(wanted)
    )
    assert converged
    assert steps < 100
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=0)


# ---------------------------------------------------------------------------------------------------------------------
# the state of confidence


@pytest.mark.parametrize(
    ("nll", "entropy", "tolerance", "expected"),
    [
        (0.5, 0.2, 1e-6, "overconfident"),
        (0.2, 0.5, 1e-6, "underconfident"),
        (0.3, 0.3, 0.0, "balanced"),
        (0.3, 0.3 + 9e-7, 1e-6, "balanced"),
        (0.3, 0.3 + 2e-6, 1e-6, "underconfident"),
        (0.3, 0.2, 0.2, "balanced"),
    ],
)
def test_the_definitions_of_confidence(nll: float, entropy: float, tolerance: float, expected: str) -> None:
    assert confidence_state(nll, entropy, tolerance=tolerance) == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_excess_of_each_pixel_agrees_with_loops(dtype: torch.dtype) -> None:
    z, y = draw(4, (5, 6))[0]
    z = z.to(dtype)
    found = confidence_excess(z, y)
    assert found.shape == (5, 6)
    for at in np.ndindex(5, 6):
        one = z[(slice(None), *at)].double().numpy()[:, None], y[at].numpy()[None]
        expected = references.total_nll(*one, 1.0) - references.total_entropy(*one, 1.0) if y[at] >= 0 else math.nan
        assert found[at].item() == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_sets_without_pixels_have_the_temperature_one() -> None:
    z, y = draw(4, (30,))[0]
    empty = torch.full_like(y, -1)

    def at(alphas: torch.Tensor) -> torch.Tensor:
        sets = ((z, y), (z, empty))
        rows = [likelihood(*pixels, float(alpha)) for pixels, alpha in zip(sets, alphas, strict=True)]
        return torch.tensor(rows, dtype=torch.float64)

    found, _, converged = optimal_inverse_temperatures(at, 2)
    assert converged
    assert found[1] == 1.0
    assert found[0] == pytest.approx(optimum([(z, y)]).inverse_temperature, rel=1e-9)


def test_steps_of_the_search_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newton's method finds the root of a straight line at once, and sees at the second step that it is there."""
    calls = []

    def line(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(float(x))
        return x - 2, torch.ones_like(x)

    one = torch.ones(1, dtype=torch.float64)
    assert root_of_increasing(line, one)[1:] == (2, True)
    assert calls == [1.0, 2.0]
    monkeypatch.setattr("segcal.functional.temperature._STEPS", 3)
    calls.clear()
    _, steps, converged = root_of_increasing(lambda x: (calls.append(1) or x * 0 - 1, torch.ones_like(x)), one)
    assert (steps, converged, len(calls)) == (3, False, 3)


def test_the_likelihood_is_computed_once_for_each_step() -> None:
    """It goes through all images, and what is known at the start is not computed again."""
    images, asked = draw(4, (30,)), list[float]()

    def at(alpha: float) -> Likelihood:
        asked.append(alpha)
        return summed(images, alpha)

    root = optimal_inverse_temperature(at)
    assert asked[0] == 1.0
    assert len(asked) == len(set(asked)) == root.steps


@pytest.mark.parametrize("off", [-1e-20, 0.0, 1e-20])
def test_a_start_that_is_the_root_up_to_rounding_is_returned_at_once(off: float) -> None:
    start = torch.ones(1, dtype=torch.float64)
    found, steps, converged = root_of_increasing(lambda x: (x - 1 + off, torch.ones_like(x)), start)
    assert (found.item(), steps, converged) == (1.0, 1, True)


@pytest.mark.parametrize(
    ("root", "visited"), [(10.0, [1, 4, 16, 8, math.sqrt(8 * 16)]), (0.1, [1, 1 / 4, 1 / 16, 1 / 8])]
)
def test_steps_that_leave_the_bounds_are_replaced(root: float, visited: list[float]) -> None:
    """The slope has the wrong sign, so no step of Newton's is any good: first by factors of 4, then by halves."""
    seen: list[float] = []

    def line(x: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(x.item())
        return x - root, -torch.ones_like(x)

    found, _, converged = root_of_increasing(line, torch.ones(1, dtype=torch.float64))
    assert seen[: len(visited)] == pytest.approx(visited)
    assert converged
    assert found.item() == pytest.approx(root, rel=1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# slopes at many temperatures


@pytest.mark.parametrize(("classes", "count"), [(1, 3), (4, 200), (57, 70)])
def test_slopes_are_derivatives_of_the_log_likelihood(
    classes: int, count: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of log p(label) in 1/T, for few pixels at a time and for many, and 0 for ignored pixels."""
    logits = torch.from_numpy(rng.normal(scale=3.0, size=(classes, count)))
    labels = torch.from_numpy(rng.integers(-1, classes, count))
    monkeypatch.setattr("segcal.functional.temperature._CHUNK", 100)
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
