"""A network with its calibrator: calibrated probabilities, the labels of the network, state and device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from segcal.calibrators import create
from segcal.integrations.calibrate import CalibratedModel
from support.networks import CLASSES, Convolution, batch_of, fitted

SIZES = {2: (16, 20), 3: (8, 12, 16)}
MODES = {2: "bilinear", 3: "trilinear"}


class Coarse(Convolution):
    """Logits at a quarter of the size, in a mapping."""

    def forward(self, image: Tensor) -> Any:
        scores = super().forward(image)
        return {"out": scores[(..., *(slice(None, None, 4),) * (image.ndim - 2))]}


@pytest.mark.parametrize("kind", [Convolution, Coarse])
@pytest.mark.parametrize(("dims", "method"), [(2, "ts"), (2, "lts"), (3, "ts"), (3, "lts")])
def test_probabilities_are_those_of_the_calibrator(dims: int, kind: type[Convolution], method: str) -> None:
    network, (image, labels) = kind(dims), batch_of(2, SIZES[dims])
    calibrator = fitted(network, (image, labels), method, image_channels=1)
    model = CalibratedModel(network, calibrator)
    with torch.no_grad():
        scores = network(image)
        if kind is Coarse:
            assert scores["out"].shape[2] * 4 == image.shape[2]
            scores = F.interpolate(scores["out"], size=image.shape[2:], mode=MODES[dims], align_corners=False)
        probs = model(image)
        assert torch.equal(model.logits(image), calibrator(scores, image))
        assert torch.equal(probs, calibrator.predict_proba(scores, image))
    assert torch.equal(probs.argmax(1), scores.argmax(1))
    assert torch.allclose(probs.sum(1), torch.ones(()))
    assert not torch.allclose(probs, scores.softmax(1), atol=1e-3)


class Held(nn.Module):
    """Returns the same whatever it sees."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, image: Tensor) -> Any:
        return self.value


def test_the_calibrator_sees_the_image() -> None:
    """Scores are held, the image changes: so does the temperature of a calibrator that looks at it."""
    network, (image, labels) = Convolution(), batch_of(2, SIZES[2])
    held = CalibratedModel(Held(network(image).detach()), fitted(network, (image, labels), "lts", image_channels=1))
    with torch.no_grad():
        assert not torch.equal(held(image), held(image + 1))


@pytest.mark.parametrize("method", ["ts", "lts"])
def test_state_dict_and_to(method: str) -> None:
    network, (image, labels) = Convolution(), batch_of(2, SIZES[2])
    model = CalibratedModel(network, fitted(network, (image, labels), method, image_channels=1))
    other = CalibratedModel(Convolution(), create(method, CLASSES, image_channels=1))
    with torch.no_grad():
        other.network.conv.weight.zero_()
        expected = model(image)
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(image), expected)
        wide = other.to("cpu", torch.float64)(image.double())
    assert wide.dtype == torch.float64
    assert torch.allclose(wide.float(), expected, atol=1e-5)
    assert {parameter.device.type for parameter in other.to("meta").parameters()} == {"meta"}
