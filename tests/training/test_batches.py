"""Where samples are kept, and that preparing them ahead changes nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from segcal import create
from segcal.data.sample.scenes import simulate
from segcal.training import batches
from segcal.training.batches import Cache, augmented, prefetched, to_device


def test_large_maps_stay_on_disk_and_the_rest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "scores.npy", np.arange(4000.0).reshape(4, 10, 100))
    scores, labels = np.load(tmp_path / "scores.npy", mmap_mode="r"), np.zeros((10, 100), np.int64)
    monkeypatch.setattr(batches, "_LARGE", 4000 * 8)
    cache = Cache(labels.nbytes)
    source = cache.wrap([(scores, labels)])
    sample = source[0]
    assert sample[0] is scores
    assert sample[1] is not labels
    assert source[0] is sample
    assert cache.left == 0
    monkeypatch.setattr(batches, "_LARGE", 4000 * 8 + 1)
    assert not isinstance(Cache(1 << 20).wrap([(scores, labels)])[0][0], np.memmap)
    assert Cache(1 << 10).keep((scores, labels)) is None


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("items", [[], [3], [3, 1, 2]])
def test_prefetching_keeps_the_order(ahead: bool, items: list[int]) -> None:
    found = prefetched(lambda item: [(torch.tensor(item),)], items, ahead=ahead)
    assert [int(batch[0][0]) for batch in found] == items


def test_a_failure_while_preparing_ahead_is_raised() -> None:
    def prepare(item: int) -> list[batches.Batch]:
        raise ValueError(str(item))

    with pytest.raises(ValueError, match="7"):
        list(prefetched(prepare, [7], ahead=True))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_samples_are_kept_on_the_gpu_and_pinned_beyond() -> None:
    device, sample = torch.device("cuda"), (np.ones((2, 8), np.float32), np.zeros(8, np.int64))
    cache = Cache(1 << 20, device)
    source = cache.wrap([sample, sample])
    assert all(isinstance(part, torch.Tensor) and part.is_cuda for part in source[0])
    assert not source.is_on_device
    assert source[1] is source[1]
    assert source.is_on_device
    cache.left_on_device = 0
    beyond = cache.wrap([sample])
    assert all(isinstance(part, torch.Tensor) and part.is_pinned() for part in beyond[0])
    assert not beyond.is_on_device
    mixed = [tuple(source[0]), tuple(beyond[0])]
    stacked = to_device(mixed, device)  # type: ignore[arg-type]
    assert stacked[0].shape == (2, 2, 8)
    assert stacked[0].is_cuda


def test_kept_and_streamed_samples_give_the_same_weights() -> None:
    cases = [scene.case for scene in simulate(5, size=(14, 12), num_classes=3)]
    kept, streamed = (
        create("lts", 3, image_channels=1).fit(cases, epochs=3, batch_size=2, device="cpu", cache_bytes=budget)
        for budget in (1 << 30, 0)
    )
    for name, value in kept.state_dict().items():
        assert torch.equal(value, streamed.state_dict()[name]), name


def test_crops_begin_anywhere_and_the_whole_is_one_of_them() -> None:
    sample = (np.arange(4, dtype=np.float32)[np.newaxis],)
    random = np.random.default_rng(0)
    starts = {int(augmented(sample, random, dims=1, crop=2)[0][0, 0]) for _ in range(60)}
    assert starts == {0, 1, 2}
    assert augmented(sample, random, dims=1, crop=4)[0].shape == (1, 4)
    assert augmented(sample, random, dims=1, crop=9)[0].tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("ahead", [False, True])
def test_the_next_item_is_prepared_while_one_is_used_only_if_asked_for(ahead: bool) -> None:
    threads: list[threading.Thread] = []
    items = prefetched(lambda _: threads.append(threading.current_thread()), range(3), ahead=ahead)
    next(items)
    assert ahead or len(threads) == 1
    list(items)
    assert [thread is not threading.current_thread() for thread in threads] == [ahead] * 3


def test_samples_in_host_memory_are_not_on_the_device() -> None:
    source = Cache(1 << 20).wrap([(np.zeros(3), torch.zeros(3)), (np.ones(3), torch.ones(3))])
    seen = [source.is_on_device]
    for k in range(2):
        assert source[k] is source[k], "kept"
        seen.append(source.is_on_device)
    assert seen == [False] * 3


def test_samples_may_fill_half_of_the_free_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1001, 4000))
    assert Cache(7, torch.device("cuda")).left_on_device == 500
    assert Cache(7).left_on_device == 0


def test_samples_of_one_batch_have_the_same_parts() -> None:
    one = torch.zeros(3)
    with pytest.raises(ValueError, match="zip"):
        to_device([(one, one), (one,)], torch.device("cpu"))


def test_a_sample_that_just_fits_is_kept_on_the_device() -> None:
    """With the CPU in place of a GPU: two samples of 48 bytes, and room for one."""
    cache, sample = Cache(0), (np.ones(3), np.zeros(3, np.int64))
    cache.left_on_device = 48
    kept = cache.keep(sample)
    assert kept is not None
    assert all(isinstance(part, torch.Tensor) for part in kept)
    assert cache.left_on_device == 0
    assert cache.keep(sample) is None
