"""Write cases in memory as a data folder, which `segcal.data.folders.folder.open_folder` reads back as they were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from segcal.data.folders.case_files import CaseSpec
from segcal.data.folders.settings import FolderSettings, check_background, write_settings
from segcal.data.io.base import Spacing, plain, whole_numbers
from segcal.files import MARKER, staged_folder, write_json
from segcal.functional.arrays import to_array, to_tensor
from segcal.functional.checks import activation_of, check_labels, check_logits, check_same_space, ignored_labels
from segcal.types import Activation, Array, Case, IgnoreIndex, InputError


def write_folder(
    path: str | Path,
    splits: Mapping[str, Sequence[Case]],
    *,
    class_names: Sequence[str] | None = None,
    ignore_index: IgnoreIndex = None,
    background: int | None = None,
    activation: Activation | None = None,
) -> None:
    """Write cases as a data folder that appears whole or not at all, replacing one that segcal wrote before.

    Logits and images become `.npy` in their own precision (bfloat16, which NumPy lacks, as float32); labels become
    `.png` where they are two-dimensional and in 0..255, and `.npy` otherwise. A case without labels has no such file.

    Args:
        path: The folder; its parents are made.
        splits: The cases of each split, taken one by one, so that they may be loaded as they are asked for.
        class_names: One name for each class.
        ignore_index: Label, or labels, to be left out.
        background: The class that the *All* region leaves out.
        activation: "sigmoid" for channels that may overlap, with labels `[C, *S]` of 0 and 1; one channel is always so.
    """
    with staged_folder(path) as folder:
        spec, ignored = _spec_of_first(splits, activation), ignored_labels(ignore_index) or None
        sigmoid = spec.activation == "sigmoid"
        if sigmoid and spec.num_classes > 1 and class_names is None:  # the names say that there are channels
            class_names = tuple(map(str, range(spec.num_classes)))
        settings = FolderSettings(
            classes=_checked_names(class_names, spec.num_classes),
            ignore_index=ignored,
            background=check_background(background, 2 if sigmoid else spec.num_classes),
            scores="logits",
            activation="sigmoid" if sigmoid else None,
        )
        names, groups, spacings = dict[str, list[str]](), dict[str, str](), dict[str, Spacing]()
        for split, cases in splits.items():
            names[split] = []
            for case in cases:
                _write_case(folder, case, spec, ignored)
                names[split].append(case.name)
                if case.group is not None:
                    groups[case.name] = case.group
                if case.spacing is not None:
                    spacings[case.name] = tuple(map(float, case.spacing))
        write_settings(folder / "segcal.toml", replace(settings, group=groups or None, spacing=spacings or None))
        write_json(folder / "splits.json", names)
        data = {
            "cases": sum(map(len, names.values())),
            "num_classes": spec.num_classes,
            "spatial_dims": spec.spatial_dims,
            "image_channels": spec.image_channels,
        }
        write_json(folder / MARKER, {"format": 1, "data": data})


def _spec_of_first(splits: Mapping[str, Sequence[Case]], activation: Activation | None) -> CaseSpec:
    """Return the properties of the first case, which the others must share."""
    first = next((case for cases in splits.values() for case in cases), None)
    if first is None:
        raise InputError(f"splits must hold a case, got none in {list(splits)}; give some")
    if first.logits.ndim not in (3, 4):
        raise InputError(
            f"logits must have shape [L, H, W] or [L, D, H, W], got {tuple(first.logits.shape)} "
            f"of case '{first.name}'; give each case without a batch axis"
        )
    channels = 0 if first.image is None else first.image.shape[0]
    count = int(first.logits.shape[0])
    return CaseSpec(count, first.logits.ndim - 1, int(channels), activation_of(activation, count))


def _checked_names(class_names: Sequence[str] | None, num_classes: int) -> tuple[str, ...] | None:
    if class_names is not None and len(class_names) not in (num_classes, max(2, num_classes)):
        raise InputError(
            f"class_names must have one name for each of the {num_classes} classes of the logits, "
            f"got {len(class_names)}; correct them or leave them out"
        )
    return None if class_names is None else tuple(class_names)


def _write_case(folder: Path, case: Case, spec: CaseSpec, ignored: tuple[int, ...] | None) -> None:
    """Write the arrays of a case, checked as a reader would check them."""
    name, spacing = _checked_name(case.name, folder), case.spacing
    logits = plain(to_array(case.logits), Path(name))
    labels = None if case.labels is None else whole_numbers(plain(to_array(case.labels), Path(name)), Path(name))
    image = None if case.image is None else plain(to_array(case.image), Path(name))
    if spacing is not None and not all(0 < length < math.inf for length in spacing):
        raise InputError(f"spacing must be lengths above 0, got {spacing} of case '{name}'; correct it")
    if (image is None) != (spec.image_channels == 0):
        raise InputError(f"all cases must have an image or none, got both with case '{name}'; add or remove images")
    spec.check(logits, labels, image, spacing, of=f"case '{name}'")
    _check_values(name, logits, labels, spec, ignored)
    _save(folder / "logits" / f"{name}.npy", logits)
    for number, scores in enumerate(case.each_pass):
        _save(folder / "passes" / f"{number:03d}" / f"{name}.npy", plain(to_array(scores), Path(name)))
    if labels is not None:
        fits_png = labels.ndim == 2 and labels.size > 0 and labels.min() >= 0 and labels.max() <= 255
        _save(folder / "labels" / f"{name}{'.png' if fits_png else '.npy'}", labels)
    if image is not None:
        _save(folder / "images" / f"{name}.npy", image)


def _check_values(
    name: str, logits: Array, labels: Array | None, spec: CaseSpec, ignored: tuple[int, ...] | None
) -> None:
    of, scores = f"case '{name}'", to_tensor(logits)
    check_logits(scores, spec.num_classes, class_axis=0, activation=spec.activation, of=of)
    if labels is None:
        return
    sigmoid = spec.activation == "sigmoid"
    if sigmoid and spec.num_classes > 1 and labels.shape != logits.shape:
        raise InputError(
            f"labels of sigmoid channels must have shape {logits.shape}, a mask of 0 and 1 for each, "
            f"got {labels.shape} of {of}; make masks with segcal.functional.channels.channel_labels"
        )
    if not (sigmoid and labels.shape == logits.shape):
        check_same_space(scores, to_tensor(labels), class_axis=0, of=of)
    check_labels(to_tensor(labels), 2 if sigmoid else spec.num_classes, ignored, of=of)


def _checked_name(name: str, folder: Path) -> str:
    if not name or name.startswith(".") or any(character in name for character in "/\\\0"):
        raise InputError(
            f"the name of a case must serve as a file name, got {name!r}; leave out slashes and dots at the beginning"
        )
    if (folder / "logits" / f"{name}.npy").exists():
        raise InputError(f"each case must have a name of its own, got '{name}' twice; rename one or write it once")
    return name


def _save(path: Path, array: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        Image.fromarray(array.astype(np.uint8)).save(path)
    else:
        np.save(path, array)
