"""What loaders yield: every form that the libraries use, and messages that say how to fix the others."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from segcal.integrations.loaders import read_batch
from segcal.types import InputError

IMAGE = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(4, (2, 4, 5), generator=torch.Generator().manual_seed(1))


class MetaTensor(Tensor):
    """As in MONAI: a tensor with a dictionary."""

    meta: dict[str, Any]


def with_meta(values: Tensor, **meta: Any) -> MetaTensor:
    tensor = values.as_subclass(MetaTensor)
    tensor.meta = meta
    return tensor


@pytest.mark.parametrize(
    "batch",
    [
        (IMAGE, LABELS),
        [IMAGE, LABELS],
        (IMAGE.numpy(), LABELS.numpy().astype(np.uint8)),
        (IMAGE, LABELS[:, None]),
        (IMAGE, LABELS[:, None].float()),
        {"image": IMAGE, "label": LABELS},
        {"image": IMAGE, "label": torch.tensor([3, 4]), "mask": LABELS},  # a class of each image, and its mask
        {"image": with_meta(IMAGE), "label": with_meta(LABELS[:, None].float()), "foreground_start_coord": 0},
        {"pixel_values": IMAGE, "labels": LABELS, "pixel_mask": LABELS},
        UserDict({"pixel_values": IMAGE, "labels": LABELS}),  # transformers' BatchFeature is one
        {"data": IMAGE, "target": LABELS[:, None]},
        {"image": IMAGE, "mask": LABELS},
        (IMAGE, {"masks": LABELS, "labels": torch.tensor([1, 2])}),
    ],
    ids=str,
)
def test_images_and_labels_are_found(batch: Any) -> None:
    image, labels, names = read_batch(batch)
    assert type(image) is type(labels) is Tensor
    assert torch.equal(image, IMAGE)
    assert torch.equal(labels.long(), LABELS)
    assert not labels.is_floating_point()
    assert names is None


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        ((IMAGE, LABELS, ["a", "b"]), ("a", "b")),
        ((IMAGE, LABELS, ("a", "b")), ("a", "b")),
        ((IMAGE, LABELS, torch.tensor([7, 9])), ("7", "9")),
        ((IMAGE, LABELS, {"path": ["x/a.png", "x/b.png"]}), ("x/a.png", "x/b.png")),
        ((IMAGE[:1], LABELS[:1], "a"), ("a",)),
        ({"image": IMAGE, "label": LABELS, "name": ["a", "b"]}, ("a", "b")),
        ({"pixel_values": IMAGE, "labels": LABELS, "image_id": np.array([3, 4])}, ("3", "4")),
        ({"image": with_meta(IMAGE, filename_or_obj=["a.nii", "b.nii"]), "label": LABELS}, ("a.nii", "b.nii")),
    ],
)
def test_names_are_found(batch: Any, names: tuple[str, ...]) -> None:
    assert read_batch(batch).names == names


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (IMAGE, r"must yield \(image, labels\), .* got Tensor; give it pairs"),
        ((IMAGE,), "got a tuple of 1; give it pairs"),
        ((IMAGE, LABELS, LABELS, LABELS), "got a tuple of 4; give it pairs"),
        ({"scan": IMAGE, "truth": LABELS}, "images under one of image, .* got the keys 'scan', 'truth'; give it pairs"),
        ({"image": IMAGE, "label": LABELS, "mask": LABELS}, "labels under one of .* got 'label' and 'mask'; give it"),
        (([1, 2], LABELS), "images must be a tensor or an array with a batch axis, got a list of 2; use a DataLoader"),
        (
            (IMAGE, torch.rand(2, 4, 4, 5)),
            r"got shape \(2, 4, 4, 5\); .* give labels\.argmax\(1\); .* set activation='sigmoid'; .* set raters",
        ),
        ((IMAGE[0], LABELS[0]), r"\(3, 4, 5\) and \(4, 5\); put a DataLoader around"),
        ((IMAGE, LABELS[:1]), "the same batch"),
        ((IMAGE, LABELS + 0.5), "must be whole numbers, got fractions; resample labels with nearest.* set raters"),
        ((IMAGE, LABELS[:, :, 0, None, None, None]), "the same batch and space"),
        ((IMAGE, LABELS, ["a"]), "2 images must have 2 names, got 1"),
        ((IMAGE, LABELS, torch.rand(2)), "names in a batch must be strings or whole numbers, got a list of 2"),
        ((IMAGE, LABELS, LABELS), "names in a batch must be strings or whole numbers, got Tensor"),
    ],
)
def test_other_batches_are_refused_with_a_remedy(batch: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_batch(batch)


MASKS = torch.randint(2, (2, 3, 4, 5), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("labels", [MASKS, MASKS.float(), MASKS.bool(), MASKS.numpy().astype(np.uint8)], ids=str)
def test_masks_of_sigmoid_channels_are_kept(labels: Any) -> None:
    found = read_batch({"image": IMAGE, "label": labels}, "sigmoid")
    assert found.labels.shape == (2, 3, 4, 5)
    assert not found.labels.is_floating_point()
    assert torch.equal(found.labels.long(), MASKS)
    assert found.size == (4, 5)
    assert read_batch((IMAGE, MASKS[:, :1]), "sigmoid").labels.shape == (2, 1, 4, 5)
    assert read_batch((IMAGE, LABELS), "sigmoid").size == (4, 5)  # enough for one channel, checked with the logits


def test_shares_of_raters_stay_fractions() -> None:
    shares = torch.rand(2, 4, 4, 5).softmax(1)
    found = read_batch((IMAGE, shares), soft=True)
    assert torch.equal(found.labels, shares)
    with pytest.raises(InputError, match=r"must have an axis of classes or channels.*give labels\[:, None\]"):
        read_batch((IMAGE, LABELS), soft=True)


class Named(Dataset[tuple[Tensor, Tensor, str]]):
    """Two images with their names."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor, str]:
        return IMAGE[k], LABELS[k], f"image {k}"


def test_batches_of_a_data_loader_are_read() -> None:
    (batch,) = DataLoader(Named(), batch_size=2)
    image, labels, names = read_batch(batch)
    assert torch.equal(image, IMAGE)
    assert torch.equal(labels, LABELS)
    assert names == ("image 0", "image 1")
