"""Expected volumes and drawn labels against softmax in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from segcal.evidence import describe
from segcal.functional.draws import class_mass, draw_labels, generator_of
from support import references


def mass(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return class_mass(logits, labels, describe(logits, labels).confidence)


@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("pixels", [0, 1, 300, 9000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_mass_is_the_sum_of_probabilities(
    rng: np.random.Generator, classes: int, pixels: int, dtype: torch.dtype
) -> None:
    logits = torch.from_numpy(3 * rng.normal(size=(classes, pixels))).to(dtype)
    labels = rng.integers(-1, classes, pixels)
    probs = references.softmax(logits.double().numpy())[:, labels >= 0] if pixels else np.zeros((classes, 0))
    np.testing.assert_allclose(mass(logits, torch.from_numpy(labels)).numpy(), probs.sum(axis=1), rtol=1e-12)


def test_mass_of_an_image_of_any_shape(rng: np.random.Generator) -> None:
    logits = torch.from_numpy(rng.normal(size=(3, 4, 5, 6)))
    labels = torch.zeros(4, 5, 6, dtype=torch.int64)
    assert mass(logits, labels).sum() == pytest.approx(120, rel=1e-12)
    assert draw_labels(logits, labels, generator_of(0, "a")).shape == labels.shape


@pytest.mark.parametrize("classes", [2, 21])
def test_mass_is_the_same_for_any_number_of_threads(classes: int, set_threads: Callable[[int], None]) -> None:
    logits, labels = torch.randn(classes, 100_003), torch.zeros(100_003, dtype=torch.int64)
    confidence = torch.rand(100_003, dtype=torch.float64)
    found = []
    for threads in (1, 2, 5):
        set_threads(threads)
        found.append(class_mass(logits, labels, confidence).tolist())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("pixels", [1, 257, 5000])
def test_draws_are_where_the_cumulative_probability_passes_the_number(rng: np.random.Generator, pixels: int) -> None:
    logits = 2 * rng.normal(size=(4, pixels)).astype(np.float32)
    labels = rng.integers(-1, 4, pixels)
    drawn = draw_labels(torch.from_numpy(logits), torch.from_numpy(labels), np.random.default_rng(5)).numpy()
    uniform = np.random.default_rng(5).random(pixels)
    cumulative = references.softmax(logits.astype(np.float64)).cumsum(axis=0)
    expected = [next((c for c in range(3) if cumulative[c, i] > uniform[i]), 3) for i in range(pixels)]
    np.testing.assert_array_equal(drawn[labels >= 0], np.array(expected)[labels >= 0])
    assert (drawn[labels < 0] == -1).all()


def test_draws_are_as_frequent_as_probable() -> None:
    """Of 200,000 draws from 0.5, 0.3, 0.2 each share is within 4 standard deviations."""
    probs = np.array([0.5, 0.3, 0.2])
    logits = torch.from_numpy(np.log(probs))[:, None].expand(3, 200_000)
    drawn = draw_labels(logits, torch.zeros(200_000, dtype=torch.int64), generator_of(0, "x"))
    share = torch.bincount(drawn, minlength=3).numpy() / 200_000
    assert (np.abs(share - probs) < 4 * np.sqrt(probs * (1 - probs) / 200_000)).all()


def test_certain_pixels_are_drawn_as_predicted() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 1e4], [-1e4, 1e4, -1e4]])
    drawn = draw_labels(logits, torch.zeros(3, dtype=torch.int64), generator_of(0, "x"))
    assert drawn.tolist() == [0, 2, 1]


def test_slabs_are_the_whole(rng: np.random.Generator) -> None:
    logits, labels = torch.from_numpy(rng.normal(size=(3, 10, 7))), torch.zeros(10, 7, dtype=torch.int64)
    random = generator_of(1, "case")
    parts = [draw_labels(logits[:, rows], labels[rows], random) for rows in (slice(0, 3), slice(3, 10))]
    assert torch.equal(torch.cat(parts), draw_labels(logits, labels, generator_of(1, "case")))


def test_generators_depend_on_seed_and_name_alone() -> None:
    first = generator_of(0, "a").random(3).tolist()
    assert first == generator_of(0, "a").random(3).tolist()
    assert first != generator_of(1, "a").random(3).tolist()
    assert first != generator_of(0, "b").random(3).tolist()
