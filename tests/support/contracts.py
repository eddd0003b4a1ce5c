"""The contract of every calibrator, in 2D and 3D: one small check for each promise.

A new method joins by being listed in `segcal.methods()`. The tests run the checks one by one, so that a failure says
which promise was broken.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

import segcal
from segcal.calibrators import Calibrator, LocalTemperatureScaling, TemperatureCalibrator
from segcal.data.sample.scenes import simulate
from segcal.types import Case, InputError

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CLASSES = 3
SIZES = {2: (20, 14), 3: (9, 8, 7)}
LEAST_NLL = {"ts", "ets", "bts", "vector", "matrix", "msc", "svs", "dirichlet", "cmsap", "cmsop"}
"""Methods that are solved for the least NLL, with penalties on the distance from changing nothing if any."""
Check = Callable[["Subject", Path], None]

CHECKS: dict[str, Check] = {}
CUDA_CHECKS: dict[str, Check] = {}


class Stressed(NamedTuple):
    """Logits, and what a calibrator makes of them."""

    logits: Tensor
    calibrated: Tensor
    by_slabs: Tensor  # of the first image
    probs: Tensor


@dataclass(frozen=True)
class Subject:
    """A calibrator under test: how to build it, and cases of equal shape with `CLASSES` classes and one channel."""

    make: Callable[..., Calibrator]
    cases: Sequence[Case]
    fit_settings: Mapping[str, Any] = field(default_factory=dict)

    def fit(self, cases: Any = None, **settings: Any) -> Calibrator:
        """A new calibrator, fitted on these cases or on its own."""
        return self.make(**settings).fit(self.cases if cases is None else cases, **self.fit_settings)

    @cached_property
    def fitted(self) -> Calibrator:
        """Fitted on the cases; shared by all checks, none of which may alter it."""
        return self.fit()

    @cached_property
    def extremes(self) -> tuple[Calibrator, ...]:
        """Fitted as usual, where every prediction is right, and where the least likely class is the true one."""
        right = [replace(case, labels=np.asarray(case.logits).argmax(0)) for case in self.cases]
        wrong = [replace(case, labels=np.asarray(case.logits).argmin(0)) for case in self.cases]
        return self.fitted, self.fit(right), self.fit(wrong)

    @cached_property
    def stressed(self) -> tuple[Stressed, ...]:
        """What the extremes make of unusual logits; shared by all checks, like `fitted`."""
        return tuple(
            Stressed(
                logits,
                calibrator(logits, image),
                _by_slabs(calibrator, logits, image),
                calibrator.predict_proba(logits, image),
            )
            for calibrator in self.extremes
            for logits, image in _stress(self)
        )

    def batch(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Logits `[B, L, *S]` and images `[B, C, *S]` of all cases."""
        logits = torch.stack([torch.as_tensor(np.array(case.logits)) for case in self.cases])
        images = torch.stack([torch.as_tensor(np.array(case.image)) for case in self.cases])
        return logits.to(dtype), images.to(dtype)


def subject(method: str, dims: int, **fit_settings: Any) -> Subject:
    """The method on simulated scenes in 2D or 3D."""

    def make(**settings: Any) -> Calibrator:
        return segcal.create(method, num_classes=CLASSES, spatial_dims=dims, image_channels=1, **settings)

    scenes = simulate(3, num_classes=CLASSES, size=SIZES[dims], contrast=2.0, seed=3)
    return Subject(make, [scene.case for scene in scenes], fit_settings)


def _contract(check: Check) -> Check:
    CHECKS[check.__name__] = check
    return check


def _cuda_contract(check: Check) -> Check:
    CUDA_CHECKS[check.__name__] = check
    return check


# --------------------------------------------------------------------------------------------------------------------
# what comes out


@_contract
def shape_and_dtype_are_kept(s: Subject, _: Path) -> None:
    for dtype in DTYPES:
        logits, image = s.batch(dtype)
        for result in (s.fitted(logits, image), s.fitted.predict_proba(logits, image)):
            assert result.shape == logits.shape
            assert result.dtype == dtype


@_contract
def results_are_finite(s: Subject, _: Path) -> None:
    for logits, *results in s.stressed:
        assert all(result.isfinite().all() for result in results), logits.dtype


