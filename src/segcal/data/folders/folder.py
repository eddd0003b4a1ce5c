"""A folder of scores and labels as a sequence of Cases, loaded one at a time.

Layouts are `logits/`, `labels/` and perhaps `images/`, with `segcal.toml` and `splits.json`, or those of BIDS
(`segcal.data.folders.layouts`), nnU-Net and TotalSegmentator (`segcal.data.folders.nnunet`). Opening looks at names and
at the headers of the first case; everything else is read when its case is asked for. The case stream checks the values
that it reads.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args, overload

import numpy as np
from torch import Tensor

from segcal.data.folders.case_files import CaseFiles, CaseSpec, Output
from segcal.data.folders.crop import Crop
from segcal.data.folders.layouts import (
    existing,
    files_of_cases,
    find_bids,
    find_own,
    labels_without_scores,
    no_scores,
    place_of,
    with_passes,
)
from segcal.data.folders.nnunet import find_nnunet
from segcal.data.folders.settings import (
    Classes,
    FolderSettings,
    Scores,
    Splits,
    check_background,
    read_settings,
    read_splits,
)
from segcal.files import MARKER, refuse_unfinished
from segcal.files.guards import refuse_foreign_file
from segcal.functional.arrays import to_array
from segcal.functional.checks import IGNORED, activation_of, ignored_labels
from segcal.text import warn_caller
from segcal.types import Activation, Array, Case, IgnoreIndex, InputError, check_choice

_LAYOUTS = (find_own, find_bids, find_nnunet)
"""The first that recognises a folder finds its cases."""

_TAKEN = {MARKER, "result"}
"""Names of other files where the maps of a case are written."""

_NO_BACKGROUND = -1
"""Value of `background` that says that there is none, whatever the classes are called."""


@dataclass(frozen=True, eq=False)
class Folder(Sequence[Case]):
    """Cases on disk, in the order of their names, each read when it is asked for.

    Args:
        path: The folder.
        num_classes: `L` of every case, or its number of sigmoid channels.
        ignore_index: Labels to be left out, or None.
        background: The class that the *All* region leaves out, or None.
        class_names: One name for each class or channel, or for both classes of a single channel; or None.
        spatial_dims: 2 or 3.
        image_channels: `C` of every image, 0 where there are none.
        scores: What the score files hold. Cases have logits in either case.
        splits: The names of the cases of each split in `splits.json`.
        files: Where each case lies.
        activation: Whether the classes exclude one another (softmax) or are channels that may overlap (sigmoid).
        descriptions: Files of another program that describe the cases, such as nnU-Net's `dataset.json`.
        crops: Where the cases that were read lie in their volumes, if the network predicted a part of these only.
    """

    path: Path
    num_classes: int
    ignore_index: tuple[int, ...] | None
    background: int | None
    class_names: tuple[str, ...] | None
    spatial_dims: int
    image_channels: int
    scores: Scores
    splits: Splits = field(repr=False)
    files: dict[str, CaseFiles] = field(repr=False)
    activation: Activation = "softmax"
    descriptions: tuple[Path, ...] = ()
    crops: dict[str, Crop] = field(default_factory=dict, repr=False)  # shared with every part of this folder

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each case."""
        return tuple(self.files)

    def __len__(self) -> int:
        return len(self.files)

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> Folder: ...
    def __getitem__(self, index: int | slice) -> Case | Folder:
        """Load one case, or return the part of the folder that a slice names."""
        if isinstance(index, slice):
            return self.subset(self.names[index])
        name = self.names[index]
        spec = CaseSpec(self.num_classes, self.spatial_dims, self.image_channels, self.activation)
        case, crop = self.files[name].load(spec)
        if crop is not None:
            self.crops[name] = crop
        return case

    def __iter__(self) -> Iterator[Case]:
        return (self[k] for k in range(len(self)))  # that of a Sequence takes an IndexError for the end

    def subset(self, names: Iterable[str]) -> Folder:
        """The cases called `names`, in that order."""
        chosen = tuple(names)
        for name in chosen:
            self.find(name)
        if len(set(chosen)) < len(chosen):
            twice = next(name for name in chosen if chosen.count(name) > 1)
            raise InputError(f"each case may be chosen once, got '{twice}' more often; name it once")
        return replace(self, files={name: self.files[name] for name in chosen})

    def select(self, split: str) -> Folder:
        """The cases of this folder that `splits.json` lists under `split`."""
        if split not in self.splits:
            if not self.splits:
                raise InputError(f"the split '{split}' needs '{self.path / 'splits.json'}', which does not exist")
            present = ", ".join(f"'{name}'" for name in self.splits)
            raise InputError(f"split must be named in '{self.path / 'splits.json'}', got '{split}'; present: {present}")
        chosen = [name for name in self.splits[split] if name in self.files]
        if not chosen:
            raise InputError(f"split '{split}' must hold a case of '{self.path}', got none; add one to splits.json")
        return self.subset(chosen)

    def identities(self) -> dict[str, str]:
        """Return what changes when the files of a case do, by name; nothing but file systems is asked."""
        return {name: files.identity() for name, files in self.files.items()}

    def map_folders(self, root: Path) -> list[Path]:
        """Return where maps of the cases go: `root`, or a folder in it for each of several sigmoid channels.

        Folders are named as their channels, or numbered if the names are not usable or not different.
        """
        if self.activation == "softmax" or self.num_classes == 1:
            return [root]
        names = self.class_names or ()
        usable = all(re.fullmatch(r"[^./\\\0-\x1f][^/\\\0-\x1f]{0,50}", name) for name in names)
        # some file systems take names for the same that differ in case, or in how accents are encoded
        different = {unicodedata.normalize("NFC", name).casefold() for name in names} - _TAKEN
        if not usable or len(different) < self.num_classes:
            names = tuple(map(str, range(self.num_classes)))
        return [root / name for name in names]

    def find(self, name: str) -> CaseFiles:
        """Return the files of the case called `name`."""
        if name not in self.files:
            raise InputError(f"'{name}' must be a case of '{self.path}', got one of another folder; look at its names")
        return self.files[name]


