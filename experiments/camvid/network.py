"""Train a network of a job, and write the logits that it gives for `val` and `test`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TypeVar, cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from experiments.camvid.augment import Augmentation
from experiments.camvid.fc_densenet import FCDenseNet
from experiments.camvid.jobs import Job, Recipe
from experiments.camvid.quality import (
    BATCH,
    Labelled,
    choosing_kernels,
    confusion,
    fit_statistics,
    held,
    in_batches,
    logits_of,
    mean_iou,
    measure,
    normalised,
)
from experiments.command import announce, check_unchanged, versions
from experiments.datasets.camvid import VOID, CamVid, Frame, Split
from segcal.data.io.arrays import Npy
from segcal.files import MARKER, read_json, staged_file, staged_folder, write_json
from segcal.losses import PixelLoss
from segcal.training.loop import train
from segcal.training.processes import choose_device
from segcal.training.recording import Recorder
from segcal.training.settings import Epoch, Inspect, Training, Watch
from segcal.types import Array, InputError

WEIGHTS, RECIPE, LOG, LOGITS = "network.safetensors", "recipe.json", "training.json", "logits"
_TOLD = 30
_KERNELS = 4
_T = TypeVar("_T")


class OutOfTimeError(Exception):
    """The time allowed for this call is over; the next one goes on from the last checkpoint."""


def check_recipe(job: Job, out: Path, recipe: Recipe) -> None:
    """Refuse to go on in another way with what was begun; a field that a recipe lacks had its default."""
    folder = job.folder(out)
    if (folder / RECIPE).exists():
        check_unchanged(folder, asdict(Recipe()) | read_json(folder / RECIPE), asdict(recipe))


def train_network(
    job: Job,
    data: CamVid,
    out: Path,
    recipe: Recipe,
    *,
    device: str,
    minutes: float | None = None,
    compiled: bool = False,
) -> None:
    """Train, unless the job's folder holds the trained network already.

    The mIoU on frames of `val` is printed during training and at the end; nothing depends on it.
    """
    folder = job.folder(out)
    if (folder / LOG).exists():
        print(f"{job.name}: trained already")
        return
    place = choose_device(device)
    if compiled and place.type != "cuda":
        raise InputError(f"a network is compiled for a GPU alone, got device '{place}'; leave out --compiled")
    frames, others = (held(read_frames(data, split, recipe), place) for split in ("train", "val"))
    objective = _Objective(job, compiled).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if place.type == "cuda":
        torch.backends.cudnn.benchmark_limit = _KERNELS
    settings = Training(
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        whole_batches=True,  # so that there is one shape to find the fastest kernels for
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        optimiser="adamw",
        cosine=True,
        warmup=recipe.epochs // 50,
        average=recipe.average,
        precision=recipe.precision,
        seed=job.seed,
        device=device,
        checkpoint=folder / "checkpoints",
        checkpoint_every=max(1, recipe.epochs // 12),
        watch=_watch(max(1, recipe.epochs // 12), minutes),
    )
    with staged_file(folder / RECIPE) as target:
        write_json(target, asdict(recipe))
    with choosing_kernels(True):
        history = train(
            objective,
            frames,
            settings,
            augment=Augmentation(recipe),
            inspect=_teller(recipe, frames, others),
        )
    seconds, network = sum(epoch.seconds for epoch in history.epochs), objective.network
    fit_statistics(network, frames, seed=job.seed)
    quality = {"train": measure(network, frames), "val": measure(network, others)}
    save_file(_plain(network), folder / WEIGHTS)
    losses = [[epoch.number, epoch.loss, epoch.seconds] for epoch in history.epochs]
    log = {"job": asdict(job), "recipe": asdict(recipe), "compiled": compiled, "seconds": seconds, **versions()}
    with staged_file(folder / LOG) as file:  # last: its presence says that the training is done
        write_json(file, {**log, "frames": len(frames), "miou": quality, "epochs": losses})
    shown = ", ".join(f"{value:.4f} on {split}" for split, value in quality.items())
    print(f"{job.name}: trained in {seconds:.0f} s, loss {history.epochs[-1].loss:.4f}, mIoU {shown}", flush=True)


def predict(job: Job, data: CamVid, out: Path, recipe: Recipe, *, device: str) -> None:
    """Write the logits of `val` and `test` as float16, unless they are there already, and print the mIoU."""
    folder, started = job.folder(out), perf_counter()
    if (folder / LOGITS / MARKER).exists():
        print(f"{job.name}: predicted already")
        return
    if not (folder / WEIGHTS).exists():
        raise InputError(f"'{folder}' holds no trained network ({WEIGHTS}); run the stage `train` first")
    place = choose_device(device)
    network = job.build()
    network.load_state_dict(load_file(folder / WEIGHTS))
    network.eval().to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
    with staged_folder(folder / LOGITS) as target:
        quality = {
            split: _write_logits(network, read_frames(data, split, recipe), target / split, place)
            for split in ("val", "test")
        }
        write_json(target / MARKER, {"format": 1, "miou": quality, **versions()})
    seconds = perf_counter() - started
    print(
        f"{job.name}: predicted in {seconds:.0f} s, mIoU on test {quality['test']['all']:.4f}, all: {quality}",
        flush=True,
    )


def _write_logits(network: nn.Module, frames: Sequence[Frame], folder: Path, device: torch.device) -> dict[str, float]:
    """Write each frame's logits `[L, H, W]` while the next are made; the mIoU of each video and of all frames."""
    folder.mkdir()
    tables: dict[str, Array] = {}
    with ThreadPoolExecutor() as pool:
        writing = []
        for part in in_batches(frames, BATCH):
            there = held(part, device)
            logits = logits_of(network, there).half()
            for frame, (_, labels), own in zip(part, there, logits, strict=True):
                table = confusion(own[None], labels[None]).cpu().numpy()
                tables[frame.sequence] = tables.get(frame.sequence, 0) + table
            arrays = zip(part, logits.cpu().numpy(), strict=True)
            writing += [pool.submit(np.save, folder / f"{frame.name}.npy", array) for frame, array in arrays]
        for written in writing:
            written.result()
    found = {name: mean_iou(table) for name, table in tables.items()}
    return {**found, "all": mean_iou(np.sum(list(tables.values()), axis=0))}


