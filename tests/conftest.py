"""Shapes are checked in the tests: modules with annotated tensors are imported through jaxtyping's hook."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

if importlib.util.find_spec("beartype"):  # a machine with a GPU may not have it
    from support import shape_checks

    shape_checks.install()

import numpy as np
import torch

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # in the background of a shell; programs that tests start inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers have the cores already, and threads that wait for each other are slow

settings.register_profile(
    "segcal",
    deadline=None,  # the first example compiles
    max_examples=25,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("campaign", settings.get_profile("segcal"), max_examples=25_000, derandomize=False)
settings.load_profile("segcal")


@pytest.fixture(autouse=True, scope="module")
def _small_collections() -> Iterator[None]:
    """Keep what a module of tests leaves behind out of later garbage collections, which comparisons ask for."""
    yield
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of garbage collections, each of which would go through all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20210211)


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """Change PyTorch's thread count, which is also segcal's, for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def few_strengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let contextual methods choose among few penalties, where the choice is not what is tested."""
    from support.fits import choose_among_few

    choose_among_few(monkeypatch)


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the tests has to survive a power cut, and thousands of small files would wait for the disk."""
    monkeypatch.setattr("segcal.files.outputs.sync", lambda path: None)
