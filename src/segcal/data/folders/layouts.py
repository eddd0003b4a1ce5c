"""Layouts of folders: segcal's own (`logits/NAME`, `labels/NAME`, perhaps `images/NAME`), BIDS, and their shared parts.

A layout is a function `find(root, labels, settings)` that returns the places of the files, or None if the folder has
another layout; `labels` is a folder of labels other than the usual one. `segcal.data.folders.folder` lists them.

Files of different kinds have the same name, or names of the Brain Imaging Data Structure (BIDS) with the same entities:
`sub-01_ses-1_probseg.nii.gz` and `sub-01_ses-1_desc-manual_dseg.nii.gz`. Folders `sub-*/` are searched to any depth.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from segcal.data.folders.case_files import CaseFiles
from segcal.data.folders.settings import FolderSettings, Splits
from segcal.data.io.formats import IMAGES, LABELS, SCORES, extension_of, file_at
from segcal.files import local_path, url_of
from segcal.text import counted, is_utf8
from segcal.types import InputError, extra

_LOSSY = "JPEG changes values, so write labels as PNG"
_PICKLE = "it can run code when it is loaded, so save the scores with np.save(path, tensor.cpu().numpy())"
_REMEDIES = {
    **{("label", end): _LOSSY for end in (".jpg", ".jpeg")},
    **{(what, end): _PICKLE for what in ("score", "label") for end in (".pt", ".pth", ".pkl", ".pickle", ".ckpt")},
    **{("score", end): "scores need a number for each class, so save them with np.save" for end in (".png", ".jpg")},
}
"""Remedies for files that hold scores or labels in other formats."""
_CONVERT = "convert it to one of these formats"


@dataclass(frozen=True, slots=True)
class FoundCases:
    """Content of a folder as its layout reads it.

    Args:
        scores: The score file of each case.
        label_folder: The folder of the true labels.
        labels: Its label files by name.
        declared: What the folder says of itself; `segcal.toml` overrides it.
        predictions: The network's own segmentation of each case, if the scores are archives of nnU-Net.
        splits: Splits that follow from the folder itself.
        descriptions: The files that say all this, if there are any; outputs get copies, so that they are read alike.
        remarks: Files and folders that were expected and are not there, one sentence each.
    """

    scores: Mapping[str, Path]
    label_folder: Path
    labels: Mapping[str, list[Path]]
    declared: FolderSettings
    predictions: Mapping[str, Path | None] | None = None
    splits: Splits = field(default_factory=dict)
    descriptions: tuple[Path, ...] = ()
    remarks: tuple[str, ...] = ()


def find_own(root: Path, labels: Path | None, settings: FolderSettings) -> FoundCases | None:
    """Return each score file of `logits/`, and the labels."""
    folder, label_folder = root / "logits", labels or root / "labels"
    scores = by_name(folder, SCORES)
    if not scores:
        if folder.is_dir():
            raise no_scores(root)
        return None
    one = {name: only(name, scores, "score", folder, SCORES) for name in scores}
    return FoundCases(one, label_folder, by_name(label_folder, LABELS), FolderSettings(scores="logits"))


def no_scores(root: Path) -> InputError:
    """Return the error to raise for a folder without scores."""
    return InputError(
        f"'{root}' must hold scores as logits/NAME{'|'.join(SCORES)}, or as NAME.npz of nnU-Net or TotalSegmentator "
        f"(--save_probabilities), got none; {_unreadable(root / 'logits', '', 'score') or 'is it the right folder?'}"
    )


def find_bids(root: Path, labels: Path | None, settings: FolderSettings) -> FoundCases | None:
    """Return each file `sub-*/**/*_probseg.*`, with all classes, and the segmentations `*_dseg.*` of its entities."""
    scores = _with_suffix(by_name(root, SCORES), "probseg") if any(root.glob("sub-*")) else {}
    if not scores:
        return None
    label_folder = labels or root
    found = by_name(label_folder, LABELS)
    segmentations = _with_suffix(found, "dseg") or {name: paths for name, paths in found.items() if name not in scores}
    one = {name: only(name, scores, "score", root, SCORES) for name in scores}
    return FoundCases(one, label_folder, segmentations, FolderSettings(scores="probabilities"))


def _with_suffix(found: Mapping[str, list[Path]], suffix: str) -> dict[str, list[Path]]:
    return {name: paths for name, paths in found.items() if name.rpartition("_")[2] == suffix}


def files_of_cases(
    root: Path, found: FoundCases, settings: FolderSettings, *, require_labels: bool
) -> dict[str, CaseFiles]:
    """Return the files of each case: scores, labels of the same name, and an image for all cases or for none."""
    settings.check_names(found.scores)
    images, files = by_name(root / "images", IMAGES), dict[str, CaseFiles]()
    for name in sorted(found.scores):
        labelled = require_labels or files_of(name, found.labels)
        truth = only(name, found.labels, "label", found.label_folder, LABELS, found.scores) if labelled else None
        image = only(name, images, "image", root / "images", IMAGES, found.scores) if images else None
        prediction = found.predictions[name] if found.predictions else None
        beside = [None if path is None else file_at(path) for path in (truth, image, prediction)]
        files[name] = CaseFiles(
            name=name,
            scores=file_at(found.scores[name]),
            labels=beside[0],
            image=beside[1],
            prediction=beside[2],
            kind=settings.scores or found.declared.scores or "logits",
            group=next(iter(bids_entities(name)), None) if settings.group is None else settings.group_of(name),
            spacing=settings.spacing_of(name),
            archived=found.predictions is not None,
        )
    return files


def with_passes(files: Mapping[str, CaseFiles], folders: Sequence[Path], root: Path) -> dict[str, CaseFiles]:
    """Return the files of each case with those of further passes: one in each folder, or in each folder of `passes/`.

    A folder holds scores `NAME.*`, or a folder `logits` with them; beside archives of nnU-Net, whose segmentations are
    no scores, it holds archives.
    """
    ends = (".npz",) if any(own.archived for own in files.values()) else SCORES
    home = root / "passes"
    if not folders and home.is_dir():
        folders = [path for path in sorted(home.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    places = [existing(folder, "passes") for folder in folders]
    places = [place / "logits" if (place / "logits").is_dir() else place for place in places]
    found = [(place, by_name(place, ends)) for place in places]
    return {
        name: replace(
            own, passes=tuple(file_at(only(name, paths, "score", place, ends, files)) for place, paths in found)
        )
        for name, own in files.items()
    }


def labels_without_scores(files: Mapping[str, CaseFiles], found: FoundCases) -> tuple[str, ...]:
    """Return a remark on label files of a folder that belong to no case."""
    used = {case.labels.path for case in files.values() if case.labels is not None}
    unused = [name for name, paths in found.labels.items() if used.isdisjoint(paths)]
    return (f"{some_of(unused, 'label file')} in '{found.label_folder}' without scores: left out",) if unused else ()


def some_of(names: Sequence[str], what: str) -> str:
    """Return a number of names with the first three of them.

    Examples:
        >>> some_of(["a", "b", "c", "d"], "label file")
        "4 label files ('a', 'b', 'c', ...)"
    """
    shown = ", ".join([*(f"'{name}'" for name in names[:3]), *(["..."] if len(names) > 3 else [])])
    return f"{counted(len(names), what)} ({shown})"


def place_of(path: str | Path) -> Path:
    """Return a path, or, for the URL of an object store, what behaves like one (even if it was a Path in between)."""
    url = url_of(path)
    if url is None or url.startswith(("file:", "local:")):
        return local_path(path)
    if "::" in url:
        raise InputError(f"URLs must have one protocol, got '{url}'; unpack the archive, and give its folder")
    upath = extra("upath", "URLs need universal-pathlib", "store")
    try:
        place: Path = upath.UPath(url)
        cast(Any, place).fs.protocol  # noqa: B018  (imports the driver)
    except ImportError as error:
        raise InputError(
            f"'{url}' needs a driver of fsspec ({_first_line(error)}); install it beside segcal"
        ) from error
    except ValueError as error:
        raise InputError(f"'{url}' cannot be read ({_first_line(error)}); give a URL that fsspec knows") from error
    return place


def existing(path: Path, what: str) -> Path:
    """Return `path`; raise unless it is a folder."""
    try:
        if path.is_dir():
            return path
    except Exception as error:  # stores raise errors of their own if they cannot be reached
        if isinstance(error, OSError) or not hasattr(path, "fs"):
            raise
        reason = _first_line(error) or type(error).__name__
        raise InputError(f"'{path}' cannot be read ({reason}); check the URL, the connection and your keys") from error
    if path.exists():
        raise InputError(f"the {what} folder '{path}' is a file; give a folder")
    raise InputError(f"the {what} folder '{path}' does not exist")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def by_name(folder: Path, extensions: Sequence[str]) -> dict[str, list[Path]]:
    """Return files with one of `extensions` by their name without it; hidden ones are left out."""
    found: dict[str, list[Path]] = {}
    for path in _files(folder) if folder.is_dir() else ():
        extension = extension_of(path, extensions)
        if extension and path.is_dir() == file_at(path).is_folder and not path.name.startswith("."):
            if not is_utf8(path.name):
                raise InputError(f"names of files must be UTF-8, got '{path}'; rename it")
            found.setdefault(path.name[: -len(extension)], []).append(path)
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Yield the content of a folder, and that of the folders of its subjects."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.name.startswith("sub-") and path.is_dir() and not path.suffix:
            yield from sorted(inner for inner in path.rglob("*") if "." not in inner.parent.name)


def bids_entities(name: str) -> tuple[str, ...]:
    """Return the entities in a BIDS name, except for the description; none for other names.

    Examples:
        >>> bids_entities("sub-01_ses-1_desc-manual_dseg"), bids_entities("scan_01")
        (('sub-01', 'ses-1'), ())
    """
    parts = name.split("_")
    if not re.fullmatch(r"sub-[a-zA-Z0-9]+(_[a-zA-Z0-9]+-[a-zA-Z0-9+]+)*(_[a-zA-Z0-9]+)?", name):
        return ()
    return tuple(part for part in parts if "-" in part and not part.startswith("desc-"))


def files_of(name: str, found: Mapping[str, list[Path]]) -> list[Path]:
    """Return the files of a case: those of its name, else those with its BIDS entities."""
    if name in found or not (entities := bids_entities(name)):
        return found.get(name, [])
    return [path for other, paths in found.items() if bids_entities(other) == entities for path in paths]


def only(
    name: str,
    found: Mapping[str, list[Path]],
    what: str,
    folder: Path,
    extensions: Sequence[str],
    cases: Collection[str] = (),
) -> Path:
    """Return the one file of a case; raise if there is none or more than one.

    Files of the other `cases` are not proposed in its place: a renamed one would be the truth of the wrong image.
    """
    paths = files_of(name, found)
    if not paths:
        free = [other for other in found if other not in cases]
        near = _longer(name, free) or get_close_matches(name, free, n=1)
        hint = f"did you mean '{found[near[0]][0].name}'? rename it" if near else "add it, or remove the case"
        hint = _unreadable(folder, name, what) or hint
        raise InputError(
            f"case '{name}' must have one {what} file, got none at '{folder / name}{extensions[0]}' "
            f"(or {'|'.join(extensions[1:])}); {hint}"
        )
    if len(paths) > 1:
        got = " and ".join(f"'{path}'" for path in paths)
        raise InputError(f"case '{name}' must have one {what} file, got {got}; remove one")
    return paths[0]


def _longer(name: str, found: Collection[str]) -> list[str]:
    """Return names with something before or after this one: `scan_1_gt` and `gt-scan_1` for `scan_1`, not `scan_10`."""
    return [other for other in found if re.fullmatch(rf"(.*[\W_])?{re.escape(name)}([\W_].*)?", other)]


def _unreadable(folder: Path, name: str, what: str) -> str:
    """Return what to do about a file `name.*` in a format that is not read as scores or labels; "" if there is none.

    An empty name stands for any file.
    """
    start = f"{name}." if name else ""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [path for path in files if path.is_file() and path.name.startswith(start) and path.name[:1] != "."]
    if not found:
        return ""
    return f"'{found[0].name}' is not read: {_REMEDIES.get((what, found[0].suffix.lower()), _CONVERT)}"
