"""Classes of a softmax, or channels of a sigmoid head, as far as they are declared before a score file is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from segcal.data.folders.settings import Channels
from segcal.data.io.base import Shape
from segcal.functional.channels import channel_labels
from segcal.functional.checks import IGNORED
from segcal.types import Activation, Array, InputError


@dataclass(frozen=True, slots=True)
class Classes:
    """Declared classes or channels, and how stored labels become masks of the channels.

    Args:
        activation: Softmax for classes, sigmoid for channels.
        count: Their number, if it is known.
        names: Their names, if they are known; two may name both classes of a single channel.
        ignored: Labels that are ignored in the files.
        members: The labels of each channel in a label map `[*S]`; None if masks are stored, as `[C, *S]` or, for a
            single channel, as `[*S]`.
    """

    activation: Activation
    count: int | None
    names: tuple[str, ...] | None
    ignored: tuple[int, ...]
    members: Channels | None = None

    @property
    def ignored_in_cases(self) -> tuple[int, ...]:
        """Labels that are ignored in the cases: -1 in masks that are made from a label map."""
        return self.ignored if self.members is None or not self.ignored else (IGNORED,)

    def label_count(self, count: int) -> int:
        """Return the number of values that labels can have, and of names that a single channel can have."""
        return count if self.activation == "softmax" else 2

    def masks_of(self, labels: Array) -> Array:
        """Return labels as stored, or the masks of a label map."""
        return labels if self.members is None else channel_labels(labels, list(self.members.values()), self.ignored)

    def are_by_channel(self, shape: Shape, scores: Shape, path: Path) -> bool:
        """Return whether labels of this shape have a channel axis, given the shape of the scores as stored.

        Three axes beside three are C channels of images, or one channel of volumes without its axis: which of them must
        be declared.
        """
        if self.members is not None or len(shape) < 3 or (len(shape), len(scores)) == (3, 4):
            return False
        if len(shape) == 4 or shape[0] == 1 or len(scores) == 2:
            return True
        many = self.count or len(self.names or ())
        if not many:
            raise InputError(
                f"labels of shape {shape} beside scores of shape {scores} are masks of {shape[0]} channels, or one "
                f"mask of a volume, which '{path}' does not say; give num_classes, or name the channels in segcal.toml "
                '(classes = ["a", "b"])'
            )
        return shape[0] == many