@_contract
def probabilities_sum_to_one(s: Subject, _: Path) -> None:
    for logits, _calibrated, _by_slabs, probs in s.stressed:
        assert (probs >= 0).all()
        assert (probs.double().sum(dim=1) - 1).abs().max() <= CLASSES * torch.finfo(logits.dtype).eps


@_contract
def probabilities_are_the_softmax_of_the_logits(s: Subject, _: Path) -> None:
    logits, image = s.batch(torch.float64)
    expected = torch.softmax(s.fitted(logits, image), dim=1)
    torch.testing.assert_close(s.fitted.predict_proba(logits, image), expected)


@_contract
def labels_are_kept(s: Subject, _: Path) -> None:
    if not s.fitted.preserves_labels:
        return
    for logits, calibrated, by_slabs, probs in s.stressed:
        raw = logits.argmax(dim=1)
        assert (calibrated.argmax(dim=1) == raw).all(), logits.dtype
        assert (by_slabs.argmax(dim=1) == raw[:1]).all(), logits.dtype
        assert (probs.argmax(dim=1) == raw).all(), logits.dtype


@_contract
def an_impossible_class_is_one_of_probability_zero(s: Subject, _: Path) -> None:
    """A logit of minus infinity is what a probability of 0 becomes: 87.3 nats below the largest."""
    cases = [replace(case, logits=_impossible(torch.as_tensor(np.array(case.logits))).numpy()) for case in s.cases]
    lowest = float(np.log(np.finfo(np.float32).tiny))
    finite = [
        replace(
            case, logits=np.where(np.isneginf(z := np.asarray(case.logits)), z.max(0) + lowest, z).astype(np.float32)
        )
        for case in cases
    ]
    assert_same_state(ours := s.fit(cases), s.fit(finite))
    assert np.isfinite([ours.fit_report_.nll_before, ours.fit_report_.nll_after]).all()
    for one, other in zip(cases, finite, strict=True):
        (z, image), (w, _image) = _tensors(one), _tensors(other)
        torch.testing.assert_close(ours(z, image), ours(w, image))
        torch.testing.assert_close(ours.predict_proba(z, image), ours.predict_proba(w, image))
        torch.testing.assert_close(_by_slabs(ours, z, image), ours(w, image))


@_contract
def input_is_left_alone(s: Subject, _: Path) -> None:
    logits, image = s.batch()
    before = logits.clone(), image.clone()
    s.fitted.predict_proba(logits, image)
    assert torch.equal(logits, before[0])
    assert torch.equal(image, before[1])


@_contract
def temperatures_are_positive_maps(s: Subject, _: Path) -> None:
    for calibrator in s.extremes:
        if not isinstance(calibrator, TemperatureCalibrator):
            return
        for logits, image in _stress(s):
            found = calibrator.temperature(logits, image)
            low, high = calibrator.bounds
            assert found.shape == (len(logits), 1, *logits.shape[2:])
            assert ((found >= low * 0.999999) & (found <= high * 1.000001)).all()


# --------------------------------------------------------------------------------------------------------------------
# what it may depend on


@_contract
def images_of_a_batch_are_independent(s: Subject, _: Path) -> None:
    logits, image = s.batch()
    together = s.fitted(logits, image)
    for k in range(len(logits)):
        torch.testing.assert_close(s.fitted(logits[k : k + 1], image[k : k + 1]), together[k : k + 1])


@_contract
def order_of_pixels_is_irrelevant_without_context(s: Subject, _: Path) -> None:
    if s.fitted.context != 0:
        return
    logits, image = s.batch()
    order = torch.randperm(logits[0, 0].numel(), generator=torch.Generator().manual_seed(0))

    def shuffled(values: Tensor) -> Tensor:
        return values.flatten(2)[:, :, order].view(values.shape)

    # to the last bits: PyTorch's softmax rounds the last pixels of a row, too few for a vector, in another way
    found = s.fitted(shuffled(logits), shuffled(image))
    torch.testing.assert_close(found, shuffled(s.fitted(logits, image)), rtol=1e-5, atol=1e-6)


