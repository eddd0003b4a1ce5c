"""Small data sets to try things on, offline: simulated scenes, and brains with the scores of a real network."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors.torch import load_file

from segcal.data.sample import brain, scenes
from segcal.data.sample.brain import Subject
from segcal.networks.unet3d import UNet3D
from segcal.text import suggestion
from segcal.types import Case, InputError, public

SAMPLES = ("scenes", "brain")
BRAIN_SUBJECTS = {"fit": range(6), "validation": range(6, 8), "test": range(8, 18)}
BRAIN_TRAINING = range(100, 102)
"""Subjects that the network was trained on; none of them is in the sample."""

BRAIN_WEIGHTS = Path(__file__).with_name("brain_network.safetensors")


@public
def load_sample(name: Literal["scenes", "brain"] = "scenes") -> dict[str, list[Case]]:
    """Return the cases of a sample, split into "fit", "validation" and "test".

    Args:
        name: "scenes" for simulated images whose miscalibration is known; "brain" for volumes made from the MNI152
            template, with the logits of a small 3D U-Net that was trained on two other subjects and is overconfident
            by itself. The brains need the extra `demo`.

    Examples:
        >>> sample = load_sample()
        >>> {split: len(cases) for split, cases in sample.items()}
        {'fit': 30, 'validation': 4, 'test': 12}
    """
    if name not in SAMPLES:
        raise InputError(f"the sample must be one of {', '.join(SAMPLES)}, got '{name}'{suggestion(name, SAMPLES)}")
    if name == "scenes":
        return scenes.load_scenes()
    if not brain.has_template():
        raise InputError(brain.MISSING)
    network = brain_network()
    network.load_state_dict(load_file(BRAIN_WEIGHTS))
    return {
        split: brain_cases(network.eval(), [brain.simulate_brain(number) for number in numbers])
        for split, numbers in BRAIN_SUBJECTS.items()
    }


def brain_network() -> UNet3D:
    """Return the network of the brain sample, not yet trained."""
    return UNet3D(len(brain.CLASSES), width=6, levels=3)


def brain_cases(network: UNet3D, subjects: Iterable[Subject]) -> list[Case]:
    """Return subjects with the logits of a network."""
    cases = []
    for subject in subjects:
        with torch.inference_mode():
            logits = network(torch.from_numpy(subject.image)[None, None])[0].numpy()
        image = subject.image[np.newaxis]
        cases.append(Case(subject.name, logits, subject.labels, image, brain.SPACING))
    return cases
