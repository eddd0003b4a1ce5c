"""Half precision on the CPU: every number there and back, and divided logits that are those of the plain form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from segcal.functional.division import scaled_logits, scaled_probabilities
from segcal.kernels.cpu.half import HALVES, LARGEST, narrow_scores, widen
from segcal.kernels.dispatch import OPERATIONS

ALL_BITS = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)


@pytest.mark.parametrize("kind", HALVES)
def test_every_number_is_widened_as_by_pytorch(kind: torch.dtype) -> None:
    found = np.empty(len(ALL_BITS), np.float32)
    widen(ALL_BITS.numpy(), kind == torch.bfloat16, found)
    expected = ALL_BITS.view(kind).float().numpy()
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[finite], expected[finite])
    assert not np.isfinite(found[~finite]).any()


@pytest.mark.parametrize("kind", HALVES)
def test_numbers_are_rounded_as_by_pytorch(kind: torch.dtype, rng: np.random.Generator) -> None:
    """Every number, every tie between two neighbours, and random ones, down to those that are not normal."""
    numbers = ALL_BITS.view(kind).float()
    numbers = numbers[numbers.abs() <= float(LARGEST[kind])].sort().values
    ties = (numbers[1:].double() + numbers[:-1].double()) / 2
    random = torch.from_numpy(rng.normal(size=20_000) * 10 ** rng.uniform(-9, 4, 20_000))
    values = torch.cat([numbers, ties.float(), random.float()])
    bits = np.empty((1, len(values)), np.int16)
    scores = values.numpy()[np.newaxis]
    narrow_scores(scores, scores, len(values), LARGEST[kind], kind == torch.bfloat16, 0, bits)
    assert torch.equal(torch.from_numpy(bits[0]), values.to(kind).view(torch.int16))


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize(("classes", "size"), [(5, (300, 7)), (2, (4, 5, 6)), (1, (9,))])
@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_divided_logits_are_those_of_the_plain_form(
    kind: torch.dtype, classes: int, size: tuple[int, ...], scale: float, rng: np.random.Generator
) -> None:
    """Also where the temperature is so high that rounding makes classes equal, and labels must be kept."""
    logits = torch.from_numpy(scale * rng.normal(size=(2, classes, *size))).to(kind)
    heat = torch.from_numpy(10 ** rng.uniform(-1.3, 2, (2, 1, *size))).float()
    labels = logits.float().max(dim=1).indices
    for own in (heat, heat[:, :, :1].expand_as(heat), torch.full((2, 1, *(1,) * len(size)), 3.0).expand_as(heat)):
        found = scaled_logits(logits, own)
        assert torch.equal(found, OPERATIONS["division.scaled_logits"].plain(logits, own))
        assert torch.equal(found.float().max(dim=1).indices, labels)
        probs = scaled_probabilities(logits, own)
        assert probs.dtype == kind
        assert torch.equal(probs.float().max(dim=1).indices, labels)
        expected = OPERATIONS["division.scaled_probabilities"].plain(logits, own)
        unit = torch.finfo(kind).eps  # rounding may go the other way
        torch.testing.assert_close(probs.float(), expected.float(), rtol=unit, atol=1e-7)


@pytest.mark.parametrize("kind", HALVES)
def test_a_tie_by_hand(kind: torch.dtype) -> None:
    """Two neighbouring numbers, so far divided that both are the same: the rival takes the next number below."""
    eps = torch.finfo(kind).eps
    logits = torch.tensor([[[1.0, -1.0], [1.0 + eps, -1.0 - eps]]]).to(kind)
    found = scaled_logits(logits, torch.full((1, 1, 2), 64 / 3))
    top = torch.tensor(3 / 64 * (1 + eps)).to(kind)
    assert found[0, 1, 0] == top
    assert found[0, 0, 0] < top
    assert found[0, 0, 1] > found[0, 1, 1]