@_contract
def slabs_give_what_the_whole_gives(s: Subject, _: Path) -> None:
    case = s.cases[0]
    slice_size = int(np.prod(case.logits.shape)) // case.logits.shape[1]
    with mock.patch("segcal.cases.stream.SLAB", 3 * slice_size):
        parts = [slab.logits() for slab in s.fitted.calibrate_case(case)]
    assert len(parts) == -(-case.logits.shape[1] // 8)  # slabs begin at multiples of 8 slices
    logits, image = s.batch()
    torch.testing.assert_close(torch.cat(parts, dim=2), s.fitted(logits[:1], image[:1]).detach())


@_contract
def bits_do_not_depend_on_the_number_of_threads(s: Subject, _: Path) -> None:
    logits, image = (values[:1].repeat(1, 1, *(5,) * (values.ndim - 3), 13)[..., :-1] for values in s.batch())
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(s.fitted(logits, image))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])


@_contract
def calibrating_a_case_leaves_the_mode_of_gradients_alone(s: Subject, _: Path) -> None:
    """Also while generators wait, and when two are gone through side by side and so end in the order they began."""
    with torch.enable_grad():
        pairs = zip(s.fitted.calibrate_case(s.cases[0]), s.fitted.calibrate_case(s.cases[1]), strict=True)
        for one, other in ((one.logits(), other.logits()) for one, other in pairs):
            assert torch.is_grad_enabled()
            assert not one.requires_grad
            assert not other.requires_grad
        assert torch.is_grad_enabled()


# --------------------------------------------------------------------------------------------------------------------
# what it learns from


@_contract
def fit_returns_the_calibrator_and_a_report_that_is_true(s: Subject, _: Path) -> None:
    calibrator = s.make()
    assert calibrator.fit(s.cases, **s.fit_settings) is calibrator
    report = calibrator.fit_report_
    logits, image = s.batch(torch.float64)
    labels = torch.stack([torch.as_tensor(np.array(case.labels)) for case in s.cases]).long()
    assert report.cases == len(s.cases)
    assert report.names == tuple(case.name for case in s.cases)
    assert report.pixels == labels.numel()
    for told, scores in ((report.nll_before, logits), (report.nll_after, calibrator(logits, image).detach())):
        assert told == pytest.approx(float(torch.nn.functional.cross_entropy(scores, labels)), rel=1e-4)


@_contract
def a_generator_of_cases_is_enough(s: Subject, _: Path) -> None:
    assert_same_state(s.fit(case for case in s.cases), s.fitted)


@_contract
def memory_mapped_cases_work(s: Subject, folder: Path) -> None:
    mapped = [_mapped(case, folder) for case in s.cases]
    assert_same_state(s.fit(mapped), s.fitted)
    from_disk, *_rest = s.fitted.calibrate_case(mapped[0])
    from_memory, *_rest = s.fitted.calibrate_case(s.cases[0])
    assert torch.equal(from_disk.logits(), from_memory.logits())


@_contract
def a_second_fit_forgets_the_first(s: Subject, _: Path) -> None:
    calibrator = s.fit(s.cases[:1])
    assert not same_state(calibrator, s.fitted)
    assert_same_state(calibrator.fit(s.cases, **s.fit_settings), s.fitted)


@_contract
def all_ignored_labels_are_alike(s: Subject, _: Path) -> None:
    """Which of several ignored labels a pixel has is of no importance, also where one is a class."""
    ignored = (7, 9, 0)
    variants = [[_relabelled(case, (7, 9)) for case in s.cases], [_relabelled(case, (9, 0)) for case in s.cases]]
    one, other = (s.fit(cases, ignore_index=ignored) for cases in variants)
    assert_same_state(one, other)
    assert one.fit_report_.pixels == other.fit_report_.pixels < s.fitted.fit_report_.pixels


@_contract
def logits_of_ignored_pixels_are_irrelevant_without_context(s: Subject, _: Path) -> None:
    if s.fitted.context != 0:
        return
    cases = [_relabelled(case, (7, 9)) for case in s.cases]
    spoilt = [_spoilt(case, np.isin(np.asarray(case.labels), (7, 9))) for case in cases]
    assert_same_state(s.fit(spoilt, ignore_index=[7, 9]), s.fit(cases, ignore_index=[7, 9]))


@_contract
def background_is_left_out_but_near_boundaries(s: Subject, _: Path) -> None:
    """Fitting with a background equals calling its inner pixels ignored, in the region All worked out slowly."""
    cases = [_with_plain_half(case) for case in s.cases]
    outside = [_far_background(np.asarray(case.labels)) for case in cases]
    marked = [
        replace(case, labels=np.where(mask, 9, np.asarray(case.labels)))
        for case, mask in zip(cases, outside, strict=True)
    ]
    found = s.fit(cases, background=0)
    assert_same_state(found, s.fit(marked, ignore_index=9))
    assert found.fit_report_.pixels == sum(int((~mask).sum()) for mask in outside)
    assert not same_state(found, s.fit(cases))


