"""One-line metrics against slow loops, by hand, and against raters one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import segcal
from segcal.evidence import one_line
from segcal.types import InputError
from support import references

BINNED: dict[str, Callable[..., float]] = {
    "ece": segcal.ece,
    "mce": segcal.mce,
    "sce": segcal.sce,
    "ace": segcal.ace,
}
PROPER: dict[str, Callable[..., float]] = {"nll": segcal.nll, "brier": segcal.brier}
FORMS = ("tables", "equations", "marginal")


def arrays(classes: int = 3, seed: int = 0, size: tuple[int, ...] = (2, 9, 8)) -> tuple[np.ndarray, np.ndarray]:
    """Logits `[B, L, *S]` and labels `[B, *S]` with some of 255."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(size[0], classes, *size[1:]), scale=3).astype(np.float32)
    labels = np.where(rng.random(size) < 0.4, logits.argmax(1), rng.integers(0, classes, size))
    labels[rng.random(size) < 0.1] = 255
    return logits, labels


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("form", FORMS)
def test_every_metric_is_that_of_the_slow_loop(form: Any, bins: int) -> None:
    logits, labels = arrays()
    expected = references.readings(*references.flat(logits, np.where(labels == 255, -1, labels)), bins=bins, form=form)
    for name, function in BINNED.items():
        options = {"form": form} if name in ("sce", "ace") else {}
        found = function(logits, labels, bins=bins, ignore_index=255, **options)
        assert found == pytest.approx(expected[name], abs=1e-12), name
    for name, function in PROPER.items():
        assert function(logits, labels, ignore_index=255) == pytest.approx(expected[name], abs=1e-9), name


def test_curves_are_by_hand() -> None:
    """A wrong pixel of confidence 0.55, and right ones of 0.7 and 0.9, each in a bin of its own."""
    probs, labels = torch.tensor([[[0.7, 0.45, 0.1], [0.3, 0.55, 0.9]]]), torch.tensor([[0, 0, 1]])
    confidence, accuracy, pixels = segcal.reliability_curve(probs.log(), labels, bins=5)
    np.testing.assert_allclose(confidence, [np.nan, np.nan, 0.55, 0.7, 0.9], atol=1e-6)
    np.testing.assert_allclose(accuracy, [np.nan, np.nan, 0, 1, 1])
    assert pixels.tolist() == [0, 0, 1, 1, 1]
    assert segcal.ece(probs.log(), labels, bins=5) == pytest.approx((0.55 + 0.3 + 0.1) / 3, abs=1e-7)
    assert segcal.mce(probs.log(), labels, bins=5) == pytest.approx(0.55, abs=1e-7)
    assert segcal.nll(probs.log(), labels) == pytest.approx(-math.log(0.7 * 0.45 * 0.9) / 3)


def forms_of(logits: np.ndarray, labels: np.ndarray, folder: Path) -> dict[str, tuple[Any, Any, int]]:
    np.save(folder / "logits.npy", logits)
    return {
        "tensors": (torch.from_numpy(logits), torch.from_numpy(labels), 1),
        "mapped": (np.load(folder / "logits.npy", mmap_mode="r"), labels.astype(np.uint8), 1),
        "gradients": (torch.from_numpy(logits).requires_grad_(), labels, 1),
        "classes first": (np.moveaxis(logits, 1, 0), labels, 0),
        "classes last": (np.moveaxis(logits, 1, -1), labels, -1),
        "one image": (np.moveaxis(logits, 1, 0).reshape(3, -1, 8), labels.reshape(-1, 8), 0),
        "float64": (logits.astype(np.float64), labels.astype(">i2"), 1),
    }


@pytest.mark.parametrize("chunk", [1 << 20, 7])
def test_the_form_of_the_arrays_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(one_line, "_CHUNK", chunk)
    logits, labels = arrays()
    for name, function in {**BINNED, **PROPER}.items():
        expected = function(logits, labels, ignore_index=255)
        for form, (scores, truth, axis) in forms_of(logits, labels, tmp_path).items():
            found = function(scores, truth, ignore_index=255, class_axis=axis)
            assert found == pytest.approx(expected, abs=1e-12), (name, form)