def open_folder(
    path: str | Path,
    *,
    labels: str | Path | None = None,
    passes: Sequence[str | Path] = (),
    split: str | None = None,
    num_classes: int | None = None,
    ignore_index: IgnoreIndex = None,
    background: int | None = None,
    scores: Scores | None = None,
    activation: Activation | None = None,
    require_labels: bool = True,
) -> Folder:
    """Open a folder in segcal's layout, or one that nnU-Net or TotalSegmentator wrote.

    Arguments override `segcal.toml`, which overrides nnU-Net's `dataset.json`. The folder may be a URL that fsspec
    knows (`s3://bucket/data`), if its arrays are Zarr.

    Args:
        path: The folder that holds `logits/`, nnU-Net's or TotalSegmentator's `NAME.npz`, or nnU-Net's `fold_k/`.
        labels: Folder of the true labels, instead of `labels/` inside `path`.
        passes: Folders with the scores of further passes over the same images, such as the predictions of single folds,
            in this order; by default those in `passes/` inside `path`, in the order of their names.
        split: Only the cases that `splits.json` lists under this name.
        num_classes: `L`; read from `segcal.toml` or the first case where it is not given.
        ignore_index: Label, or labels, to be left out.
        background: The class that the *All* region leaves out; by default one called "background". -1 for none.
        scores: Whether the files hold "logits" (the default) or "probabilities" (the default for nnU-Net).
        activation: "softmax" for exclusive classes (the default), "sigmoid" for channels that may overlap.
        require_labels: Whether a case without labels is an error; its `labels` are None otherwise.
    """
    root = existing(place_of(path), "data")
    refuse_unfinished(root)
    if scores is not None:
        check_choice("scores", scores, get_args(Scores))
    settings = read_settings(root / "segcal.toml").overridden(
        ignore_index=ignore_index, background=background, scores=scores, activation=activation
    )
    truth = None if labels is None else existing(place_of(labels), "labels")
    found = next((found for find in _LAYOUTS if (found := find(root, truth, settings))), None)
    if found is None:
        raise no_scores(root)
    if require_labels and not found.label_folder.is_dir():
        raise InputError(
            f"the true labels of '{root}' are needed, got none in '{found.label_folder}'; give their folder with "
            "--labels (labels= in Python)"
        )
    files = files_of_cases(root, found, settings, require_labels=require_labels)
    near = labels is not None or root in (found.label_folder, found.label_folder.parent)
    for remark in (*found.remarks, *(labels_without_scores(files, found) if near else ())):
        warn_caller(f"'{root}': {remark}")
    files = with_passes(files, [place_of(folder) for folder in passes], root)
    splits = read_splits(root / "splits.json", tuple(files)) or found.splits
    classes = _declared_classes(settings, found.declared, num_classes, root)
    first = _with_channels(_first(files, splits, split), classes)
    space = first.space(classes.count)
    count = classes.count or first.num_classes(space)
    if count == 1 and classes.activation == "softmax":  # one channel can only be a sigmoid
        classes = replace(classes, activation="sigmoid", count=1)
        first = _with_channels(first, classes)
        space = first.space(count)
    outside = (IGNORED,) if first.archived else ()  # labels outside of nnU-Net's crop become -1
    ignored = tuple(dict.fromkeys((*classes.ignored_in_cases, *outside)))
    label_count = count if classes.activation == "softmax" else 2
    folder = Folder(
        path=root,
        num_classes=count,
        ignore_index=ignored or None,
        background=check_background(_background(settings.background, classes), label_count),
        class_names=classes.names if len(classes.names or ()) in (count, max(count, label_count)) else None,
        spatial_dims=_checked_dims(space, first),
        image_channels=first.image_channels(space),
        scores=first.kind,
        splits=splits,
        files={name: _with_channels(own, classes) for name, own in files.items()},
        activation=classes.activation,
        descriptions=found.descriptions,
    )
    return folder if split is None else folder.select(split)


