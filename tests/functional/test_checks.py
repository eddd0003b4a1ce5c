"""What comes from outside is checked once; the message says what was required, what was got and what to do."""

from __future__ import annotations

import re
from inspect import unwrap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.functional.checks import (
    IGNORED,
    activation_of,
    check_labels,
    check_logits,
    check_same_space,
    check_shares,
    ignored_labels,
    probability_doubt,
)
from segcal.types import InputError

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize(
    ("given_index", "expected"),
    [
        (None, ()),
        (3, (3,)),
        (-1, (-1,)),
        ([255, 0], (255, 0)),
        ((), ()),
        (np.int64(7), (7,)),
    ],
)
def test_ignore_index_is_one_several_or_none(given_index: object, expected: tuple[int, ...]) -> None:
    assert unwrap(ignored_labels)(given_index) == expected  # as users call it, without the shape checks of the tests


@pytest.mark.parametrize("wrong", [1.5, [0.5], "255"])
def test_ignore_index_is_never_rounded(wrong: object) -> None:
    with pytest.raises(TypeError):
        unwrap(ignored_labels)(wrong)


@given(
    labels=st.lists(st.integers(-5, 9), max_size=20),
    ignored=st.lists(st.integers(-5, 9), max_size=3),
    classes=st.integers(1, 7),
)
def test_labels_are_kept_ignored_or_refused(labels: list[int], ignored: list[int], classes: int) -> None:
    expected = [IGNORED if y in ignored else y for y in labels]
    stray = [y for y in labels if y not in ignored and not 0 <= y < classes]
    given_labels = torch.tensor(labels, dtype=torch.int16)
    if stray:
        at = next(i for i, y in enumerate(labels) if y == stray[0])
        with pytest.raises(InputError, match=re.escape(f"got {stray[0]} at ({at},)")):
            check_labels(given_labels, classes, ignored)
    else:
        found = check_labels(given_labels, classes, ignored)
        assert found.dtype == torch.int64
        assert found.tolist() == expected


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer_type_is_widened(dtype: torch.dtype) -> None:
    found = check_labels(torch.tensor([[0, 2], [1, 5]], dtype=dtype), 3, 5)
    assert found.dtype == torch.int64
    assert found.tolist() == [[0, 2], [1, IGNORED]]


@pytest.mark.parametrize("ignore_index", [-1, 300, (-1, 300), 511])
def test_an_ignored_label_outside_uint8_does_not_wrap(ignore_index: int | tuple[int, ...]) -> None:
    labels = torch.tensor([255, 44, 0], dtype=torch.uint8)  # -1, 300 and 511 modulo 256 are 255, 44 and 255
    assert check_labels(labels, 256, ignore_index).tolist() == [255, 44, 0]
    with pytest.raises(InputError, match="got 255 at"):
        check_labels(labels, 45, ignore_index)


def test_the_caller_keeps_its_labels() -> None:
    labels = torch.tensor([0, 255, 1])
    check_labels(labels, 2, 255)
    assert labels.tolist() == [0, 255, 1]


