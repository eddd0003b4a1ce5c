"""Derivatives of the Brain Imaging Data Structure: `sub-*/**/*_probseg.*` with all classes in one file.

Labels are `*_dseg.*` with the same entities, in the same tree or in another one that is given. Cases of one subject
form a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from segcal.data.folders.layouts import (
    FolderRequest,
    FoundCases,
    by_name,
    cases_by_name,
    existing,
    labels_without_scores,
    only,
)
from segcal.data.io.formats import LABELS, SCORES


def matches(root: Path) -> bool:
    """Return whether there are folders of subjects with probabilities."""
    return any(root.glob("sub-*")) and bool(_with_suffix(by_name(root, SCORES), "probseg"))


def find(request: FolderRequest) -> FoundCases:
    """Return a case for each file of probabilities."""
    root = request.root
    scores = _with_suffix(by_name(root, SCORES), "probseg")
    label_folder = root if request.labels is None else existing(request.labels, "labels")
    labels = by_name(label_folder, LABELS)
    segmentations = _with_suffix(labels, "dseg") or {
        name: paths for name, paths in labels.items() if name not in scores
    }
    one = {name: only(name, scores, "score", root, SCORES) for name in scores}
    files = cases_by_name(request, one, label_folder, segmentations, "probabilities")
    return FoundCases(files, remarks=labels_without_scores(files, label_folder, segmentations))


def _with_suffix(found: Mapping[str, list[Path]], suffix: str) -> dict[str, list[Path]]:
    return {name: paths for name, paths in found.items() if name.rpartition("_")[2] == suffix}
