"""The temperatures that the labels ask for: each level against the theorem, smoothing against loops."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from segcal import oracle_temperature
from segcal.oracle import Level
from segcal.types import InputError
from support import references

LEVELS: tuple[Level, ...] = get_args(Level)


def batch(rng: np.random.Generator, *space: int, classes: int = 4, images: int = 2) -> tuple[Tensor, Tensor]:
    """Images that ask for different temperatures, with pixels ignored as 9."""
    z = rng.normal(scale=3, size=(images, classes, *space))
    ask = np.arange(1, images + 1).reshape(-1, 1, *[1] * len(space))
    labels = (z / ask + rng.gumbel(size=z.shape)).argmax(1)
    labels[rng.random(labels.shape) < 0.1] = 9
    return torch.from_numpy(z), torch.from_numpy(labels)


@pytest.mark.parametrize("space", [(60,), (8, 9), (4, 4, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_images_and_data_set_agree_with_golden_sections(
    rng: np.random.Generator, space: tuple[int, ...], dtype: torch.dtype
) -> None:
    logits, labels = batch(rng, *space)
    logits = logits.to(dtype)
    masked = labels.where(labels != 9, -1)
    for level, groups in (("image", [slice(0, 1), slice(1, 2)]), ("dataset", [slice(0, 2)])):
        found = oracle_temperature(logits, labels, level, ignore_index=9)
        assert found.shape == (2, 1, *space)
        assert found.dtype == torch.float64
        for group in groups:
            z, y = references.flat(logits[group].double(), masked[group])
            assert len(found[group].unique()) == 1
            assert 1 / found[group].flatten()[0].item() == pytest.approx(
                references.optimal_inverse_temperature(z, y), rel=1e-6
            )


def test_pixels_agree_with_golden_sections(rng: np.random.Generator) -> None:
    """Each location of a map has its own optimum; those of 0 and infinity are where no inner one exists."""
    logits, labels = batch(rng, 5, 6)
    found, inner = oracle_temperature(logits, labels, ignore_index=9)[:, 0], 0
    for at in np.ndindex(*labels.shape):
        z, label = logits[(at[0], slice(None), *at[1:])].numpy()[:, None], labels[at].numpy().reshape(1)
        if label == 9:
            assert found[at].isnan()
        elif not 0 < (temperature := float(found[at])) < math.inf:
            assert (temperature == 0) is bool(z.argmax() == label)
            assert (temperature == 0) is not bool(z[label[0], 0] <= z.mean())
        else:
            inner += 1
            assert 1 / temperature == pytest.approx(references.optimal_inverse_temperature(z, label), rel=1e-5)
    assert inner > 5


@pytest.mark.parametrize("level", LEVELS)
def test_nll_equals_entropy_at_the_optimum(rng: np.random.Generator, level: Level) -> None:
    logits, labels = batch(rng, 10, 11)
    temperature = oracle_temperature(logits, labels, level, ignore_index=9)
    inner = temperature[:, 0].isfinite() & (temperature[:, 0] > 0) & (labels != 9)
    assert inner.sum() > 20
    z, y = references.flat(logits / temperature.clamp(1e-3, 1e3), labels)
    groups = {
        "pixel": np.arange(y.size)[:, None],
        "image": np.arange(y.size).reshape(2, -1),
        "dataset": np.arange(y.size)[None],
    }[level]
    for group in groups:
        kept = group[inner.flatten().numpy()[group]]
        if kept.size:
            nll, entropy = (f(z[:, kept], y[kept], 1.0) for f in (references.total_nll, references.total_entropy))
            assert nll / kept.size == pytest.approx(entropy / kept.size, abs=1e-6)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("label", "expected"), [(0, 0.0), (1, math.inf), (2, 3 / math.log(2))], ids=["right", "hopeless", "between"]
)
def test_the_three_cases_by_hand(level: Level, label: int, expected: float) -> None:
    logits = torch.tensor([3.0, 0.0, 2.0]).view(1, 3, 1, 1).expand(2, 3, 2, 2)
    found = oracle_temperature(logits, torch.full((2, 2, 2), label, dtype=torch.uint8), level)
    torch.testing.assert_close(found, torch.full((2, 1, 2, 2), expected, dtype=torch.float64))


def test_ignored_pixels_have_no_temperature_of_their_own() -> None:
    logits, labels = torch.tensor([[[2.0, 2.0], [0.0, 0.0]]]), torch.tensor([[0, 7]])
    assert oracle_temperature(logits, labels, ignore_index=7).isnan().tolist() == [[[False, True]]]
    for level in ("image", "dataset"):
        assert oracle_temperature(logits, labels, level, ignore_index=7).tolist() == [[[0, 0]]]
        assert oracle_temperature(logits, torch.full((1, 2), 7), level, ignore_index=7).isnan().all()


def test_images_do_not_influence_each_other(rng: np.random.Generator) -> None:
    logits, labels = batch(rng, 30, images=3)
    for level in ("pixel", "image"):
        whole = oracle_temperature(logits, labels, level, ignore_index=9)
        parts = [oracle_temperature(logits[k : k + 1], labels[k : k + 1], level, ignore_index=9) for k in range(3)]
        assert torch.equal(whole.nan_to_num(-1), torch.cat(parts).nan_to_num(-1))


def smoothed(temperature: np.ndarray, width: float, bounds: tuple[float, float]) -> np.ndarray:
    """A mean of logarithms with Gaussian weights, over the known pixels up to four widths away along each axis."""
    reach, result = int(4 * width + 0.5), np.full(temperature.shape, np.nan)
    for at in np.ndindex(temperature.shape):
        weights, logs = [], []
        for there in np.ndindex(temperature.shape):
            steps = np.subtract(at, there)
            if np.abs(steps).max() <= reach and not np.isnan(temperature[there]):
                weights.append(math.exp(-(steps**2).sum() / (2 * width**2)))
                logs.append(math.log(min(max(temperature[there], bounds[0]), bounds[1])))
        if weights:
            result[at] = math.exp(np.dot(weights, logs) / sum(weights))
    return result


@pytest.mark.parametrize("bounds", [(0.05, 100.0), (0.5, 2.0)])
def test_smoothing_agrees_with_loops(rng: np.random.Generator, bounds: tuple[float, float]) -> None:
    logits, labels = batch(rng, 7, 12)
    labels[1, :, :11] = 9  # most of the second image is unknown, and stays so far from what is known
    raw = oracle_temperature(logits, labels, ignore_index=9)
    found = oracle_temperature(logits, labels, ignore_index=9, smoothing=1.1, bounds=bounds)
    assert found.shape == raw.shape
    assert found[1].isnan().any()
    for k in range(2):
        np.testing.assert_allclose(found[k, 0], smoothed(raw[k, 0].numpy(), 1.1, bounds), rtol=1e-9)


@pytest.mark.parametrize(
    ("level", "labels", "message"),
    [
        ("voxel", torch.zeros(1, 4, dtype=torch.int64), "level must be 'pixel', 'image' or 'dataset', got 'voxel'"),
        ("pixel", torch.zeros(1, 5, dtype=torch.int64), "labels must have shape"),
        ("pixel", torch.full((1, 4), 3), "labels must be in 0..2, got 3"),
    ],
)
def test_wrong_input_is_refused(level: Level, labels: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        oracle_temperature(torch.zeros(1, 3, 4), labels, level)
