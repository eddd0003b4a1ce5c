"""The folder layouts that segcal reads, and which of them a folder has."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol

from segcal.data.folders.case_files import CaseFiles
from segcal.data.folders.settings import Channels, Scores, Settings, Splits

_MODULES = (
    "ours",
    "nnunet",
    "totalsegmentator",
)
"""Modules of `segcal.data.folders`, each with its `LAYOUT`; the first that recognises a folder reads it."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user says of a folder.

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
    settings: Settings
    require_labels: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What a layout finds in a folder.

    Args:
        files: The files of each case, by name.
        scores: What the score files hold.
        classes: The names of the classes, if the folder says them.
        ignore_index: Labels that the folder declares as ignored.
        splits: Splits that follow from the folder itself.
        channels: The labels of each sigmoid channel, if the folder declares such channels.
        descriptions: The files that say all this, if there are any; outputs get copies, so that they are read alike.
    """

    files: dict[str, CaseFiles]
    scores: Scores
    classes: tuple[str, ...] | None = None
    ignore_index: tuple[int, ...] = ()
    splits: Splits = field(default_factory=dict)
    channels: Channels | None = None
    descriptions: tuple[Path, ...] = ()


class Layout(Protocol):
    """One way in which files of cases are arranged."""

    def matches(self, root: Path) -> bool:
        """Return whether a folder looks like this layout."""

    def find(self, request: Request) -> Found:
        """Return the cases of a folder."""


def find_cases(request: Request) -> Found:
    """Return the cases of a folder in the layout that it has; segcal's own complains where it has none."""
    layouts: list[Layout] = [import_module(f"segcal.data.folders.{name}").LAYOUT for name in _MODULES]
    chosen = next((layout for layout in layouts if layout.matches(request.root)), layouts[0])
    return chosen.find(request)