@pytest.mark.parametrize(
    ("labels", "classes", "ignored", "message"),
    [
        (
            [[0, 1], [12, 0]],
            11,
            11,
            "labels must be in 0..10 or ignore_index=11, got 12 at (1, 0) of case 'a'; set ignore_index or num_classes",
        ),
        ([[0, 3]], 3, None, "labels must be in 0..2, got 3 at (0, 1) of case 'a'"),
        ([[0, -1]], 3, 255, "labels must be in 0..2 or ignore_index=255, got -1 at (0, 1)"),
        ([[0, -1, 255]], 3, 255, "got -1 at (0, 1)"),
        ([[0, -2]], 3, (-1, 9), "labels must be in 0..2 or ignore_index=(-1, 9), got -2 at (0, 1)"),
    ],
)
def test_a_wrong_label_is_named_with_its_place(
    labels: list[list[int]], classes: int, ignored: int | tuple[int, ...] | None, message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        check_labels(torch.tensor(labels), classes, ignored, of="case 'a'")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_labels_must_be_integers(dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match=f"labels must be integers, got {dtype} of x; convert"):
        check_labels(torch.zeros(2, dtype=dtype), 3, of="x")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_logit_that_is_not_finite_is_named_with_its_place(dtype: torch.dtype, value: float) -> None:
    logits = torch.zeros(2, 3, 4, dtype=dtype)
    logits[1, 2, 3] = value
    message = f"logits must be finite, or -inf for an impossible class, got {value} at (1, 2, 3) of x; save the"
    with pytest.raises(InputError, match=re.escape(message)):
        check_logits(logits, 3, class_axis=1, of="x")
    with pytest.raises(InputError, match=re.escape(f"got {value} at (2, 13) of x")):
        check_logits(logits[1], 3, class_axis=0, start=10, of="x")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_impossible_class_gets_the_least_probability(dtype: torch.dtype) -> None:
    logits = torch.tensor([[5.0, 1.0], [-torch.inf, 2.0], [3.0, -torch.inf]], dtype=dtype)
    before = logits.clone()
    found = check_logits(logits, 3, class_axis=0)
    expected = torch.tensor([[5.0, 1.0], [5 - 87.33654, 2.0], [3.0, 2 - 87.33654]], dtype=torch.float64).to(dtype)
    torch.testing.assert_close(found, expected)
    assert found.dtype == dtype
    assert torch.equal(logits, before)
    with pytest.raises(
        InputError, match=re.escape("must be possible at each pixel, got -inf at (11,) of x; correct the scores")
    ):
        check_logits(torch.tensor([[0.0, -torch.inf]] * 3, dtype=dtype), 3, class_axis=0, start=10, of="x")


def test_opposite_infinities_do_not_hide_each_other() -> None:
    with pytest.raises(InputError, match=re.escape("got inf at (0, 0)")):
        check_logits(torch.tensor([[torch.inf, -torch.inf]]), 2, class_axis=1)


@pytest.mark.parametrize(("shape", "axis"), [((1, 4, 5), 1), ((4, 5), 0), ((3,), 1), ((1, 3, 4), 2), ((), 0)], ids=str)
def test_logits_must_have_the_classes_on_their_axis(shape: tuple[int, ...], axis: int) -> None:
    message = f"logits must have num_classes=3 entries along axis {axis}, got shape {shape}; set num_classes or fix"
    with pytest.raises(InputError, match=re.escape(message)):
        check_logits(torch.zeros(shape), 3, class_axis=axis)


def test_logits_must_be_floating_point() -> None:
    with pytest.raises(InputError, match=r"logits must be floating point, got torch\.int64; convert"):
        check_logits(torch.zeros(1, 2, dtype=torch.int64), 2, class_axis=1)


@pytest.mark.parametrize(("axis", "fits"), [(1, (2, 4, 5)), (0, (3, 4, 5))])
def test_labels_must_cover_the_space_of_the_logits(axis: int, fits: tuple[int, ...]) -> None:
    logits = torch.zeros(2, 3, 4, 5)
    check_same_space(logits, torch.zeros(fits), class_axis=axis)
    message = f"mask must have shape {fits} to match logits of shape (2, 3, 4, 5), got (4, 5) of x; resample"
    with pytest.raises(InputError, match=re.escape(message)):
        check_same_space(logits, torch.zeros(4, 5), class_axis=axis, what="mask", of="x")


OVERLAP = (
    ", or activation='sigmoid' if they overlap (--activation sigmoid); "
    "shares of several raters become label maps with segcal.rater_cases"
)


@pytest.mark.parametrize(
    ("logits", "labels", "axis", "remedy"),
    [
        ((4, 5, 3), (4, 5), 0, "the classes are last in the logits: give np.moveaxis(logits, -1, 0)"),
        ((2, 4, 5, 3), (2, 4, 5), 1, "the classes are last in the logits: give np.moveaxis(logits, -1, 1)"),
        ((1, 3, 4, 5), (4, 5), 0, "a case has no batch axis: give logits[0]"),
        ((1, 3, 4, 5), (1, 4, 5), 0, "a case has no batch axis: give logits[0] and labels[0]"),
        ((3, 4, 5), (1, 4, 5), 0, "the labels have an axis of one: give labels[0]"),
        ((2, 3, 4, 5), (2, 1, 4, 5), 1, "the labels have an axis of one: give labels[:, 0]"),
        ((3, 4, 5), (4, 5), 1, "add a batch axis: give logits[None] and labels[None]"),
        ((3, 4, 5), (3, 4, 5), 0, f"if the labels are one-hot, give labels.argmax(0){OVERLAP}"),
        ((2, 3, 4, 5), (2, 3, 4, 5), 1, f"if the labels are one-hot, give labels.argmax(1){OVERLAP}"),
        ((3, 4, 5), (5, 4), 0, "the axes are in another order: transpose the logits or the labels"),
        ((3, 4, 5), (8, 10), 0, "resample one to the other"),
    ],
)
def test_each_mistake_of_shape_has_its_own_remedy(
    logits: tuple[int, ...], labels: tuple[int, ...], axis: int, remedy: str
) -> None:
    with pytest.raises(InputError, match=re.escape(f"got {labels}; {remedy}") + "$"):
        check_same_space(torch.zeros(logits), torch.zeros(labels), class_axis=axis)


@pytest.mark.parametrize(
    ("shape", "axis", "remedy"),
    [
        ((4, 5, 3), 0, "the classes are on the last axis: give np.moveaxis(logits, -1, 0)"),
        ((2, 4, 5, 3), 1, "the classes are on the last axis: give np.moveaxis(logits, -1, 1)"),
        ((1, 3, 4, 5), 0, "a case has no batch axis: give logits[0]"),
        ((1, 3, 4), 0, "a case has no batch axis: give logits[0]"),
        ((3, 4, 5), 1, "add a batch axis: give logits[None] and labels[None]"),
        ((1, 3), 0, "the classes are on the last axis: give np.moveaxis(logits, -1, 0)"),
        ((3, 7), 1, "set num_classes or fix the logits"),  # three pixels of seven classes
        ((4, 5), 0, "set num_classes or fix the logits"),
        ((2, 1, 4, 5), 1, "set num_classes=1 and activation='sigmoid' (--activation sigmoid)"),
    ],
)
def test_classes_on_another_axis_are_found(shape: tuple[int, ...], axis: int, remedy: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"got shape {shape}; {remedy}") + "$"):
        check_logits(torch.zeros(shape), 3, class_axis=axis)


