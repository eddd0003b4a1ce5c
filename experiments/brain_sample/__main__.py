"""Train the small 3D U-Net of the brain sample and write its weights into the package.

python -m experiments.brain_sample prepare --subjects brains.npz       needs the extra demo
python -m experiments.brain_sample train --subjects brains.npz         a minute on a GPU, a quarter of an hour on a CPU

The network is trained on eight patches of two simulated subjects with plain cross-entropy, without augmentation or
early stopping, and so becomes overconfident as networks do on little data. Nothing else is done to its scores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal import evaluate
from segcal.data.sample import BRAIN_SUBJECTS, BRAIN_TRAINING, BRAIN_WEIGHTS, brain_cases, brain_network
from segcal.data.sample.brain import CLASSES, Subject, simulate_brain
from segcal.files import staged_file
from segcal.regions import local_patch_size
from segcal.training.batches import Batch
from segcal.training.loop import train
from segcal.training.settings import Epoch, Training

_PATCH = 24  # side of the patches
_PATCHES = 4  # of each subject


class _Objective(nn.Module):
    """Summed cross-entropy, and the number of voxels."""

    def __init__(self) -> None:
        super().__init__()
        self.network = brain_network()

    def forward(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.network(image).float()
        return F.cross_entropy(logits, labels, reduction="sum"), torch.tensor(labels.numel())


def main(arguments: list[str] | None = None) -> int:
    """Run a stage; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.brain_sample", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("stage", choices=("prepare", "train"))
    parser.add_argument("--subjects", type=Path, required=True, help="npz file with the simulated subjects")
    parser.add_argument("--out", type=Path, default=BRAIN_WEIGHTS)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    if options.stage == "prepare":
        _prepare(options.subjects)
    else:
        _train(options)
    return 0


def _prepare(path: Path) -> None:
    """Write the subjects to train and to test on, so that a machine without nilearn can train."""
    subjects = [simulate_brain(number) for number in (*BRAIN_TRAINING, *BRAIN_SUBJECTS["test"])]
    arrays: dict[str, Any] = {f"{each.name}/image": each.image.astype(np.float16) for each in subjects}
    arrays |= {f"{each.name}/labels": each.labels for each in subjects}
    with staged_file(path) as file:
        np.savez_compressed(file, **arrays)


def _read(path: Path, numbers: Iterable[int]) -> list[Subject]:
    with np.load(path, allow_pickle=False) as file:
        names = [f"brain-{number:03d}" for number in numbers]
        return [Subject(name, file[f"{name}/image"].astype(np.float32), file[f"{name}/labels"]) for name in names]


def _train(options: argparse.Namespace) -> None:
    """Train, write the weights, and print how accurate and how well calibrated the network is on other subjects."""
    torch.manual_seed(0)
    objective = _Objective()
    samples = [patch for each in _read(options.subjects, BRAIN_TRAINING) for patch in _patches(each)]
    settings = Training(
        epochs=options.epochs,
        learning_rate=3e-3,
        cosine=True,
        batch_size=4,
        spatial_dims=3,
        device=options.device,
        watch=_watch,
    )
    train(objective, samples, settings)
    network = objective.network.cpu().eval()
    with staged_file(options.out) as file:
        save_file({name: value.contiguous() for name, value in network.state_dict().items()}, file)
    test = brain_cases(network, _read(options.subjects, BRAIN_SUBJECTS["test"]))
    size = local_patch_size([case.logits.shape[1:] for case in test])
    print(evaluate(test, {"UC": None}, num_classes=len(CLASSES), background=0, patch_size=size).table())


def _patches(subject: Subject) -> list[Batch]:
    """Return patches of a subject at places spread evenly over the brain."""
    image, labels = torch.from_numpy(subject.image)[None], torch.from_numpy(subject.labels).long()
    inside = torch.nonzero(labels)
    found: list[Batch] = []
    for place in inside[:: len(inside) // _PATCHES][:_PATCHES].tolist():
        lows = [min(max(0, at - _PATCH // 2), size - _PATCH) for at, size in zip(place, labels.shape, strict=True)]
        box = tuple(slice(low, low + _PATCH) for low in lows)
        found.append((image[(slice(None), *box)], labels[box]))
    return found


def _watch(epoch: Epoch) -> None:
    if epoch.number % max(1, epoch.of // 20) == 0:
        print(f"epoch {epoch.number}/{epoch.of}: loss {epoch.loss:.4f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
