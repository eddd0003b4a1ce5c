"""Probabilities, NLL, Brier score and entropy against loops; the label guarantee in every precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from segcal.functional.probability import (
    at_least_float32,
    entropy,
    keep_labels,
    keep_sides,
    log_probabilities,
    logits_from_probabilities,
    logits_from_scores,
    logits_from_sigmoid,
    next_below,
    possible_logits,
    probabilities,
)
from segcal.types import InputError
from support import references

HALVES = (torch.float16, torch.bfloat16)
DTYPES = (*HALVES, torch.float32, torch.float64)
TOLERANCE = {torch.float16: 1e-5, torch.bfloat16: 1e-5, torch.float32: 1e-5, torch.float64: 1e-12}
SPACES = [(), (7,), (3, 4), (2, 3, 4)]


def scores(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float64, spread: float = 4.0) -> Tensor:
    return torch.from_numpy(rng.normal(scale=spread, size=shape)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("classes", [1, 2, 5])
def test_pixel_values_agree_with_loops(
    rng: np.random.Generator, dtype: torch.dtype, space: tuple[int, ...], classes: int
) -> None:
    logits = scores(rng, 2, classes, *space, dtype=dtype)
    labels = torch.from_numpy(rng.integers(0, classes, (2, *space)))
    z, _ = references.flat(logits.double(), labels)
    probs = references.softmax(z)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    assert probabilities(logits).dtype == (torch.float32 if dtype in HALVES else dtype)
    np.testing.assert_allclose(references.flat(probabilities(logits), labels)[0], probs, **close)
    np.testing.assert_allclose(references.flat(log_probabilities(logits).exp(), labels)[0], probs, **close)
    found = entropy(logits)
    assert found.shape == (2, *space)
    np.testing.assert_allclose(found.reshape(-1), -(probs * np.log(probs)).sum(0), **close)


def test_a_pixel_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.float64)  # probabilities 1/4 and 3/4
    assert entropy(logits).item() == pytest.approx(math.log(4) - 3 / 4 * math.log(3), abs=1e-15)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_logits_of_ten_thousand_are_no_problem(dtype: torch.dtype) -> None:
    logits = torch.tensor([[[1e4, -1e4, 1e4], [-1e4, 1e4, 1e4]]], dtype=dtype)
    assert probabilities(logits).tolist() == [[[1, 0, 0.5], [0, 1, 0.5]]]
    np.testing.assert_allclose(entropy(logits)[0], [0, 0, math.log(2)], rtol=1e-6)


@given(shift=st.floats(-1e4, 1e4), seed=st.integers(0, 99))
def test_adding_a_number_to_all_logits_changes_nothing(shift: float, seed: int) -> None:
    logits = scores(np.random.default_rng(seed), 2, 4, 3)
    torch.testing.assert_close(probabilities(logits + shift), probabilities(logits), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(entropy(logits + shift), entropy(logits), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_probabilities_survive_the_way_to_logits_and_back(rng: np.random.Generator, dtype: torch.dtype) -> None:
    probs = probabilities(scores(rng, 2, 5, 50)).to(dtype)
    probs[:, :, 0] = torch.tensor([1.0, 0, 0, 0, 0], dtype=dtype)
    back = probabilities(logits_from_probabilities(probs))
    # half-precision probabilities do not sum to 1, and softmax makes them
    wide = at_least_float32(probs)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(back, wide / wide.sum(1, keepdim=True), rtol=tolerance, atol=tolerance)
    assert logits_from_probabilities(probs).isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_logits_of_neighbouring_probabilities_have_their_argmax(rng: np.random.Generator, dtype: torch.dtype) -> None:
    """The two largest of each pixel are a few units in the last place apart, in random order."""
    classes, pixels = 7, 4096
    top = torch.from_numpy(rng.uniform(1 / classes, 0.5, pixels)).to(dtype)
    rival = top
    for _ in range(3):
        rival = torch.where(torch.from_numpy(rng.random(pixels) < 0.6), next_below(rival), rival)
    probs = torch.zeros(1, classes, pixels, dtype=dtype)
    order = torch.from_numpy(np.argsort(rng.random((classes, pixels)), axis=0))
    probs[0].scatter_(0, order[:1], top[None]).scatter_(0, order[1:2], rival[None])
    probs[0].scatter_(0, order[2:3], (1 - top - rival).clamp(min=0)[None])
    logits = logits_from_probabilities(probs)
    assert torch.equal(logits.argmax(1), probs.argmax(1))
    # the plain logarithm, for comparison: this is what must not happen
    merged = probs.to(logits.dtype).clamp(min=torch.finfo(torch.float32).tiny).log()
    assert dtype in HALVES or not torch.equal(merged.argmax(1), probs.argmax(1))
    torch.testing.assert_close(logits, merged, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(
    seed=st.integers(0, 2**32 - 1),
    temperature=st.one_of(st.floats(0.05, 100), st.just(100.0)),
    spread=st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 30.0]),
    stored=st.sampled_from(DTYPES),
)
def test_the_winner_stays_the_winner(
    dtype: torch.dtype, seed: int, temperature: float, spread: float, stored: torch.dtype
) -> None:
    """Logits divided by a temperature, and their probabilities, in any precision that they are written in."""
    logits = scores(np.random.default_rng(seed), 1, 7, 200, dtype=dtype, spread=spread) + 1
    winner = logits.argmax(1)
    scaled = at_least_float32(logits) / temperature
    for values in (scaled.to(stored), probabilities(scaled).to(stored)):
        kept = keep_labels(values, logits)
        assert kept.dtype == stored
        assert torch.equal(kept.argmax(1), winner)
        moved = kept != values
        assert torch.equal(kept[moved], next_below(values)[moved])


def test_rivals_of_a_tie_by_hand() -> None:
    """Classes 1 and 2 share the largest logit, so class 1 wins; class 0 only seems to have reached them."""
    logits = torch.tensor([[1.0, 1.0 + 2**-23, 1.0 + 2**-23]])
    tied = torch.full((1, 3), 0.5, dtype=torch.float16)
    kept = keep_labels(tied, logits)
    assert kept.argmax(1).item() == 1
    assert kept.tolist() == [[0.5 - 2**-12, 0.5, 0.5]]


@pytest.mark.parametrize("graph", [False, True])
def test_a_rival_that_rounding_put_above_the_winner_by_hand(graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class 1 wins, and class 0 is three units in the last place above it, so that one step down is not enough."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: graph)
    logits = torch.tensor([[2.0, 3.0, 1.0]])
    kept = keep_labels(torch.tensor([[1.0 + 3 * 2**-23, 1.0, 0.5]]), logits)
    below = 1.0 - 4 * 2**-23 if graph else 1.0 - 2**-24
    assert kept.tolist() == [[below, 1.0, 0.5]]


@pytest.mark.parametrize("graph", [False, True])
def test_a_rival_that_no_rounding_put_above_the_winner_stays(graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To hide it would give probabilities that do not sum to 1, and no check of the labels would find the method."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: graph)
    changed = torch.tensor([[0.7, 0.2, 0.1]])
    assert keep_labels(changed, torch.tensor([[2.0, 3.0, 1.0]])).equal(changed)


@pytest.mark.parametrize(("torch_type", "numpy_type"), [(torch.float32, np.float32), (torch.float64, np.float64)])
@given(data=st.data())
def test_next_below_is_that_of_numpy(torch_type: torch.dtype, numpy_type: type, data: st.DataObject) -> None:
    width = 32 if torch_type == torch.float32 else 64
    finite = st.floats(allow_nan=False, allow_infinity=False, width=width).filter(
        lambda x: x > np.finfo(numpy_type).min
    )
    values = [0.0, -0.0, 1.0, -1.0, 0.5, *data.draw(st.lists(finite, max_size=20))]
    found, tiny = next_below(torch.tensor(values, dtype=torch_type)).numpy(), np.finfo(numpy_type).tiny
    below = np.nextafter(np.array(values, numpy_type), numpy_type(-np.inf))
    np.testing.assert_array_equal(found, np.where(np.abs(np.array(values, numpy_type)) < tiny, -tiny, below))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_next_below_goes_through_all_half_precision_numbers_in_order(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = every[every.isfinite()].double().unique().to(dtype)  # ascending; 0 and -0 are one
    below, values = next_below(finite[1:]).double(), finite.double()
    denormal = (values.abs() < torch.finfo(dtype).tiny)[1:] & (dtype == torch.bfloat16)  # which may compare as 0
    assert torch.equal(below[~denormal], values[:-1][~denormal])
    assert below[denormal].unique().tolist() == ([-torch.finfo(dtype).tiny] if denormal.any() else [])


def test_an_exported_graph_keeps_labels_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot look at the bits of a number, so rivals move by 4 units in the last place, and by no more."""
    logits = torch.tensor([[1.0, 1.0 + 2**-23, 0.5]])
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for value in (3e-5, 0.5, 1.0, 100.0):
        kept = keep_labels(torch.full((1, 3), value), logits)
        assert kept.argmax(1).item() == 1
        below = kept[0, [0, 2]].double()
        assert kept[0, 1].item() == torch.tensor(value).item()
        assert ((kept[0, 1].double() - below) / value).tolist() == pytest.approx([4 * 2**-23] * 2, rel=0.2)


