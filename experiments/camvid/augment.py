"""Random scale, place, flip and colour of training frames, on the device that they are on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from experiments.camvid.jobs import Recipe
from experiments.datasets.camvid import VOID
from segcal.training.batches import Batch


@dataclass(frozen=True)
class Augmentation:
    """Frames `[B, 3, H, W]` and labels `[B, H, W]`, uint8, to what an epoch trains on; pictures in 0..1."""

    recipe: Recipe

    def __call__(self, batch: Batch, randoms: Sequence[np.random.Generator], epoch: int) -> Batch:
        """Draw a view and a colour for each frame, and look through it."""
        images, labels = batch
        recipe, (height, width) = self.recipe, labels.shape[1:]
        low, high = recipe.scales
        size = (min(recipe.crop, height), min(recipe.crop, width))
        if epoch > recipe.epochs - recipe.full_epochs:
            low, high, size = low**0.5, high**0.5, (height, width)
        views = np.stack([_view(random, size, (height, width), (low, high)) for random in randoms])
        colours = np.stack([_colour(random, recipe.colour) for random in randoms])
        seen, truth = look(images, labels, _on(views, images), size)
        return recolour(seen, _on(colours, images)), truth


def look(
    images: Tensor, labels: Tensor, views: Float[Tensor, "B 2 3"], size: tuple[int, int]
) -> tuple[Float[Tensor, "B C h w"], Tensor]:
    """Return an affine view of frames; beyond their edges pictures are mirrored and labels void."""
    grid = F.affine_grid(views, [len(images), 1, *size], align_corners=False)
    seen = F.grid_sample(images.float() / 255, grid, padding_mode="reflection", align_corners=False)
    shifted = (labels.float() - VOID).unsqueeze(1)  # so that the zeros beyond the edge are void
    truth = F.grid_sample(shifted, grid, mode="nearest", align_corners=False).squeeze(1)
    return seen, (truth + VOID).round().long()


def recolour(images: Float[Tensor, "B C H W"], colours: Float[Tensor, "B 6"]) -> Float[Tensor, "B C H W"]:
    """Factors on red, green and blue, on saturation and on contrast, and an exponent, for each picture."""
    gains, rest = colours[:, :3, None, None], colours[:, 3:, None, None, None].unbind(1)
    saturation, contrast, gamma = rest
    bright = images * gains
    grey = bright.mean(dim=1, keepdim=True)
    vivid = torch.lerp(grey.expand_as(bright), bright, saturation)
    mean = vivid.mean(dim=(1, 2, 3), keepdim=True)
    return torch.lerp(mean.expand_as(vivid), vivid, contrast).clamp(1e-4, 1.0) ** gamma


def _view(
    random: np.random.Generator, size: tuple[int, int], frame: tuple[int, int], scales: tuple[float, float]
) -> np.ndarray:
    """An affine map from the view's coordinates to the frame's, both from -1 to 1: width first, as grid_sample has.

    Half of the views are not scaled and begin at a whole pixel: they show the frame's own pixels, as sharp as the
    network will meet them, where interpolated ones are blurred.
    """
    scale = np.exp(random.uniform(*np.log(scales))) if random.random() < 0.5 else 1.0
    shares = np.array([part / (whole * scale) for part, whole in zip(size, frame, strict=True)])
    starts = np.round(random.random(2) * (1 - shares) * frame) / frame
    shifts = 2 * starts + shares - 1
    mirror = random.choice([-1.0, 1.0])
    return np.array([[mirror * shares[1], 0, shifts[1]], [0, shares[0], shifts[0]]])


def _colour(random: np.random.Generator, strength: float) -> np.ndarray:
    brightness, saturation, contrast = 1 + strength * random.uniform(-0.3, 0.3, size=3)
    gains = brightness * (1 + strength * random.uniform(-0.1, 0.1, size=3))
    return np.array([*gains, saturation, contrast, np.exp(strength * random.uniform(-0.3, 0.3))])


def _on(values: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(like.device, non_blocking=True)
