"""Processes that each predict a part of the data get one calibrator, that of all data."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import segcal
from support.networks import Convolution, batch_of

IMAGES = 5  # not a multiple of the processes: the sampler repeats one


def loader(sampler: DistributedSampler[tuple[torch.Tensor, ...]] | None) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Images, and labels that are drawn from a third of the network's logits."""
    images, _ = batch_of(IMAGES, (16, 18))
    logits = Convolution()(images).detach()
    noise = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)).log().neg().log()
    return DataLoader(TensorDataset(images, (logits / 3 - noise).argmax(1)), batch_size=2, sampler=sampler)


def calibrate_in_process(rank: int, world: int, folder: str) -> None:
    """Calibrate with a distributed sampler, and save what this process has fitted."""
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    data = loader(None).dataset
    sampler = DistributedSampler(data, world, rank, shuffle=False)
    calibrated = segcal.calibrate(Convolution(), loader(sampler), "ts", in_memory=2000 * rank)
    calibrated.calibrator.save(Path(folder) / str(rank))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(calibrate_in_process, (2, str(folder)), nprocs=2)
    return folder


def test_every_process_fits_the_calibrator_of_all(saved: Path) -> None:
    first, second = (segcal.load(saved / str(rank)) for rank in (0, 1))
    alone = segcal.calibrate(Convolution(), loader(None), "ts").calibrator
    logits = torch.randn(1, 3, 8, 8)
    assert torch.equal(first(logits), second(logits))
    torch.testing.assert_close(first(logits), alone(logits))
    assert first.fit_report_.names == second.fit_report_.names
    assert first.fit_report_.cases == alone.fit_report_.cases == IMAGES  # the repeated image counts once
    assert sorted(first.fit_report_.names)[::3] == ["rank0-000000", "rank1-000000"]
