"""Coverage of bootstrap intervals: `python -m benchmarks.coverage` prints the table of docs/results.

Images are simulated as reliability histograms of a network that is overconfident, slightly so, or calibrated on
average. Each image has its own difficulty and its own overconfidence, which images of one group share; so images differ
by much more than the noise of their pixels. The truth is the value over 400,000 images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch

from segcal.evidence import Histogram, readings
from segcal.statistics import IntervalKind, bootstrap_intervals
from segcal.types import Array

_BINS = 10
_PIXELS = 2000
_CONFIDENCE = (np.arange(_BINS) + 0.5) / _BINS
NAMES = ("ECE", "MCE", "accuracy", "mean of the images' ECE")
NETWORKS = {"overconfident": 0.4, "slightly overconfident": 0.1, "calibrated on average": 0.0}
"""Mean logarithm of the exponent that turns the confidence of a network into its accuracy."""


def draw_images(random: np.random.Generator, groups: int, size: int, exponent: float) -> Array:
    """Pixels, right pixels and summed confidence of each image and bin: `[3, groups * size, bins]`."""
    difficulty = random.normal(size=(groups, 1)).repeat(size, axis=0)
    overconfidence = np.exp(exponent + 0.3 * random.normal(size=(groups, 1)).repeat(size, axis=0))
    share = np.exp((3 - difficulty) * _CONFIDENCE)
    count = random.multinomial(_PIXELS, share / share.sum(axis=1, keepdims=True))
    hit = random.binomial(count, _CONFIDENCE**overconfidence)
    return np.stack([count, hit, count * _CONFIDENCE])


def statistics_of(weights: Array, images: Array) -> Array:
    """The numbers of `NAMES` of images with weights: `[repetitions, 4]`."""
    count, hit, confidence = (torch.from_numpy(weights @ field).unsqueeze(-2) for field in images)
    pooled = Histogram(count.long(), hit.long(), confidence)
    each = np.abs(images[1] - images[2]).sum(axis=1) / images[0].sum(axis=1)
    mean = torch.from_numpy(weights @ each / weights.sum(axis=1))
    numbers = (readings.ece(pooled), readings.mce(pooled), readings.accuracy(pooled), mean)
    return torch.stack(numbers, dim=-1).numpy()


def noise_of(weights: Array, images: Array) -> Array:
    """The errors of `NAMES` that noise alone would cause: `[repetitions, 4]`."""
    gap = (images[1] - images[2]).sum(axis=0) / images[0].sum(axis=0).clip(min=1)
    count = weights @ images[0]
    excess = np.abs(weights @ (images[1] - images[2]) - count * gap)
    unknown = np.full(len(weights), np.nan)
    return np.stack(
        [excess.sum(axis=1) / count.sum(axis=1), (excess / count.clip(min=1)).max(axis=1), unknown, unknown], 1
    )


@cache
def truth(exponent: float) -> Array:
    """The numbers of `NAMES` over very many images."""
    random = np.random.default_rng(2021)
    parts = [draw_images(random, 20_000, 1, exponent) for _ in range(20)]
    images = np.concatenate(parts, axis=1)
    found: Array = statistics_of(np.ones((1, images.shape[1])), images)[0]
    return found


def coverage(exponent: float, groups: int, size: int, *, kind: IntervalKind, by_group: bool, repetitions: int) -> Array:
    """The fraction of repetitions whose 95 % interval holds the truth, for each of `NAMES`."""
    expected = truth(exponent)
    clusters = np.repeat(np.arange(groups), size) if by_group else None
    held = np.zeros(len(NAMES))
    for k in range(repetitions):
        images = draw_images(np.random.default_rng([7, k]), groups, size, exponent)
        of: Callable[[Array], Array] = partial(statistics_of, images=images)
        noise = partial(noise_of, images=images)
        low, high = bootstrap_intervals(of, groups * size, kind=kind, seed=k, clusters=clusters, noise=noise)
        held += (low <= expected) & (expected <= high)
    return held / repetitions


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    repetitions = parser.parse_args().repetitions
    print(f"| network | images | drawn | interval | {' | '.join(NAMES)} |\n|---|---|---|---|{'---:|' * len(NAMES)}")
    alone = [(name, images, 1, False) for name in NETWORKS for images in (5, 10, 30, 100)]
    settings = [*alone, ("overconfident", 100, 4, False), ("overconfident", 100, 4, True)]
    for name, groups, size, by_group in settings:
        what = f"{groups}" if size == 1 else f"{groups} groups of {size}"
        kinds: tuple[IntervalKind, ...] = ("percentile", "bca")
        for kind in kinds:
            found = coverage(NETWORKS[name], groups, size, kind=kind, by_group=by_group, repetitions=repetitions)
            numbers = " | ".join(f"{fraction:.1%}" for fraction in found)
            print(f"| {name} | {what} | {'groups' if by_group else 'images'} | {kind} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
