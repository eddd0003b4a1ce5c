"""What several commands do: open a folder, build a calibrator for it, fit with a bar, say how to measure."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from segcal.calibrators import Calibrator, create, load
from segcal.cli.console import Tracked, progress_of
from segcal.data.folders.folder import Folder, open_folder
from segcal.evaluation.run import Protocol
from segcal.training.progress import progress_bar
from segcal.types import InputError


def open_at(
    data: Path,
    split: str | None,
    preferred: str | None,
    labels: Path | None,
    num_classes: int | None,
    ignore_index: Sequence[int] | None,
    background: int | None,
    scores: str | None,
) -> Folder:
    """Open a folder at the split asked for, else at the preferred one where it exists."""
    folder = open_folder(
        data,
        labels=labels,
        split=split,
        num_classes=num_classes,
        ignore_index=ignore_index or None,
        background=background,
        scores=scores_of(scores),
    )
    return folder.select(preferred) if split is None and preferred in folder.splits else folder


def scores_of(text: str | None) -> Literal["logits", "probabilities"] | None:
    """The option --scores, checked."""
    if text not in (None, "logits", "probabilities"):
        raise InputError(f"--scores must be logits or probabilities, got '{text}'")
    return text  # type: ignore[return-value]


def create_for(method: str, folder: Folder, logits_only: bool = False, **options: Any) -> Calibrator:
    """An unfitted calibrator for the data of a folder, with the options that were set."""
    return create(
        method,
        num_classes=folder.num_classes,
        spatial_dims=folder.spatial_dims,
        image_channels=0 if logits_only else folder.image_channels,
        ignore_index=folder.ignore_index,
        background=folder.background,
        **given(**options),
    )


def fit_shown(calibrator: Calibrator, folder: Folder, validation: Folder | None, options: dict[str, Any]) -> None:
    """Fit with a progress bar: of epochs for methods that are trained, of cases for the others."""
    known = inspect.signature(calibrator.fit).parameters
    if unknown := [name for name in options if name not in known]:
        untrained = "" if "epochs" in known else "is not trained and "
        raise InputError(f"'{calibrator.method}' {untrained}has no --{unknown[0].replace('_', '-')}; leave it out")
    if "watch" in known:
        with progress_bar(description=f"training {calibrator.method}") as watch:
            calibrator.fit(folder, validation=validation, watch=watch, **options)  # type: ignore[call-arg]
    else:
        with progress_of(f"fitting {calibrator.method}") as progress:
            calibrator.fit(Tracked(folder, progress), validation=validation, **options)


def validation_of(
    data: Path, split: str | None, folder: Folder, labels: Path | None, scores: str | None
) -> Folder | None:
    """The cases that the best weights are chosen on, if there are any."""
    if split is None and "validation" not in folder.splits:
        return None
    return open_folder(
        data,
        labels=labels,
        split=split or "validation",
        num_classes=folder.num_classes,
        ignore_index=folder.ignore_index,
        background=folder.background,
        scores=scores_of(scores),
    )


def protocol_of(
    folder: Folder,
    bins: int,
    form: str,
    patch_size: int,
    patch_sizes: list[int] | None,
    patches: int,
    interval: str,
    floor: bool,
    seed: int,
) -> dict[str, Any]:
    """How a folder is measured; says now what is wrong with it, not after an hour of fitting."""
    protocol: dict[str, Any] = {
        "num_classes": folder.num_classes,
        "ignore_index": folder.ignore_index,
        "background": folder.background,
        "bins": bins,
        "form": form,
        "patch_size": patch_size,
        "patch_sizes": patch_sizes or (),
        "patches": patches,
        "seed": seed,
        "interval": interval,
        "floor": floor,
        "class_names": folder.class_names,
    }
    Protocol(**protocol)
    return protocol


def listed(parts: Sequence[str]) -> list[str]:
    """Names that are given one by one or separated by commas."""
    return [name for part in parts for name in part.split(",") if name]


def given(**options: Any) -> dict[str, Any]:
    """The options that were set."""
    return {name: value for name, value in options.items() if value is not None}


def load_all(paths: Sequence[Path]) -> dict[str, Calibrator]:
    """Calibrators by method, or by folder where two have the same method."""
    loaded = [(path, load(path)) for path in paths]
    kinds = [calibrator.method.upper() for _, calibrator in loaded]
    names = [
        kind if kinds.count(kind) == 1 else path.resolve().name for (path, _), kind in zip(loaded, kinds, strict=True)
    ]
    if len(set(names)) < len(names):
        raise InputError(f"calibrators must have different names, got {', '.join(names)}; rename a folder")
    return {name: calibrator for name, (_, calibrator) in zip(names, loaded, strict=True)}