def read_logits(job: Job, out: Path, split: Split, name: str) -> Array:
    """Return the logits that `predict` wrote for a frame."""
    return np.array(Npy(job.folder(out) / LOGITS / split / f"{name}.npy").read("logits"))


def read_quality(job: Job, out: Path) -> dict[str, dict[str, float]]:
    """The mIoU of each split and video, as `predict` wrote it."""
    found: dict[str, dict[str, float]] = read_json(job.folder(out) / LOGITS / MARKER)["miou"]
    return found


def names_of(data: CamVid, split: Split, recipe: Recipe) -> tuple[str, ...]:
    """The frames of a split that a recipe uses: all, or some that are evenly spread."""
    names = data.names(split)
    return tuple(_spread(names, len(names) if recipe.frames is None else recipe.frames))


def read_frames(data: CamVid, split: Split, recipe: Recipe) -> Sequence[Frame]:
    """The frames of a split, read by several threads."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda name: data.read(split, name), names_of(data, split, recipe)))


class _Objective(nn.Module):
    """Summed loss of a batch of frames, and its number of labelled pixels."""

    def __init__(self, job: Job, compiled: bool) -> None:
        super().__init__()
        self.network: FCDenseNet = job.build()
        self.criterion: PixelLoss | None = job.criterion()
        self.recorder = Recorder(self.network, compiled=compiled)

    def forward(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits, truth = self.recorder(normalised(image)).float(), labels.long()
        if self.criterion is not None:
            return self.criterion.sum_and_weight(logits, truth)
        return F.cross_entropy(logits, truth, ignore_index=VOID, reduction="sum"), (truth != VOID).sum()


def _plain(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.cpu().contiguous() for name, value in network.state_dict().items()}


def _watch(checkpoint_every: int, minutes: float | None) -> Watch:
    """Print 25 times or so; stop after a checkpoint once the time is over."""
    started, tell = perf_counter(), announce("training", 25)

    def watch(epoch: Epoch) -> None:
        tell(epoch)
        over = minutes is not None and perf_counter() - started > 60 * minutes
        if over and epoch.number % checkpoint_every == 0 and epoch.number < epoch.of:
            raise OutOfTimeError(f"{minutes} minutes are over after epoch {epoch.number}; run again to go on")

    return watch


def _teller(recipe: Recipe, frames: Sequence[Labelled], others: Sequence[Labelled]) -> Inspect:
    """Print, four times on the way, the mIoU on some frames of `train` and `val` that the end would have there."""
    ours, theirs = _spread(frames, _TOLD), _spread(others, _TOLD)
    every = max(1, recipe.epochs // 5)

    def tell(number: int, objective: nn.Module) -> None:
        if number % every or number > recipe.epochs - every:
            return
        network = deepcopy(cast(_Objective, objective).network)
        fit_statistics(network, _spread(frames, 2 * _TOLD), seed=0)
        seen, unseen = measure(network, ours), measure(network, theirs)
        told = f"{seen:.4f} on {len(ours)} frames of train, {unseen:.4f} on {len(theirs)} of val"
        print(f"after epoch {number}: mIoU {told}", flush=True)

    return tell


def _spread(items: Sequence[_T], count: int) -> Sequence[_T]:
    """All, or some that are evenly spread."""
    if count >= len(items):
        return items
    return [items[k] for k in np.linspace(0, len(items) - 1, count).round().astype(int)]
