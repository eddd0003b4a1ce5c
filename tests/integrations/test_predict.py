"""The cases that a network makes of a loader: scores, names, groups, and a network left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from segcal.integrations.predict import device_of, predict_cases

IMAGES = torch.rand(5, 1, 8, 12, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(3, (5, 8, 12), generator=torch.Generator().manual_seed(1))


class Network(nn.Module):
    """A convolution after a batch norm and a dropout, both of which change in training mode."""

    def __init__(self, width: int = 1, form: str = "tensor") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.drop = nn.BatchNorm2d(1), nn.Dropout(0.5)
        self.conv, self.form = nn.Conv2d(1, 3, width, stride=width), form

    def forward(self, image: Tensor) -> Any:
        scores = self.conv(self.drop(self.norm(image)))
        return [scores, scores[..., :1]] if self.form == "list" else scores


def batches(sizes: tuple[int, ...] = (2, 2, 1)) -> list[tuple[Tensor, Tensor]]:
    return list(zip(IMAGES.split(sizes), LABELS.split(sizes), strict=True))


@pytest.mark.parametrize("width", [1, 4])
def test_cases_are_those_of_running_by_hand(width: int) -> None:
    network = Network(width)
    with torch.no_grad():
        scores = network.conv(IMAGES / (1 + 1e-5) ** 0.5)  # batch norm at its initial statistics
    expected = F.interpolate(scores, size=(8, 12), mode="bilinear", align_corners=False)
    found = list(predict_cases(network, iter(batches()), prefix="val-"))
    assert [case.name for case in found] == [f"val-{k:06d}" for k in range(5)]
    for k, case in enumerate(found):
        assert torch.allclose(torch.as_tensor(case.logits), expected[k], atol=1e-6)
        assert torch.equal(torch.as_tensor(case.labels), LABELS[k])
        assert torch.equal(torch.as_tensor(case.image), IMAGES[k])
        assert case.group is None
        assert not torch.as_tensor(case.logits).requires_grad


@pytest.mark.parametrize("stop", [False, True])
def test_the_network_is_left_as_it_was(stop: bool) -> None:
    network = Network().train()
    network.norm.eval()  # a frozen batch norm inside of a network that trains
    before = {name: value.clone() for name, value in network.state_dict().items()}
    cases = predict_cases(network, batches())
    next(cases)
    assert torch.is_grad_enabled()  # between cases as well
    assert not network.training
    if stop:
        cases.close()  # type: ignore[attr-defined]
    else:
        list(cases)
    assert [module.training for module in (network, network.norm, network.drop)] == [True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in network.parameters())


def test_finer_labels_decide_and_the_image_is_left_out() -> None:
    fine = [(image, labels.repeat_interleave(2, 1).repeat_interleave(2, 2)) for image, labels in batches()]
    found = list(predict_cases(Network(), fine))
    assert {tuple(case.logits.shape) for case in found} == {(3, 16, 24)}
    assert {case.image for case in found} == {None}


@pytest.mark.parametrize(("stride", "size"), [(1, 65), (4, 65), (8, 65), (3, 64)])
def test_strides_round_the_size_of_the_logits(stride: int, size: int) -> None:
    """A network of stride 8 gives 9 pixels for 65; labels of such images are an integer multiple up to rounding."""
    network = nn.Conv2d(1, 3, 3, stride=stride, padding=1)
    pair = (torch.rand(1, 1, size, size), torch.zeros(1, size, size).long())
    (case,) = predict_cases(network, [pair])
    assert case.logits.shape == (3, size, size)


def test_names_of_the_batch_and_crops_of_one_image() -> None:
    names = (["a", "b"], ["c", "c"], ["a"])
    named = [(*pair, own) for pair, own in zip(batches(), names, strict=True)]
    found = list(predict_cases(Network(), named))
    assert [(case.name, case.group) for case in found] == [
        ("a", None),
        ("b", None),
        ("c", "c"),
        ("c-2", "c"),
        ("a-2", "a"),
    ]


def test_one_of_several_tensors_is_remarked_on_once() -> None:
    said: list[str] = []
    assert len(list(predict_cases(Network(form="list"), batches(), remark=said.append))) == 5
    assert said == ["the network returned a list of 2; the first, (2, 3, 8, 12), is taken as its logits"]


def test_the_device_is_that_of_the_network() -> None:
    assert device_of(nn.Identity()) == torch.device("cpu")
    assert device_of(nn.Linear(1, 1, device="meta")) == torch.device("meta")
    only_buffers = nn.Module()
    only_buffers.register_buffer("b", torch.zeros(1, device="meta"))
    assert device_of(only_buffers) == torch.device("meta")
