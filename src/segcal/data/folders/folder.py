"""A folder of scores and labels as a sequence of Cases, loaded one at a time.

Layouts are `logits/`, `labels/` and perhaps `images/`, with `segcal.toml` and `splits.json`, or those of nnU-Net and
TotalSegmentator (`segcal.data.folders.layouts`). Opening looks at names and at the headers of the first case;
everything else is read, and checked once, when its case is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import overload

from torch import Tensor

from segcal.data.folders.by_name import existing, place_of
from segcal.data.folders.case_files import CaseFiles, as_numpy
from segcal.data.folders.expected import Expected
from segcal.data.folders.layouts import Request, find_cases
from segcal.data.folders.settings import Scores, Splits, check_background, check_scores, read_settings, read_splits
from segcal.files import refuse_unfinished
from segcal.functional.checks import IGNORED, ignored_labels
from segcal.types import Array, Case, IgnoreIndex, InputError


@dataclass(frozen=True, eq=False)
class Folder(Sequence[Case]):
    """Cases on disk, in the order of their names, each read when it is asked for.

    Args:
        path: The folder.
        num_classes: `L` of every case.
        ignore_index: Labels to be left out, or None.
        background: The class that the *All* region leaves out, or None.
        class_names: One name for each class, or None.
        spatial_dims: 2 or 3.
        image_channels: `C` of every image, 0 where there are none.
        scores: What the score files hold. Cases have logits in either case.
        splits: The names of the cases of each split in `splits.json`.
        files: Where each case lies.
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
    _checked: set[str] = field(default_factory=set, repr=False)  # shared with every part of this folder

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
        expected = Expected(self.num_classes, self.ignore_index, self.spatial_dims, self.image_channels)
        case = self.files[name].load(expected, check=name not in self._checked)
        self._checked.add(name)
        return case

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
            present = ", ".join(f"'{name}'" for name in self.splits) or "no splits.json"
            raise InputError(f"split must be one of '{self.path / 'splits.json'}', got '{split}'; present: {present}")
        chosen = [name for name in self.splits[split] if name in self.files]
        if not chosen:
            raise InputError(f"split '{split}' must hold a case of '{self.path}', got none; add one to splits.json")
        return self.subset(chosen)

    def identities(self) -> dict[str, str]:
        """Return what changes when the files of a case do, by name; nothing but file systems is asked."""
        return {name: files.identity() for name, files in self.files.items()}

    def find(self, name: str) -> CaseFiles:
        """Return the files of the case called `name`."""
        if name not in self.files:
            raise InputError(f"'{name}' must be a case of '{self.path}', got one of another folder; look at its names")
        return self.files[name]


def open_folder(
    path: str | Path,
    *,
    labels: str | Path | None = None,
    split: str | None = None,
    num_classes: int | None = None,
    ignore_index: IgnoreIndex = None,
    background: int | None = None,
    scores: Scores | None = None,
    require_labels: bool = True,
) -> Folder:
    """Open a folder in segcal's layout, or one that nnU-Net or TotalSegmentator wrote.

    Arguments override `segcal.toml`, which overrides nnU-Net's `dataset.json`. The folder may be a URL that fsspec
    knows (`s3://bucket/data`), if its arrays are Zarr.

    Args:
        path: The folder that holds `logits/`, nnU-Net's or TotalSegmentator's `NAME.npz`, or nnU-Net's `fold_k/`.
        labels: Folder of the true labels, instead of `labels/` inside `path`.
        split: Only the cases that `splits.json` lists under this name.
        num_classes: `L`; read from `segcal.toml` or the first case where it is not given.
        ignore_index: Label, or labels, to be left out.
        background: The class that the *All* region leaves out.
        scores: Whether the files hold "logits" (the default) or "probabilities" (the default for nnU-Net).
        require_labels: Whether a case without labels is an error; its `labels` are None otherwise.
    """
    root = existing(place_of(path), "data")
    refuse_unfinished(root)
    settings = read_settings(root / "segcal.toml")
    if scores is not None:
        check_scores(scores)
    found = find_cases(Request(root, None if labels is None else place_of(labels), scores, settings, require_labels))
    splits = read_splits(root / "splits.json", tuple(found.files)) or found.splits
    first = _first(found.files, splits, split)
    classes = settings.classes or found.classes
    declared = _class_count(num_classes, settings.classes, root)
    space = first.space(declared)
    count = declared or first.num_classes(space)
    given = next((value for value in (ignore_index, settings.ignore_index) if value is not None), found.ignore_index)
    # labels outside of nnU-Net's crop become -1
    ignored = tuple(dict.fromkeys((*ignored_labels(given), *((IGNORED,) if first.archived else ()))))
    folder = Folder(
        path=root,
        num_classes=count,
        ignore_index=ignored or None,
        background=check_background(settings.background if background is None else background, count),
        class_names=classes if classes is not None and len(classes) == count else None,
        spatial_dims=_checked_dims(space, first),
        image_channels=first.image_channels(space),
        scores=found.scores,
        splits=splits,
        files=found.files,
    )
    return folder if split is None else folder.select(split)


def write_scores(folder_out: str | Path, case_name: str, array: Array | Tensor, like: Folder) -> Path:
    """Write scores `[L, *S]` of one case as `like` stores its own, and return the name of the file.

    `.npy` and `.npz` become `NAME.npy`; NIfTI stays NIfTI (float32) with its affine, zooms and class axis;
    an archive of nnU-Net stays one.
    """
    values, files = as_numpy(array), like.find(case_name)
    with files.create_scores(Path(folder_out), values.shape, values.dtype.str) as writer:
        writer.write(0, values)
    return files.score_file(Path(folder_out))


def write_map(folder_out: str | Path, case_name: str, array: Array | Tensor, like: Folder) -> Path:
    """Write one value per pixel `[*S]` (a temperature, say) of one case, and return the name of the file.

    NIfTI where the scores, or the files beside those of nnU-Net, are NIfTI, with the affine of the labels, or of
    the scores where there are no labels; `NAME.npy` otherwise.
    """
    values, files = as_numpy(array), like.find(case_name)
    with files.create_map(Path(folder_out), values.shape, values.dtype.str) as writer:
        writer.write(0, values)
    return files.map_file(Path(folder_out))


def _first(files: dict[str, CaseFiles], splits: Splits, split: str | None) -> CaseFiles:
    """Return the case whose header stands for all: the first of the split, so that no other file is touched.

    One with labels is preferred, as they tell which axis of the scores is that of the classes.
    """
    names = (splits.get(split) if split is not None else None) or tuple(files)
    return files[next((name for name in names if files[name].labels), names[0])]


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


def _checked_dims(space: tuple[int, ...], first: CaseFiles) -> int:
    if len(space) not in (2, 3):
        what = "labels" if first.labels else "scores, without their class axis,"
        raise InputError(
            f"{what} must have shape [H, W] or [D, H, W], got {space} in '{first.labels or first.scores}'; correct it"
        )
    return len(space)