def test_the_suite_agrees() -> None:
    logits, labels = arrays(size=(3, 12, 10))
    mask = np.arange(10) < 7
    suite = segcal.CalibrationSuite(num_classes=3, ignore_index=255)
    suite.update(torch.from_numpy(logits), torch.from_numpy(labels), torch.from_numpy(mask).expand(3, 12, 10))
    found = suite.compute()["all"]
    inside = np.broadcast_to(mask, labels.shape)
    for name, function in {**BINNED, **PROPER}.items():
        tolerance = suite.ace_error_bound()["all"] + 1e-12 if name == "ace" else 1e-12
        assert function(logits, labels, ignore_index=255, mask=inside) == pytest.approx(
            float(found[name]), abs=tolerance
        )


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), raters=st.integers(1, 5), classes=st.integers(2, 4))
def test_soft_labels_are_the_pool_of_all_raters(seed: int, raters: int, classes: int) -> None:
    """The shares of K raters give what K copies of the image give, each with the labels of one rater."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(2, classes, 6, 5), scale=2)
    votes = rng.integers(0, classes, (raters, 2, 6, 5))
    shares = np.moveaxis(np.eye(classes)[votes].mean(axis=0), -1, 1)
    copies, every = np.concatenate([logits] * raters), np.concatenate(list(votes))
    for name in ("ece", "mce", "sce", "nll", "brier"):
        function = {**BINNED, **PROPER}[name]
        assert function(logits, shares) == pytest.approx(function(copies, every), abs=1e-9), name
    assert segcal.sce(logits, shares, form="marginal") == pytest.approx(
        segcal.sce(copies, every, form="marginal"), abs=1e-9
    )


@pytest.mark.parametrize("form", FORMS)
def test_one_hot_shares_are_labels(form: Any) -> None:
    logits, labels = arrays()
    mask = labels != 255
    shares = np.moveaxis(np.eye(3)[np.where(mask, labels, 0)], -1, 1)
    for name, function in {**BINNED, **PROPER}.items():
        options = {"form": form} if name in ("sce", "ace") else {}
        hard = function(logits, labels, ignore_index=255, **options)
        assert function(logits, shares, mask=mask, **options) == pytest.approx(hard, abs=1e-12), name


def test_the_least_score_of_soft_labels_is_their_own_spread() -> None:
    shares = np.array([[[0.5, 1.0], [0.3, 0.0], [0.2, 0.0]]])
    logits = np.log(np.maximum(shares, 1e-300))
    entropy = -(0.5 * math.log(0.5) + 0.3 * math.log(0.3) + 0.2 * math.log(0.2)) / 2
    assert segcal.nll(logits, shares) == pytest.approx(entropy)
    assert segcal.brier(logits, shares) == pytest.approx((1 - 0.25 - 0.09 - 0.04) / 2)


@pytest.mark.parametrize("soft", [False, True])
def test_one_logit_heads_are_their_two_classes(soft: bool) -> None:
    logits, labels = arrays(classes=1)
    truth: Any = (labels == 0).astype(np.int64)
    two, both = np.concatenate([0 * logits, logits], axis=1), truth
    if soft:
        truth = np.random.default_rng(0).random(logits.shape)
        both = np.concatenate([1 - truth, truth], axis=1)
    for name, function in {**BINNED, **PROPER}.items():
        assert function(logits, truth) == pytest.approx(function(two, both), abs=1e-12), name


@pytest.mark.parametrize("classes", [1, 4])
def test_a_class_that_is_impossible_counts_as_in_the_suite(classes: int) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = 3 * torch.randn(2, classes, 9, 7, generator=generator)
    impossible = torch.rand(logits.shape, generator=generator) < 0.3
    impossible[:, classes // 2 : classes // 2 + 1] &= classes == 1  # one class of a softmax remains
    logits[impossible] = -torch.inf
    labels = torch.randint(0, max(2, classes), (2, 9, 7), generator=generator)
    suite = segcal.CalibrationSuite(num_classes=classes)
    suite.update(logits, labels)
    pooled = suite.compute()["all"]
    for name in ("ece", "sce", "nll", "brier"):
        assert getattr(segcal, name)(logits, labels) == pytest.approx(float(pooled[name]), abs=1e-12), name
    assert math.isfinite(segcal.nll(logits, labels))
    assert math.isfinite(segcal.ace(logits, labels, form="marginal"))


def test_no_pixel_gives_nan() -> None:
    logits, labels = arrays()
    for function in (*BINNED.values(), *PROPER.values()):
        assert math.isnan(function(logits, np.full_like(labels, 255), ignore_index=255))


@pytest.mark.parametrize(
    ("logits", "labels", "options", "message"),
    [
        (np.zeros((3, 4, 5)), np.zeros((4, 5), int), {}, r"add a batch axis: give logits\[None\] and labels\[None\]"),
        (np.zeros((2, 4, 5, 3)), np.zeros((2, 4, 5), int), {}, "the classes are last .* np.moveaxis"),
        (np.zeros((2, 3, 4)), np.zeros((2, 3, 4), int), {}, r"if the labels are one-hot, give labels\.argmax\(1\)"),
        (np.zeros((2, 3, 4)), np.full((2, 4), 3), {}, "labels must be in 0..2, got 3"),
        (np.zeros((2, 3, 4)), np.zeros((2, 4), int), {"bins": 0}, "bins must be at least 1"),
        (np.zeros((2, 3, 4)), np.zeros((2, 4), int), {"class_axis": 3}, "class_axis must be an axis .* got 3"),
        (np.zeros((2, 3, 4)), np.zeros((2, 4), int), {"mask": np.ones((2, 5), bool)}, "mask must have shape"),
        (np.zeros((2, 3, 4), int), np.zeros((2, 4), int), {}, "floating point, got torch.int64; convert"),
        (np.zeros((2, 3, 4)), np.full((2, 3, 4), 0.5), {}, r"sum to 1 over the classes, got \(0.5, 0.5, 0.5\)"),
        (np.zeros((2, 3, 4)), np.full((2, 3, 4), -1.0), {}, "shares in 0..1"),
    ],
)
def test_mistakes_are_named(logits: np.ndarray, labels: np.ndarray, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        segcal.ece(logits, labels, **options)


def test_a_wrong_form_is_named() -> None:
    logits, labels = arrays()
    with pytest.raises(InputError, match="form must be 'tables', 'equations' or 'marginal', got 'top'"):
        segcal.sce(logits, labels, form="top")  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [segcal.ece, segcal.ace, segcal.nll])
def test_probabilities_are_named_not_guessed(function: Callable[..., float]) -> None:
    logits, labels = arrays()
    probs = torch.from_numpy(logits).double().softmax(1)
    with pytest.raises(InputError, match=r'look like probabilities: .*; pass scores="probabilities"'):
        function(probs, labels, ignore_index=255)
    with pytest.raises(InputError, match=r"probabilities must be in 0\.\.1"):
        function(logits, labels, ignore_index=255, scores="probabilities")
    with pytest.raises(InputError, match="scores must be 'logits' or 'probabilities', got 'softmax'"):
        function(logits, labels, ignore_index=255, scores="softmax")
    found = function(probs, labels, ignore_index=255, scores="probabilities")
    assert found == pytest.approx(function(logits, labels, ignore_index=255), rel=1e-9)


@pytest.mark.parametrize("class_axis", [1, -1])
@pytest.mark.parametrize("soft", [False, True])
def test_sigmoid_channels_are_the_mean_of_their_two_classes(class_axis: int, soft: bool) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(scale=3, size=(2, 3, 5, 6))
    masks = (logits + random.logistic(size=logits.shape) > 0).astype(int)
    masks[:, :, 0] = 9  # ignored
    truth = random.random(logits.shape) if soft else masks
    options: dict[str, Any] = {} if soft else {"ignore_index": 9}
    moved = [np.moveaxis(values, 1, class_axis) for values in (logits, truth)]
    for name, measure in {**BINNED, **PROPER}.items():
        each = [measure(logits[:, [k]], truth[:, [k]] if soft else truth[:, k], **options) for k in range(3)]
        found = measure(*moved, class_axis=class_axis, activation="sigmoid", **options)
        assert found == pytest.approx(np.mean(each), rel=1e-12), name


def test_sigmoid_channels_are_those_of_the_suite() -> None:
    random = np.random.default_rng(1)
    logits = random.normal(scale=3, size=(2, 3, 5, 6))
    masks = (logits + random.logistic(size=logits.shape) > 0).astype(int)
    suite = segcal.CalibrationSuite(3, activation="sigmoid")
    suite.update(torch.from_numpy(logits), torch.from_numpy(masks))
    for name in ("ece", "mce", "sce", "nll", "brier"):
        found = getattr(segcal, name)(logits, masks, activation="sigmoid")
        assert found == pytest.approx(float(suite.compute()["all"][name]), rel=1e-9), name
    curve = segcal.reliability_curve(logits, masks, activation="sigmoid")
    np.testing.assert_array_equal(curve.pixels, suite.compute_curves()["all"]["pixels"].numpy())


def test_labels_of_channels_need_their_axis() -> None:
    with pytest.raises(InputError, match=r"labels of sigmoid channels must have the shape \(2, 3, 4, 5\)"):
        one_line.ece(np.zeros((2, 3, 4, 5)), np.zeros((2, 4, 5), int), activation="sigmoid")


@pytest.mark.parametrize(
    "wrong", [[[[0, 1]]], np.zeros((1, 2, 3), np.longdouble), torch.zeros(1, 2, 3).to_sparse(), None]
)
def test_anything_but_arrays_of_numbers_is_refused(wrong: Any) -> None:
    logits, labels = torch.randn(1, 2, 3), torch.zeros(1, 3, dtype=torch.int64)
    for change in ({"logits": wrong}, {"labels": wrong}, *([] if wrong is None else [{"mask": wrong}])):
        with pytest.raises(InputError, match="arrays must hold real numbers"):
            segcal.ece(**{"logits": logits, "labels": labels, **change})
