"""Kept cases are those that were given, in memory or on disk, and nothing stays behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from segcal.cases import rater_cases
from segcal.integrations.spill import SpilledCases
from segcal.types import Case


def case(k: int, dtype: torch.dtype = torch.float32) -> Case:
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(k)).to(dtype)
    return Case(str(k), logits, logits.argmax(0).to(torch.uint8), logits[:1].float() if k % 2 else None, group="g")


SIZE = 3 * 4 * 5 * 4 + 20


@pytest.mark.parametrize(("in_memory", "written"), [(1 << 20, 0), (2 * SIZE + 80, 3 + 2), (0, 10)])
def test_cases_come_back(tmp_path: Path, in_memory: int, written: int) -> None:
    given = [case(k) for k in range(4)]
    with SpilledCases(in_memory, tmp_path) as kept:
        kept.extend(given)
        assert len(list(tmp_path.rglob("*.npy"))) == written
        assert (kept.folder is None) == (written == 0)
        for _ in range(2):
            for found, expected in zip(kept, given, strict=True):
                assert (found.name, found.group) == (expected.name, expected.group)
                for name in ("logits", "labels", "image"):
                    value, true = getattr(found, name), getattr(expected, name)
                    assert (value is None) == (true is None)
                    if true is not None:
                        assert np.array_equal(np.asarray(value), true.numpy())
                        assert np.asarray(value).dtype == true.numpy().dtype
        assert [one.name for one in kept[1:3]] == ["1", "2"]
    assert list(tmp_path.iterdir()) == []


def test_raters_share_the_scores_of_their_image(tmp_path: Path) -> None:
    shares = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0)).softmax(0)
    images = [replace(case(k), labels=shares) for k in (1, 3)]
    raters = [hard for one in images for hard in rater_cases(one, 3)]
    with SpilledCases(0, tmp_path) as kept:
        kept.extend(raters)
        assert len(list(tmp_path.rglob("*.npy"))) == 2 * (1 + 3 + 1)  # scores and image once, a label map each
        for found, expected in zip(kept, raters, strict=True):
            for name in ("logits", "labels", "image"):
                assert np.array_equal(np.asarray(getattr(found, name)), getattr(expected, name).numpy())


def test_half_precision_of_networks_is_kept_exactly(tmp_path: Path) -> None:
    given = case(1, torch.bfloat16)
    with SpilledCases(0, tmp_path) as kept:
        kept.add(given)
        assert torch.equal(torch.tensor(np.asarray(kept[0].logits)), torch.as_tensor(given.logits).float())


def test_files_are_removed_after_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with SpilledCases(0, tmp_path) as kept:
            kept.add(case(0))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []
