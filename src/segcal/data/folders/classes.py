"""Classes or sigmoid channels of a folder, as far as they are declared before one of its score files is opened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from segcal.data.folders.case_files import CaseFiles
from segcal.data.folders.layouts import FoundCases
from segcal.data.folders.masks import Masks
from segcal.data.folders.settings import FolderSettings
from segcal.functional.checks import IGNORED, activation_of, ignored_labels
from segcal.types import Activation, IgnoreIndex, InputError


@dataclass(frozen=True, slots=True)
class DeclaredClasses:
    """Classes of a softmax, or channels of a sigmoid head.

    Args:
        masks: How labels of sigmoid channels are read; None for a softmax.
        count: Number of classes or channels, if it is known.
        names: Their names, if they are known.
        ignored: Labels that are ignored in the cases.
    """

    masks: Masks | None
    count: int | None
    names: tuple[str, ...] | None
    ignored: tuple[int, ...]

    @classmethod
    def of(
        cls,
        settings: FolderSettings,
        found: FoundCases,
        *,
        activation: Activation | None,
        num_classes: int | None,
        ignore_index: IgnoreIndex,
        root: Path,
    ) -> DeclaredClasses:
        """Join arguments, settings and what the layout found; earlier ones override later ones."""
        channels = settings.channels or (found.channels if settings.classes is None else None)
        wanted = activation_of(activation or settings.activation or ("sigmoid" if channels else None), 2)
        given = next(
            (value for value in (ignore_index, settings.ignore_index) if value is not None), found.ignore_index
        )
        ignored = ignored_labels(given)
        if wanted == "softmax":
            _refuse_channels(settings, root)
            count = _class_count(num_classes, settings.classes, root)
            return cls(None, count, settings.classes or found.classes, ignored)
        if channels is None:
            count = _class_count(num_classes, None, root)
            return cls(Masks(counts=_possible_counts(count, settings.classes)), count, settings.classes, ignored)
        count = _class_count(num_classes, tuple(channels), root)
        return cls(Masks(channels, ignored), count, tuple(channels), (IGNORED,) if ignored else ())

    @property
    def activation(self) -> Activation:
        """Softmax or sigmoid."""
        return "softmax" if self.masks is None else "sigmoid"

    def label_count(self, count: int) -> int:
        """Return the number of values that labels can have, and of names that a single channel can have."""
        return count if self.masks is None else 2

    def of_one_channel(self) -> DeclaredClasses:
        """Return the classes of scores that turn out to have one channel, which can only be a sigmoid."""
        return replace(self, masks=Masks(counts=(1,)))

    def files_of(self, files: CaseFiles) -> CaseFiles:
        """Return the files of a case, with its labels read as these classes ask for."""
        return files if self.masks is None else replace(files, masks=self.masks)


def _possible_counts(count: int | None, names: tuple[str, ...] | None) -> tuple[int, ...]:
    """Return the numbers of channels that agree with a declared number or with names; two may name both classes."""
    if count is not None:
        return (count,)
    many = len(names or ())
    return (1, 2) if many == 2 else (many,) if many else ()


def _refuse_channels(settings: FolderSettings, root: Path) -> None:
    if settings.channels is not None:
        raise InputError(
            f"'{root / 'segcal.toml'}' lists the labels of sigmoid channels, got activation = \"softmax\"; "
            "remove one of them"
        )


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
