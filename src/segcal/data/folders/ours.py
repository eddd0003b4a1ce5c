"""segcal's own layout: `logits/NAME`, `labels/NAME` and perhaps `images/NAME`."""

from __future__ import annotations

from pathlib import Path

from segcal.data.folders.by_name import by_name, existing, only, unreadable
from segcal.data.folders.case_files import CaseFiles
from segcal.data.folders.layouts import Found, Request
from segcal.data.io.formats import IMAGES, LABELS, SCORES
from segcal.types import InputError


class Ours:
    """A folder for each kind of file."""

    def matches(self, root: Path) -> bool:
        """Return whether there is a folder of scores."""
        return (root / "logits").is_dir()

    def find(self, request: Request) -> Found:
        """Return each case: one score file, one label file, and an image for all cases or for none."""
        root, settings = request.root, request.settings
        scores = by_name(root / "logits", SCORES)
        if not scores:
            raise InputError(
                f"'{root}' must hold scores as logits/NAME{'|'.join(SCORES)}, or as NAME.npz of nnU-Net or "
                "TotalSegmentator (--save_probabilities), got none; "
                f"{unreadable(root / 'logits', '', 'score') or 'is it the right folder?'}"
            )
        settings.check_names(scores)
        label_folder = request.labels or root / "labels"
        if request.labels is not None or request.require_labels:
            existing(label_folder, "labels")
        labels = by_name(label_folder, LABELS)
        images = by_name(root / "images", IMAGES)
        kind = request.scores or settings.scores or "logits"
        files = {
            name: CaseFiles(
                name=name,
                scores=only(name, scores, "score", root / "logits", SCORES),
                labels=only(name, labels, "label", label_folder, LABELS, scores)
                if request.require_labels or name in labels
                else None,
                image=only(name, images, "image", root / "images", IMAGES, scores) if images else None,
                kind=kind,
                group=settings.group_of(name),
                spacing=settings.spacing_of(name),
            )
            for name in sorted(scores)
        }
        return Found(files, kind)


LAYOUT = Ours()