# --------------------------------------------------------------------------------------------------------------------
# sigmoid channels, and scores that do not sum to 1


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20))
def test_sigmoid_probabilities_there_and_back(values: list[float]) -> None:
    probs = torch.tensor(values)
    logits = logits_from_sigmoid(probs)
    assert logits.isfinite().all()
    torch.testing.assert_close(torch.sigmoid(logits), probs)
    assert torch.equal(logits > 0, probs > 0.5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sides_are_kept_in_every_precision(dtype: torch.dtype) -> None:
    tiny = torch.finfo(torch.float32).tiny
    logits = torch.tensor([0.0, tiny, -tiny, 1e-4, -1e-4, 30.0, -30.0])
    kept = keep_sides(torch.sigmoid(logits / 100).to(dtype), logits)
    assert kept.dtype == dtype
    assert torch.equal(kept > 0.5, logits > 0)
    torch.testing.assert_close(kept.double(), torch.sigmoid(logits.double() / 100), rtol=1e-2, atol=0)
    above = torch.tensor([0.75, 0.25], dtype=dtype)
    assert torch.equal(keep_sides(above, torch.tensor([1.0, -1.0])), above)  # nothing else moves


def test_scores_of_queries_by_hand() -> None:
    """Two queries of a mask classifier at two pixels: class probabilities times mask probabilities, summed."""
    classes = torch.tensor([[0.8, 0.1], [0.2, 0.6]])  # query, class; the rest is "no object"
    masks = torch.tensor([[0.9, 0.1], [0.5, 0.0]])  # query, pixel
    scores = torch.einsum("qc,qp->cp", classes, masks)[None]
    torch.testing.assert_close(scores[0], torch.tensor([[0.82, 0.08], [0.39, 0.01]]))
    found = probabilities(logits_from_scores(scores))
    torch.testing.assert_close(found[0, :, 0], torch.tensor([0.82, 0.39]) / 1.21)
    torch.testing.assert_close(found[0, :, 1], torch.tensor([8.0, 1.0]) / 9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(data=st.data())
def test_scores_keep_their_argmax(dtype: torch.dtype, data: st.DataObject) -> None:
    """Also where scores are neighbours, zero or subnormal, and whatever they sum to."""
    base = data.draw(st.lists(st.floats(0, 3e4, width=16), min_size=2, max_size=6))
    scores = torch.tensor(base, dtype=dtype)
    neighbours = next_below(scores.clamp(min=torch.finfo(dtype).tiny))
    every = torch.stack([scores, neighbours, torch.where(scores > 0, neighbours, scores)])
    stacked = torch.cat([every, every.flip(1)], dim=1)
    found = logits_from_scores(stacked)
    assert found.isfinite().all()
    assert torch.equal(found.argmax(1), stacked.argmax(1))


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_scores_must_be_finite_and_nonnegative(value: float) -> None:
    with pytest.raises(InputError, match="scores must be finite and at least 0"):
        logits_from_scores(torch.tensor([[0.5, value]]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_impossible_classes_have_the_logit_of_probability_zero(dtype: torch.dtype) -> None:
    """It is 87.3 below the largest, or next to it where the number is too large for that difference, and finite."""
    limits, inf = torch.finfo(dtype), math.inf
    huge = 2.0 ** (14 if dtype == torch.float16 else 100)
    logits = torch.tensor([[3.0, -inf, -7.5], [-200.0, -201.0, -inf], [-inf, huge, 0.0], [-inf, -huge, -inf],
                           [limits.min, -inf, -inf]], dtype=dtype)  # fmt: skip
    top = logits.amax(dim=1, keepdim=True)
    found = possible_logits(logits, top)
    impossible = torch.isneginf(logits)
    assert found.dtype == dtype
    assert torch.equal(found[~impossible], logits[~impossible])
    by_hand = torch.tensor([3 - 87.3365447505531, -200 - 87.3365447505531], dtype=torch.float64)
    torch.testing.assert_close(found[[0, 1], [1, 2]].double(), by_hand, rtol=float(limits.eps), atol=0)
    below = (top - found)[2:4].double()[impossible[2:4]] / huge
    assert ((below > 0) & (below <= max(8 * limits.eps, 100 / huge))).all()
    assert found.isfinite().all()
    assert (found[4] == limits.min).all()
