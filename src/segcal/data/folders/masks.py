"""Labels of sigmoid channels in a folder: masks stored by channel, or a label map and the labels of each channel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from segcal.data.folders.settings import Channels
from segcal.data.io.base import Shape
from segcal.functional.channels import channel_labels
from segcal.types import Array, InputError


@dataclass(frozen=True, slots=True)
class Masks:
    """Conversion of stored labels to masks of 0 and 1.

    Args:
        members: The labels of each channel in a label map `[*S]`; None if masks are stored, as `[C, *S]` or, for a
            single channel, as `[*S]`.
        ignored: Labels of the map that are ignored, -1 in the masks.
        counts: The numbers of channels that agree with what is declared; none if nothing is.
    """

    members: Channels | None = None
    ignored: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    def of(self, labels: Array) -> Array:
        """Return the masks of labels as stored."""
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
        if not self.counts:
            raise InputError(
                f"labels of shape {shape} beside scores of shape {scores} are masks of {shape[0]} channels, or one "
                f"mask of a volume, which '{path}' does not say; give num_classes, or name the channels in segcal.toml "
                '(classes = ["a", "b"])'
            )
        return shape[0] in self.counts
