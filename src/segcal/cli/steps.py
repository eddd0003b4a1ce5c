"""Steps that several commands share once they run: open a folder, build a calibrator, load several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from segcal.calibrators import Calibrator, create, load
from segcal.cli.options import FolderOptions
from segcal.data.folders.folder import Folder, open_folder
from segcal.types import InputError


def open_at(
    data: Path, options: FolderOptions, split: str | None, preferred: str | None = None, **known: Any
) -> Folder:
    """Open a folder at the split asked for, else at the preferred one if it exists.

    Args:
        data: The folder.
        options: How it is read.
        split: Name of a split, or None.
        preferred: Split that is used if none is asked for.
        known: Further arguments of `open_folder`, for options that were not given.
    """
    given = {**vars(options), "ignore_index": options.ignore_index or None, "passes": options.passes or None}
    folder = open_folder(data, split=split, **{**known, **{k: v for k, v in given.items() if v is not None}})
    return folder.select(preferred) if split is None and preferred in folder.splits else folder


def validation_of(data: Path, options: FolderOptions, split: str | None, folder: Folder) -> Folder | None:
    """Return the cases on which the best weights are chosen, if there are any."""
    if split is None and "validation" not in folder.splits:
        return None
    return open_at(data, options, split or "validation")


def create_for(
    method: str, folder: Folder, settings: Mapping[str, Any], *, logits_only: bool, device: torch.device
) -> Calibrator:
    """Return an unfitted calibrator for the data of a folder, on the device where it is fitted."""
    calibrator = create(
        method,
        num_classes=folder.num_classes,
        activation=folder.activation,
        spatial_dims=folder.spatial_dims,
        image_channels=0 if logits_only else folder.image_channels,
        ignore_index=folder.ignore_index,
        background=folder.background,
        **settings,
    )
    return calibrator if "device" in calibrator.fit_settings else calibrator.to(device)


def load_all(paths: Sequence[Path]) -> dict[str, Calibrator]:
    """Return calibrators by method, or by folder where two have the same method."""
    loaded = [(path, load(path)) for path in paths]
    kinds = [calibrator.method.upper() for _, calibrator in loaded]
    names = [
        kind if kinds.count(kind) == 1 else path.resolve().name for (path, _), kind in zip(loaded, kinds, strict=True)
    ]
    if len(set(names)) < len(names):
        raise InputError(f"calibrators must have different names, got {', '.join(names)}; rename a folder")
    return {name: calibrator for name, (_, calibrator) in zip(names, loaded, strict=True)}