@_contract
def a_constant_on_all_logits_of_a_pixel_changes_nothing(s: Subject, _: Path) -> None:
    if s.fitted.method in ("vector", "matrix"):  # which scale the logits as they are
        return
    wide = [replace(case, logits=np.asarray(case.logits, np.float64)) for case in s.cases]
    random = np.random.default_rng(0)
    moved = [replace(case, logits=case.logits + random.normal(size=case.logits.shape[1:])) for case in wide]
    ours, theirs = s.fit(wide), s.fit(moved)
    for case, other in zip(wide, moved, strict=True):
        found, expected = theirs.predict_proba(*_tensors(other)), ours.predict_proba(*_tensors(case))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@_contract
def half_precision_is_calibrated_as_the_same_numbers_in_float32(s: Subject, _: Path) -> None:
    """What is measured and written must not be rounded to the precision that scores are stored in."""
    half = replace(s.cases[0], logits=np.asarray(s.cases[0].logits).astype(np.float16))
    wide = replace(half, logits=np.asarray(half.logits).astype(np.float32))
    found, expected = (
        torch.cat([slab.logits() for slab in s.fitted.calibrate_case(case)], dim=2) for case in (half, wide)
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@_contract
def fitting_by_slabs_gives_what_fitting_on_the_whole_gives(s: Subject, _: Path) -> None:
    case = s.cases[0]
    slice_size = int(np.prod(case.logits.shape)) // case.logits.shape[1]
    with mock.patch("segcal.cases.stream.SLAB", 3 * slice_size):
        in_slabs = s.fit()
    logits, image = s.batch(torch.float64)
    torch.testing.assert_close(in_slabs(logits, image), s.fitted(logits, image), rtol=1e-5, atol=1e-5)
    assert in_slabs.fit_report_.pixels == s.fitted.fit_report_.pixels


# --------------------------------------------------------------------------------------------------------------------
# what it makes of data that hardly say anything: a defined answer, with a warning where it means little, or a refusal


def _labelled(labels: Callable[[Case], np.ndarray], warned: Callable[[Subject], bool]) -> Check:
    """A check with other labels, of which a report must warn."""

    def check(s: Subject, folder: Path) -> None:
        cases = [replace(case, labels=labels(case)) for case in s.cases]
        _answered_or_refused(s, cases, folder, warned=warned(s))

    return check


def _is_trained(s: Subject) -> bool:
    """By gradient steps, which end where they end, rather than solved for an optimum that may lie at infinity."""
    return isinstance(s.fitted.applied, LocalTemperatureScaling)


def _tells_classes_apart(s: Subject) -> bool:
    """Whether a single class, or too few pixels, leave something undetermined."""
    return not s.fitted.preserves_labels or s.fitted.method in ("ets", "bts", "ats")


CHECKS |= {
    f"{name}_is_answered_or_refused": check
    for name, check in {
        "only_one_class": _labelled(lambda case: np.full_like(np.asarray(case.labels), 1), _tells_classes_apart),
        "a_class_never_present": _labelled(
            lambda case: np.minimum(np.asarray(case.labels), CLASSES - 2), lambda s: not s.fitted.preserves_labels
        ),
        "all_right": _labelled(lambda case: np.asarray(case.logits).argmax(0), lambda s: not _is_trained(s)),
        "all_wrong": _labelled(lambda case: np.asarray(case.logits).argmin(0), lambda s: not _is_trained(s)),
    }.items()
}


@_contract
def two_pixels_are_answered_or_refused(s: Subject, folder: Path) -> None:
    first = s.cases[0]
    corner = (slice(None), *[slice(1)] * (np.asarray(first.labels).ndim - 1), slice(2))
    logits, image = np.asarray(first.logits)[corner], np.asarray(first.image)[corner]
    for name, labels in {"right": logits.argmax(0), "wrong": logits.argmin(0), "one class": 0 * logits[0]}.items():
        case = Case(name, logits, labels.astype(np.uint8), image)
        _answered_or_refused(s, [case], folder / name, warned=_tells_classes_apart(s))


def fitted_or_refused(fit: Callable[[], Calibrator]) -> Calibrator | None:
    """What was fitted, or None after a refusal in one sentence that says what to do."""
    try:
        return fit()
    except InputError as error:
        refusal = str(error)
    assert ";" in refusal
    assert len(refusal.splitlines()) == 1
    return None


def _answered_or_refused(s: Subject, cases: Sequence[Case], folder: Path, *, warned: bool) -> None:
    calibrator = fitted_or_refused(lambda: s.fit(cases))
    if calibrator is None:
        return
    report = calibrator.fit_report_
    assert np.isfinite([report.nll_before, report.nll_after]).all()
    assert report.warnings or not warned
    if s.fitted.method in LEAST_NLL:
        assert report.converged
        assert report.nll_after <= report.nll_before + 1e-9
    for dtype in DTYPES:
        probs = calibrator.predict_proba(*s.batch(dtype))
        assert probs.isfinite().all()
        assert (probs.double().sum(dim=1) - 1).abs().max() <= CLASSES * torch.finfo(dtype).eps
    calibrator.save(folder / "saved")
    assert segcal.load(folder / "saved").fit_report_ == report


# --------------------------------------------------------------------------------------------------------------------
# that training never hurts, whatever the data and the learning rate


def _labelled_by_the_softmax(case: Case) -> Case:
    """Calibrated: labels drawn from the probabilities."""
    logits = np.asarray(case.logits, np.float64)
    noise = np.random.default_rng(len(case.name)).gumbel(size=logits.shape)
    return replace(case, labels=(logits + noise).argmax(0))


def _constant(case: Case) -> Case:
    return replace(case, logits=np.ones_like(np.asarray(case.logits)))


def _affine(factor: float, shift: float) -> Callable[[Case], Case]:
    def change(case: Case) -> Case:
        return replace(case, logits=(factor * np.asarray(case.logits) + shift).astype(np.float32))

    return change


HOPELESS: dict[str, Callable[[Case], Case]] = {
    "calibrated": _labelled_by_the_softmax,
    "constant": _constant,
    "shifted up": _affine(1.0, 1e4),
    "shifted down": _affine(1.0, -1e4),
    "scaled down": _affine(1e-3, 0.0),
    "scaled up": _affine(1e3, 0.0),
}
RATES = (1e-5, 1e-2, 1.0)


@_contract
def training_is_never_worse_than_temperature_scaling(s: Subject, _: Path) -> None:
    """On the validation images, for data that it cannot help or whose logits have an odd scale."""
    if not _is_trained(s):
        return
    for name, change in HOPELESS.items():
        cases = [change(case) for case in s.cases]
        _assert_never_worse(s, cases[:2], cases[2:], name)
    _assert_never_worse(s, s.cases[:1], s.cases[1:], "one image")


@_contract
def no_learning_rate_is_worse_than_temperature_scaling(s: Subject, _: Path) -> None:
    if not _is_trained(s):
        return
    cases = [_labelled_by_the_softmax(case) for case in s.cases]
    for rate in RATES:
        _assert_never_worse(s, cases[:2], cases[2:], f"learning rate {rate}", learning_rate=rate)


def _assert_never_worse(s: Subject, fit: Sequence[Case], held_out: Sequence[Case], what: str, **settings: Any) -> None:
    ours = s.make().fit(fit, validation=held_out, **{**s.fit_settings, **settings})
    plain = segcal.create("ts", CLASSES).fit(fit)
    found, reference = _mean_nll(ours, held_out), _mean_nll(plain, held_out)
    assert found <= reference * (1 + 1e-6), f"{what}: NLL {found}, with temperature scaling {reference}"
    report = ours.fit_report_
    assert np.isfinite([report.nll_before, report.nll_after]).all(), what
    if isinstance(ours, TemperatureCalibrator):
        assert report.details["validation_nll"] == pytest.approx(found, rel=1e-5), what
        logits, image = _tensors(held_out[0])
        same = torch.allclose(ours.temperature(logits, image), plain.temperature(logits), rtol=1e-6, atol=0)
        assert (report.details["share"] == 0) is same, what
        assert any("kept the temperature of TS" in warning for warning in report.warnings) is same, what


def _mean_nll(calibrator: Calibrator, cases: Sequence[Case]) -> float:
    scores, labels = [], []
    for case in cases:
        scores.append(calibrator(*(values.double() for values in _tensors(case))))
        labels.append(torch.as_tensor(np.array(case.labels)).long()[None])
    return float(torch.nn.functional.cross_entropy(torch.cat(scores), torch.cat(labels)))


def _tensors(case: Case) -> tuple[Tensor, Tensor]:
    return torch.as_tensor(np.array(case.logits))[None], torch.as_tensor(np.array(case.image))[None]


# --------------------------------------------------------------------------------------------------------------------
# what it refuses


@_contract
def unfitted_is_refused(s: Subject, folder: Path) -> None:
    calibrator, (logits, image) = s.make(), s.batch()
    uses: list[Callable[[], Any]] = [
        lambda: calibrator(logits, image),
        lambda: calibrator.predict_proba(logits, image),
        lambda: list(calibrator.calibrate_case(s.cases[0])),
        lambda: calibrator.save(folder / "saved"),
    ]
    if isinstance(calibrator, TemperatureCalibrator):
        uses.append(lambda: calibrator.temperature(logits, image))
    for use in uses:
        with pytest.raises(InputError, match="not been fitted"):
            use()
    assert not (folder / "saved").exists()


@_contract
def other_class_counts_and_whole_numbers_are_refused(s: Subject, _: Path) -> None:
    logits, image = s.batch()
    with pytest.raises(InputError, match=f"num_classes={CLASSES}"):
        s.fitted(logits[:, :2], image)
    for use in (s.fitted, s.fitted.predict_proba):
        with pytest.raises(InputError, match=r"floating point, got torch\.int64"):
            use(logits.long(), image)


@_contract
def bad_cases_are_refused_by_name(s: Subject, _: Path) -> None:
    good = s.cases[0]
    logits, labels = np.array(good.logits), np.array(good.labels)
    with_nan, with_infinity, stray = logits.copy(), logits.copy(), labels.copy()
    with_nan.flat[5], with_infinity.flat[5], stray.flat[5] = np.nan, np.inf, CLASSES
    bad: dict[str, dict[str, Any]] = {
        "finite": {"logits": with_nan},
        "be finite": {"logits": with_infinity},
        "shape": {"logits": logits[:, :-1]},
        "logits": {"logits": logits[:-1]},
        "labels must be in": {"labels": stray},
        "has none": {"labels": None},
        "image must have shape": {"image": np.zeros((1, *(n + 1 for n in labels.shape)), np.float32)},
    }
    for match, change in bad.items():
        with pytest.raises(InputError, match=rf"(?s){match}.*") as caught:
            s.fit([good, replace(good, name="the-odd-one", **change)])
        assert "'the-odd-one'" in str(caught.value)


@_contract
def scores_that_are_not_finite_are_refused_with_their_place(s: Subject, _: Path) -> None:
    """NaN, overflow, and a pixel without a possible class; in one image of a batch and in a case."""
    for k, dtype in enumerate(DTYPES):
        logits, image = s.batch(dtype)
        first = (slice(None), *[1] * (logits.ndim - 2))
        wrong: dict[float, str] = {
            torch.nan: "got nan",
            torch.inf: "got inf",
            -torch.inf: "at least one class must be possible",
        }
        for j, (value, message) in enumerate(wrong.items()):
            spoilt = logits.clone()
            spoilt[1][first if value == -torch.inf else (2, *first[1:])] = value
            place = (1, *first[1:]) if value == -torch.inf else (1, 2, *first[1:])
            uses: list[Callable[[Tensor, Tensor], Any]] = [s.fitted, s.fitted.predict_proba]
            if isinstance(s.fitted, TemperatureCalibrator) and s.fitted.method not in ("ts", "ats"):
                uses.append(s.fitted.temperature)  # those two do not look at the logits
            with pytest.raises(InputError, match=rf"{message}.* at {re.escape(str(place))}"):
                uses[(k + j) % len(uses)](spoilt, image)
            with pytest.raises(InputError, match=rf"{message}.* at {re.escape(str(place[1:]))} of case 'the odd one'"):
                list(s.fitted.calibrate_case(Case("the odd one", spoilt[1], None, image[1])))


@_contract
def images_without_pixels_are_answered_or_refused(s: Subject, _: Path) -> None:
    logits, image = s.batch()
    assert s.fitted(logits[:0], image[:0]).shape == logits[:0].shape
    for use in (s.fitted, s.fitted.predict_proba):
        with suppress(InputError):
            assert use(logits[:, :, :0], image[:, :, :0]).shape == logits[:, :, :0].shape
    with pytest.raises(InputError):
        s.fit(
            [
                replace(case, logits=np.asarray(case.logits)[:, :0], labels=np.asarray(case.labels)[:0])
                for case in s.cases
            ]
        )


@_contract
def nothing_to_fit_on_is_refused(s: Subject, _: Path) -> None:
    with pytest.raises(InputError, match="at least one case"):
        s.fit([])
    ignored = [replace(case, labels=np.full_like(np.asarray(case.labels), 9)) for case in s.cases]
    with pytest.raises(InputError, match="no labelled pixel"):
        s.fit(ignored, ignore_index=9)


@_contract
def a_cast_of_the_model_leaves_what_was_learned(s: Subject, _: Path) -> None:
    for dtype in DTYPES:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), copy.deepcopy(s.fitted)).to(dtype)
        assert model[0].weight.dtype == dtype
        assert_same_state(model[1], s.fitted)


