"""Labels of sigmoid channels in a folder: masks stored by channel, or a label map and the labels of each channel."""

from __future__ import annotations

from dataclasses import dataclass

from segcal.data.folders.settings import Channels
from segcal.functional.channels import channel_labels
from segcal.types import Array


@dataclass(frozen=True, slots=True)
class Masks:
    """How labels become masks of 0 and 1.

    Args:
        members: The labels of each channel in a label map `[*S]`; None if masks are stored, as `[C, *S]` or, for a
            single channel, as `[*S]`.
        ignored: Labels of the map that are ignored, -1 in the masks.
    """

    members: Channels | None = None
    ignored: tuple[int, ...] = ()

    def of(self, labels: Array) -> Array:
        """Return the masks of labels as stored."""
        return labels if self.members is None else channel_labels(labels, list(self.members.values()), self.ignored)
