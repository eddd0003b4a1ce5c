"""Write the logits of every view of every image that a network was not trained on, as float16."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from experiments.camvid.jobs import Job as CamVidJob
from experiments.camvid.quality import in_batches
from experiments.camvid.quality import normalised as normalised_picture
from experiments.datasets.camvid import open_camvid
from experiments.lpba40.network import WEIGHTS
from experiments.lpba40.network import normalised as normalised_volume
from experiments.lpba40.prepared import PreparedFolder
from experiments.lpba40.recipes import Job
from experiments.lpba40.tiling import predict_tiled
from experiments.passes.sets import views
from experiments.passes.views import ORIGINAL, Network, other_sides, seen
from segcal.files import MARKER, staged_folder, write_json
from segcal.training.processes import choose_device

_BATCH = 8


def networks_of(options: argparse.Namespace) -> list[Path | Job]:
    """Return the networks that were asked for: folders of jobs of CamVid, and jobs of volumes."""
    pictures = [] if options.camvid is None else sorted(options.weights.glob("fc-densenet*-ce-*"))
    return [*pictures, *volume_jobs(options)]


def predict(network: Path | Job, options: argparse.Namespace) -> None:
    """Write the logits of a network, of all folds of a job of volumes."""
    if isinstance(network, Path):
        predict_camvid(network, options.camvid, options.out, options.device, options.every)
    else:
        predict_volumes(network, options.weights, options.prepared, options.out, options.device, options.fold)


def predict_camvid(weights: Path, data: Path, out: Path, device: str, every: int = 1) -> None:
    """Write `out/camvid/SEED/VIEW/FRAME.npy` for the frames of `val` and `test`, unless they are there.

    Args:
        weights: Folder of a job of `experiments.camvid`.
        data: Folder of CamVid's frames.
        out: Folder of the results.
        device: Device of the network.
        every: Of frames in a row, which are nearly equal, only each of this number is used.
    """
    job = CamVidJob.of(weights.name)
    folder = out / "camvid" / str(job.seed)
    if (folder / MARKER).exists():
        return
    place, camvid = choose_device(device), open_camvid(data, ("val", "test"))
    network = _loaded(job.build(), weights / WEIGHTS)
    network.to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def logits(image: Tensor) -> Tensor:
        with torch.autocast(place.type, torch.bfloat16, enabled=place.type == "cuda"):
            return cast(Tensor, network(normalised_picture(image / 255))).float()

    frames = [(split, name) for split in ("val", "test") for name in camvid.names(split)[::every]]
    with staged_folder(folder) as target, ThreadPoolExecutor() as pool, torch.no_grad():
        for view in (ORIGINAL, *views(2)):
            (target / view).mkdir()
        for part in in_batches(frames, _BATCH):
            pictures = np.stack(list(pool.map(lambda frame: camvid.read(*frame).image, part)))
            images, writing = torch.from_numpy(pictures).to(place).float(), []
            for view in (ORIGINAL, *views(2)):  # each is written while the next is made
                found = seen(logits, images, view).half().cpu().numpy()
                paths = [target / view / f"{name}.npy" for _, name in part]
                writing += [pool.submit(np.save, path, own) for path, own in zip(paths, found, strict=True)]
            for written in writing:
                written.result()
        write_json(target / MARKER, {"format": 1, "views": views(2)})


def predict_volumes(job: Job, weights: Path, prepared: Path, out: Path, device: str, folds: Sequence[int]) -> None:
    """Write `out/PRESET/SEED/VIEW/VOLUME.npy` for the test volumes of networks, each by the one not trained on it."""
    folder, recipe = out / job.preset / str(job.seed), job.recipe
    if (folder / MARKER).exists():
        return
    place, data = choose_device(device), PreparedFolder(prepared, recipe.data)
    sides = other_sides(data.classes)
    with staged_folder(folder) as target, torch.no_grad():
        for view in (ORIGINAL, *views(3)):
            (target / view).mkdir()
        for fold in folds:
            network = _loaded(recipe.unet(len(data.classes)), job.folder(weights, fold) / WEIGHTS).to(place)
            for name in job.split(data.names)[fold].network.test:
                image = torch.from_numpy(data.read(name).image)[None, None].float()
                for view in (ORIGINAL, *views(3)):
                    tiled = _tiled(network, len(data.classes), recipe.patch, recipe.centre, place)
                    np.save(target / view / f"{name}.npy", seen(tiled, image, view, sides)[0].half().numpy())
        write_json(target / MARKER, {"format": 1, "views": views(3)})


def _tiled(network: nn.Module, classes: int, patch: int, centre: int, place: torch.device) -> Network:
    def logits(image: Tensor) -> Tensor:
        out = np.empty((classes, *image.shape[2:]), np.float32)
        picture = normalised_volume(image[0]).numpy()
        predict_tiled(network, picture, out, patch=patch, centre=centre, device=place)
        return torch.from_numpy(out)[None]

    return logits


def _loaded(network: nn.Module, path: Path) -> nn.Module:
    values = {name: value.float() if value.is_floating_point() else value for name, value in load_file(path).items()}
    network.load_state_dict(values)
    return network.eval()


def volume_jobs(options: argparse.Namespace) -> list[Job]:
    """Return the jobs of `experiments.lpba40` that were asked for."""
    presets = options.preset if options.prepared is not None else ()
    return [Job(preset, seed, options.small) for preset in presets for seed in options.seed]


def predicted(out: Path, data: str) -> Iterator[int]:
    """Yield the seeds of the networks whose logits are there."""
    for path in sorted((out / data).glob(f"*/{MARKER}")):
        yield int(path.parent.name)
