"""`segcal.calibrate`: the calibrator is the one fitted by hand, whatever the loader and the network look like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import segcal
from segcal.functional.arrays import TemporaryArrays
from segcal.integrations.predict import predict_cases
from segcal.text import CalibrationWarning
from segcal.types import Array, InputError
from support.scenes import simulated

CLASSES = 4
SCENES = simulated(8, num_classes=CLASSES, size=(24, 32))
IMAGES = torch.stack([torch.as_tensor(case.image) for case in SCENES])
LABELS = torch.stack([torch.as_tensor(case.labels).long() for case in SCENES])
LABELS[:, :2] = 255


class Network(nn.Module):
    """Overconfident scores from each pixel's value, as a tensor or a list."""

    def __init__(self, form: str = "tensor") -> None:
        super().__init__()
        self.conv, self.form = nn.Conv2d(IMAGES.shape[1], CLASSES, 1), form
        means = torch.stack([IMAGES[:, :, 2:].movedim(1, -1)[LABELS[:, 2:] == c].mean(dim=0) for c in range(CLASSES)])
        with torch.no_grad():  # scores fall with the squared distance to the mean of each class
            self.conv.weight.copy_(200 * means[:, :, None, None])
            self.conv.bias.copy_(-100 * means.square().sum(dim=1))  # type: ignore[union-attr]

    def forward(self, image: Tensor) -> Any:
        scores = self.conv(image)
        return [scores, scores * 0] if self.form == "list" else scores


def loader(form: str = "pairs") -> Any:
    pairs = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=3)
    return {
        "pairs": pairs,
        "named": [(image, labels, [f"{b}-{k}" for k in range(len(image))]) for b, (image, labels) in enumerate(pairs)],
        "dict": [{"pixel_values": image, "labels": labels} for image, labels in pairs],
        "generator": (pair for pair in pairs),
    }[form]


def temperature_by_hand() -> float:
    cases = list(predict_cases(Network(), loader()))
    return float(segcal.create("ts", CLASSES, ignore_index=255).fit(cases).fit_report_.details["temperature"])


@pytest.mark.parametrize("form", ["pairs", "named", "dict", "generator"])
def test_every_loader_gives_the_same_calibrator(form: str) -> None:
    network = Network()
    calibrated = segcal.calibrate(network, loader(form), "ts", ignore_index=255)
    assert calibrated.network is network
    report = calibrated.fit_report_
    assert report.details["temperature"] == temperature_by_hand()
    assert (report.cases, report.pixels) == (8, 8 * 22 * 32)
    assert report.nll_after < report.nll_before
    assert report.names[:4] == (
        ("0-0", "0-1", "0-2", "1-0") if form == "named" else tuple(f"{k:06d}" for k in range(4))
    )


def test_the_first_of_several_tensors_is_announced() -> None:
    with pytest.warns(CalibrationWarning, match="a list of 2; the first, .* is taken as its logits") as caught:
        calibrated = segcal.calibrate(Network("list"), loader(), "ts", ignore_index=255)
    assert len(caught) == 1
    assert Path(caught[0].filename) == Path(__file__)
    assert calibrated.fit_report_.warnings == (str(caught[0].message),)
    assert calibrated.fit_report_.details["temperature"] == temperature_by_hand()


def test_auto_is_the_default_and_uses_the_image_where_it_may() -> None:
    calibrated = segcal.calibrate(Network(), loader(), ignore_index=255, candidates=("ts", "ets"))
    assert calibrated.calibrator.method == "auto"
    assert calibrated.calibrator.image_channels == IMAGES.shape[1]
    alone = segcal.calibrate(Network(), loader(), ignore_index=255, candidates=("ts",), logits_only=True)
    assert alone.calibrator.image_channels == 0


def test_trained_methods_take_settings_and_validation() -> None:
    """What the fit remarks on is a warning at the caller's line, and in the report."""
    settings = {"epochs": 2, "learning_rate": 1e-3}
    given: dict[str, Any] = {"ignore_index": 255, "fit_settings": settings, "positivity": "softplus"}
    with pytest.warns(CalibrationWarning, match="was still falling when the epochs ended") as caught:
        calibrated = segcal.calibrate(Network(), loader(), "lts", validation=loader(), **given)
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    assert calibrated.fit_report_.warnings == (str(caught[0].message),)
    cases = list(predict_cases(Network(), loader()))
    by_hand = segcal.create("lts", CLASSES, image_channels=IMAGES.shape[1], ignore_index=255, positivity="softplus")
    by_hand.fit(cases, validation=cases, **settings)
    logits = torch.as_tensor(cases[0].logits)[None]
    assert torch.equal(calibrated.calibrator(logits, IMAGES[:1]), by_hand(logits, IMAGES[:1]))