@_contract
def a_refused_fit_leaves_what_was_learned(s: Subject, _: Path) -> None:
    calibrator = copy.deepcopy(s.fitted)
    with pytest.raises(InputError):
        calibrator.fit([replace(s.cases[0], labels=None)], **s.fit_settings)
    assert_same_state(calibrator, s.fitted)
    assert calibrator.fit_report_ == s.fitted.fit_report_


# --------------------------------------------------------------------------------------------------------------------
# how it is kept


@_contract
def saved_is_what_is_loaded(s: Subject, folder: Path) -> None:
    cases = [_relabelled(case, (7, 9)) for case in s.cases]
    calibrator = s.fit(cases, ignore_index=(7, 9), background=0)
    for one in (s.fitted, calibrator):  # the second replaces the first
        one.save(folder / "saved")
    loaded = segcal.load(folder / "saved")
    logits, image = s.batch()
    assert type(loaded) is type(calibrator)
    assert loaded.config() == calibrator.config()
    assert loaded.fit_report_ == calibrator.fit_report_
    assert_same_state(loaded, calibrator)
    assert torch.equal(loaded(logits, image), calibrator(logits, image))
    assert torch.equal(loaded.predict_proba(logits, image), calibrator.predict_proba(logits, image))


@_contract
def saved_folder_holds_no_pickle(s: Subject, folder: Path) -> None:
    s.fitted.save(folder / "saved")
    found = {path.name for path in (folder / "saved").rglob("*")}
    assert found == {"segcal.json", "weights.safetensors"}
    header = (folder / "saved" / "weights.safetensors").read_bytes()
    length = int.from_bytes(header[:8], "little")
    assert json.loads(header[8 : 8 + length]).keys() - {"__metadata__"} == s.fitted.state_dict().keys()


