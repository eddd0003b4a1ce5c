"""segcal's own layout: `logits/NAME`, `labels/NAME` and perhaps `images/NAME`."""

from __future__ import annotations

from pathlib import Path

from segcal.data.folders.layouts import (
    FolderRequest,
    FoundCases,
    by_name,
    cases_by_name,
    existing,
    labels_without_scores,
    only,
    unreadable,
)
from segcal.data.io.formats import LABELS, SCORES
from segcal.types import InputError


def matches(root: Path) -> bool:
    """Return whether there is a folder of scores."""
    return (root / "logits").is_dir()


def find(request: FolderRequest) -> FoundCases:
    """Return each case: one score file, one label file, and an image for all cases or for none."""
    folder = request.root / "logits"
    scores = by_name(folder, SCORES)
    if not scores:
        raise InputError(
            f"'{request.root}' must hold scores as logits/NAME{'|'.join(SCORES)}, or as NAME.npz of nnU-Net or "
            f"TotalSegmentator (--save_probabilities), got none; "
            f"{unreadable(folder, '', 'score') or 'is it the right folder?'}"
        )
    label_folder = request.labels or request.root / "labels"
    if request.labels is not None or request.require_labels:
        existing(label_folder, "labels")
    labels = by_name(label_folder, LABELS)
    one = {name: only(name, scores, "score", folder, SCORES) for name in scores}
    files = cases_by_name(request, one, label_folder, labels, "logits")
    return FoundCases(files, remarks=labels_without_scores(files, label_folder, labels))
