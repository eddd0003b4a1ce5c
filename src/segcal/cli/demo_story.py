"""The samples of `segcal demo`: brains where the extra `demo` is installed, simulated scenes elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from segcal.data.sample import brain, load_sample
from segcal.regions import local_patch_size
from segcal.types import Case


class Story(NamedTuple):
    """A sample, and how the demo fits and measures on it."""

    title: str
    splits: Mapping[str, Sequence[Case]]
    class_names: tuple[str, ...]
    background: int | None
    fits: Mapping[str, tuple[str, ...]]
    """Options of `segcal fit` for each method."""
    patch_sizes: tuple[int, ...]
    """Sides of the Local patches; the first is that of the tables."""


def choose_story() -> Story:
    """Return the story of the brains, or that of the scenes where the brains are not installed."""
    return brain_story() if brain.has_template() else scene_story()


def brain_story() -> Story:
    """Return the story of a 3D U-Net on brains."""
    splits = load_sample("brain")
    size = local_patch_size([case.logits.shape[1:] for case in splits["test"]])
    training = ("--epochs", "100", "--set", "learning_rate=0.005", "cosine=true", "crop=32", "positivity=softplus")
    return Story(
        title="brains made from the MNI152 template, scores of a 3D U-Net",
        splits=splits,
        class_names=brain.CLASSES,
        background=0,
        fits={"ts": (), "lts": training, "cts": ()},
        patch_sizes=(size, size // 2),
    )


def scene_story() -> Story:
    """Return the story of simulated scenes."""
    return Story(
        title="simulated scenes",
        splits=load_sample("scenes"),
        class_names=("field", "road", "water", "forest", "town"),
        background=None,
        fits={"ts": (), "lts": ("--epochs", "60", "--set", "learning_rate=0.003", "flips=true")},
        patch_sizes=(48, 12, 24, 96),
    )
