"""Samples are read in crops, from memory and from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from segcal import create
from segcal.training.batches import Source, augmented, to_device
from support.scenes import simulated


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_samples_on_the_gpu_and_elsewhere_share_a_batch() -> None:
    here, there = (torch.ones(2, 8),), (torch.zeros(2, 8, device="cuda"),)
    assert Source([there, there]).is_on_device
    assert not Source([here, there]).is_on_device
    stacked = to_device([here, there], torch.device("cuda"))
    assert stacked[0].shape == (2, 2, 8)
    assert stacked[0].is_cuda


def test_kept_and_streamed_samples_give_the_same_weights() -> None:
    cases = simulated(5, size=(14, 12), num_classes=3)
    kept, streamed = (
        create("lts", 3, image_channels=1).fit(cases, epochs=3, batch_size=2, device="cpu", cache_bytes=budget)
        for budget in (1 << 30, 0)
    )
    for name, value in kept.state_dict().items():
        assert torch.equal(value, streamed.state_dict()[name]), name


def test_crops_begin_anywhere_and_the_whole_is_one_of_them() -> None:
    source = Source([(np.arange(4, dtype=np.float32)[np.newaxis],)])
    random = np.random.default_rng(0)
    starts = {int(augmented(source, 0, random, dims=1, crop=2)[0][0, 0]) for _ in range(60)}
    assert starts == {0, 1, 2}
    assert augmented(source, 0, random, dims=1, crop=4)[0].shape == (1, 4)
    assert augmented(source, 0, random, dims=1, crop=9)[0].tolist() == [[0, 1, 2, 3]]


def test_samples_in_host_memory_are_not_on_the_device() -> None:
    assert not Source([(np.zeros(3), torch.zeros(3)), (np.ones(3), torch.ones(3))]).is_on_device


def test_only_the_crop_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "scores.npy", np.arange(4000.0).reshape(4, 10, 100))
    source = Source([(np.load(tmp_path / "scores.npy", mmap_mode="r"), np.zeros((10, 100), np.int64))])
    assert source.shape(0) == (4, 10, 100)
    scores, labels = source.read(0, (slice(2, 4), slice(5, 8)))
    assert scores.tolist() == np.arange(4000.0).reshape(4, 10, 100)[:, 2:4, 5:8].tolist()
    assert labels.shape == (2, 3)


def test_samples_of_one_batch_have_the_same_parts() -> None:
    one = torch.zeros(3)
    with pytest.raises(ValueError, match="zip"):
        to_device([(one, one), (one,)], torch.device("cpu"))
