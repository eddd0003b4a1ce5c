"""Oracle temperatures, computed from the labels (Fig. 1, right): the bound that calibrators are compared with."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from segcal.functional.checks import check_labels, check_logits, check_same_space
from segcal.functional.temperature import Likelihood, likelihood, optimal_inverse_temperature, pixel_inverse_temperature
from segcal.types import IgnoreIndex, InputError, Labels, Logits, Temperature, public

Level = Literal["pixel", "image", "dataset"]


@public
def oracle_temperature(
    logits: Logits,
    labels: Labels,
    level: Level = "pixel",
    *,
    ignore_index: IgnoreIndex = None,
    smoothing: float = 0.0,
    bounds: tuple[float, float] = (0.05, 100.0),
) -> Temperature:
    """Return the temperature of lowest NLL for each pixel, each image or all images together (Theorem 1), in float64.

    It is infinite where the logit of the label is not above the mean of all logits, 0 where the label has the largest
    logit, and NaN at ignored pixels of the level "pixel". It needs the labels, so no calibrator can compute it.

    Args:
        logits: Scores `[B, L, *S]`.
        labels: True classes `[B, *S]`.
        level: Whether each "pixel", each "image" or the whole "dataset" has one temperature.
        ignore_index: Label, or labels, to ignore.
        smoothing: For display: width in pixels of a Gaussian that smooths the logarithm of the bounded temperature.
        bounds: Smallest and largest temperature before smoothing.
    """
    logits = check_logits(logits, logits.shape[1] if logits.ndim > 1 else 0, class_axis=1)
    check_same_space(logits, labels, class_axis=1)
    truth = check_labels(labels, logits.shape[1], ignore_index)
    if level == "pixel":
        inverse = torch.stack([pixel_inverse_temperature(*pair) for pair in zip(logits, truth, strict=True)])
    elif level == "image":
        inverse = _spread([_image_inverse(logits[k : k + 1], truth[k : k + 1]) for k in range(len(logits))], truth)
    elif level == "dataset":
        inverse = _spread([_image_inverse(logits, truth)] * len(logits), truth)
    else:
        raise InputError(f"level must be 'pixel', 'image' or 'dataset', got '{level}'")
    temperature = (1 / inverse).unsqueeze(1)
    return _smooth(temperature, smoothing, bounds) if smoothing > 0 else temperature


def _image_inverse(logits: Tensor, labels: Tensor) -> float:
    def at(alpha: float) -> Likelihood:
        parts = [likelihood(z, y, alpha) for z, y in zip(logits, labels, strict=True)]
        return Likelihood(*(sum(terms) for terms in zip(*parts, strict=True)))

    if not bool((labels >= 0).any()):
        return float("nan")
    return optimal_inverse_temperature(at).inverse_temperature


def _spread(values: list[float], like: Tensor) -> Tensor:
    """Expand one value per image to all of its pixels."""
    column = torch.tensor(values, dtype=torch.float64, device=like.device)
    return column.view(-1, *[1] * (like.ndim - 1)).expand(like.shape)


def _smooth(temperature: Tensor, width: float, bounds: tuple[float, float]) -> Tensor:
    """Return the Gaussian mean of the logarithm over the pixels that have one; NaN where none is near."""
    from scipy.ndimage import gaussian_filter  # noqa: PLC0415  slow to import, and only needed for display

    logs = temperature.clamp(*bounds).log().cpu()
    known = ~logs.isnan()
    sigma = [0.0, 0.0, *[width] * (logs.ndim - 2)]
    weight = torch.from_numpy(gaussian_filter(known.double().numpy(), sigma, mode="constant"))
    total = torch.from_numpy(gaussian_filter(logs.nan_to_num(0.0).numpy(), sigma, mode="constant"))
    return (total / weight).exp().where(weight > 1e-12, torch.nan).to(temperature.device)
