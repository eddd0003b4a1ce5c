"""Stages `prepare` and `register`: NIfTI volumes to small files, and every atlas of a fold to its other volumes.

Later stages read these files without any NIfTI library.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from experiments.lpba40.prepare import around, opened, read_volume
from experiments.lpba40.preprocessing import equalised
from experiments.multi_atlas.presets import Fold, Preset, folds_of
from segcal.files import staged_file, write_json
from segcal.fusion.registration import (
    RegistrationOutcome,
    Volume,
    decoded,
    encoded,
    normalised,
    register_pairs,
)
from segcal.types import InputError

VOLUMES, WARPS, REPORT = "volumes", "warps", "registration.json"
_MARGIN = 2
_EVERY = 50


def prepare(data: Path, out: Path, preset: Preset, *, template: Path | None = None) -> None:
    """Write the volumes that the protocol uses: 256 grey levels, cropped to what is not empty.

    Args:
        data: Folder of the data set.
        out: Folder of everything that is made.
        preset: Data set and split.
        template: NIfTI file that LPBA40 is aligned with, such as the skull-stripped MNI152 T1.
    """
    count = sum(preset.sizes)
    volumes = opened(preset.data, data, template, count)
    if len(volumes.names) < count:
        raise InputError(f"'{data}' must hold at least {count} volumes, got {len(volumes.names)}")
    for name in volumes.names[:count]:
        path = out / VOLUMES / f"{name}.npz"
        if path.exists():
            continue
        volume = read_volume(volumes, name, template, out / "affines")
        image = volume.image.astype(np.float32)
        grey = normalised(image) if template is None else equalised(image, image > 0)
        box = around((grey > 0) | (volume.labels > 0), _MARGIN)
        with staged_file(path) as target:
            spacing = np.array(volume.spacing)
            np.savez_compressed(target, image=encoded(grey[box]), labels=volume.labels[box], spacing=spacing)
    print(f"{len(list((out / VOLUMES).glob('*.npz')))} volumes in '{out / VOLUMES}'")


def prepared_folds(out: Path, preset: Preset) -> list[Fold]:
    """The folds of the volumes that were prepared."""
    names = sorted(path.stem for path in (out / VOLUMES).glob("*.npz"))
    if len(names) != sum(preset.sizes):
        raise InputError(
            f"'{out / VOLUMES}' must hold {sum(preset.sizes)} volumes, got {len(names)}; run the stage `prepare` first"
        )
    return folds_of(names, preset)


def reader(out: Path) -> partial[Volume]:
    """Return the function that reads a prepared volume by name."""
    return partial(read_prepared, folder=out / VOLUMES)


def read_prepared(name: str, *, folder: Path) -> Volume:
    """Read a prepared volume."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as content:
        spacing = tuple(float(size) for size in content["spacing"])
        return Volume(decoded(content["image"]), content["labels"], spacing)


def label_set(out: Path) -> list[int]:
    """The labels of all volumes, without the background 0."""
    found: set[int] = set()
    for path in sorted((out / VOLUMES).glob("*.npz")):
        found.update(np.unique(read_prepared(path.stem, folder=out / VOLUMES).labels).tolist())
    return sorted(found - {0})


def register_all(out: Path, preset: Preset, *, processes: int) -> None:
    """Register what is not registered yet, and report the failures."""
    pairs = [pair for fold in prepared_folds(out, preset) for pair in fold.all_pairs]
    started = perf_counter()

    def watch(outcome: RegistrationOutcome, done: int, count: int) -> None:
        if done % _EVERY == 0 or done == count:
            print(f"registered {done} of {count} pairs in {perf_counter() - started:.0f} s", flush=True)
        if outcome.problem:
            print(f"  failed: {_failure(outcome)}", flush=True)

    outcomes = register_pairs(pairs, reader(out), out / WARPS, preset.registration, processes=processes, watch=watch)
    failed = [_failure(outcome) for outcome in outcomes if outcome.problem]
    figures = np.array([outcome.quality for outcome in outcomes if outcome.quality is not None])
    means = dict(zip(("centred", "affine", "deformable", "folding"), figures.mean(axis=0).tolist(), strict=True))
    with staged_file(out / REPORT) as file:
        write_json(file, {"pairs": len(pairs), "failed": failed, "mean": means})
    print(f"{len(pairs)} pairs, {len(failed)} failed; mean similarity {means}")


def _failure(outcome: RegistrationOutcome) -> str:
    return f"{outcome.pair.atlas} to {outcome.pair.target}: {outcome.problem}"
