"""What `segcal demo` shows: brains where the extra `demo` is installed, simulated scenes elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from segcal.data.sample import brain, load_sample
from segcal.evaluation.results import Results
from segcal.regions import local_patch_size
from segcal.types import Case

_TRAINING = {"epochs": 60, "learning_rate": 3e-3, "flips": True}


@dataclass(frozen=True)
class Story:
    """A sample, and how the demo fits and measures on it.

    Attributes:
        title: What the sample is.
        note: What to tell the user first; None if nothing.
        splits: Its cases.
        class_names: Names of its classes.
        background: The class that the *All* region leaves out.
        fits: The methods, and the options of `segcal fit` for each.
        patch_size: Side of the Local patches.
        patch_sizes: Further sides to show.
    """

    title: str
    note: str | None
    splits: Mapping[str, Sequence[Case]]
    class_names: tuple[str, ...]
    background: int | None
    fits: Mapping[str, Mapping[str, Any]]
    patch_size: int
    patch_sizes: tuple[int, ...]


def choose_story() -> Story:
    """Return the story of the brains, or that of the scenes with a note on how to get the brains."""
    return brain_story() if brain.has_template() else scene_story(brain.MISSING)


def brain_story() -> Story:
    """Return the story of a 3D U-Net on brains."""
    splits = load_sample("brain")
    training = {"epochs": 15, "learning_rate": 3e-3, "crop": 32}
    size = local_patch_size([case.logits.shape[1:] for case in splits["test"]])
    return Story(
        title="brains made from the MNI152 template, scores of a 3D U-Net",
        note=None,
        splits=splits,
        class_names=brain.CLASSES,
        background=0,
        fits={"ts": {}, "ibts": {**training, "crop": None}, "lts": training, "cts": {}},
        patch_size=size,
        patch_sizes=(size // 2, size),
    )


def scene_story(note: str | None = None) -> Story:
    """Return the story of simulated scenes."""
    return Story(
        title="simulated scenes",
        note=note,
        splits=load_sample("scenes"),
        class_names=("field", "road", "water", "forest", "town"),
        background=None,
        fits={"ts": {}, "lts": _TRAINING},
        patch_size=48,
        patch_sizes=(12, 24, 48, 96),
    )


def options_of(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as words of the command line.

    >>> options_of({"learning_rate": 0.003, "flips": True, "crop": None})
    ['--set', 'learning_rate=0.003', '--set', 'flips=True']
    """
    given = {name: value for name, value in settings.items() if value is not None}
    return [word for name, value in given.items() for word in ("--set", f"{name}={value}")]


def verdict(results: Results) -> str:
    """Return one sentence on whether local temperatures were worth it here: NLL and the worst patch, LTS against TS."""
    frame = results.to_frame()
    nll, worst = (
        frame[(frame.metric == metric) & (frame.region == region)].groupby("method").value.mean()
        for metric, region in (("nll", "all"), ("ece", "local-max"))
    )
    better = [nll["LTS"] < nll["TS"], worst["LTS"] < worst["TS"]]
    says = {2: "LTS is better than TS here", 1: "LTS and TS are about equal here", 0: "LTS is not better than TS here"}
    return (
        f"{says[sum(better)]}: NLL {nll['LTS']:.4f} against {nll['TS']:.4f} (UC {nll['UC']:.4f}), "
        f"ECE of the worst patch {worst['LTS']:.2%} against {worst['TS']:.2%} (UC {worst['UC']:.2%})."
    )
