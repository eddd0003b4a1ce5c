"""Kept cases are those that were given, in memory or on disk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from segcal.cases import rater_cases
from segcal.functional.arrays import is_mapped
from segcal.integrations.spill import SpilledCases
from segcal.types import Case

ARRAYS = ("logits", "labels", "image")


def case(k: int, dtype: torch.dtype = torch.float32) -> Case:
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(k)).to(dtype)
    return Case(str(k), logits, logits.argmax(0).to(torch.uint8), logits[:1].float() if k % 2 else None, group="g")


SIZE = 3 * 4 * 5 * 4 + 20


@pytest.mark.parametrize(("in_memory", "written"), [(1 << 20, 0), (2 * SIZE + 80, 3 + 2), (0, 10)])
def test_cases_come_back(in_memory: int, written: int) -> None:
    given, kept = [case(k) for k in range(4)], SpilledCases(in_memory)
    kept.extend(given)
    assert sum(is_mapped(getattr(found, name)) for found in kept.cases for name in ARRAYS) == written
    for found, expected in zip(kept.cases, given, strict=True):
        assert (found.name, found.group) == (expected.name, expected.group)
        for name in ARRAYS:
            value, true = getattr(found, name), getattr(expected, name)
            assert (value is None) == (true is None)
            if true is not None:
                assert np.array_equal(np.asarray(value), true.numpy())
                assert np.asarray(value).dtype == true.numpy().dtype


def test_raters_share_the_scores_of_their_image() -> None:
    shares = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0)).softmax(0)
    images = [replace(case(k), labels=shares) for k in (1, 3)]
    raters, kept = [hard for one in images for hard in rater_cases(one, 3)], SpilledCases(0)
    kept.extend(raters)
    assert len({id(found.logits) for found in kept.cases}) == len({id(found.image) for found in kept.cases}) == 2
    for found, expected in zip(kept.cases, raters, strict=True):
        for name in ARRAYS:
            assert np.array_equal(np.asarray(getattr(found, name)), getattr(expected, name).numpy())


def test_half_precision_of_networks_is_kept_exactly() -> None:
    given, kept = case(1, torch.bfloat16), SpilledCases(0)
    kept.extend([given])
    assert torch.equal(torch.tensor(np.asarray(kept.cases[0].logits)), torch.as_tensor(given.logits).float())
