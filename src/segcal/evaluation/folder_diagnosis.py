"""Diagnosis of a folder, by any engine, and its files: the diagnosis as JSON, and maps of NLL minus entropy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from segcal.data.folders.folder import Folder, write_map
from segcal.engines import Run
from segcal.evaluation.diagnosis import (
    ConfidenceSummary,
    Diagnosis,
    coloured,
    diagnose_image,
    diagnosis_of,
    excess_map,
)
from segcal.evaluation.methods import heads_of_folder
from segcal.files import MARKER, staged_folder, write_json
from segcal.version import __version__


def diagnose_folder(folder: Folder, run: Run, *, device: torch.device) -> dict[str, Diagnosis] | None:
    """Diagnose the cases of a folder; None where another process has the diagnosis.

    Each image is diagnosed by itself. The temperature of the whole data set depends on all pixels at once: the first
    process finds it, in a few passes over the data.

    Returns:
        The diagnosis of each sigmoid channel by its name; that of a softmax has the name "".
    """
    run.begin(folder.num_classes, folder.activation, folder.ignore_index, folder.background, list(folder.names))
    found = [json.loads(result) for result in run.map(_DiagnoseCase(folder, device), folder.identities())]
    if not run.engine.is_first:
        return None
    diagnoses = {}
    for k, head in enumerate(heads_of_folder(folder)):
        images = tuple(ConfidenceSummary(**image[k]) for image in found)
        diagnoses[head.name] = diagnosis_of(images, head.cases(folder), head, device)
    return diagnoses


@dataclass(frozen=True)
class _DiagnoseCase:
    """Diagnoses every head of the case with a name."""

    folder: Folder
    device: torch.device

    def __call__(self, name: str, _: Path | None) -> bytes:
        (case,) = self.folder.subset([name])
        heads = heads_of_folder(self.folder)
        found = [diagnose_image(head.case(case), head.protocol, self.device) for head in heads]
        return json.dumps([asdict(image) for image in found]).encode()


def plain_diagnosis(found: Mapping[str, Diagnosis], limits: Mapping[str, pd.DataFrame] | None = None) -> dict[str, Any]:
    """Return a diagnosis, and perhaps its limits, in values that JSON can hold; of several channels by their names."""
    content = {name: diagnosis.to_dict() for name, diagnosis in found.items()}
    for name, frame in (limits or {}).items():
        content[name]["limits"] = frame.to_dict(orient="records")
    return {"channels": content} if len(content) > 1 else next(iter(content.values()))


def save_diagnosis(found: Mapping[str, Diagnosis], out: Path) -> None:
    """Write the folder `out` with the diagnosis as JSON."""
    cases = len(next(iter(found.values())).images)
    with staged_folder(out) as folder:
        write_json(folder / "diagnosis.json", plain_diagnosis(found))
        write_json(folder / MARKER, {"format": 1, "segcal": __version__, "diagnosis": {"cases": cases}})


@dataclass(frozen=True)
class ExcessMaps:
    """Maps of NLL minus entropy: a file for each case and, of images, a picture.

    Orange is overconfident, blue underconfident, grey ignored; colours are full from 2 nats on. Several sigmoid
    channels have a folder each.
    """

    like: Folder
    device: torch.device
    kind = "maps"

    def identity(self) -> list[Any]:
        """Return what decides the maps except the files of the cases."""
        return [self.like.num_classes, self.like.activation, self.like.ignore_index]

    def companions(self) -> tuple[Path, ...]:
        """Return nothing: maps stand alone."""
        return ()

    def write(self, name: str, folder: Path) -> dict[str, int]:
        """Write the map of a case as its folder stores such maps, and its picture."""
        (case,) = self.like.subset([name])
        crop = self.like.crops.get(name)
        for place, head in zip(self.like.map_folders(folder), heads_of_folder(self.like), strict=True):
            excess = excess_map(head.case(case), head.protocol, self.device)
            whole = excess if crop is None else crop.put_back(excess, outside=np.nan)
            place.mkdir(parents=True, exist_ok=True)
            path = write_map(place, name, whole, self.like)
            if whole.ndim == 2:
                Image.fromarray(coloured(whole)).save(path.with_suffix(".png"))
        return {}
