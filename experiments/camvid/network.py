"""Train a network of a job, and write the logits that it gives for `val` and `test`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from experiments.camvid.augment import Augmentation
from experiments.camvid.jobs import Job, Recipe, versions
from segcal.data.camvid import CLASSES, VOID, CamVid, Frame, Split
from segcal.files import MARKER, read_json, staged_file, staged_folder, write_json
from segcal.losses import PixelLoss
from segcal.networks.fc_densenet import FCDenseNet
from segcal.training import Epoch, Sample, Settings, Watch, choose_device, train
from segcal.types import Array, Image

WEIGHTS, LOG, LOGITS = "network.safetensors", "training.json", "logits"


class OutOfTimeError(Exception):
    """The time allowed for this call is over; the next one goes on from the last checkpoint."""


def train_network(job: Job, data: CamVid, out: Path, recipe: Recipe, *, device: str, minutes: float | None) -> None:
    """Train, unless the job's folder holds the trained network already."""
    folder = job.folder(out)
    if (folder / LOG).exists():
        print(f"{job.name}: trained already")
        return
    torch.backends.cudnn.benchmark = True
    place = choose_device(device)
    frames = _Held(read_frames(data, "train", recipe), place)
    objective = _Objective(job).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    settings = Settings(
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
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
        checkpoint_every=max(1, recipe.epochs // 5),
    )
    history = train(objective, frames, settings, augment=Augmentation(recipe), watch=_watch(settings, minutes))
    seconds = sum(epoch.seconds for epoch in history.epochs)
    save_file(_plain(objective.network), folder / WEIGHTS)
    losses = [[epoch.number, epoch.loss, epoch.seconds] for epoch in history.epochs]
    log = {"job": asdict(job), "recipe": asdict(recipe), "seconds": seconds, "frames": len(frames), **versions()}
    with staged_file(folder / LOG) as file:  # last: its presence says that the training is done
        write_json(file, {**log, "epochs": losses})
    print(f"{job.name}: trained in {seconds:.0f} s, loss {history.epochs[-1].loss:.4f}")


def predict(job: Job, data: CamVid, out: Path, recipe: Recipe, *, device: str) -> None:
    """Write the logits of `val` and `test` as float16, unless they are there already, and print the mIoU."""
    folder, started = job.folder(out), perf_counter()
    if (folder / LOGITS / MARKER).exists():
        print(f"{job.name}: predicted already")
        return
    place = choose_device(device)
    network = job.build()
    network.load_state_dict(load_file(folder / WEIGHTS))
    network.eval().to(place)
    quality = {}
    with staged_folder(folder / LOGITS) as target:
        for split in ("val", "test"):
            (target / split).mkdir()
            confusion: dict[str, Array] = {}
            for frame in read_frames(data, split, recipe):
                logits = logits_of(network, frame, place)
                np.save(target / split / f"{frame.name}.npy", logits)
                found = confusion.setdefault(frame.sequence, np.zeros((len(CLASSES),) * 2, np.int64))
                found += _confusion(logits, frame.labels)
            quality[split] = {name: mean_iou(table) for name, table in confusion.items()}
            quality[split]["all"] = mean_iou(np.sum(list(confusion.values()), axis=0))
        write_json(target / MARKER, {"format": 1, "miou": quality, **versions()})
    seconds = perf_counter() - started
    print(f"{job.name}: predicted in {seconds:.0f} s, mIoU on test {quality['test']['all']:.4f}, all: {quality}")


def logits_of(network: nn.Module, frame: Frame, device: torch.device) -> Array:
    """The network's logits `[L, H, W]` of one frame, as float16."""
    image = torch.from_numpy(frame.image).to(device).unsqueeze(0)
    with torch.no_grad():
        found: Array = network(normalised(image))[0].half().cpu().numpy()
    return found


def read_logits(job: Job, out: Path, split: Split, name: str) -> Array:
    """What `predict` wrote for a frame."""
    found: Array = np.load(job.folder(out) / LOGITS / split / f"{name}.npy", allow_pickle=False)
    return found


def read_quality(job: Job, out: Path) -> dict[str, dict[str, float]]:
    """The mIoU of each split and video, as `predict` wrote it."""
    found: dict[str, dict[str, float]] = read_json(job.folder(out) / LOGITS / MARKER)["miou"]
    return found


def names_of(data: CamVid, split: Split, recipe: Recipe) -> tuple[str, ...]:
    """The frames of a split that a recipe uses: all, or some that are evenly spread."""
    names = data.names(split)
    if recipe.frames is None or recipe.frames >= len(names):
        return names
    return tuple(names[k] for k in np.linspace(0, len(names) - 1, recipe.frames).round().astype(int))


def read_frames(data: CamVid, split: Split, recipe: Recipe) -> Sequence[Frame]:
    """The frames of a split, read by several threads."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda name: data.read(split, name), names_of(data, split, recipe)))


def normalised(image: Image | Tensor) -> Tensor:
    """Pictures as the network takes them: of about mean 0 and variance 1, in the memory order that is fastest."""
    unit = image.float() / 255 if image.dtype == torch.uint8 else image
    return ((unit - 0.4) / 0.28).contiguous(memory_format=torch.channels_last)


def mean_iou(confusion: Array) -> float:
    """Mean over the classes that occur of intersection over union, pooled over all pixels."""
    hit = np.diag(confusion)
    union = confusion.sum(0) + confusion.sum(1) - hit
    return float(np.mean(hit[union > 0] / union[union > 0]))


class _Objective(nn.Module):
    """Summed loss of a batch of frames, and its number of labelled pixels."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.network: FCDenseNet = job.build()
        self.criterion: PixelLoss | None = job.criterion()

    def forward(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits, truth = self.network(normalised(image)).float(), labels.long()
        if self.criterion is not None:
            return self.criterion.sum_and_weight(logits, truth)
        return F.cross_entropy(logits, truth, ignore_index=VOID, reduction="sum"), (truth != VOID).sum()


class _Held:
    """Frames as training samples, held on the device."""

    def __init__(self, frames: Sequence[Frame], device: torch.device) -> None:
        self.samples = [
            (torch.from_numpy(frame.image).to(device), torch.from_numpy(frame.labels).to(device)) for frame in frames
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]


def _confusion(logits: Array, labels: Array) -> Array:
    kept = labels != VOID
    pairs = labels[kept].astype(np.int64) * len(CLASSES) + logits.argmax(0)[kept]
    return np.bincount(pairs, minlength=len(CLASSES) ** 2).reshape(len(CLASSES), -1)


def _plain(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.cpu().contiguous() for name, value in network.state_dict().items()}


def _watch(settings: Settings, minutes: float | None) -> Watch:
    """Print every tenth epoch; stop after a checkpoint once the time is over."""
    started = perf_counter()

    def watch(epoch: Epoch) -> None:
        if epoch.number % max(1, epoch.of // 25) == 0 or epoch.number == epoch.of:
            print(f"epoch {epoch.number}/{epoch.of}: loss {epoch.loss:.4f}, {epoch.seconds:.1f} s", flush=True)
        over = minutes is not None and perf_counter() - started > 60 * minutes
        if over and epoch.number % settings.checkpoint_every == 0 and epoch.number < epoch.of:
            raise OutOfTimeError(f"{minutes} minutes are over after epoch {epoch.number}; run again to go on")

    return watch
