"""Surface distances of a 57-label volume against MONAI and surface-distance."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.spatial import cKDTree

from benchmarks.timing import console, milliseconds, table
from segcal.functional.surfaces import segmentation_quality
from segcal.types import Array

LABELS = 57
SPACING = (1.0, 1.0, 1.0)


def brains(shape: tuple[int, ...] = (91, 109, 91), labels: int = LABELS) -> tuple[Array, Array]:
    """Two label maps of cells around random centres inside an ellipsoid, one a smooth deformation of the other."""
    random = np.random.default_rng(0)
    centres = random.uniform(0.1, 0.9, size=(labels - 1, 3)) * shape
    grid = np.stack(np.meshgrid(*(np.arange(length) for length in shape), indexing="ij"), axis=-1).astype(np.float64)
    inside = (((grid / shape - 0.5) / 0.45) ** 2).sum(axis=-1) < 1
    shift = np.stack([gaussian_filter(random.normal(size=shape), 4) for _ in range(3)], axis=-1)
    tree = cKDTree(centres)
    one, two = (
        np.where(inside, tree.query(places.reshape(-1, 3))[1].reshape(shape) + 1, 0)
        for places in (grid, grid + 1.5 * shift / shift.std())
    )
    return one, two


def against_peers() -> None:
    """Print the time of all figures of all labels, and of what peers take for the same."""
    prediction, truth = brains()
    wanted = range(1, LABELS)
    parts: dict[str, Callable[[], Any]] = {
        "segcal, Dice, surface Dice, average, 95 %, maximum": lambda: segmentation_quality(
            prediction, truth, wanted, spacing=SPACING
        ),
        **_monai(prediction, truth),
        **_surface_distance(prediction, truth),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = {name: milliseconds(function, repetitions=3, warm_up=1) for name, function in parts.items()}
    first = next(iter(times.values()))
    shown = table(f"{LABELS} labels, {' x '.join(map(str, truth.shape))}", "what", "ms", "times segcal")
    for name, time in times.items():
        shown.add_row(name, f"{time:.0f}", f"{time / first:.1f}")
    console.print(shown)
    if len(parts) == 1:
        console.print("MONAI and surface-distance are not installed: pip install monai surface-distance")


def _monai(prediction: Array, truth: Array) -> dict[str, Callable[[], Any]]:
    if not importlib.util.find_spec("monai"):
        return {}
    import torch
    from monai.metrics import compute_average_surface_distance, compute_hausdorff_distance, compute_surface_dice

    def run() -> None:
        pair = [
            torch.nn.functional.one_hot(torch.from_numpy(array).long(), LABELS).movedim(-1, 0)[None]
            for array in (prediction, truth)
        ]
        options: dict[str, Any] = {"include_background": False, "spacing": list(SPACING)}
        compute_average_surface_distance(*pair, symmetric=True, **options)
        compute_hausdorff_distance(*pair, percentile=95, **options)
        compute_surface_dice(*pair, class_thresholds=[1.0] * (LABELS - 1), **options)

    return {"MONAI, surface Dice, average, 95 %": run}


def _surface_distance(prediction: Array, truth: Array) -> dict[str, Callable[[], Any]]:
    if not importlib.util.find_spec("surface_distance"):
        return {}
    import surface_distance as peer

    def run() -> None:
        for label in range(1, LABELS):
            found = peer.compute_surface_distances(truth == label, prediction == label, SPACING)
            peer.compute_average_surface_distance(found)
            peer.compute_robust_hausdorff(found, 95)
            peer.compute_surface_dice_at_tolerance(found, 1.0)

    return {"surface-distance, surface Dice, average, 95 %": run}