# --------------------------------------------------------------------------------------------------------------------
# probabilities given as logits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 40), (11, 30, 40), (5, 12, 14, 16)], ids=str)
def test_probabilities_are_noticed_and_logits_are_not(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    logits = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    probs = logits.softmax(0).to(dtype)
    assert "look like probabilities" in str(probability_doubt(probs))
    for other in (logits, logits.sigmoid(), logits.log_softmax(0), 2 * probs, probs - 0.1, logits.abs()):
        assert probability_doubt(other.to(dtype)) is None


def test_probabilities_with_some_empty_pixels_are_noticed() -> None:
    """Padding of zeros, as resampling leaves it outside of the field of view."""
    probs = np.random.default_rng(0).dirichlet([1, 1, 1], (60, 50)).transpose(2, 0, 1)
    probs[:, :3] = 0
    assert probability_doubt(probs) is not None
    probs[:, :30] = 0
    assert probability_doubt(probs) is None


@pytest.mark.parametrize("few", [np.full((2, 3), 0.5), np.full((2, 99), 0.5), np.ones((1, 9, 9)), np.ones(3)], ids=str)
def test_few_or_equal_pixels_and_one_channel_say_nothing(few: np.ndarray) -> None:
    assert probability_doubt(few) is None


@pytest.mark.parametrize("label", [2**63, -(2**63) - 1, 10**300])
def test_ignored_labels_must_fit_64_bits(label: int) -> None:
    with pytest.raises(InputError, match=f"64 bits, got {label}; correct ignore_index"):
        check_labels(torch.tensor([0, 1]), 2, ignore_index=[255, label])
    limits = (2**63 - 1, -(2**63))
    assert check_labels(torch.tensor([0, *limits]), 2, ignore_index=limits).tolist() == [0, -1, -1]


def test_an_impossible_class_is_rounded_once_in_half_precision() -> None:
    """Rounding 87.3365 to half precision before the subtraction would give a neighbour of the nearest number."""
    tops = torch.linspace(0, 10, 321)
    logits = torch.stack([tops, torch.full_like(tops, -torch.inf)]).half()
    found = check_logits(logits, 2, class_axis=0)[1]
    exact = np.asarray(logits[0], np.float64) + np.log(np.finfo(np.float32).tiny)
    np.testing.assert_array_equal(found.numpy(), exact.astype(np.float16))


@pytest.mark.parametrize("two_classes", [False, True])
def test_sigmoid_probabilities_given_as_logits_are_doubted(two_classes: bool) -> None:
    z = 4 * torch.randn(1, 6, 7, generator=torch.Generator().manual_seed(0))

    def shown(channel: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(channel), channel]) if two_classes else channel

    assert "sigmoid channel look like probabilities" in str(probability_doubt(shown(z.sigmoid())))
    assert probability_doubt(shown(z)) is None
    assert probability_doubt(shown(0.2 + 0.1 * z.sigmoid())) is None  # of a network that was hardly trained
    assert probability_doubt(shown(torch.zeros_like(z))) is None  # an empty image says nothing


