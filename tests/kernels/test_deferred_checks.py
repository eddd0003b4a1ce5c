"""Blocks that refuse logits at their end: with a stub in place of a GPU, on a CPU, and on a GPU."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import segcal
from segcal import InputError
from segcal.calibrators import Calibrator

LOGITS = torch.randn(2, 3, 6, 7, generator=torch.Generator().manual_seed(1))
NAN = LOGITS.clone()
NAN[1, 2, 3, 4] = torch.nan


def fitted(method: str) -> Calibrator:
    calibrator = segcal.create(method, num_classes=3)
    labels = torch.arange(42).reshape(6, 7) % 3
    return calibrator.fit([segcal.Case("a", LOGITS[0].numpy(), labels.numpy())])


def test_on_a_cpu_a_call_raises_at_once() -> None:
    calibrator = fitted("ts")
    with segcal.deferred_checks(), pytest.raises(InputError, match=r"nan at \(1, 2, 3, 4\)"):
        calibrator.predict_proba(NAN)


@pytest.mark.parametrize("noted", [True, False])
def test_the_end_raises_if_a_kernel_has_noted_something(noted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.kernels.dispatch._deferred_finite_checks", lambda: nullcontext([noted]))
    refusal = pytest.raises(InputError, match="in a call of this block") if noted else nullcontext()
    with refusal, segcal.deferred_checks():
        pass


def test_an_error_inside_is_not_hidden_by_one_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.kernels.dispatch._deferred_finite_checks", lambda: nullcontext([True]))
    with pytest.raises(KeyError), segcal.deferred_checks():
        raise KeyError("x")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["ts", "cts", "lts", "vector"])
def test_on_a_gpu_results_are_the_same_and_the_block_refuses(method: str) -> None:
    calibrator = fitted(method).cuda()
    wanted = calibrator.predict_proba(LOGITS.cuda())
    with segcal.deferred_checks():
        found = [calibrator.predict_proba(LOGITS.cuda()) for _ in range(3)]
    assert all(torch.equal(each, wanted) for each in found)
    with pytest.raises(InputError, match="finite"), segcal.deferred_checks():
        _ = [calibrator.predict_proba(each.cuda()) for each in (NAN, LOGITS)]
    assert torch.equal(calibrator.predict_proba(LOGITS.cuda()), wanted)
    with pytest.raises(InputError, match=r"nan at \(1, 2, 3, 4\)"):
        calibrator.predict_proba(NAN.cuda())
