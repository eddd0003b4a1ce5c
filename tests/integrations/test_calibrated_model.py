"""A network with its calibrator: calibrated probabilities, the labels of the network, state and device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from segcal.calibrators import Calibrator, create
from segcal.integrations.calibrate import CalibratedModel
from segcal.integrations.predict import predict_cases
from segcal.types import Case
from support.scenes import simulated

CLASSES = 3
SIZES = {2: (16, 20), 3: (8, 12, 16)}
MODES = {2: "bilinear", 3: "trilinear"}


class Network(nn.Module):
    """A convolution whose logits come in one of the forms that libraries use."""

    def __init__(self, dims: int, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = 4 if form == "coarse" else 1
        self.conv = {2: nn.Conv2d, 3: nn.Conv3d}[dims](1, CLASSES, width, stride=width)
        self.form = form

    def forward(self, image: Tensor) -> Any:
        scores = 5 * self.conv(image)
        return {"tensor": scores, "mapping": {"out": scores, "aux": scores[:0]}}.get(
            self.form, SimpleNamespace(logits=scores)
        )


def cases_of(dims: int) -> list[Case]:
    return simulated(3, num_classes=CLASSES, size=SIZES[dims])


def batches(dims: int) -> list[tuple[Tensor, Tensor]]:
    """Two batches of unequal length."""
    images = torch.stack([torch.as_tensor(case.image) for case in cases_of(dims)])
    labels = torch.stack([torch.as_tensor(case.labels).long() for case in cases_of(dims)])
    return [(images[:2], labels[:2]), (images[2:], labels[2:])]


def fitted(method: str, dims: int, network: nn.Module) -> Calibrator:
    calibrator = create(method, CLASSES, spatial_dims=dims, image_channels=1)
    options = {} if method == "ts" else {"epochs": 2, "learning_rate": 1e-2}
    return calibrator.fit(predict_cases(network, batches(dims)), **options)


@pytest.mark.parametrize(
    ("dims", "form", "method"),
    [(2, "tensor", "ts"), (2, "mapping", "lts"), (3, "object", "ts"), (2, "coarse", "lts"), (3, "coarse", "lts")],
)
def test_every_form_gives_calibrated_probabilities(dims: int, form: str, method: str) -> None:
    network = Network(dims, form)
    calibrator = fitted(method, dims, network)
    image = batches(dims)[0][0]
    scores = 5 * network.conv(image)
    if form == "coarse":
        assert scores.shape[2] * 4 == image.shape[2]
        scores = F.interpolate(scores, size=image.shape[2:], mode=MODES[dims], align_corners=False)
    model = CalibratedModel(network, calibrator)
    with torch.no_grad():
        probs = model(image)
        assert torch.equal(model.logits(image), calibrator(scores, image))
        assert torch.equal(probs, calibrator.predict_proba(scores, image))
    assert torch.equal(probs.argmax(1), scores.argmax(1))
    assert torch.allclose(probs.sum(1), torch.ones(()))
    assert not torch.allclose(probs, scores.softmax(1), atol=1e-3)


def test_the_calibrator_sees_the_image() -> None:
    """Scores are held, the image changes: so does the temperature of a calibrator that looks at it."""
    network = Network(2, "tensor")
    calibrator = fitted("lts", 2, network)
    image = batches(2)[0][0]
    held = CalibratedModel(Held(network(image).detach()), calibrator)
    with torch.no_grad():
        assert not torch.equal(held(image), held(image + 1))


class Held(nn.Module):
    """Returns the same whatever it sees."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, image: Tensor) -> Any:
        return self.value


@pytest.mark.parametrize("method", ["ts", "lts"])
def test_state_dict_and_to(method: str) -> None:
    network = Network(2, "tensor")
    model = CalibratedModel(network, fitted(method, 2, network))
    other = CalibratedModel(nn.Module(), create(method, CLASSES, image_channels=1))
    other.network = Network(2, "tensor")
    with torch.no_grad():
        other.network.conv.weight.zero_()
        image = batches(2)[0][0]
        expected = model(image)
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(image), expected)
        wide = other.to("cpu", torch.float64)(image.double())
    assert wide.dtype == torch.float64
    assert torch.allclose(wide.float(), expected, atol=1e-5)
    assert {parameter.device.type for parameter in other.to("meta").parameters()} == {"meta"}
