"""A fitted calibrator over a folder: probabilities and maps, written slab by slab with every label kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators import CalibratedSlab, Calibrator
from segcal.data.folders.folder import Folder
from segcal.engines import Run, engine_of, write_cases
from segcal.files.prefetch import prefetch
from segcal.functional.pixels import moved_labels
from segcal.functional.probability import keep_labels, keep_sides, predicted_labels
from segcal.functional.uncertainty import entropy_of
from segcal.text import suggestion
from segcal.types import Array, Case, InputError, Logits, Probs, check_choice

MAPS: dict[str, float] = {"temperature": 1, "entropy": 0, "disagreement": 0, "confidence": 1, "labels": 0}
"""Maps that can be written beside probabilities, and their value where nnU-Net has predicted nothing.

Entropy and disagreement (mutual information between label and pass) are in nats; confidence is the probability of the
predicted label.
"""

_PRECISIONS = {"float32": torch.float32, "float16": torch.float16}


def apply_to_folder(
    calibrator: Calibrator,
    folder: Folder,
    *,
    out: Path,
    dtype: str = "float32",
    maps: Sequence[str] = (),
    run: Run | None = None,
) -> dict[str, int] | None:
    """Write calibrated probabilities of every case to `out`, and each map to a folder of its name in it.

    Until all cases are written, the output has the name `OUT.unfinished`. What an interrupted run, or an earlier run
    into the same folder, has written with the same calibrator is kept, unless the files of the case have changed since.

    A sigmoid head has one probability per channel, above 0.5 where the channel is predicted; several channels have
    maps in a folder each, such as `out/temperature/CHANNEL`.

    Args:
        calibrator: A fitted one.
        folder: The cases; determines the format of each file.
        out: Appears when all cases are written.
        dtype: "float32" or "float16".
        maps: Names of the maps to write, among `MAPS`.
        run: How the work is divided and shown; by default between the processes of torchrun, if there are several.

    Returns:
        How many cases and pixels were written, and how many predicted labels changed; None where another process
        publishes the output.
    """
    output = CalibratedFiles(calibrator.applied, folder, dtype, tuple(maps))
    with run or Run("apply", out, engine_of()) as begun:
        return write_cases(folder, begun, "probabilities", output.identity(), output.write, output.companions())


@dataclass(frozen=True)
class CalibratedFiles:
    """The output of a calibrator: a file of probabilities for each case, and of each map.

    Attributes:
        calibrator: A fitted one.
        like: The folder of the cases; determines the format of each file.
        dtype: "float32" or "float16".
        maps: Names of the maps to write, each to the folder of its name.
    """

    calibrator: Calibrator
    like: Folder
    dtype: str = "float32"
    maps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, _PRECISIONS)
        if unknown := [name for name in self.maps if name not in MAPS]:
            raise InputError(f"maps must be among {', '.join(MAPS)}, got '{unknown[0]}'{suggestion(unknown[0], MAPS)}")
        if "temperature" in self.maps and not self.calibrator.has_temperature:
            raise InputError(f"'{self.calibrator.method}' has no temperature; leave this map out")
        if "disagreement" in self.maps and not self.calibrator.uses_passes:
            raise InputError(
                f"'{self.calibrator.method}' does not look at several passes, so that there is no disagreement between "
                "them; fit 'pool' on cases with passes"
            )

    def identity(self) -> list[Any]:
        """Return everything that decides what is written except the files of the cases."""
        return [self.calibrator.identity(), self.dtype, list(self.maps)]

    def companions(self) -> Iterator[Path]:
        """Yield the files that nnU-Net needs beside its archives, so that it reads the output as its own."""
        yield from self.like.descriptions
        for files in self.like.files.values():
            yield from files.companions(labels_kept=self.calibrator.preserves_labels)

    def slabs(self, case: Case) -> Iterator[tuple[int, Array, dict[str, Array], int]]:
        """Yield a case slab by slab as it is written, with every label checked.

        Of each slab: its first row, probabilities `[L, rows, ...]` in the precision of the file, maps
        `[1 or C, rows, ...]` by name, and the number of labels that changed.
        """
        calibrator = self.calibrator
        for slab in calibrator.calibrate_case(case):
            exact = slab.probabilities()
            probs, moved = _rounded(calibrator, exact, slab.raw, _PRECISIONS[self.dtype])
            if moved and calibrator.preserves_labels:
                raise InputError(
                    f"{moved} labels of case '{case.name}' would change, which '{calibrator.method}' must keep; fit it "
                    "again, since its learned values may be damaged, and report it if it happens again"
                )
            maps = {name: _map(name, slab, probs) for name in self.maps}
            start = slab.rows.start
            del slab, exact  # before the next slab is read
            yield start, probs[0].cpu().numpy(), maps, moved
            del probs, maps

    def write(self, name: str, folder: Path) -> dict[str, int]:
        """Write the files of a case, and return its pixels and how many labels changed."""
        (case,) = self.like.subset([name])
        files, crop = self.like.find(name), self.like.crops.get(name)
        shape = tuple(case.logits.shape)
        places = {kind: self.like.map_folders(folder / kind) for kind in self.maps}
        changed = 0
        with ExitStack() as stack:
            write_scores = stack.enter_context(files.create(folder, "scores", shape, self.dtype, crop))
            writers = {}
            for kind, channels in places.items():
                for place in channels:
                    place.mkdir(parents=True, exist_ok=True)
                how = (shape[1:], self._map_dtype(kind), crop)
                created = [files.create(place, "map", *how, outside=MAPS[kind]) for place in channels]
                writers[kind] = [stack.enter_context(each) for each in created]
            # the next slab is computed while this one is written
            for start, probabilities, maps, moved in stack.enter_context(closing(prefetch(self.slabs(case)))):
                write_scores(start, probabilities)
                for kind, values in maps.items():
                    for write, channel in zip(writers[kind], values, strict=True):
                        write(start, channel)
                changed += moved
                del probabilities, maps  # before the next slab is waited for
        return {"pixels": math.prod(shape[1:] if crop is None else crop.shape), "changed": changed}

    def _map_dtype(self, kind: str) -> str:
        return "float32" if kind != "labels" else "uint8" if self.calibrator.num_classes <= 256 else "uint16"


_OF_PROBABILITIES: dict[str, Callable[[Probs], Tensor]] = {
    "entropy": entropy_of,
    "confidence": lambda probs: probs.amax(dim=1, keepdim=True),
    "labels": lambda probs: predicted_labels(probs).unsqueeze(1),
}


def _map(name: str, slab: CalibratedSlab, probs: Probs) -> Array:
    """Return a map `[1 or C, rows, ...]` of a slab, or of its probabilities as they are written."""
    if name in _OF_PROBABILITIES:
        sigmoid, wide = slab.calibrator.activation == "sigmoid", probs.float()
        found = _OF_PROBABILITIES[name](torch.stack([1 - wide, wide], dim=1) if sigmoid else wide)
        return (found[:, 0] if sigmoid else found)[0].cpu().numpy()
    values = slab.temperature if name == "temperature" else slab.disagreement()
    assert values is not None
    return values[0].float().cpu().numpy()


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