@_contract
def state_dict_is_all_that_is_learned(s: Subject, folder: Path) -> None:
    fresh = s.make()
    fresh.load_state_dict(s.fitted.state_dict())
    logits, image = s.batch()
    assert torch.equal(fresh(logits, image), s.fitted(logits, image))
    fresh.save(folder / "saved")  # without a report, which no state_dict carries
    assert torch.equal(segcal.load(folder / "saved")(logits, image), s.fitted(logits, image))


@_contract
def building_and_loading_draw_no_random_numbers(s: Subject, folder: Path) -> None:
    s.fitted.save(folder / "saved")
    before = torch.get_rng_state()
    s.make()
    segcal.load(folder / "saved")
    assert torch.equal(torch.get_rng_state(), before)


@_contract
def config_builds_an_equal_calibrator(s: Subject, _: Path) -> None:
    for settings in ({}, {"ignore_index": 9, "background": 0}, {"ignore_index": [7, 9]}):
        calibrator = s.make(**settings)
        config = calibrator.config()
        for copied in (config, json.loads(json.dumps(config))):
            again = segcal.create(calibrator.method, **copied)
            assert again.config() == config
            assert not again.fitted


# --------------------------------------------------------------------------------------------------------------------
# where it runs


@_cuda_contract
def the_gpu_gives_what_the_cpu_gives(s: Subject, _: Path) -> None:
    logits, image = s.batch()
    moved = copy.deepcopy(s.fitted).cuda()
    there = moved(logits.cuda(), image.cuda())
    assert there.device.type == "cuda"
    torch.testing.assert_close(there.cpu(), s.fitted(logits, image), rtol=1e-4, atol=1e-5)
    for dtype in DTYPES:
        probs = moved.predict_proba(logits.cuda().to(dtype), image.cuda().to(dtype))
        assert probs.dtype == dtype
        assert not moved.preserves_labels or torch.equal(probs.argmax(1), logits.cuda().to(dtype).argmax(1))


