"""Values of each pixel as maps in 8 bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy.ndimage import uniform_filter

from segcal.evaluation.portraits.model import LEVELS, LOGARITHMIC, NOTHING, Curve, Kind, Layer, PixelRegion, Thinning
from segcal.evaluation.portraits.optimum import BOUNDS
from segcal.types import Array, Case

OTHER = 254
"""Classes beyond those that one byte can count."""


def local_gap(confidence: Array, hit: Array, inside: Array, window: int) -> Array:
    """Return mean confidence minus accuracy of the pixels inside, within a window around each; NaN outside.

    Examples:
        >>> gap = local_gap(np.full((1, 3), 0.75), np.array([[True, True, False]]), np.ones((1, 3), bool), 3)
        >>> gap.round(3)
        array([[-0.25 ,  0.083,  0.25 ]])
    """
    total = uniform_filter(np.where(inside, confidence - hit, 0.0), window, mode="constant")
    share = uniform_filter(inside.astype(np.float64), window, mode="constant")
    return np.where(inside, total / np.maximum(share, 1e-12), np.nan)


def bin_accuracy(confidence: Array, inside: Array, curve: Curve) -> Array:
    """Return the accuracy of the reliability bin of each pixel inside (Fig. 1, middle); NaN outside.

    Examples:
        >>> curve = ((2, 1, 0.8), (4, 3, 3.6))
        >>> bin_accuracy(np.array([0.4, 0.5, 0.9]), np.array([True, True, True]), curve)
        array([0.5 , 0.5 , 0.75])
    """
    bins = len(curve)
    count, hit, _ = np.array(curve).T
    accuracy = hit / np.maximum(count, 1)
    position = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    return np.where(inside, accuracy[position], np.nan)


def region_map(labels: Array, inside: Array, near: Array) -> Array:
    """Return what each pixel belongs to, as bytes: a `PixelRegion`, or `NOTHING` where the label is ignored."""
    regions = np.where(near, PixelRegion.BOUNDARY, np.where(inside, PixelRegion.ALL, PixelRegion.OUTSIDE))
    return np.where(labels < 0, NOTHING, regions).astype(np.uint8)


def coded_labels(labels: Mapping[str, Array]) -> tuple[tuple[int, ...], dict[str, Array]]:
    """Return the classes that occur, and labels as positions among them; ignored labels become 255."""
    present = np.unique(np.concatenate([np.unique(values) for values in labels.values()]))
    classes = present[present >= 0]
    coded = {
        name: np.where(values < 0, NOTHING, np.minimum(np.searchsorted(classes, values), OTHER)).astype(np.uint8)
        for name, values in labels.items()
    }
    return tuple(int(c) for c in classes[:OTHER]), coded


def map_layers(maps: Sequence[tuple[Kind, str, Array]], num_classes: int) -> Iterator[Layer]:
    """Maps in 8 bits; those of one kind share their range, so that methods can be compared by eye."""
    heats = [np.abs(np.log(values)) for kind, _, values in maps if kind == "temperature"]
    heat = float(np.exp(1.2 * max([np.log(1.5), *(np.quantile(values, 0.995) for values in heats)])))
    gaps = [np.abs(values[~np.isnan(values)]) for kind, _, values in maps if kind == "gap"]
    gap = float(min(1.0, max([0.05, *(np.quantile(values, 0.995) for values in gaps if values.size)])))
    most = max([0.05, *(float(values.max()) for kind, _, values in maps if kind == "disagreement")])
    ranges: dict[Kind, tuple[float, float]] = {
        "confidence": (1 / num_classes, 1.0),
        "accuracy": (1 / num_classes, 1.0),  # as the confidence, beside which it is shown
        "temperature": (1 / heat, heat),
        "optimum": BOUNDS,
        "gap": (-gap, gap),
        "disagreement": (0.0, most),
    }
    for kind, method, values in maps:
        low, high = ranges[kind]
        share = np.log(values / low) / np.log(high / low) if kind in LOGARITHMIC else (values - low) / (high - low)
        level = np.rint(LEVELS * np.clip(np.nan_to_num(share), 0, 1))
        yield Layer(kind, method, np.where(np.isnan(share), NOTHING, level).astype(np.uint8), low, high)


def image_layers(case: Case, thinned: Thinning) -> Iterator[Layer]:
    """The image in colour or grey, scaled to 8 bits; nothing for a case without an image."""
    if case.image is None:
        return
    image = np.asarray(case.image)
    channels = image[:3] if image.shape[0] == 3 else image[:1]
    pictures = np.stack([thinned(channel) for channel in channels], axis=-1)
    if pictures.dtype != np.uint8:
        pictures = pictures.astype(np.float64)
        low, high = (0.0, 1.0) if pictures.min() >= 0 and pictures.max() <= 1 else np.quantile(pictures, (0.001, 0.999))
        pictures = np.rint(255 * np.clip((pictures - low) / max(high - low, 1e-12), 0, 1)).astype(np.uint8)
    yield Layer("image", "", pictures if pictures.shape[-1] == 3 else pictures[..., 0])
