"""Coverage of bootstrap intervals: `python -m benchmarks.coverage` prints the table of docs/results.

Images are simulated as reliability histograms of an overconfident network. Each image has its own difficulty and its
own overconfidence, which images of one group share; so images differ by much more than the noise of their pixels. The
truth is the value over 400,000 images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from segcal.evidence import Histogram, errors
from segcal.evidence.decomposition import debiased_ece
from segcal.statistics import IntervalKind, bootstrap_intervals
from segcal.types import Array

_BINS = 10
_PIXELS = 2000
_CONFIDENCE = (np.arange(_BINS) + 0.5) / _BINS
NAMES = ("ECE", "debiased ECE", "accuracy", "mean of the images' ECE")


def draw_images(random: np.random.Generator, groups: int, size: int) -> Array:
    """Pixels, right pixels and summed confidence of each image and bin: `[3, groups * size, bins]`."""
    difficulty = random.normal(size=(groups, 1)).repeat(size, axis=0)
    overconfidence = np.exp(0.4 + 0.3 * random.normal(size=(groups, 1)).repeat(size, axis=0))
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
    numbers = (errors.ece(pooled), debiased_ece(pooled), errors.accuracy(pooled), mean)
    return torch.stack(numbers, dim=-1).numpy()


def truth() -> Array:
    """The numbers of `NAMES` over very many images."""
    random = np.random.default_rng(2021)
    parts = [draw_images(random, 20_000, 1) for _ in range(20)]
    images = np.concatenate(parts, axis=1)
    found: Array = statistics_of(np.ones((1, images.shape[1])), images)[0]
    return found


def coverage(groups: int, size: int, *, kind: IntervalKind, by_group: bool, repetitions: int, expected: Array) -> Array:
    """The share of repetitions whose 95 % interval holds the truth, for each of `NAMES`."""
    clusters = np.repeat(np.arange(groups), size) if by_group else None
    held = np.zeros(len(NAMES))
    for k in range(repetitions):
        images = draw_images(np.random.default_rng([7, k]), groups, size)
        of: Callable[[Array], Array] = partial(statistics_of, images=images)
        low, high = bootstrap_intervals(of, groups * size, kind=kind, seed=k, clusters=clusters)
        held += (low <= expected) & (expected <= high)
    return held / repetitions


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    repetitions = parser.parse_args().repetitions
    expected = truth()
    print(f"truth: {', '.join(f'{name} {value:.4f}' for name, value in zip(NAMES, expected, strict=True))}")
    print(f"| images | drawn | interval | {' | '.join(NAMES)} |\n|---|---|---|{'---:|' * len(NAMES)}")
    alone = [(images, 1, False) for images in (2, 5, 10, 15, 50, 200)]
    settings = [*alone, (100, 4, False), (100, 4, True)]
    for groups, size, by_group in settings:
        what = f"{groups}" if size == 1 else f"{groups} groups of {size}"
        kinds: tuple[IntervalKind, ...] = ("percentile", "bca")
        for kind in kinds:
            shares = coverage(groups, size, kind=kind, by_group=by_group, repetitions=repetitions, expected=expected)
            numbers = " | ".join(f"{share:.1%}" for share in shares)
            print(f"| {what} | {'groups' if by_group else 'images'} | {kind} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