def write_scores(folder_out: str | Path, case_name: str, array: Array | Tensor, like: Folder) -> Path:
    """Write scores `[L, *S]` of one case as `like` stores its own, and return the name of the file.

    `.npy` and `.npz` become `NAME.npy`; NIfTI stays NIfTI (float32) with its affine, zooms and class axis;
    an archive of nnU-Net stays one. Around a case that was cut to nnU-Net's crop, probabilities are those of nnU-Net.
    A file that is already there is not replaced.
    """
    return _write("scores", folder_out, case_name, array, like)


def write_map(folder_out: str | Path, case_name: str, array: Array | Tensor, like: Folder) -> Path:
    """Write one value per pixel `[*S]` (a temperature, say) of one case, and return the name of the file.

    NIfTI where the scores, or the files beside those of nnU-Net, are NIfTI, with the affine of the labels, or of
    the scores where there are no labels; `NAME.npy` otherwise. Around a case that was cut to nnU-Net's crop, floating
    point values are NaN, and whole numbers 0. A file that is already there is not replaced.
    """
    return _write("map", folder_out, case_name, array, like)


def _write(content: Output, folder_out: str | Path, name: str, array: Array | Tensor, like: Folder) -> Path:
    values, files, crop = to_array(array), like.find(name), like.crops.get(name)
    refuse_foreign_file(path := files.file(Path(folder_out), content))
    if crop is not None and crop.shape == values.shape[-len(crop.shape) :]:  # the values cover the volume
        crop = None
    outside = np.nan if values.dtype.kind == "f" else 0
    with files.create(path.parent, content, values.shape, values.dtype.str, crop, outside=outside) as write:
        write(0, values)
    return path


def _first(files: dict[str, CaseFiles], splits: Splits, split: str | None) -> CaseFiles:
    """Return the case whose header stands for all: the first of the split, so that no other file is touched.

    One with labels is preferred, as they tell which axis of the scores is that of the classes.
    """
    names = (splits.get(split) if split is not None else None) or tuple(files)
    return files[next((name for name in names if files[name].labels), names[0])]


def _declared_classes(
    settings: FolderSettings, declared: FolderSettings, num_classes: int | None, root: Path
) -> Classes:
    """Join what the settings and the layout of a folder declare; the settings count first."""
    channels = settings.channels or (declared.channels if settings.classes is None else None)
    activation = activation_of(settings.activation or ("sigmoid" if channels else None), 2)
    ignored = ignored_labels(declared.ignore_index if settings.ignore_index is None else settings.ignore_index)
    if activation == "softmax":
        if settings.channels is not None:
            raise InputError(
                f"'{root / 'segcal.toml'}' lists the labels of sigmoid channels, got activation = \"softmax\"; "
                "remove one of them"
            )
        count = _class_count(num_classes, settings.classes, root)
        return Classes(activation, count, settings.classes or declared.classes, ignored)
    names = tuple(channels) if channels else None  # otherwise two names may be both classes of a single channel
    return Classes(activation, _class_count(num_classes, names, root), names or settings.classes, ignored, channels)


def _class_count(num_classes: int | None, classes: tuple[str, ...] | None, root: Path) -> int | None:
    if num_classes is not None and num_classes < 1:
        raise InputError(f"num_classes must be at least 1, got {num_classes}; count the classes of the logits")
    if num_classes is None or classes is None:
        return num_classes or (len(classes) if classes else None)
    if len(classes) != num_classes:
        raise InputError(
            f"num_classes must be the number of class names, got {num_classes} while "
            f"'{root / 'segcal.toml'}' names {len(classes)}; correct one of them"
        )
    return num_classes


def _with_channels(files: CaseFiles, classes: Classes) -> CaseFiles:
    return files if classes.activation == "softmax" else replace(files, channels=classes)


def _checked_dims(space: tuple[int, ...], first: CaseFiles) -> int:
    if len(space) not in (2, 3):
        what = "labels" if first.labels else "scores, without their class axis,"
        channels = 'set activation = "sigmoid" (--activation sigmoid) if they are masks of channels that overlap'
        remedy = channels if first.labels and len(space) == 4 else "correct it"
        raise InputError(
            f"{what} must have shape [H, W] or [D, H, W], got {space} in '{(first.labels or first.scores).path}'; "
            f"{remedy}"
        )
    return len(space)


def _background(chosen: int | None, classes: Classes) -> int | None:
    """Return the class that is chosen, or called "background", as in nnU-Net's dataset.json; None if there is none."""
    if chosen is not None:
        return None if chosen == _NO_BACKGROUND else chosen
    lower = [name.lower() for name in classes.names or ()]
    return lower.index("background") if classes.activation == "softmax" and "background" in lower else None
