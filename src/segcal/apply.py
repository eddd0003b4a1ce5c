"""A fitted calibrator over a folder: probabilities and temperature maps, written slab by slab with every label kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from segcal.calibrators import Calibrator, TemperatureCalibrator
from segcal.cases import Slab
from segcal.data.folders.folder import Folder
from segcal.functional.division import scaled_probabilities
from segcal.functional.pixels import moved_labels
from segcal.functional.probability import keep_labels
from segcal.parts.outputs import Track, write_cases
from segcal.parts.work import Sharing
from segcal.types import Case, InputError, Logits, Probs, Temperature

_PRECISIONS = {"float32": torch.float32, "float16": torch.float16}


def apply_to_folder(
    calibrator: Calibrator,
    folder: Folder,
    *,
    out: Path,
    dtype: str = "float32",
    maps: bool = False,
    track: Track = iter,
    sharing: Sharing | None = None,
) -> dict[str, int] | None:
    """Write calibrated probabilities of every case to `out`, and temperature maps to `out/temperature`.

    Until all cases are written, the output has the name `OUT.unfinished`. What an interrupted run, or an earlier run
    into the same folder, has written with the same calibrator is kept, unless the files of the case have changed since.

    Args:
        calibrator: A fitted one.
        folder: The cases; determines the format of each file.
        out: Appears when all cases are written.
        dtype: "float32" or "float16".
        maps: Whether to write temperature maps.
        track: Goes through cases, perhaps with a progress bar.
        sharing: How the work is divided; by default between the processes of torchrun, if there are several.

    Returns:
        How many cases and pixels were written, and how many predicted labels changed; None where another process
        publishes the output.
    """
    output = CalibratedFiles(calibrator.applied, folder, dtype, maps)
    return write_cases(output, folder, sharing or Sharing("apply", {}, out), track=track)


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
        if self.maps and not isinstance(self.calibrator, TemperatureCalibrator):
            raise InputError(f"'{self.calibrator.method}' has no temperature; leave out --temperature")

    def identity(self) -> list[Any]:
        """Return everything that decides what is written except the files of the cases."""
        return [self.calibrator.identity(), self.dtype, self.maps]

    def files(self, name: str, folder: Path) -> list[Path]:
        """Return the files of a case."""
        files = self.like.find(name)
        return [files.score_file(folder), *([files.map_file(folder / "temperature")] if self.maps else [])]

    def write(self, case: Case, folder: Path) -> dict[str, int]:
        """Write the files of a case in one pass over it, and return its pixels and how many labels changed."""
        files, shape = self.like.find(case.name), tuple(case.logits.shape)
        pixels, changed = 0, 0
        with ExitStack() as stack:
            scores, heat = stack.enter_context(files.create_scores(folder, shape, self.dtype)), None
            if self.maps:
                heat = stack.enter_context(files.create_map(folder / "temperature", shape[1:], "float32"))
            for slab, exact, temperature in _probabilities(self.calibrator, case):
                probs, moved = self._checked(exact, slab.logits[:, :, slab.inner], case.name)
                scores.write(slab.inner_rows.start, probs[0].cpu().numpy())
                if heat is not None and temperature is not None:
                    heat.write(slab.inner_rows.start, temperature[0, 0].float().cpu().numpy())
                pixels, changed = pixels + probs[0, 0].numel(), changed + moved
        return {"pixels": pixels, "changed": changed}

    def _checked(self, exact: Probs, raw: Logits, name: str) -> tuple[Probs, int]:
        """Return probabilities in the precision of the files, and how many predicted labels changed."""
        keeps, rounded = self.calibrator.preserves_labels, exact.to(_PRECISIONS[self.dtype])
        # `scaled_probabilities` guards the labels; only rounding before or after it may have moved one
        guarded = rounded.dtype == exact.dtype and raw.dtype != torch.float64
        probs = keep_labels(rounded, raw) if keeps and not guarded else rounded
        moved = moved_labels(probs[0].flatten(1), raw[0].flatten(1))
        if moved and keeps:
            raise RuntimeError(f"{moved} labels of case '{name}' would change, which must never happen")
        return probs, moved


def _probabilities(calibrator: Calibrator, case: Case) -> Iterator[tuple[Slab, Probs, Temperature | None]]:
    """Yield calibrated probabilities slab by slab, with the temperatures of methods that have them.

    All are the result of `scaled_probabilities`, whose kernel gives the same bits for any number of threads.
    """
    if isinstance(calibrator, TemperatureCalibrator):
        for slab, temperature in calibrator.temperature_case(case):
            raw = slab.logits[:, :, slab.inner]
            if calibrator.only_divides:
                yield slab, scaled_probabilities(_single(raw), temperature.float()), temperature
            else:
                yield slab, _softmax(calibrator.scale(raw, temperature)), temperature
    else:
        for slab, logits in calibrator.calibrate_case(case):
            yield slab, _softmax(logits), None


def _softmax(logits: Logits) -> Probs:
    one = torch.ones((), device=logits.device)
    return scaled_probabilities(_single(logits), one.expand(len(logits), 1, *logits.shape[2:]))


def _single(logits: Logits) -> Logits:
    """Return logits in float32; those in float64 relative to the largest, so that no precision is lost."""
    return (logits - logits.amax(dim=1, keepdim=True) if logits.dtype == torch.float64 else logits).float()
