"""Channels of sigmoid heads as two-class cases: the logit z of a channel becomes `[0, z]`, its mask the labels.

The softmax of `[0, z]` is `[1 - sigmoid(z), sigmoid(z)]`, so everything that fits, measures or draws two classes does
the same for a sigmoid channel. This is the only place where heads are converted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from segcal.cases.collections import as_collection
from segcal.functional.arrays import split_index
from segcal.types import Array, Case, InputError, Lazy


def channel_cases(cases: Iterable[Case], channel: int = 0, channels: int = 1) -> Lazy[Case]:
    """Return cases of a sigmoid head as two-class cases of one of its channels, each converted on access.

    Args:
        cases: Cases with logits `[C, *S]` and labels `[C, *S]` of 0 and 1, or `[*S]` if there is one channel.
        channel: Index of the channel.
        channels: Number of channels C.
    """
    kept = as_collection(cases)
    items = kept if isinstance(kept, Sequence) else list(kept)
    return Lazy(partial(channel_case, channel=channel, channels=channels), items)


def channel_case(case: Case, channel: int = 0, channels: int = 1) -> Case:
    """Return one channel of a case as a two-class case; logits on disk stay there."""
    shape = tuple(case.logits.shape)
    if len(shape) < 2 or shape[0] != channels:
        raise InputError(
            f"logits must have shape ({channels}, *S) with num_classes={channels}, got {shape} of case '{case.name}'; "
            "set num_classes, or add the axis of a single channel with logits[None]"
        )
    logits, *passes = (cast(Array, _TwoClassArray(scores, channel)) for scores in (case.logits, *case.each_pass))
    labels = _labels_of_channel(case, channel, channels)
    return replace(case, logits=logits, labels=labels, passes=passes or None)


def _labels_of_channel(case: Case, channel: int, channels: int) -> Array | Tensor | None:
    labels = case.labels
    if labels is None:
        return None
    if labels.ndim == len(case.logits.shape):
        if labels.shape[0] == channels:
            return labels[channel]
    elif channels == 1:
        return labels
    space = tuple(case.logits.shape[1:])
    raise InputError(
        f"labels of a sigmoid head must have shape {(channels, *space)}, a mask of 0 and 1 for each channel, "
        f"got {tuple(labels.shape)} of case '{case.name}'; make masks from a label map with "
        "segcal.functional.channels.channel_labels, or list the labels of each channel under [channels] in segcal.toml"
    )


class _TwoClassArray:
    """One channel z of scores `[C, *S]`, possibly on disk, as the two-class scores `[0, z]`; reads what is indexed."""

    def __init__(self, scores: Array | Tensor, channel: int) -> None:
        self.scores, self.channel = scores, channel
        self.shape, self.dtype, self.ndim = (2, *scores.shape[1:]), scores.dtype, len(scores.shape)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: Any) -> Array | Tensor:
        classes, space = split_index(key, self.ndim)
        part: Any = self.scores[(slice(self.channel, self.channel + 1), *space)]
        both: Array | Tensor
        if isinstance(part, Tensor):
            both = torch.cat([torch.zeros_like(part), part])
        else:
            both = np.concatenate([np.zeros_like(part), part])
        return both[classes]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)
