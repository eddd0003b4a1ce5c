"""Train the 3D U-Net of one fold, and write its logits for the volumes that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from experiments.begun import check_unchanged
from experiments.datasets.splits import Fold
from experiments.lpba40.patches import OUTSIDE, ForegroundPatches
from experiments.lpba40.prepared import Prepared, PreparedFolder
from experiments.lpba40.recipes import Job, Recipe
from experiments.lpba40.tiling import predict_tiled
from experiments.versions import versions
from segcal.files import MARKER, read_json, staged_file, staged_folder, write_json
from segcal.training.batches import Batch
from segcal.training.loop import train
from segcal.training.processes import choose_device
from segcal.training.settings import Epoch, Training, Watch
from segcal.types import Array

LOG, WEIGHTS, LOGITS = "training.json", "network.safetensors", "logits"
_FACTOR = 8  # sides are padded to multiples of it, as the network would
_KERNELS = 4  # that cuDNN tries for each layer; every batch has the same shape, so it tries them once


def train_network(
    job: Job, fold: int, parts: Fold, data: PreparedFolder, out: Path, scratch: Path, device: str
) -> None:
    """Train on `parts.fit` and keep the epoch of best Dice on `parts.validation`, unless that is done.

    The paper chooses by validation too, and does not say by which measure. Dice is what networks are usually chosen by;
    the likelihood would already choose for calibration.
    """
    folder, kept, recipe = job.folder(out, fold), job.folder(scratch, fold), job.recipe
    if (folder / LOG).exists() and (kept / WEIGHTS).exists():
        check_unchanged(folder, read_json(folder / LOG)["recipe"], asdict(recipe))
        print(f"{job.name}, fold {fold}: trained already", flush=True)
        return
    place = choose_device(device)
    held = _held([data.read(name) for name in (*parts.fit, *parts.validation)], place)
    count = len(parts.fit)
    torch.manual_seed(job.seed)  # of the first weights
    objective = _Objective(recipe, len(data.classes))
    if place.type == "cuda":
        objective.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    settings = Training(
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        milestones=recipe.milestones,
        precision=recipe.precision,
        flips=recipe.flips,
        spatial_dims=3,
        seed=job.seed,
        device=device,
        watch=_watch(f"{job.name}, fold {fold}"),
        checkpoint=kept / "checkpoints",
        checkpoint_every=max(1, recipe.epochs // 5),
    )
    source = _Repeated(held[:count], recipe.repeats)
    title = f"{job.name}, fold {fold}"
    started = perf_counter()
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, benchmark_limit=_KERNELS):
        history = train(
            objective,
            source,
            settings,
            validation=held[count:],
            augment=ForegroundPatches(recipe.patch, recipe.foreground),
        )
    kept.mkdir(parents=True, exist_ok=True)
    weights = objective.network.state_dict()
    save_file({name: value.cpu().contiguous() for name, value in weights.items()}, kept / WEIGHTS)
    epochs = [[epoch.number, epoch.loss, epoch.validation] for epoch in history.epochs]
    seconds, dice = perf_counter() - started, 1 - history.best_loss
    log = {"recipe": asdict(recipe), "split": asdict(parts), "seconds": seconds, "dice": dice, **versions()}
    with staged_file(folder / LOG) as file:  # last: its presence says that the training is done
        write_json(file, {**log, "best_epoch": history.best_epoch, "epochs": epochs})
    print(f"{title}: trained in {seconds:.0f} s, validation Dice {dice:.4f} at epoch {history.best_epoch}", flush=True)


def predict(job: Job, fold: int, parts: Fold, data: PreparedFolder, scratch: Path, device: str) -> None:
    """Write the logits of the validation and test volumes as float16, unless they are there."""
    kept, recipe = job.folder(scratch, fold), job.recipe
    if (kept / LOGITS / MARKER).exists():
        return
    place, started = choose_device(device), perf_counter()
    network = recipe.unet(len(data.classes))
    network.load_state_dict(load_file(kept / WEIGHTS))
    network.eval().to(place)
    names = (*parts.validation, *parts.test)
    with staged_folder(kept / LOGITS) as target:
        for name in names:
            volume = data.read(name)
            shape = (len(data.classes), *volume.image.shape)
            logits = np.lib.format.open_memmap(target / f"{name}.npy", "w+", dtype=np.float16, shape=shape)
            image = normalised(torch.from_numpy(volume.image)[None]).numpy()
            predict_tiled(network, image, logits, patch=recipe.patch, centre=recipe.centre, device=place)
            logits.flush()
        write_json(target / MARKER, {"format": 1, "names": names})
    print(f"{job.name}, fold {fold}: {len(names)} volumes predicted in {perf_counter() - started:.0f} s", flush=True)


def read_logits(job: Job, fold: int, scratch: Path, name: str) -> Array:
    """Return the logits `[L, z, y, x]` that `predict` wrote, left on disk."""
    logits: Array = np.load(job.folder(scratch, fold) / LOGITS / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    return logits


def normalised(image: Tensor) -> Tensor:
    """Return equalised intensities in 0..255 with about mean 0 and variance 1."""
    return (image.float() / 255 - 0.5) * 12**0.5


class _Objective(nn.Module):
    """In training the summed cross-entropy and its number of voxels; in evaluation summed 1 - Dice, and volumes."""

    def __init__(self, recipe: Recipe, num_classes: int) -> None:
        super().__init__()
        self.network = recipe.unet(num_classes)

    def forward(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        truth = labels.long()
        logits = self.network(normalised(image)).float()
        if self.training:
            total = F.cross_entropy(logits, truth, ignore_index=OUTSIDE, reduction="sum")
            return total, (truth != OUTSIDE).sum()
        lost = torch.stack([1 - mean_dice(own.argmax(0), true) for own, true in zip(logits, truth, strict=True)])
        return lost.sum(), torch.tensor(len(lost), device=lost.device)


def mean_dice(predicted: Tensor, labels: Tensor) -> Tensor:
    """Return the mean Dice score over the structures of a volume, without background; voxels outside do not count."""
    inside = labels != OUTSIDE
    found, true = predicted[inside], labels[inside]
    count = int(max(found.max(), true.max())) + 1
    predicted_sizes, sizes = found.bincount(minlength=count), true.bincount(minlength=count)
    both = true[found == true].bincount(minlength=count)
    present = sizes > 0
    present[0] = False
    dice = 2 * both / (predicted_sizes + sizes).clamp(min=1)
    return dice[present].mean()


class _Repeated:
    """The samples several times over, so that an epoch has several patches of each."""

    def __init__(self, samples: Sequence[Batch], repeats: int) -> None:
        self.samples, self.repeats = samples, repeats

    def __len__(self) -> int:
        return len(self.samples) * self.repeats

    def __getitem__(self, index: int) -> Batch:
        return self.samples[index % len(self.samples)]


def _held(volumes: Sequence[Prepared], device: torch.device) -> list[Batch]:
    """Return images `[1, z, y, x]` and labels on the device, padded at the end to one shape, so that they stack."""
    shape = np.max([volume.image.shape for volume in volumes], axis=0)
    shape += -shape % _FACTOR
    held = list[Batch]()
    for volume in volumes:
        gaps = [(0, int(length - own)) for length, own in zip(shape, volume.image.shape, strict=True)]
        image = np.pad(volume.image, gaps)[None]
        labels = np.pad(volume.labels, gaps, constant_values=OUTSIDE)
        held.append((torch.from_numpy(image).to(device), torch.from_numpy(labels).to(device)))
    return held


def _watch(title: str) -> Watch:
    def watch(epoch: Epoch) -> None:
        if epoch.number % max(1, epoch.of // 6) == 0 or epoch.number == epoch.of:
            dice = 1 - (epoch.validation or 0.0)
            print(
                f"{title}: epoch {epoch.number}/{epoch.of}, loss {epoch.loss:.4f}, validation Dice {dice:.4f}, "
                f"{epoch.seconds:.2f} s",
                flush=True,
            )

    return watch
