"""A fitted calibrator over a folder: probabilities and temperature maps, written slab by slab with every label kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from segcal.calibrators import Calibrator
from segcal.data.folders.crop import Crop
from segcal.data.folders.folder import Folder
from segcal.data.io.base import Shape
from segcal.engines import Run, engine_of, write_cases
from segcal.files.prefetch import prefetch
from segcal.functional.pixels import moved_labels
from segcal.functional.probability import keep_labels, keep_sides
from segcal.types import Activation, Array, Case, InputError, Logits, Probs

_AT_ONCE = 1 << 23
"""Probabilities outside of a crop that are written at a time."""

_PRECISIONS = {"float32": torch.float32, "float16": torch.float16}


def apply_to_folder(
    calibrator: Calibrator,
    folder: Folder,
    *,
    out: Path,
    dtype: str = "float32",
    maps: bool = False,
    run: Run | None = None,
) -> dict[str, int] | None:
    """Write calibrated probabilities of every case to `out`, and temperature maps to `out/temperature`.

    Until all cases are written, the output has the name `OUT.unfinished`. What an interrupted run, or an earlier run
    into the same folder, has written with the same calibrator is kept, unless the files of the case have changed since.

    A sigmoid head has one probability per channel, above 0.5 where the channel is predicted; several channels have
    temperature maps in a folder each, `out/temperature/CHANNEL`.

    Args:
        calibrator: A fitted one.
        folder: The cases; determines the format of each file.
        out: Appears when all cases are written.
        dtype: "float32" or "float16".
        maps: Whether to write temperature maps.
        run: How the work is divided and shown; by default between the processes of torchrun, if there are several.

    Returns:
        How many cases and pixels were written, and how many predicted labels changed; None where another process
        publishes the output.
    """
    output = CalibratedFiles(calibrator.applied, folder, dtype, maps)
    with run or Run("apply", out, engine_of()) as begun:
        return write_cases(output, folder, begun)


class WrittenSlab(NamedTuple):
    """Some rows of a case as they are written.

    Attributes:
        start: The first row.
        probabilities: `[L, rows, ...]`, in the precision of the file.
        temperature: `[1 or C, rows, ...]` if maps are written.
        moved: How many labels changed.
    """

    start: int
    probabilities: Array
    temperature: Array | None
    moved: int


@dataclass(frozen=True)
class CalibratedFiles:
    """The output of a calibrator: a file of probabilities for each case and perhaps a temperature map.

    Attributes:
        calibrator: A fitted one.
        like: The folder of the cases; determines the format of each file.
        dtype: "float32" or "float16".
        maps: Whether to write temperature maps to the folder `temperature`.
    """

    calibrator: Calibrator
    like: Folder
    dtype: str = "float32"
    maps: bool = False
    kind = "probabilities"

    def __post_init__(self) -> None:
        if self.dtype not in _PRECISIONS:
            raise InputError(f"dtype must be one of {', '.join(_PRECISIONS)}, got '{self.dtype}'")
        if self.maps and not self.calibrator.has_temperature:
            raise InputError(f"'{self.calibrator.method}' has no temperature; leave out --temperature")

    def identity(self) -> list[Any]:
        """Return everything that decides what is written except the files of the cases."""
        return [self.calibrator.identity(), self.dtype, self.maps]

    def companions(self) -> Iterator[Path]:
        """Yield the files that nnU-Net needs beside its archives, so that it reads the output as its own."""
        yield from self.like.descriptions
        for files in self.like.files.values():
            yield from files.companions(labels_kept=self.calibrator.preserves_labels)

    def pieces(self, case: Case) -> Iterator[WrittenSlab]:
        """Yield the probabilities of a case slab by slab, in the precision of the file, with every label checked."""
        crop, slabs = self.like.crops.get(case.name), self._slabs(case)
        return slabs if crop is None else _put_back(slabs, crop, self.calibrator.activation)

    def _slabs(self, case: Case) -> Iterator[WrittenSlab]:
        calibrator = self.calibrator
        for slab in calibrator.calibrate_case(case):
            exact = slab.probabilities()
            probs, moved = _rounded(calibrator, exact, slab.raw, _PRECISIONS[self.dtype])
            if moved and calibrator.preserves_labels:
                raise RuntimeError(f"{moved} labels of case '{case.name}' would change, which must never happen")
            map_ = slab.temperature
            heat = map_[0].float().cpu().numpy() if self.maps and map_ is not None else None
            start = slab.rows.start
            del slab, exact, map_  # before the next slab is read
            yield WrittenSlab(start, probs[0].cpu().numpy(), heat, moved)
            del probs, heat

    def write(self, name: str, folder: Path) -> dict[str, int]:
        """Write the files of a case, and return its pixels and how many labels changed."""
        (case,) = self.like.subset([name])
        files, crop, places = self.like.find(name), self.like.crops.get(name), self._map_folders(folder)
        shape = (case.logits.shape[0], *(case.logits.shape[1:] if crop is None else crop.shape))
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        changed = 0
        with ExitStack() as stack:
            scores = stack.enter_context(files.create_scores(folder, shape, self.dtype))
            heats = [stack.enter_context(files.create_map(place, shape[1:], "float32")) for place in places]
            # the next slab is computed while this one is written
            for slab in stack.enter_context(closing(prefetch(self.pieces(case)))):
                scores.write(slab.start, slab.probabilities)
                for k, heat in enumerate(heats):
                    assert slab.temperature is not None
                    heat.write(slab.start, slab.temperature[k])
                changed += slab.moved
                del slab  # before the next one is waited for
        return {"pixels": math.prod(shape[1:]), "changed": changed}

    def _map_folders(self, folder: Path) -> list[Path]:
        return self.like.map_folders(folder / "temperature") if self.maps else []


def _put_back(slabs: Iterator[WrittenSlab], crop: Crop, activation: Activation) -> Iterator[WrittenSlab]:
    """Put the slabs of a case back into its volume, whose other voxels stay what nnU-Net has made of them.

    They are background with a probability of 1, or no channel at all, and have a temperature of 1.
    """
    plane, rows = Crop(crop.shape[1:], crop.box[1:]), crop.box[0]
    for slab in slabs:
        if not slab.start:
            yield from _outside(slab, range(rows.start), plane.shape, activation)
        probs, heat = plane.put_back_probabilities(slab.probabilities, activation), slab.temperature
        hot = None if heat is None else plane.put_back(heat, outside=1)
        start = rows.start + slab.start
        stop = start + probs.shape[1]
        yield WrittenSlab(start, probs, hot, slab.moved)
        if stop == rows.stop:
            yield from _outside(slab, range(stop, crop.shape[0]), plane.shape, activation)
        del slab, probs, heat, hot


def _outside(like: WrittenSlab, rows: range, space: Shape, activation: Activation) -> Iterator[WrittenSlab]:
    """Yield rows of a volume that lie outside of the crop, some at a time."""
    classes = len(like.probabilities)
    step = max(1, _AT_ONCE // (classes * math.prod(space)))
    for start in rows[::step]:
        count = min(step, rows.stop - start)
        probs = np.zeros((classes, count, *space), like.probabilities.dtype)
        if activation == "softmax":
            probs[0] = 1
        heat = like.temperature
        hot = None if heat is None else np.ones((len(heat), count, *space), heat.dtype)
        yield WrittenSlab(start, probs, hot, 0)


def _rounded(calibrator: Calibrator, exact: Probs, raw: Logits, dtype: torch.dtype) -> tuple[Probs, int]:
    """Return probabilities in a precision, with the labels of methods that keep them, and how many pixels changed."""
    rounded, keeps = exact.to(dtype), calibrator.preserves_labels
    if calibrator.activation == "sigmoid":
        probs = keep_sides(rounded, raw) if keeps else rounded
        return probs, int(((probs > 0.5) != (raw > 0)).any(dim=1).sum())
    # `scaled_probabilities` guards the labels; only rounding afterwards or before may have moved one
    guarded = rounded.dtype == exact.dtype and raw.dtype != torch.float64
    probs = keep_labels(rounded, raw) if keeps and not guarded else rounded
    return probs, moved_labels(probs[0].flatten(1), raw[0].flatten(1))