@_cuda_contract
def fitting_on_the_gpu_gives_what_the_cpu_gives(s: Subject, folder: Path) -> None:
    there = s.make().cuda().fit(s.cases, **s.fit_settings)
    logits, image = s.batch()
    found = there(logits.cuda(), image.cuda()).cpu()
    torch.testing.assert_close(found, s.fitted(logits, image), rtol=1e-3, atol=1e-3)
    there.save(folder / "saved")
    assert segcal.load(folder / "saved").fitted.device.type == "cpu"


# --------------------------------------------------------------------------------------------------------------------
# tools


def same_state(one: Calibrator, other: Calibrator) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def assert_same_state(one: Calibrator, other: Calibrator) -> None:
    """Bitwise: fitting is repeatable."""
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), f"{name}: {a[name]} and {b[name]}"


def _stress(s: Subject) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits in every precision: usual, enormous, tiny, all equal, with winners ahead by one unit in the last place,
    and with impossible classes."""
    for dtype in DTYPES:
        usual, image = s.batch(dtype)
        largest = torch.finfo(dtype).max
        spread = usual.double() / usual.double().abs().max()
        ones = torch.ones_like(usual)
        ahead = ones.clone()
        ahead.scatter_(1, usual.argmax(dim=1, keepdim=True), 1 + torch.finfo(dtype).eps)
        huge = (spread * largest).to(dtype)
        impossible = _impossible((huge if dtype in (torch.float16, torch.float64) else usual)[0])[None]
        for logits in (usual, huge, (spread * 1e-3).to(dtype), ones, ahead, 100 * ahead, impossible):
            yield logits, image[: len(logits)]


def _impossible(logits: Tensor) -> Tensor:
    """Logits `[L, *S]` with minus infinity for the first class in the upper half, and for all but the last in a row."""
    changed = logits.clone()
    changed[0, : logits.shape[1] // 2] = -torch.inf
    changed[:-1, 0] = -torch.inf
    return changed


def _by_slabs(calibrator: Calibrator, logits: Tensor, image: Tensor) -> Tensor:
    """The first image of a batch, as a case is calibrated."""
    return torch.cat([slab.logits() for slab in calibrator.calibrate_case(Case("a", logits[0], None, image[0]))], dim=2)


def _mapped(case: Case, folder: Path) -> Case:
    names = {"logits": case.logits, "labels": case.labels, "image": case.image}
    for name, values in names.items():
        np.save(folder / f"{case.name}-{name}.npy", np.asarray(values))
    return replace(case, **{name: np.load(folder / f"{case.name}-{name}.npy", mmap_mode="r") for name in names})


def _relabelled(case: Case, marks: tuple[int, int]) -> Case:
    """Three columns at the end of the last axis labelled with one mark, and two at its start with the other."""
    labels = np.array(case.labels)
    labels[..., -3:], labels[..., :2] = marks
    return replace(case, labels=labels)


def _spoilt(case: Case, where: np.ndarray) -> Case:
    logits = np.array(case.logits)
    logits[:, where] = np.random.default_rng(1).normal(size=(logits.shape[0], int(where.sum()))) * 50
    return replace(case, logits=logits)


def _with_plain_half(case: Case) -> Case:
    """The first half of the image is background, so that most of it is far from any boundary."""
    labels = np.array(case.labels)
    labels[: len(labels) // 2 + 1] = 0
    return replace(case, labels=labels)


def _far_background(labels: np.ndarray) -> np.ndarray:
    """Background pixels that no other label is within two steps along an axis of, one by one."""
    far = np.zeros(labels.shape, bool)
    for at in np.ndindex(*labels.shape):
        near = [
            labels[(*at[:axis], at[axis] + step, *at[axis + 1 :])]
            for axis in range(labels.ndim)
            for step in (-2, -1, 1, 2)
            if 0 <= at[axis] + step < labels.shape[axis]
        ]
        far[at] = labels[at] == 0 and all(label == 0 for label in near)
    return far
