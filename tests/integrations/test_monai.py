"""MONAI's post-processing, metrics, Ignite engines and bundles with segcal in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from segcal.calibrators import create
from segcal.evidence.suite import CalibrationSuite
from segcal.types import Case, InputError
from support.networks import CLASSES, Convolution, batch_of, fitted

monai = pytest.importorskip("monai", reason="monai is not installed: make test-integrations")

from monai.data import MetaTensor, decollate_batch  # noqa: E402
from monai.transforms import Activationsd, AsDiscreted, Compose, SpatialPadd  # noqa: E402

from segcal.integrations.monai import CalibratedSoftmaxd, CalibrationMetric  # noqa: E402

SIZE = (12, 14, 10)


def test_in_place_of_the_softmax() -> None:
    images, labels = batch_of(2, SIZE)
    network = Convolution(3)
    calibrator = fitted(network, (images, labels), "lts")
    with torch.no_grad():
        logits = network(images)
    affine = torch.diag(torch.tensor([1.0, 2.0, 3.0, 1.0]))
    batch = {"pred": MetaTensor(logits, affine=affine), "image": MetaTensor(images)}
    chain = Compose([CalibratedSoftmaxd("pred", calibrator), AsDiscreted("pred", argmax=True)])
    plain = Compose([Activationsd("pred", softmax=True), AsDiscreted("pred", argmax=True)])
    for own, other in zip(decollate_batch(batch), decollate_batch(batch), strict=True):
        probs = CalibratedSoftmaxd("pred", calibrator)(own)["pred"]
        torch.testing.assert_close(probs.as_tensor(), calibrator.predict_proba(own["pred"].as_tensor()[None])[0])
        assert torch.equal(probs.affine, own["pred"].affine)
        assert torch.equal(chain(own)["pred"].as_tensor(), plain(other)["pred"].as_tensor())
        assert not torch.allclose(probs.as_tensor(), own["pred"].as_tensor().softmax(0), atol=1e-3)


def test_operations_before_it_can_be_inverted() -> None:
    """As after `Activationsd`: the operations that were applied to the logits are known."""
    images, labels = batch_of(1, (16, 16))
    network = Convolution()
    calibrator = fitted(network, (images, labels))
    pad = SpatialPadd("pred", (20, 24))
    with torch.no_grad():
        padded = pad({"pred": MetaTensor(network(images)[0], affine=torch.eye(4))})
    before = padded["pred"].clone()
    found = CalibratedSoftmaxd("pred", calibrator)(padded)
    assert found["pred"].applied_operations == padded["pred"].applied_operations
    assert pad.inverse(found)["pred"].shape == (CLASSES, 16, 16)
    assert torch.equal(padded["pred"], before)  # the input keeps its values and operations
    assert len(padded["pred"].applied_operations) == 1


def test_calibrators_from_folders_and_with_images(tmp_path: Path) -> None:
    from support.networks import cases_of

    cases = cases_of(2, (16, 16))
    calibrator = create("lts", CLASSES, image_channels=1).fit(cases, epochs=2, learning_rate=1e-2)
    calibrator.save(tmp_path / "lts")
    data = {
        "pred": torch.from_numpy(np.asarray(cases[0].logits)),
        "image": torch.from_numpy(np.asarray(cases[0].image)),
    }
    found = CalibratedSoftmaxd(["pred"], str(tmp_path / "lts"), image_key="image")(data)["pred"]
    torch.testing.assert_close(found, calibrator.predict_proba(data["pred"][None], data["image"][None])[0])
    assert not isinstance(found, MetaTensor)
    assert torch.equal(data["pred"], torch.from_numpy(np.asarray(cases[0].logits)))  # the input is not changed
    with pytest.raises(KeyError):
        CalibratedSoftmaxd("missing", calibrator, image_key="image")(data)
    with pytest.raises(KeyError, match="scan"):
        CalibratedSoftmaxd("pred", calibrator, image_key="scan")(data)
    without = CalibratedSoftmaxd("pred", calibrator, image_key="image", allow_missing_keys=True)
    assert without({"label": 1}) == {"label": 1}  # nothing to calibrate, so no image is needed


@pytest.mark.parametrize("scores", ["logits", "probabilities"])
@pytest.mark.parametrize("one_hot", [False, True])
def test_metric_is_that_of_the_suite(scores: str, one_hot: bool) -> None:
    images, labels = batch_of(5, SIZE)
    with torch.no_grad():
        logits = Convolution(3)(images)
    suite = CalibrationSuite(CLASSES)
    metric = CalibrationMetric(CLASSES, scores)  # type: ignore[arg-type]
    values = logits if scores == "logits" else logits.double().softmax(1)
    truth = torch.nn.functional.one_hot(labels, CLASSES).movedim(-1, 1) if one_hot else labels.unsqueeze(1)
    for part in (slice(0, 2), slice(2, 5)):
        suite.update(logits[part], labels[part])
        metric(y_pred=list(values[part]), y=list(truth[part]))  # decollated, as MONAI's examples have them
    expected = suite.compute()["all"]
    found = metric.aggregate_all()
    for name in ("ece", "mce", "sce", "nll", "brier", "accuracy", "miou"):
        assert float(found[name]) == pytest.approx(float(expected[name]), abs=1e-9), name
    assert float(metric.aggregate()) == float(found["ece"])
    assert float(metric.aggregate("nll")) == float(found["nll"])
    assert len(metric) == 5
    assert metric.get_buffer().dtype == torch.float64  # whole numbers up to 2^53 are exact in it
    metric.reset()
    assert torch.isnan(metric.aggregate())


@pytest.mark.parametrize("scores", ["logits", "probabilities"])
@pytest.mark.parametrize("channels", [1, 3])
def test_sigmoid_channels(scores: str, channels: int) -> None:
    """The metric is that of the suite, and the transform gives each channel its probability."""
    images, labels = batch_of(4, (16, 16))
    masks = torch.stack([labels == 1, labels >= 1, labels == 2], dim=1)[:, :channels].float()
    masks[:, :, :2] = 9
    with torch.no_grad():
        logits = Convolution()(images)[:, :channels]
    suite = CalibrationSuite(channels, ignore_index=9, activation="sigmoid")
    suite.update(logits, masks.long())
    metric = CalibrationMetric(channels, scores, ignore_index=9, activation="sigmoid")  # type: ignore[arg-type]
    values = logits if scores == "logits" else logits.double().sigmoid()
    for part in (slice(0, 1), slice(1, 4)):
        metric(y_pred=list(values[part]), y=list(masks[part]))
    expected, found = suite.compute()["all"], metric.aggregate_all()
    for name in ("ece", "mce", "sce", "nll", "brier", "accuracy", "miou", "pixels"):
        assert float(found[name]) == pytest.approx(float(expected[name]), abs=1e-9), name
    cases = [Case(str(k), logits[k].numpy(), masks[k].numpy().astype(int)) for k in range(4)]
    calibrator = create("ts", channels, activation="sigmoid", ignore_index=9).fit(cases)
    probs = CalibratedSoftmaxd("pred", calibrator)({"pred": logits[0]})["pred"]
    assert torch.equal(probs > 0.5, logits[0] > 0)


def test_many_pixels_are_counted_exactly() -> None:
    """Where float32 counters stop at 16,777,216: an image with more pixels than that, all alike."""
    side = 4200
    logits = torch.tensor([0.0, np.log(3.0)]).view(1, 2, 1, 1).expand(1, 2, side, side)
    labels = torch.ones(1, 1, side, side, dtype=torch.uint8)
    labels[..., : side // 4, :] = 0
    metric = CalibrationMetric(2, "logits")
    metric(logits, labels)
    assert float(metric.aggregate("accuracy")) == 0.75
    assert float(metric.aggregate()) == pytest.approx(0, abs=1e-7)  # confidence 3/4


def test_mistakes() -> None:
    with pytest.raises(InputError, match="scores must be 'logits' or 'probabilities', got 'softmax'"):
        CalibrationMetric(2, "softmax")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="metric must be one of ece"):
        CalibrationMetric(2, "logits", metric="ace")
    with pytest.raises(InputError, match=r"got 'acuracy'; did you mean 'accuracy'\?"):
        CalibrationMetric(2, "logits", metric="acuracy")
    with pytest.raises(InputError, match=r"metric must be one of ece, .*, got 'ace'"):
        CalibrationMetric(2, "logits").aggregate("ace")
    with pytest.raises(InputError, match="bins must be at least 1, got 0"):
        CalibrationMetric(2, "logits", bins=0)
    with pytest.raises(InputError, match="num_classes must be at least 1, got 0"):
        CalibrationMetric(0, "logits")
    with pytest.raises(InputError, match=r"labels of sigmoid channels must have shape \(1, 2, 4, 4\)"):
        CalibrationMetric(2, "logits", activation="sigmoid")(torch.zeros(1, 2, 4, 4), torch.zeros(1, 1, 4, 4))
    with pytest.raises(InputError, match="1 channel or one for each of 2 classes, got 3"):
        CalibrationMetric(2, "logits")(torch.zeros(1, 2, 4, 4), torch.zeros(1, 3, 4, 4))
    with pytest.raises(InputError, match="needs labels"):
        CalibrationMetric(2, "logits")(torch.zeros(1, 2, 4, 4))


def test_logits_and_probabilities_are_not_confused() -> None:
    """Both would give plausible figures: the first is refused, the second announced, as by `CalibrationSuite`."""
    images, labels = batch_of(2, (16, 16))
    with torch.no_grad():
        logits = Convolution()(images)
    truth, probs = labels.unsqueeze(1), logits.softmax(1)
    with pytest.raises(InputError, match=r'in 0\.\.1, got -.* of image 0 .* logits, set scores = "logits"'):
        CalibrationMetric(CLASSES, "probabilities")(logits, truth)
    with pytest.raises(InputError, match=r'sum to 1 over the classes, .* activation = "sigmoid"'):
        CalibrationMetric(CLASSES, "probabilities")(logits.sigmoid(), truth)
    with pytest.raises(InputError, match=r"in 0\.\.1, got nan"):
        CalibrationMetric(CLASSES, "probabilities")(probs * float("nan"), truth)
    with pytest.raises(InputError, match="the logits look like probabilities"):
        CalibrationMetric(CLASSES, "logits")(probs, truth)
    for half in (torch.float16, torch.bfloat16):
        CalibrationMetric(CLASSES, "probabilities")(probs.to(half), truth)


def test_ignite_handler() -> None:
    pytest.importorskip("ignite", reason="pytorch-ignite is not installed: make test-integrations")
    from ignite.engine import Engine
    from monai.handlers import from_engine

    from segcal.integrations.monai import CalibrationHandler

    images, labels = batch_of(4, (16, 16))
    network, suite = Convolution(), CalibrationSuite(CLASSES)

    def step(engine: Any, batch: dict[str, Any]) -> list[dict[str, Any]]:
        with torch.no_grad():
            return decollate_batch({"pred": network(batch["image"]), "label": batch["label"]})

    evaluator = Engine(step)
    shown = from_engine(["pred", "label"])
    CalibrationHandler(CLASSES, "logits", output_transform=shown).attach(evaluator, "ece")
    CalibrationHandler(CLASSES, "logits", metric="nll", output_transform=shown, save_details=True).attach(
        evaluator, "nll"
    )
    evaluator.run([{"image": images[k : k + 2], "label": labels[k : k + 2].unsqueeze(1)} for k in (0, 2)])
    with torch.no_grad():
        suite.update(network(images), labels)
    assert evaluator.state.metrics["ece"] == pytest.approx(float(suite.compute()["all"]["ece"]))
    assert evaluator.state.metrics["nll"] == pytest.approx(float(suite.compute()["all"]["nll"]))
    assert len(evaluator.state.metric_details["nll"]) == 4
