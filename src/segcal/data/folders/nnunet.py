"""Folders of archives that nnU-Net 2 and TotalSegmentator write.

- A prediction folder (`nnUNetv2_predict --save_probabilities`): `NAME.npz` with its own segmentation beside it.
- A trained model (`nnUNetv2_train ... --npz`, or `--val --npz` afterwards): `fold_k/validation/NAME.npz`, where each
  case is predicted by the fold that did not train on it. This is the best calibration set that an nnU-Net user has.
- Archives of TotalSegmentator (`--save_probabilities NAME.npz`), or any others. They lie in the space in which the
  network predicted. TotalSegmentator keeps its geometry in a pickle; a NIfTI file of the same name gives it, beside the
  archive or in the folder that `geometry` in `segcal.toml` names.

Names of classes, regions and the ignored label come from `dataset.json`. Models with regions predict a sigmoid channel
for each; their probabilities do not sum to 1. The pickles beside the archives are never read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from segcal.data.folders.layouts import FoundCases, by_name, some_of
from segcal.data.folders.settings import FolderSettings, Splits
from segcal.data.io.formats import LABELS, file_at
from segcal.files import read_json
from segcal.types import InputError

_ARCHIVES = (".npz",)
_LARGEST_LABEL = 2**31
_FOLDS = 5  # of nnU-Net's cross-validation, unless a file says otherwise
_MARKS = ("dataset.json", "plans.json", "predict_from_raw_data_args.json")


def find_nnunet(root: Path, labels: Path | None, settings: FolderSettings) -> FoundCases | None:
    """Return the archives `NAME.npz` of a prediction folder, or those of all folds of a trained model.

    A segmentation beside an archive is the network's own, and serves for its geometry only.
    """
    folds = _folds(root)
    places = list(folds.values()) or [root]
    archives = {place: {name: path for name, (path,) in by_name(place, _ARCHIVES).items()} for place in places}
    if not any(archives.values()):
        return None
    truth = labels or (None if folds else _inside(root)) or _truth(_model(root)) or root / "labels"
    if truth.resolve() in [place.resolve() for place in places]:
        raise InputError(
            f"labels must be the folder of the true labels, got '{truth}', where nnU-Net wrote its own "
            "predictions; give the one that holds the truth"
        )
    splits = {fold: tuple(archives[place]) for fold, place in folds.items()}
    declared = _splits_final(root, labels) if folds else None
    content = None if declared is None else read_json(declared)
    _check_folds(folds, splits, content, declared)
    named, written = settings.geometry_folder(root), {place: by_name(place, LABELS) for place in places}
    beside = dict.fromkeys(places, by_name(named, LABELS)) if named else written
    scores = {name: path for found in archives.values() for name, path in found.items()}
    marks = [place / name for place in (root, _model(root)) for name in _MARKS]
    kept = {path.name: path for path in reversed(marks) if path.is_file()}
    return FoundCases(
        scores=scores,
        label_folder=truth,
        labels=by_name(truth, LABELS),
        declared=_read_dataset(kept.get("dataset.json")),
        predictions={
            name: _prediction(beside[place].get(name, [])) for place, found in archives.items() for name in found
        },
        splits=splits,
        descriptions=tuple(kept.values()),
        remarks=tuple(_missing(folds, content, scores, written.values())),
    )


def _missing(
    folds: Mapping[str, Path], content: Any, known: Collection[str], written: Iterable[dict[str, list[Path]]]
) -> Iterator[str]:
    """Yield remarks on folds of a trained model, and on predictions, that have no probabilities."""
    count = len(content) if isinstance(content, list) else _FOLDS
    if folds and (missing := [fold for k in range(count) if (fold := f"fold_{k}") not in folds]):
        remedy = "left out; write them with 'nnUNetv2_train ... --val --npz'"
        yield f"{some_of(missing, 'fold')} without probabilities of validation cases: {remedy}"
    if bare := [name for found in written for name, paths in found.items() if _prediction(paths) and name not in known]:
        remedy = "left out; predict again with --save_probabilities (training: --npz)"
        yield f"{some_of(bare, 'prediction')} without .npz: {remedy}"


def _prediction(paths: list[Path]) -> Path | None:
    """Return the network's own segmentation among files of one name, preferably one that has a geometry."""
    maps = [path for path in paths if not path.name.lower().endswith(_ARCHIVES)]
    return next((path for path in maps if file_at(path).has_geometry), maps[0] if maps else None)


def _folds(root: Path) -> dict[str, Path]:
    """Return the folders `fold_k/validation` that hold archives, by the name of the fold."""
    found = {path.parent.name: path for path in sorted(root.glob("fold_*/validation"))}
    return {name: path for name, path in found.items() if by_name(path, _ARCHIVES)}


