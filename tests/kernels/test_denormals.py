"""Labels with and without `torch.set_flush_denormal(True)`, for logits near the smallest number."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from segcal import create
from segcal.calibrators import TemperatureScaling
from segcal.data.sample.scenes import simulate

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


def scaled_by(temperature: float) -> TemperatureScaling:
    ts = TemperatureScaling(4)
    ts.inverse_temperature.fill_(1 / temperature)
    ts.fitted.fill_(True)
    return ts


def labels(scores: Tensor) -> Tensor:
    return scores.max(dim=1).indices


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("temperature", [0.05, 1.7, 100.0])
@pytest.mark.parametrize("scale", [1000.0, 10.0, 1.0, 0.1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_labels_are_kept_when_denormal_numbers_are_flushed(
    dtype: torch.dtype, scale: float, temperature: float, threads: int, set_threads: Callable[[int], None]
) -> None:
    set_threads(threads)
    ts, generator = scaled_by(temperature), torch.Generator().manual_seed(0)
    logits = (torch.randn(1, 4, 64, 80, generator=generator).double() * scale * torch.finfo(dtype).tiny).to(dtype)
    exact = labels(logits)
    for gradients in (False, True):  # kernels, plain PyTorch
        assert torch.set_flush_denormal(True)
        with torch.set_grad_enabled(gradients):
            given = logits.clone().requires_grad_(gradients)
            found = [ts(given).detach(), ts.predict_proba(given).detach()]
        assert 5e-324 * 1.0 == 0, "the setting of the caller is as before"
        flushed = [labels(scores) for scores in found]
        torch.set_flush_denormal(False)
        for scores, seen in zip(found, flushed, strict=True):
            assert torch.equal(labels(scores), exact)
            if dtype != torch.float16:  # and to a reader that flushes them, too
                normal = (logits.abs() >= torch.finfo(dtype).tiny).all(dim=1)
                assert torch.equal(seen[normal], exact[normal])


@pytest.mark.parametrize("method", ["cts", "bts", "isotonic", "cmsap", "ets"])
def test_other_methods_keep_labels_of_tiny_logits(method: str) -> None:
    calibrator = create(method, 3).fit([simulate(1, size=(24, 24), num_classes=3)[0].case])
    logits = torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(1)) * 1e-38
    exact = labels(logits)
    torch.set_flush_denormal(True)
    with torch.no_grad():
        found = [calibrator(logits), calibrator.predict_proba(logits)]
    torch.set_flush_denormal(False)
    assert [torch.equal(labels(scores), exact) for scores in found] == [True, True]
