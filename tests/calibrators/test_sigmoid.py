"""Sigmoid heads of several channels: every method equals a loop of one-channel problems, and never moves a label."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import segcal
from segcal.calibrators import Calibrator, SigmoidHead, TemperatureCalibrator, TemperatureScaling
from segcal.types import Case, InputError
from support.scenes import overlapping

CHANNELS, SIZE = 2, (12, 8)
overlapping_cases = partial(overlapping, 2, CHANNELS, SIZE, seed=1)
FIT_SETTINGS: dict[str, dict[str, Any]] = {method: {"epochs": 1} for method in ("lts", "ibts", "auto")}
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def only(case: Case, channel: int) -> Case:
    return replace(case, logits=np.asarray(case.logits)[[channel]], labels=np.asarray(case.labels)[channel])


def batch(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    cases = overlapping_cases()
    logits = torch.stack([torch.as_tensor(case.logits) for case in cases])
    return logits.to(dtype), torch.stack([torch.as_tensor(case.image) for case in cases]).to(dtype)


def two_class(case: Case) -> Case:
    scores = np.asarray(case.logits)
    return replace(case, logits=np.concatenate([np.zeros_like(scores), scores]))


@pytest.fixture(scope="module", params=segcal.methods())
def fitted(request: pytest.FixtureRequest) -> tuple[Calibrator, list[Calibrator]]:
    """A method fitted on all channels at once, and on each channel alone."""
    settings = {"image_channels": 1, "spatial_dims": 2}
    fitting = FIT_SETTINGS.get(request.param, {})
    together = segcal.create(request.param, CHANNELS, activation="sigmoid", **settings)
    together.fit((case for case in overlapping_cases()), **fitting)
    alone = [
        segcal.create(request.param, 1, **settings).fit([only(case, k) for case in overlapping_cases()], **fitting)
        for k in range(CHANNELS)
    ]
    return together, alone


@pytest.mark.parametrize("dtype", DTYPES)
def test_channels_are_calibrated_by_themselves(fitted: tuple[Calibrator, list[Calibrator]], dtype: torch.dtype) -> None:
    together, alone = fitted
    logits, image = batch(dtype)
    found, probs = together(logits, image), together.predict_proba(logits, image)
    assert found.dtype == probs.dtype == dtype
    for k, single in enumerate(alone):
        assert torch.equal(found[:, [k]], single(logits[:, [k]], image))
        assert torch.equal(probs[:, [k]], single.predict_proba(logits[:, [k]], image))
    assert together.learned == sum(single.learned for single in alone)


def test_a_one_logit_head_is_a_two_class_head(fitted: tuple[Calibrator, list[Calibrator]]) -> None:
    one, method = fitted[1][0], fitted[0].method
    two = segcal.create(method, 2, image_channels=1, spatial_dims=2)
    two.fit([two_class(only(case, 0)) for case in overlapping_cases()], **FIT_SETTINGS.get(method, {}))
    for dtype in DTYPES:
        assert_one_logit_is_two_classes(one, two, dtype)


def assert_one_logit_is_two_classes(one: Calibrator, two: Calibrator, dtype: torch.dtype) -> None:
    logits, image = batch(dtype)
    logits = logits[:, :1]
    both = torch.cat([torch.zeros_like(logits), logits], dim=1)
    scores, probs = two(both, image), two.predict_proba(both, image)
    assert one(logits, image).shape == logits.shape
    assert one(logits, image).dtype == one.predict_proba(logits, image).dtype == dtype
    torch.testing.assert_close(one(logits, image), scores[:, 1:] - scores[:, :1])
    torch.testing.assert_close(one.predict_proba(logits, image), probs[:, 1:])
    for name in ("cases", "pixels", "nll_before", "nll_after", "converged", "warnings"):
        assert getattr(one.fit_report_, name) == getattr(two.fit_report_, name)
    if isinstance(two, TemperatureCalibrator):
        assert one.has_temperature
        assert torch.equal(one.temperature(logits, image), two.temperature(both, image))


def test_a_one_logit_head_refuses_other_data() -> None:
    case, calibrator = only(overlapping_cases()[0], 0), segcal.create("ts", 1)
    with pytest.raises(InputError, match=r"logits must have shape \(1, \*S\) with num_classes=1"):
        calibrator.fit([two_class(case)])
    with pytest.raises(InputError, match=r"labels must be in 0\.\.1"):
        calibrator.fit([replace(case, labels=np.full(SIZE, 2))])
    calibrator.fit([case])
    with pytest.raises(InputError, match="num_classes=1"):
        calibrator(torch.zeros(1, 2, 4, 4))
    with pytest.raises(InputError, match="one-logit"):
        TemperatureScaling(1)


def test_the_report_is_that_of_all_channels(fitted: tuple[Calibrator, list[Calibrator]]) -> None:
    together, alone = fitted
    report, own = together.fit_report_, [single.fit_report_ for single in alone]
    assert report.pixels == sum(one.pixels for one in own) == 2 * CHANNELS * np.prod(SIZE)
    assert report.nll_after == pytest.approx(np.mean([one.nll_after for one in own]))
    assert report.names == ("c0", "c1")
    assert list(report.details) == ["channel 0", "channel 1"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_signs_never_move(fitted: tuple[Calibrator, list[Calibrator]], dtype: torch.dtype) -> None:
    together, alone = fitted
    tiny, largest = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    scores = torch.tensor([0.0, tiny, -tiny, 1e-3, -1e-3, 3.0, -3.0, largest, -largest], dtype=dtype)
    both = torch.stack([scores.repeat(9, 1), -scores.repeat(9, 1)])[None]
    image = torch.zeros_like(both[:, :1])
    for head, logits in ((together, both), (alone[0], both[:, :1])):
        found, probs = head(logits, image), head.predict_proba(logits, image)
        assert found.isfinite().all()
        assert ((probs >= 0) & (probs <= 1)).all()
        if head.preserves_labels:
            assert torch.equal(found > 0, logits > 0)
            assert torch.equal(probs > 0.5, logits > 0)


def test_saved_loaded_and_read_in_slabs(fitted: tuple[Calibrator, list[Calibrator]], tmp_path: Path) -> None:
    together, alone = fitted
    for head in (alone[0], together):
        head.save(tmp_path / "saved")
        again = segcal.load(tmp_path / "saved")
        assert isinstance(again, SigmoidHead)
        assert (again.num_classes, again.activation, again.config()) == (head.num_classes, "sigmoid", head.config())
        assert again.fit_report_ == head.fit_report_
    logits, image = batch()
    assert torch.equal(again(logits, image), together(logits, image))
    with mock.patch("segcal.cases.stream.SLAB", 2 * 8):
        parts = list(again.calibrate_case(overlapping_cases()[0]))
    assert [slab.rows for slab in parts] == [slice(0, 8), slice(8, 12)]
    raw = torch.cat([slab.raw for slab in parts], dim=2)
    assert torch.equal(raw, logits[:1])
    torch.testing.assert_close(torch.cat([slab.logits() for slab in parts], dim=2), together(logits[:1], image[:1]))
    if all(isinstance(single.applied, TemperatureCalibrator) for single in alone):
        assert again.has_temperature
        expected = torch.cat(
            [single.applied.temperature(logits[:, [k]], image) for k, single in enumerate(alone)],  # type: ignore[operator]
            dim=1,
        )
        torch.testing.assert_close(again.temperature(logits, image), expected)


def test_a_method_without_temperatures_says_so() -> None:
    isotonic = segcal.create("isotonic", CHANNELS, activation="sigmoid").fit(overlapping_cases())
    assert isinstance(isotonic, SigmoidHead)
    assert not isotonic.has_temperature
    with pytest.raises(InputError, match="'isotonic' has no temperature"):
        isotonic.temperature(*batch())


def test_a_refused_fit_names_the_channel_and_leaves_what_was_learned() -> None:
    ts = segcal.create("ts", CHANNELS, activation="sigmoid").fit(overlapping_cases())
    before = {name: value.clone() for name, value in ts.state_dict().items()}
    bad = overlapping_cases()[0]
    labels = np.array(bad.labels)
    labels[1, 0, 0] = 2
    with pytest.raises(InputError, match=r"^channel 1: labels must be in 0\.\.1, got 2"):
        ts.fit([replace(bad, labels=labels)])
    assert all(torch.equal(value, before[name]) for name, value in ts.state_dict().items())


def test_ignored_pixels_may_differ_between_channels() -> None:
    cases = overlapping_cases()
    marked = [
        replace(
            case,
            labels=np.where(
                np.indices((CHANNELS, *SIZE))[0] * 3 > np.indices((CHANNELS, *SIZE))[2], 255, np.asarray(case.labels)
            ),
        )
        for case in cases
    ]
    ts = segcal.create("ts", CHANNELS, activation="sigmoid", ignore_index=255).fit(marked)
    assert ts.fit_report_.pixels == sum(int((np.asarray(case.labels) != 255).sum()) for case in marked)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(SIZE, int)}, r"labels of a sigmoid head must have shape \(2, 12, 8\).*channel_labels"),
        ({"labels": np.zeros((3, *SIZE), int)}, r"labels of a sigmoid head must have shape \(2, 12, 8\)"),
        ({"logits": np.zeros((3, *SIZE))}, r"logits must have shape \(2, \*S\) with num_classes=2"),
        ({"labels": 255 * np.ones((2, *SIZE), int)}, r"divide masks of 0 and 255 by 255 .*ignore_index=255"),
    ],
    ids=str,
)
def test_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        segcal.create("ts", CHANNELS, activation="sigmoid").fit([replace(overlapping_cases()[0], **change)])


def test_create_knows_the_activation() -> None:
    assert segcal.create("ts", 1).activation == segcal.create("ts", 1, activation="sigmoid").activation == "sigmoid"
    assert segcal.create("ts", 3).activation == "softmax"
    with pytest.raises(InputError, match="a softmax needs at least 2 classes"):
        segcal.create("ts", 1, activation="softmax")
    with pytest.raises(InputError, match="activation must be softmax or sigmoid, got 'relu'"):
        segcal.create("ts", 3, activation="relu")  # type: ignore[arg-type]


def test_auto_writes_temperature_maps_of_what_it_chose() -> None:
    auto = segcal.create("auto", 1).fit([only(case, 0) for case in overlapping_cases()])
    assert auto.has_temperature
    logits, _ = batch()
    assert auto.temperature(logits[:, :1]).shape == logits[:, :1].shape


def nested_cases(scale: float) -> list[Case]:
    """A core inside a whole, each drawn from its logits; the scores of the core are `scale` times too confident."""
    random, cases = np.random.default_rng(3), []
    for k in range(3):
        whole = random.normal(scale=2, size=(32, 32))
        core = whole - random.exponential(size=whole.shape)
        uniform = random.random(whole.shape)
        labels = np.stack([uniform < 1 / (1 + np.exp(-z)) for z in (whole, core)]).astype(np.uint8)
        logits = np.stack([whole, scale * core - (scale - 1) * 2]).astype(np.float32)
        cases.append(Case(f"nested{k}", logits, labels))
    return cases


def test_lost_nesting_is_reported() -> None:
    """One temperature per channel lifts the core above the whole; channels that are not nested are not mentioned."""
    cases = nested_cases(3.0)
    with pytest.warns(segcal.CalibrationWarning, match="channel 1 lies within channel 0, but after calibration"):
        fitted = segcal.create("ts", 2, activation="sigmoid").fit(cases)
    (text,) = [text for text in fitted.fit_report_.warnings if "lies within" in text]
    raw, calibrated = (
        np.stack([np.asarray(f(torch.as_tensor(case.logits)[None]))[0] for case in cases], axis=1)
        for f in (lambda logits: logits, fitted)
    )
    lost = int(((raw[1] <= raw[0]) & (calibrated[1] > calibrated[0] + 1e-4)).sum())
    assert f"at {lost:,} of {raw[0].size:,} pixels" in text
    beside = segcal.create("ts", CHANNELS, activation="sigmoid").fit(overlapping_cases())
    assert not any("lies within" in text for text in beside.fit_report_.warnings)
