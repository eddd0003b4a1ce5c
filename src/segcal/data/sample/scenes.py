"""Scenes whose miscalibration is known: the ground truth for tests of every calibrator.

The true class of each pixel is drawn from the softmax of known logits, so those logits are perfectly calibrated. A case
holds these logits multiplied by a known field, the true temperature: dividing by it restores calibration. The
brightness of the image equals the field, so a method that uses the image can find it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.ndimage import gaussian_filter

from segcal.types import Array, Case, check_choice

Variation = Literal["local", "image", "global"]


@dataclass(frozen=True, slots=True)
class Scene:
    """A case with what is unknown in reality: calibrated logits `[L, *S]` and the true temperature `[*S]`."""

    case: Case
    true_logits: Array
    temperature: Array


def simulate(
    count: int,
    *,
    num_classes: int = 5,
    size: tuple[int, ...] = (96, 96),
    variation: Variation = "local",
    temperatures: tuple[float, float] = (0.5, 3.0),
    contrast: float = 4.0,
    seed: int = 0,
) -> list[Scene]:
    """Return scenes in 2D or 3D, the same for the same arguments on every machine.

    Args:
        count: Number of scenes.
        num_classes: L.
        size: `*S`.
        variation: Whether the temperature varies within each image, from image to image, or not at all; then it is the
            upper of `temperatures`.
        temperatures: Smallest and largest true temperature.
        contrast: Spread of the true logits; the larger it is, the easier the classes are to distinguish.
        seed: Random seed.
    """
    check_choice("variation", variation, get_args(Variation))
    (low, high), scenes = temperatures, []
    for k in range(count):
        random = np.random.default_rng([seed, k])
        true_logits = contrast * np.stack([_smooth_noise(size, random) for _ in range(num_classes)])
        # the Gumbel trick: the argmax of logits plus Gumbel noise is a draw from their softmax
        labels = (true_logits + random.gumbel(size=true_logits.shape)).argmax(axis=0)
        brightness = _brightness(size, variation, random)
        temperature = np.full(size, high) if variation == "global" else low + (high - low) * brightness
        image = brightness + 0.01 * random.standard_normal(size)
        case = Case(
            name=f"scene-{k:03d}",
            logits=(true_logits * temperature).astype(np.float32),
            labels=labels.astype(np.uint8 if num_classes <= 256 else np.int32),
            image=image[np.newaxis].astype(np.float32),
        )
        scenes.append(Scene(case, true_logits, temperature))
    return scenes


def _brightness(size: tuple[int, ...], variation: Variation, random: np.random.Generator) -> Array:
    """Return a field in 0..1: smooth, or constant where each image has one temperature."""
    if variation == "image":
        return np.full(size, random.uniform())
    field = _smooth_noise(size, random)
    return (field - field.min()) / max(np.ptp(field), 1e-12)  # type: ignore[no-any-return]


def _smooth_noise(size: tuple[int, ...], random: np.random.Generator) -> Array:
    """Return noise of unit variance, smoothed over an eighth of the image."""
    noise = gaussian_filter(random.standard_normal(size), [length / 8 for length in size], mode="reflect")
    return (noise - noise.mean()) / max(float(noise.std()), 1e-12)  # type: ignore[no-any-return]


def load_scenes() -> dict[str, list[Case]]:
    """Return 46 scenes, split into "fit", "validation" and "test"."""
    cases = [scene.case for scene in simulate(46, temperatures=(0.5, 4.0), contrast=3.0, seed=2021)]
    return {"fit": cases[:30], "validation": cases[30:34], "test": cases[34:]}
