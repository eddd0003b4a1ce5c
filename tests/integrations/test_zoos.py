"""Networks of segmentation_models_pytorch and torchvision behind calibrators, and in exported files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from segcal import predict_cases
from segcal.calibrators import create
from segcal.integrations.calibrate import CalibratedModel
from segcal.integrations.export import export_onnx, export_torch
from support.networks import CLASSES, batch_of, fitted


def smp_network(classes: int) -> nn.Module:
    smp = pytest.importorskip(
        "segmentation_models_pytorch", reason="segmentation_models_pytorch is not installed: make test-integrations"
    )
    torch.manual_seed(0)
    return smp.Unet("resnet18", encoder_weights=None, in_channels=3, classes=classes).eval()


def torchvision_network() -> nn.Module:
    segmentation = pytest.importorskip(
        "torchvision.models.segmentation", reason="torchvision is not installed: make test-integrations"
    )
    torch.manual_seed(0)
    network = segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=CLASSES)
    return network.eval()


@pytest.mark.parametrize("build", [lambda: smp_network(CLASSES), torchvision_network], ids=["smp", "torchvision"])
def test_networks_of_a_zoo(build: object, tmp_path: Path) -> None:
    network = build()  # type: ignore[operator]
    images, labels = batch_of(2, (64, 64), channels=3)
    model = CalibratedModel(network, fitted(network, (images, labels))).eval()
    with torch.no_grad():
        probs, logits = model(images), model.logits(images)
    assert probs.shape == (2, CLASSES, 64, 64)
    assert torch.equal(probs.argmax(1), logits.argmax(1))
    torch.testing.assert_close(probs.sum(1), torch.ones(2, 64, 64))
    for name, export in {"both.pt2": export_torch, "both.onnx": export_onnx}.items():
        if name == "both.onnx":
            runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
            pytest.importorskip("onnxscript", reason="onnxscript is not installed")
        assert export(model.calibrator, tmp_path / name, network=network, image_channels=3, size=(64, 64)) < 1e-4
    with torch.no_grad():
        torch.testing.assert_close(torch.export.load(tmp_path / "both.pt2").module()(images), probs, rtol=0, atol=1e-5)
    session = runtime.InferenceSession(str(tmp_path / "both.onnx"), providers=["CPUExecutionProvider"])
    found = torch.from_numpy(session.run(None, {"image": images.numpy()})[0])
    torch.testing.assert_close(found, probs, rtol=0, atol=1e-4)


def test_binary_network_of_smp() -> None:
    network = smp_network(1)
    images, labels = batch_of(2, (64, 64), channels=3)
    calibrator = create("ts", 1).fit(list(predict_cases(network, [(images, (labels == 1).long())])))
    with torch.no_grad():
        probs, logits = CalibratedModel(network, calibrator)(images), network(images)
    assert probs.shape == (2, 1, 64, 64)
    assert torch.equal(probs > 0.5, logits > 0)