def _check_folds(folds: Mapping[str, Path], splits: Splits, content: Any, declared: Path | None) -> None:
    """Raise where a case was predicted by two folds, or by one that trained on it as `splits_final.json` declares."""
    if "fold_all" in folds:
        raise InputError(
            f"'{folds['fold_all']}' must hold predictions of cases that were not trained on, but fold_all trains on "
            "every case; use the folds of a cross-validation, or predictions of other images"
        )
    owner: dict[str, str] = {}
    for fold, names in splits.items():
        for name in names:
            if name in owner:
                raise InputError(
                    f"each case must be predicted by one fold, got '{name}' in '{folds[owner[name]]}' and "
                    f"'{folds[fold]}'; remove one of them"
                )
            owner[name] = fold
    for fold, names in splits.items() if declared is not None else ():
        trained = _training_cases(content, fold, declared)
        if leaked := [name for name in names if name in trained]:
            raise InputError(
                f"'{folds[fold]}' must hold cases that {fold} did not train on, got '{leaked[0]}', which '{declared}' "
                "lists under its training cases; run its validation again, or remove the case"
            )


def _training_cases(content: Any, fold: str, path: Path | None) -> set[str]:
    try:
        return set(content[int(fold.removeprefix("fold_"))]["train"])
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' must list the training cases of {fold}, got none; restore the file") from error


def _splits_final(root: Path, labels: Path | None) -> Path | None:
    truth = labels or _truth(root)
    dataset = root.resolve().parent.name
    places = [root, *([truth.parent] if truth is not None else []), *(base / dataset for base in _bases())]
    return next((path for place in places if (path := place / "splits_final.json").is_file()), None)


def _inside(root: Path) -> Path | None:
    return next((path for name in ("labels", "gt_segmentations", "labelsTr") if (path := root / name).is_dir()), None)


def _truth(root: Path) -> Path | None:
    """Return the true labels of a trained model: its data set in nnU-Net's folders of preprocessed or raw data.

    These are named by environment variables, or lie beside the folder of results, as nnU-Net's documentation suggests.
    """
    if found := _inside(root):
        return found
    dataset, home = root.resolve().parent, root.resolve().parent.parent.parent
    bases = [*_bases(), home / "nnUNet_preprocessed", home / "nnUNet_raw"]
    return next((found for base in bases if (found := _inside(base / dataset.name))), None)


def _bases() -> list[Path]:
    """Return nnU-Net's folders of preprocessed and raw data, where the environment names them."""
    return [Path(value) for name in ("nnUNet_preprocessed", "nnUNet_raw") if (value := os.environ.get(name))]


def _model(root: Path) -> Path:
    """Return the folder of the trained model that `fold_*/validation` belongs to; any other folder as it is."""
    return root.resolve().parent.parent if root.resolve().name == "validation" else root


def _read_dataset(path: Path | None) -> FolderSettings:
    """Return the names of the classes, the ignored label, and the regions (sigmoid channels) of `dataset.json`."""
    content = read_json(path) if path is not None else {}
    labels = (content.get("labels") or {}) if isinstance(content, dict) else content
    if labels == {}:
        return FolderSettings(scores="probabilities")
    if not isinstance(labels, dict):
        raise InputError(f"'{path}' must declare its labels by name, got {labels!r}; restore the file")
    try:
        numbers = {name: _label_or_labels(value) for name, value in labels.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"labels in '{path}' must be whole numbers, or lists of them, by name, got {labels}; restore the file"
        ) from error
    ignored = tuple(own for name, own in numbers.items() if name == "ignore" and isinstance(own, int))
    if "ignore" in numbers and not ignored:
        raise InputError(f"'ignore' in '{path}' must be one label, got {labels['ignore']}; restore the file")
    if any(isinstance(own, tuple) and len(own) > 1 for own in numbers.values()):  # nnU-Net's own condition
        # channels are in the order of the file, without background; regions_class_order only says how to paint them
        channels = {name: own for name, own in numbers.items() if name != "ignore" and own not in (0, (0,))}
        return FolderSettings(channels=channels, ignore_index=ignored, scores="probabilities")
    classes = sorted((own if isinstance(own, int) else own[0], name) for name, own in numbers.items())
    named = [(number, name) for number, name in classes if name != "ignore"]
    consecutive = [number for number, _ in named] == list(range(len(named)))
    names = tuple(name for _, name in named) if consecutive else None
    return FolderSettings(classes=names, ignore_index=ignored, scores="probabilities")


def _label_or_labels(value: Any) -> int | tuple[int, ...]:
    """Return the label of a class, or those of a region; a list must have one."""
    if isinstance(value, list) and not value:
        raise ValueError("a region without labels")
    return tuple(_label(label) for label in value) if isinstance(value, list) else _label(value)


def _label(value: Any) -> int:
    label = int(value)
    if (isinstance(value, float) and value != label) or abs(label) >= _LARGEST_LABEL:
        raise ValueError(f"{value} is not a label")
    return label
