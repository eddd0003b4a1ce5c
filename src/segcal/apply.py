"""A fitted calibrator over a folder: probabilities, and temperature maps, written to disk with every label kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from segcal.calibrators import Calibrator, TemperatureCalibrator
from segcal.cases import Slab
from segcal.data.folders.folder import Folder, write_map, write_scores
from segcal.files import MARKER, staged_folder, write_json
from segcal.functional.probability import keep_labels, predicted_labels, probabilities
from segcal.types import Case, InputError
from segcal.version import __version__

_PRECISIONS = {"float32": torch.float32, "float16": torch.float16}


def apply_to_folder(
    calibrator: Calibrator,
    cases: Iterable[Case],
    *,
    like: Folder,
    out: Path,
    dtype: str = "float32",
    maps: bool = False,
) -> dict[str, int]:
    """Write calibrated probabilities of every case to `out`, and temperature maps to `out/temperature`.

    Args:
        calibrator: A fitted one.
        cases: Those of the folder `like`, perhaps wrapped.
        like: Says in which form each file is written.
        out: Appears when all is written.
        dtype: "float32" or "float16".
        maps: Whether to write temperature maps.

    Returns:
        How many cases and pixels were written, and how many predicted labels changed.
    """
    if dtype not in _PRECISIONS:
        raise InputError(f"dtype must be one of {', '.join(_PRECISIONS)}, got '{dtype}'")
    calibrator = calibrator.applied
    if maps and not isinstance(calibrator, TemperatureCalibrator):
        raise InputError(f"'{calibrator.method}' has no temperature; leave out --temperature")
    count, pixels, changed = 0, 0, 0
    with staged_folder(out) as folder:
        if maps:
            (folder / "temperature").mkdir()
        for case in cases:
            probs, temperature, moved = _calibrated(calibrator, case, _PRECISIONS[dtype], maps)
            if moved and calibrator.preserves_labels:
                raise RuntimeError(f"{moved} labels of case '{case.name}' would change, which must never happen")
            write_scores(folder, case.name, probs, like)
            if temperature is not None:
                write_map(folder / "temperature", case.name, temperature, like)
            count, pixels, changed = count + 1, pixels + probs[0].numel(), changed + moved
        summary = {"cases": count, "pixels": pixels, "changed": changed}
        write_json(folder / MARKER, {"format": 1, "segcal": __version__, "probabilities": summary})
    return summary


def _calibrated(
    calibrator: Calibrator, case: Case, dtype: torch.dtype, maps: bool
) -> tuple[Tensor, Tensor | None, int]:
    """Probabilities `[L, *S]` in the precision of the file, temperatures `[*S]`, and how many labels changed."""
    parts, heats, moved = [], [], 0
    for slab, logits, temperature in _slabs(calibrator, case, maps):
        raw = slab.logits[:, :, slab.inner]
        probs = probabilities(logits).to(dtype)
        probs = keep_labels(probs, raw) if calibrator.preserves_labels else probs
        moved += int((predicted_labels(probs) != predicted_labels(raw)).sum())
        parts.append(probs[0].cpu())
        if temperature is not None:
            heats.append(temperature[0, 0].float().cpu())
    return torch.cat(parts, dim=1), torch.cat(heats) if heats else None, moved


def _slabs(calibrator: Calibrator, case: Case, maps: bool) -> Iterator[tuple[Slab, Tensor, Tensor | None]]:
    """Calibrated logits slab by slab, with temperatures where they are wanted."""
    if maps and isinstance(calibrator, TemperatureCalibrator):
        for slab, temperature in calibrator.temperature_case(case):
            yield slab, calibrator.scale(slab.logits[:, :, slab.inner], temperature), temperature
    else:
        for slab, logits in calibrator.calibrate_case(case):
            yield slab, logits, None