@pytest.mark.filterwarnings("ignore::segcal.CalibrationWarning")  # of one epoch
@pytest.mark.parametrize(("method", "kept"), [("ts", 2), ("lts", 3)])
def test_predictions_beyond_the_memory_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, kept: int
) -> None:
    """Logits and labels of three cases in each batch, and the images if the method reads them."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    written: list[int] = []
    seen: list[int] = []
    copy = TemporaryArrays.copy

    def counted(files: TemporaryArrays, array: Array) -> Array:
        written.append(array.nbytes)
        return copy(files, array)

    monkeypatch.setattr(TemporaryArrays, "copy", counted)

    class Watching(Network):
        def forward(self, image: Tensor) -> Any:
            seen.append(len(written))
            return super().forward(image)

    fit = {"epochs": 1} if method == "lts" else {}
    calibrated = segcal.calibrate(Watching(), loader(), method, ignore_index=255, in_memory=0, fit_settings=fit)
    assert seen == [0, 3 * kept, 6 * kept]
    assert list(tmp_path.iterdir()) == []  # the files have no name
    assert method != "ts" or calibrated.fit_report_.details["temperature"] == temperature_by_hand()


def test_cropped_labels_are_refused() -> None:
    """Scores would be squeezed over them."""
    for cropped in (LABELS[:, 2:-2, 2:-2], LABELS[:, ::2, ::2], LABELS.repeat(1, 2, 1)[:, :-12]):
        with pytest.raises(
            InputError, match=r"labels of size .* must have the size \(24, 32\) of the network's logits"
        ):
            segcal.calibrate(Network(), [(IMAGES, cropped)], "ts", ignore_index=255)


@pytest.mark.filterwarnings("ignore::segcal.CalibrationWarning")  # random scores
def test_one_logit_heads_are_read_from_the_network() -> None:
    calibrated = segcal.calibrate(nn.Conv2d(IMAGES.shape[1], 1, 1), [(IMAGES, (LABELS > 1).long())], "ts")
    assert calibrated.calibrator.num_classes == 1
    assert calibrated(IMAGES).shape == (8, 1, 24, 32)


MASKS = torch.stack([LABELS == 1, LABELS >= 2, LABELS == 3], dim=1)
MASKS[:, :, :2] = 0


class Channels(nn.Module):
    """Overconfident scores of overlapping channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(IMAGES.shape[1], channels, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return 20 * self.conv(image)


@pytest.mark.filterwarnings("ignore::segcal.CalibrationWarning")  # random scores
@pytest.mark.parametrize("channels", [1, 3])
def test_sigmoid_channels_are_those_of_a_fit_by_hand(channels: int) -> None:
    network, masks = Channels(channels), MASKS[:, :channels]
    pairs = [(IMAGES[:5], masks[:5].float()), (IMAGES[5:], masks[5:].float())]
    calibrated = segcal.calibrate(network, pairs, "ts", activation="sigmoid")
    with torch.no_grad():
        logits = network(IMAGES)
        probs = calibrated(IMAGES)
    cases = [segcal.Case(str(k), logits[k].numpy(), masks[k].numpy().astype(int)) for k in range(8)]
    by_hand = segcal.create("ts", channels, activation="sigmoid").fit(cases)
    assert torch.equal(probs, by_hand.predict_proba(logits))
    assert torch.equal(probs > 0.5, logits > 0)
    assert calibrated.fit_report_.nll_after < calibrated.fit_report_.nll_before
    assert calibrated.fit_report_.fingerprints == by_hand.fit_report_.fingerprints
    assert all(calibrated.fit_report_.fingerprints)


@pytest.mark.filterwarnings("ignore::segcal.CalibrationWarning")  # random scores
def test_sigmoid_channels_are_validated_and_measured() -> None:
    """A trained method with validation; the cases of the loader are recognised where they are measured."""
    network, pairs = Channels(3), [(IMAGES, MASKS.long())]
    fit = {"epochs": 1, "learning_rate": 1e-3}
    calibrated = segcal.calibrate(
        network, pairs, "lts", activation="sigmoid", validation=pairs, fit_settings=fit, logits_only=True
    )
    cases = predict_cases(network, pairs, activation="sigmoid", prefix="test-")
    with pytest.warns(CalibrationWarning, match="LTS was fitted on all of these 8 cases"):
        results = segcal.evaluate(
            cases, {"LTS": calibrated.calibrator}, num_classes=3, activation="sigmoid", patches=0, repetitions=0
        )
    assert list(results.channels) == ["0", "1", "2"]


def test_masks_without_their_activation_say_what_to_set() -> None:
    with pytest.raises(InputError, match=r"got shape \(8, 3, 24, 32\).* set activation='sigmoid'"):
        segcal.calibrate(Channels(3), [(IMAGES, MASKS.long())], "ts")
    with pytest.raises(InputError, match=r"labels of a sigmoid head must have shape \(3, 24, 32\)"):
        segcal.calibrate(Channels(3), [(IMAGES, LABELS)], "ts", activation="sigmoid")


@pytest.mark.filterwarnings("ignore::segcal.CalibrationWarning")  # random scores
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_shares_of_raters_are_fitted_as_their_label_maps(activation: Any) -> None:
    """Two raters who disagree at some pixels: the fit is that of both label maps together."""
    first, second = LABELS.clamp(max=3), LABELS.clamp(max=3).roll(1, dims=-1)
    one_hot = [nn.functional.one_hot(own, CLASSES).movedim(-1, 1) for own in (first, second)]
    shares = (one_hot[0] + one_hot[1]) / 2
    calibrated = segcal.calibrate(Network(), [(IMAGES, shares)], "ts", activation=activation, raters=2)
    assert calibrated.fit_report_.cases == 16
    labels = (first, second) if activation == "softmax" else one_hot
    both = [case for own in labels for case in predict_cases(Network(), [(IMAGES, own)], activation=activation)]
    named = [replace(case, name=str(k)) for k, case in enumerate(both)]
    by_hand = segcal.create("ts", CLASSES, activation=activation).fit(named)
    assert calibrated.fit_report_.nll_after == pytest.approx(by_hand.fit_report_.nll_after, rel=1e-12)
    with torch.no_grad():
        logits = Network()(IMAGES)
        torch.testing.assert_close(calibrated(IMAGES), by_hand.predict_proba(logits))
        if activation == "softmax":
            expected = segcal.nll(calibrated.calibrator(logits).double(), shares.double())
            assert calibrated.fit_report_.nll_after == pytest.approx(expected, rel=1e-5)


def test_a_calibrated_model_is_no_method_and_its_calibrator_is() -> None:
    calibrated = segcal.calibrate(Network(), loader(), "ts", ignore_index=255)
    cases = list(predict_cases(Network(), loader()))
    options: dict[str, Any] = {"num_classes": CLASSES, "ignore_index": 255, "patches": 0, "repetitions": 0}
    with pytest.raises(InputError, match=r"got CalibratedModel for 'TS', .* \{'TS': calibrated\.calibrator\}"):
        segcal.evaluate(cases, {"TS": calibrated}, **options)
    assert segcal.evaluate(cases, {"TS": calibrated.calibrator}, **options).methods == ("TS",)


def test_mistakes_are_named() -> None:
    used = loader("generator")
    list(used)
    with pytest.raises(InputError, match="at least one batch is needed, got an iterator that yields none; an iterator"):
        segcal.calibrate(Network(), used, "ts")
    with pytest.raises(InputError, match="at least one batch is needed, got none; is the loader empty"):
        segcal.calibrate(Network(), [], "ts")
    with pytest.raises(InputError, match="'ts' has no fit setting 'epochs'; it has none"):
        segcal.calibrate(Network(), loader(), "ts", ignore_index=255, fit_settings={"epochs": 3})
    with pytest.raises(InputError, match=r"labels must be in 0..3, got 255 .* of case '000000'; set ignore_index"):
        segcal.calibrate(Network(), loader(), "ts")
    with pytest.raises(InputError, match="'ts' has no setting 'width'"):
        segcal.calibrate(Network(), loader(), "ts", width=3)
    with pytest.raises(InputError, match=r"'lts' has no setting 'epochs'; .* give fit_settings=\{'epochs': \.\.\.\}"):
        segcal.calibrate(Network(), loader(), "lts", ignore_index=255, epochs=3)
    with pytest.raises(InputError, match=r"the network must be a torch\.nn\.Module, got function; put a function into"):
        segcal.calibrate(lambda image: image, loader(), "ts")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="got 'lst'; did you mean 'lts'"):
        segcal.calibrate(Network(), used, "lst")  # before the loader is read
    with pytest.raises(InputError, match=r"no fit setting 'epoch'; .* did you mean 'epochs'"):
        segcal.calibrate(Network(), loader(), "lts", ignore_index=255, fit_settings={"epoch": 3})


def test_the_callers_random_numbers_stay_as_they_are() -> None:
    network, batches = Network(), DataLoader(TensorDataset(IMAGES, LABELS), batch_size=3, shuffle=True)
    before = torch.get_rng_state()
    segcal.calibrate(network, batches, "lts", ignore_index=255, fit_settings={"epochs": 1})
    assert torch.equal(torch.get_rng_state(), before)
