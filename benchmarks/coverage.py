"""Coverage of bootstrap intervals: `python -m benchmarks.coverage` prints the table of docs/results/statistics.md.

Images are simulated as reliability histograms of a network that is overconfident, slightly so, or calibrated on
average. Each image has its own difficulty and its own overconfidence, which images of one group share; so images differ
by much more than the noise of their pixels. The truth is the value over 400,000 images.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch

from segcal.evidence import Histogram, readings
from segcal.files import staged_file
from segcal.statistics import IntervalKind, bootstrap_intervals
from segcal.types import Array

_BINS = 10
_PIXELS = 2000
_CONFIDENCE = (np.arange(_BINS) + 0.5) / _BINS
MEASURED = Path(__file__).with_suffix(".csv")
"""In how many of the repetitions each interval held the truth."""
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


def held(exponent: float, groups: int, size: int, *, kind: IntervalKind, by_group: bool, repetitions: int) -> Array:
    """The number of repetitions whose 95 % interval holds the truth, for each of `NAMES`."""
    expected = truth(exponent)
    clusters = np.repeat(np.arange(groups), size) if by_group else None
    found = np.zeros(len(NAMES), dtype=np.int64)
    for k in range(repetitions):
        images = draw_images(np.random.default_rng([7, k]), groups, size, exponent)
        of: Callable[[Array], Array] = partial(statistics_of, images=images)
        noise = partial(noise_of, images=images)
        low, high = bootstrap_intervals(of, groups * size, kind=kind, seed=k, clusters=clusters, noise=noise)
        found += (low <= expected) & (expected <= high)
    return found


def measured(repetitions: int) -> pd.DataFrame:
    """Simulate every row of the table."""
    alone = [(name, images, 1, False) for name in NETWORKS for images in (5, 10, 30, 100)]
    settings = [*alone, ("overconfident", 100, 4, False), ("overconfident", 100, 4, True)]
    rows = list[dict[str, Any]]()
    for (name, groups, size, by_group), kind in product(settings, get_args(IntervalKind)):
        found = held(NETWORKS[name], groups, size, kind=kind, by_group=by_group, repetitions=repetitions)
        images = f"{groups}" if size == 1 else f"{groups} groups of {size}"
        about = {"network": name, "images": images, "drawn": "groups" if by_group else "images", "interval": kind}
        rows.append({**about, **dict(zip(NAMES, found.tolist(), strict=True)), "repetitions": repetitions})
        print(rows[-1], file=sys.stderr, flush=True)
    return pd.DataFrame(rows)


def table() -> str:
    """Return the table as Markdown, from the counts that are kept beside this file."""
    counts = pd.read_csv(MEASURED, dtype={"images": str})
    shares = counts[[*NAMES]].div(counts["repetitions"], axis=0)
    head = ["network", "images", "drawn", "interval"]
    rows = [
        [*about, *(f"{share:.1%}" for share in own)]
        for about, own in zip(counts[head].to_numpy(), shares.to_numpy(), strict=True)
    ]
    ruled = [[*head, *NAMES], [*["---"] * len(head), *["---:"] * len(NAMES)], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled)


def main() -> None:
    """Print the table; simulate first if a number of repetitions is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, help="simulate again, and keep the counts beside this file")
    repetitions = parser.parse_args().repetitions
    if repetitions is not None:
        with staged_file(MEASURED) as file:
            measured(repetitions).to_csv(file, index=False)
    print(table())


if __name__ == "__main__":
    main()
