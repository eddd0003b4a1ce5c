"""A fitted calibrator over a folder: probabilities and temperature maps, written slab by slab with every label kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor

from segcal.calibrators import Calibrator, MultiLabel, TemperatureCalibrator
from segcal.cases import Slab
from segcal.data.folders.folder import Folder
from segcal.files import MARKER, staged_folder, write_json
from segcal.functional.probability import (
    at_least_float32,
    keep_labels,
    keep_sides,
    predicted_labels,
    probabilities,
)
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

    A sigmoid head has one probability per channel, above 0.5 where the channel is predicted; several channels have
    temperature maps in a folder each, `out/temperature/CHANNEL`.

    Args:
        calibrator: A fitted one.
        cases: Those of the folder `like`, perhaps wrapped.
        like: Determines the format of each file.
        out: Appears when all is written.
        dtype: "float32" or "float16".
        maps: Whether to write temperature maps.

    Returns:
        How many cases and pixels were written, and how many predicted labels changed.
    """
    if dtype not in _PRECISIONS:
        raise InputError(f"dtype must be one of {', '.join(_PRECISIONS)}, got '{dtype}'")
    calibrator = calibrator.applied
    if maps and not isinstance(calibrator, TemperatureCalibrator) and not _has_temperatures(calibrator):
        raise InputError(f"'{calibrator.method}' has no temperature; leave out --temperature")
    count, pixels, changed = 0, 0, 0
    with staged_folder(out) as folder:
        places = like.map_folders(folder / "temperature") if maps else []
        for place in places:
            place.mkdir(parents=True)
        for case in cases:
            written, moved = _write_case(calibrator, case, like, folder, dtype, places)
            count, pixels, changed = count + 1, pixels + written, changed + moved
        summary = {"cases": count, "pixels": pixels, "changed": changed}
        write_json(folder / MARKER, {"format": 1, "segcal": __version__, "probabilities": summary})
    return summary


def _has_temperatures(calibrator: Calibrator) -> TypeGuard[MultiLabel]:
    return isinstance(calibrator, MultiLabel) and calibrator.has_temperature


def _write_case(
    calibrator: Calibrator, case: Case, like: Folder, folder: Path, dtype: str, places: Sequence[Path]
) -> tuple[int, int]:
    """Write the files of one case in one pass over it, and return its pixels and how many labels changed."""
    files, shape = like.find(case.name), tuple(case.logits.shape)
    pixels, changed = 0, 0
    with ExitStack() as stack:
        scores = stack.enter_context(files.create_scores(folder, shape, dtype))
        heats = [stack.enter_context(files.create_map(place, shape[1:], "float32")) for place in places]
        for slab, logits, temperature in _slabs(calibrator, case, bool(places)):
            raw = slab.logits[:, :, slab.inner]
            probs, moved = _probabilities(calibrator, logits, raw, _PRECISIONS[dtype])
            if moved and calibrator.preserves_labels:
                raise RuntimeError(f"{moved} labels of case '{case.name}' would change, which must never happen")
            start = slab.rows.start + slab.inner.start
            scores.write(start, probs[0].cpu().numpy())
            for k, heat in enumerate(heats):
                assert temperature is not None
                heat.write(start, temperature[0, k].float().cpu().numpy())
            pixels, changed = pixels + probs[0, 0].numel(), changed + moved
    return pixels, changed


def _probabilities(calibrator: Calibrator, logits: Tensor, raw: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
    """Return probabilities with the labels of the raw logits if the method keeps them, and how many pixels changed."""
    if calibrator.activation == "sigmoid":
        probs = torch.sigmoid(at_least_float32(logits)).to(dtype)
        probs = keep_sides(probs, raw) if calibrator.preserves_labels else probs
        return probs, int(((probs > 0.5) != (raw > 0)).any(dim=1).sum())
    probs = probabilities(logits).to(dtype)
    probs = keep_labels(probs, raw) if calibrator.preserves_labels else probs
    return probs, int((predicted_labels(probs) != predicted_labels(raw)).sum())


def _slabs(calibrator: Calibrator, case: Case, maps: bool) -> Iterator[tuple[Slab, Tensor, Tensor | None]]:
    """Yield calibrated logits slab by slab, with temperatures if they are wanted."""
    if maps and (isinstance(calibrator, TemperatureCalibrator) or _has_temperatures(calibrator)):
        for slab, temperature in calibrator.temperature_case(case):
            yield slab, calibrator.scale(slab.logits[:, :, slab.inner], temperature), temperature
    else:
        for slab, logits in calibrator.calibrate_case(case):
            yield slab, logits, None
