"""Archives that TotalSegmentator writes (`--save_probabilities NAME.npz`), and any other folder of such archives.

They hold nnU-Net's probabilities in the space in which the network predicted. TotalSegmentator keeps the geometry of
that space in a pickle, which is never read: a NIfTI file of the same name gives it, beside the archive or in the folder
that `geometry` in `segcal.toml` names.
"""

from __future__ import annotations

from pathlib import Path

from segcal.data.folders.layouts import FolderRequest, FoundCases, by_name
from segcal.data.folders.nnunet import archived_cases


def matches(root: Path) -> bool:
    """Return whether there are archives."""
    return bool(by_name(root, (".npz",)))


def find(request: FolderRequest) -> FoundCases:
    """Return the case of each archive."""
    return FoundCases(archived_cases(request, [request.root], request.labels), request.kind("probabilities"))
