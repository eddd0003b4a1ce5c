"""Derivatives of the Brain Imaging Data Structure: `sub-*/**/*_probseg.*` with all classes in one file.

Labels are `*_dseg.*` with the same entities, in the same tree or in another one that is given. Cases of one subject
form a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from segcal.data.folders.layouts import FoundCases, by_name, only
from segcal.data.folders.settings import FolderSettings
from segcal.data.io.formats import LABELS, SCORES


def matches(root: Path) -> bool:
    """Return whether there are folders of subjects with probabilities."""
    return any(root.glob("sub-*")) and bool(_with_suffix(by_name(root, SCORES), "probseg"))


def find(root: Path, labels: Path | None, settings: FolderSettings) -> FoundCases:
    """Return each file of probabilities, and the segmentations."""
    scores = _with_suffix(by_name(root, SCORES), "probseg")
    label_folder = labels or root
    found = by_name(label_folder, LABELS)
    segmentations = _with_suffix(found, "dseg") or {name: paths for name, paths in found.items() if name not in scores}
    one = {name: only(name, scores, "score", root, SCORES) for name in scores}
    return FoundCases(one, label_folder, segmentations, "probabilities")


def _with_suffix(found: Mapping[str, list[Path]], suffix: str) -> dict[str, list[Path]]:
    return {name: paths for name, paths in found.items() if name.rpartition("_")[2] == suffix}
