"""What networks return: every form that the libraries use, at any resolution, and what is refused."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from segcal.integrations.outputs import logits_of, read_output, resized
from segcal.types import InputError

SCORES = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
OTHER = SCORES[:, :, :2, :2] + 1


class ModelOutput(OrderedDict[str, Tensor]):
    """As in transformers: a mapping whose entries are attributes too."""

    @property
    def logits(self) -> Tensor:
        return self["logits"]


@pytest.mark.parametrize(
    ("output", "remark"),
    [
        (SCORES, None),
        ({"out": SCORES, "aux": OTHER}, None),
        ({"aux": OTHER, "logits": SCORES}, None),
        (SimpleNamespace(logits=SCORES, loss=None), None),
        (ModelOutput(loss=OTHER, logits=SCORES), None),
        ((SCORES, OTHER), "a tuple of 2; the first, (2, 3, 4, 5), is taken"),
        ([SCORES, OTHER, OTHER], "a list of 3; the first, (2, 3, 4, 5), is taken"),
        (({"out": SCORES}, OTHER), "a tuple of 2; the first, (2, 3, 4, 5), is taken"),
        ({"out": [SCORES, OTHER]}, "a list of 2; the first"),
    ],
    ids=str,
)
def test_every_form_is_read(output: Any, remark: str | None) -> None:
    said: list[str] = []
    assert read_output(output) is SCORES
    assert read_output(output, said.append) is SCORES
    assert len(said) == (remark is not None)
    assert remark is None or remark in said[0]


@pytest.mark.parametrize(
    ("output", "got"),
    [
        (None, "got NoneType"),
        ("logits", "got str"),
        ([], "got list"),
        ([1.0], "got list"),
        ({"aux": SCORES}, "got dict with 'aux'"),
        ({"out": None}, "got dict with 'out'"),
        (SCORES.argmax(1), r"got torch.int64 of shape \(2, 4, 5\)"),
        (SCORES[0, 0], r"got torch.float32 of shape \(4, 5\)"),
    ],
    ids=str,
)
def test_what_holds_no_logits_is_refused(output: Any, got: str) -> None:
    with pytest.raises(InputError, match=rf"'out' or 'logits', an object with \.logits.*{got}; wrap the network"):
        read_output(output)


def bilinear(scores: np.ndarray, height: int, width: int) -> np.ndarray:
    """Half-pixel centres, clamped at the border, one pixel at a time."""
    (h, w), found = scores.shape, np.empty((height, width))
    for i in range(height):
        for j in range(width):
            y, x = (min(max((k + 0.5) * n / m - 0.5, 0), n - 1) for k, n, m in ((i, h, height), (j, w, width)))
            top, left = int(y), int(x)
            low, right = min(top + 1, h - 1), min(left + 1, w - 1)
            above = scores[top, left] * (1 - x + left) + scores[top, right] * (x - left)
            below = scores[low, left] * (1 - x + left) + scores[low, right] * (x - left)
            found[i, j] = above * (1 - y + top) + below * (y - top)
    return found


@pytest.mark.parametrize("size", [(8, 10), (9, 7), (3, 5)])
def test_other_resolutions_are_interpolated_between_pixel_centres(size: tuple[int, int]) -> None:
    found = logits_of({"out": SCORES}, torch.empty(2, 1, *size))
    for image, expected in zip(found.numpy(), SCORES.numpy(), strict=True):
        for c in range(3):
            np.testing.assert_allclose(image[c], bilinear(expected[c], *size), atol=1e-6)


def test_the_same_resolution_is_left_alone() -> None:
    assert resized(SCORES, (4, 5)) is SCORES


def test_another_number_of_axes_is_named() -> None:
    with pytest.raises(InputError, match=r"must have 3 spatial axes .* got shape \(2, 3, 4, 5\)"):
        resized(SCORES, (4, 4, 5))
