"""Stages `train` and `predict`: VoteNet+ on the pairs of a fold, and its logits for the validation and test pairs."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from experiments.lpba40.patches import OUTSIDE, ForegroundPatches
from experiments.lpba40.tiling import predict_tiled
from experiments.multi_atlas.presets import Fold, Preset
from experiments.multi_atlas.registering import WARPS
from experiments.multi_atlas.volumes import reader
from experiments.multi_atlas.votenet import VoteLoss, VoteNet
from experiments.versions import versions
from segcal.files import staged_file, write_json
from segcal.fusion.registration import Pair, Volume, Warp, read_warp
from segcal.training.batches import Sample
from segcal.training.loop import train
from segcal.training.processes import choose_device
from segcal.training.settings import Epoch, Training
from segcal.types import Array, InputError

WEIGHTS, LOG, LOGITS = "network.safetensors", "training.json", "logits"


def fold_folder(out: Path, fold: Fold) -> Path:
    """Return the folder of a fold."""
    return out / f"fold-{fold.number}"


class PairSource:
    """Target, warped atlas, whether the warped label is right, and the foreground of the target: pairs of one size.

    Volumes are padded to the largest, so that those of different size can share a batch; padding is `OUTSIDE` in the
    foreground and has no weight in the loss.
    """

    def __init__(self, pairs: list[Pair], out: Path, device: torch.device) -> None:
        read, volumes = reader(out), dict[str, Volume]()
        for pair in pairs:
            if pair.target not in volumes:
                volumes[pair.target] = read(pair.target)
        space = np.max([volume.labels.shape for volume in volumes.values()], axis=0)
        self.samples = [_sample(volumes[pair.target], read_warp(out / WARPS, pair), space, device) for pair in pairs]

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        """The arrays of one pair."""
        return self.samples[index]


def train_network(out: Path, fold: Fold, preset: Preset, *, device: str, seed: int = 0) -> None:
    """Train VoteNet+ on the atlases registered to each other, unless the fold has a trained network."""
    folder = fold_folder(out, fold)
    if (folder / LOG).exists():
        print(f"fold {fold.number}: trained already")
        return
    place = choose_device(device)
    started = perf_counter()
    learn, check = (PairSource(fold.pairs(part), out, place) for part in (fold.atlases, fold.validation))
    print(f"fold {fold.number}: {len(learn)} pairs to train on, {len(check)} to validate", flush=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = VoteNet(preset.features, preset.depth)
    settings = Training(
        epochs=preset.epochs,
        batch_size=preset.batch_size,
        learning_rate=1e-3,
        # the paper halves the rate at 200, 350 and 450 of 500 epochs
        milestones=tuple(preset.epochs * part // 500 for part in (200, 350, 450)),
        gamma=0.5,
        spatial_dims=3,
        precision="bfloat16" if place.type == "cuda" else "float32",
        seed=seed,
        device=device,
        checkpoint=folder / "checkpoints",
        checkpoint_every=max(1, preset.epochs // 4),
        watch=_watch,
    )
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):  # batches have one shape
        history = train(VoteLoss(network), learn, settings, validation=check, augment=ForegroundPatches(preset.patch))
    seconds = perf_counter() - started
    with staged_file(folder / WEIGHTS) as file:
        save_file({name: value.cpu().contiguous() for name, value in network.state_dict().items()}, file)
    losses = [[epoch.number, epoch.loss, epoch.validation] for epoch in history.epochs]
    with staged_file(folder / LOG) as file:  # last: its presence says that the training is done
        write_json(file, {"seconds": seconds, "best_epoch": history.best_epoch, "epochs": losses, **versions()})
    print(f"fold {fold.number}: trained in {seconds:.0f} s, best epoch {history.best_epoch}", flush=True)


def predict(out: Path, fold: Fold, preset: Preset, *, device: str) -> None:
    """Write the logit that each atlas is right, `[n, *S]` for each validation and test target."""
    folder, place = fold_folder(out, fold), choose_device(device)
    if not (folder / LOG).exists():
        raise InputError(f"'{folder}' holds no trained network; run the stage `train` first")
    network = VoteNet(preset.features, preset.depth)
    network.load_state_dict(load_file(folder / WEIGHTS))
    network.eval().to(place)

    def side_by_side(images: Tensor) -> Tensor:
        with torch.autocast(place.type, torch.bfloat16, enabled=place.type == "cuda"):
            logits: Tensor = network(images[:, :1], images[:, 1:])
        return logits

    read, written = reader(out), 0
    for target in (*fold.validation, *fold.test):
        path = folder / LOGITS / f"{target}.npy"
        if path.exists():
            continue
        volume, warps = read(target), read_warps(out, fold, target)
        logits = np.empty((len(warps), *volume.image.shape), np.float16)
        for own, warp in zip(logits, warps, strict=True):
            images = np.stack([volume.image, warp.image])
            predict_tiled(side_by_side, images, own[None], patch=preset.patch, centre=preset.centre, device=place)
        with staged_file(path) as file:
            np.save(file, logits)
        written += 1
    print(f"fold {fold.number}: logits of {written} targets written", flush=True)


def read_logits(out: Path, fold: Fold, target: str) -> Array:
    """Return the logits that `predict` wrote, as float32."""
    path = fold_folder(out, fold) / LOGITS / f"{target}.npy"
    if not path.exists():
        raise InputError(f"'{path}' is missing; run the stage `predict` first")
    return np.load(path, allow_pickle=False).astype(np.float32)  # type: ignore[no-any-return]


def read_warps(out: Path, fold: Fold, target: str) -> list[Warp]:
    """The atlases of a fold, warped to a target, in the order of the atlases."""
    return [read_warp(out / WARPS, Pair(atlas, target)) for atlas in fold.atlases]


def _sample(volume: Volume, warp: Warp, space: Array, device: torch.device) -> Sample:
    right = warp.labels == volume.labels
    foreground = (volume.labels > 0).astype(np.uint8)
    images = (_padded(part, space, device) for part in (volume.image, warp.image, right))
    return (*images, _padded(foreground, space, device, value=OUTSIDE))


def _padded(array: Array, space: Array, device: torch.device, *, value: int = 0) -> Tensor:
    missing = [int(full - length) for full, length in zip(space, array.shape, strict=True)]
    sides = (0, missing[2], 0, missing[1], 0, missing[0])
    return F.pad(torch.from_numpy(np.ascontiguousarray(array))[None], sides, value=value).to(device)


def _watch(epoch: Epoch) -> None:
    if epoch.number % max(1, epoch.of // 10) == 0 or epoch.number == epoch.of:
        print(
            f"  epoch {epoch.number}/{epoch.of}: loss {epoch.loss:.4f}, validation {epoch.validation:.4f}, "
            f"{epoch.seconds:.1f} s",
            flush=True,
        )
