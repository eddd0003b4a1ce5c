"""Types that the folder layouts share, and the files of a case by name.

A layout is a module with two functions: `matches(root)` tells whether a folder has the layout, and `find(request)`
returns its cases. `segcal.data.folders.folder` lists the layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from segcal.data.folders.by_name import bids_entities, by_name, files_of, only
from segcal.data.folders.case_files import CaseFiles
from segcal.data.folders.settings import Channels, FolderSettings, Scores, Splits
from segcal.data.io.formats import IMAGES, LABELS
from segcal.text import counted


@dataclass(frozen=True, slots=True)
class FolderRequest:
    """Arguments of `open_folder` that concern the files.

    Args:
        root: The folder.
        labels: Folder of the true labels, if it is not the usual one.
        scores: Whether the files hold logits or probabilities; None leaves it to the layout.
        settings: The content of `segcal.toml`.
        require_labels: Whether every case must have labels.
    """

    root: Path
    labels: Path | None
    scores: Scores | None
    settings: FolderSettings
    require_labels: bool

    def kind(self, default: Scores) -> Scores:
        """Return what the score files hold."""
        return self.scores or self.settings.scores or default


@dataclass(frozen=True, slots=True)
class FoundCases:
    """Content of a folder as its layout reads it.

    Args:
        files: The files of each case, by name.
        scores: What the score files hold.
        classes: The names of the classes, if the folder says them.
        ignore_index: Labels that the folder declares as ignored.
        splits: Splits that follow from the folder itself.
        channels: The labels of each sigmoid channel, if the folder declares such channels.
        descriptions: The files that say all this, if there are any; outputs get copies, so that they are read alike.
        remarks: Files and folders that were expected and are not there, one sentence each.
    """

    files: dict[str, CaseFiles]
    scores: Scores
    classes: tuple[str, ...] | None = None
    ignore_index: tuple[int, ...] = ()
    splits: Splits = field(default_factory=dict)
    channels: Channels | None = None
    descriptions: tuple[Path, ...] = ()
    remarks: tuple[str, ...] = ()


def cases_by_name(
    request: FolderRequest,
    scores: Mapping[str, Path],
    label_folder: Path,
    kind: Scores,
    *,
    labels: Mapping[str, list[Path]] | None = None,
    predictions: Mapping[str, Path | None] | None = None,
) -> dict[str, CaseFiles]:
    """Return the files of each case: scores, the label file of the same name, and an image for all cases or for none.

    Args:
        request: Arguments of `open_folder`.
        scores: Score file of each case.
        label_folder: Folder of the true labels.
        kind: What the score files hold.
        labels: Label files by name; by default those of the folder.
        predictions: The network's own segmentation of each case, if the scores are archives of nnU-Net.
    """
    root, settings = request.root, request.settings
    settings.check_names(scores)
    labels = by_name(label_folder, LABELS) if labels is None else labels
    images = by_name(root / "images", IMAGES)
    return {
        name: CaseFiles(
            name=name,
            scores=scores[name],
            labels=only(name, labels, "label", label_folder, LABELS, scores)
            if request.require_labels or files_of(name, labels)
            else None,
            image=only(name, images, "image", root / "images", IMAGES, scores) if images else None,
            kind=kind,
            group=next(iter(bids_entities(name)), None) if settings.group is None else settings.group_of(name),
            spacing=settings.spacing_of(name),
            prediction=None if predictions is None else predictions[name],
            archived=predictions is not None,
        )
        for name in sorted(scores)
    }


def labels_without_scores(
    files: Mapping[str, CaseFiles], folder: Path, labels: Mapping[str, list[Path]] | None = None
) -> tuple[str, ...]:
    """Return a remark on label files that belong to no case; by default all those of the folder are looked at."""
    used, found = {case.labels for case in files.values()}, by_name(folder, LABELS) if labels is None else labels
    unused = [name for name, paths in found.items() if used.isdisjoint(paths)]
    return (f"{some_of(unused, 'label file')} in '{folder}' without scores: left out",) if unused else ()


def some_of(names: Sequence[str], what: str) -> str:
    """Return a number of names with the first three of them.

    Examples:
        >>> some_of(["a", "b", "c", "d"], "label file")
        "4 label files ('a', 'b', 'c', ...)"
    """
    shown = ", ".join([*(f"'{name}'" for name in names[:3]), *(["..."] if len(names) > 3 else [])])
    return f"{counted(len(names), what)} ({shown})"