@pytest.mark.parametrize(
    ("given_activation", "classes", "expected"),
    [(None, 1, "sigmoid"), (None, 2, "softmax"), ("sigmoid", 3, "sigmoid"), ("softmax", 2, "softmax")],
)
def test_the_activation_is_the_softmax_unless_one_channel_is_alone(
    given_activation: str | None, classes: int, expected: str
) -> None:
    assert activation_of(given_activation, classes) == expected


def test_activations_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match="activation must be softmax or sigmoid, got 'relu'"):
        activation_of("relu", 3)
    with pytest.raises(InputError, match="at least 2 classes, got num_classes=1"):
        activation_of("softmax", 1)


def test_soft_labels_are_shares() -> None:
    fine = torch.tensor([[0.0, 1.0, 0.25], [1.0, 0.0, 0.7491]], dtype=torch.float64)
    check_shares(fine, 2)
    check_shares(torch.tensor([[0.0, 0.3, 1.0]], dtype=torch.float64), 1)  # one channel need not sum to anything
    for column, shown in (
        ([0.5, 0.4985], "0.5, 0.4985"),
        ([-0.001, 1.001], "-0.001, 1.001"),
        ([1.5, -0.5], "1.5, -0.5"),
    ):
        wrong = fine.clone()
        wrong[:, 1] = torch.tensor(column)
        with pytest.raises(InputError, match=re.escape(f"got ({shown}) at a pixel")):
            check_shares(wrong, 2)
    with pytest.raises(InputError, match=re.escape("got (1.2)")):
        check_shares(torch.tensor([[0.5, 1.2]], dtype=torch.float64), 1)


def test_a_single_score_above_one_shows_that_they_are_no_probabilities() -> None:
    probs = torch.rand(100, generator=torch.Generator().manual_seed(0))
    scores = torch.stack([probs, 1 - probs])
    assert probability_doubt(scores) is not None
    scores[0, 7] = 1.5
    assert probability_doubt(scores) is None


def test_scores_look_like_probabilities_if_nine_tenths_of_the_pixels_sum_to_one() -> None:
    probs = torch.rand(100, generator=torch.Generator().manual_seed(0)) / 2
    scores = torch.stack([probs, 1 - probs])
    scores[1, :10] -= 0.4
    assert probability_doubt(scores) is not None
    scores[1, 10] -= 0.4
    assert probability_doubt(scores) is None


@pytest.mark.parametrize(("value", "classes", "halved"), [(255, 2, True), (254, 2, False), (255, 3, False)])
def test_masks_of_0_and_255_have_their_own_remedy(value: int, classes: int, halved: bool) -> None:
    remedy = "divide masks of 0 and 255 by 255" if halved else "set ignore_index or num_classes"
    with pytest.raises(InputError, match=f"got {value} at .*; {remedy}"):
        check_labels(torch.tensor([0, value]), classes, None)
