"""Masks of sigmoid channels made from label maps."""

from __future__ import annotations

import numpy as np
import pytest

from segcal.functional.channels import channel_labels
from segcal.types import InputError


def test_masks_pixel_by_pixel() -> None:
    labels = np.random.default_rng(0).integers(0, 6, (7, 5, 4)).astype(np.uint8)
    channels: list[int | tuple[int, ...]] = [(1, 2, 3), (2, 3), 3, ()]
    found = channel_labels(labels, channels, ignore_index=(5, 4))
    for at in np.ndindex(*labels.shape):
        for k, own in enumerate(channels):
            members = (own,) if isinstance(own, int) else own
            expected = -1 if labels[at] in (4, 5) else int(labels[at] in members)
            assert found[(k, *at)] == expected


def test_an_ignored_label_wins_over_a_channel() -> None:
    assert channel_labels(np.array([1, 2]), [[1, 2]], ignore_index=2).tolist() == [[1, -1]]


def test_no_channels_are_refused() -> None:
    with pytest.raises(InputError, match="channels must list the labels of each channel"):
        channel_labels(np.zeros(3, int), [])
