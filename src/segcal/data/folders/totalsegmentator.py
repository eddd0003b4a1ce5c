"""Archives that TotalSegmentator writes (`--save_probabilities NAME.npz`), and any other folder of such archives.

They hold nnU-Net's probabilities in the space in which the network predicted. TotalSegmentator keeps the geometry of
that space in a pickle, which is never read: a NIfTI file of the same name gives it, beside the archive or in the folder
that `geometry` in `segcal.toml` names.
"""

from __future__ import annotations

from pathlib import Path

from segcal.data.folders.by_name import by_name
from segcal.data.folders.layouts import Found, Request
from segcal.data.folders.nnunet import archived_cases


class TotalSegmentator:
    """Archives in one folder, without nnU-Net's own files."""

    def matches(self, root: Path) -> bool:
        """Return whether there are archives."""
        return bool(by_name(root, (".npz",)))

    def find(self, request: Request) -> Found:
        """Return the case of each archive."""
        files = archived_cases(request, [request.root], request.labels)
        return Found(files, request.scores or request.settings.scores or "probabilities")


LAYOUT = TotalSegmentator()
