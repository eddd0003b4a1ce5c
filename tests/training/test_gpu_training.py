"""Training on a GPU: recorded steps and prefetched samples give the weights of plain steps."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from segcal import create, deferred_checks
from segcal.cases import stream
from segcal.training.loop import train
from segcal.training.recording import Recorder
from segcal.training.settings import Training
from support.scenes import simulated

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Net(nn.Module):
    """Squared error of a small convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (self.conv(x)[:, 0] - y).square().sum(), torch.ones_like(y).sum()


def samples(count: int = 7) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    return [
        (random.normal(size=(2, 16, 12)).astype(np.float32), random.normal(size=(16, 12)).astype(np.float32))
        for _ in range(count)
    ]


def trained(on_device: bool = False, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    objective = Net()
    settings = Training(epochs=5, learning_rate=1e-2, batch_size=3, crop=8, flips=True, device="cuda")
    shown: list[Any] = samples()
    if on_device:
        shown = [tuple(torch.from_numpy(part).cuda() for part in sample) for sample in shown]
    train(objective, shown, settings, validation=samples(2), **options)
    return {name: value.cpu() for name, value in objective.state_dict().items()}


def test_recorded_steps_give_the_same_weights() -> None:
    plain, recorded = trained(record=False), trained(record=True)
    for name, value in plain.items():
        torch.testing.assert_close(recorded[name], value, rtol=1e-4, atol=1e-6)


def test_prefetched_samples_give_the_same_weights() -> None:
    """Samples in host memory are pinned, and prepared ahead."""
    kept = trained(on_device=True)
    for name, value in trained().items():
        torch.testing.assert_close(value, kept[name], rtol=1e-5, atol=1e-7)


def test_more_shapes_than_are_recorded_still_run() -> None:
    net = Net().cuda().train()

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.net(x, y)[0]

    recorder = Recorder(Sum())
    for side in range(4, 11):
        x, y = torch.randn(1, 2, side, side, device="cuda"), torch.randn(1, side, side, device="cuda")
        torch.testing.assert_close(recorder(x, y), net(x, y)[0])
    assert len(recorder.recorded) == 4


@pytest.mark.parametrize("method", ["lts", "ibts"])
@pytest.mark.parametrize("size", [(24, 20), (10, 12, 9)])
def test_the_gpu_learns_what_the_cpu_learns(method: str, size: tuple[int, ...]) -> None:
    cases = simulated(6, size=size, num_classes=3, contrast=2.0, seed=5)

    def fit(device: str) -> Any:
        calibrator = create(method, 3, spatial_dims=len(size), image_channels=1)
        return calibrator.fit(
            cases[:5], validation=cases[5:], epochs=4, learning_rate=1e-3, batch_size=2, device=device
        )

    here, there = fit("cpu"), fit("cuda")
    assert there.fitted.device.type == "cpu"
    for name, value in here.state_dict().items():
        # where a slope is nearly 0, rounding decides the sign of a step of Adam, whose length is the learning rate
        torch.testing.assert_close(there.state_dict()[name], value, rtol=1e-3, atol=1e-3)
    assert there.fit_report_.nll_after == pytest.approx(here.fit_report_.nll_after, rel=1e-4)


class Disturbed(Net):
    """Waits for the device while it is recorded, which CUDA refuses; with dropout, which draws random numbers."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return super().forward(nn.functional.dropout(x, 0.5), y)


def test_after_a_recording_that_failed_the_device_is_as_before() -> None:
    expected, settings = trained(record=False), Training(epochs=3, batch_size=3, crop=8, device="cuda")
    history = train(Disturbed(), samples(), settings, validation=samples(2), record=True)
    assert all(np.isfinite(epoch.loss) for epoch in history.epochs)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert nn.functional.dropout(torch.ones(1000, device="cuda")).sum() > 0
    for name, value in trained(record=True).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)


def test_trainings_in_two_threads_do_not_disturb_each_other() -> None:
    """Nor a third thread that calibrates, and so waits for the whole device."""
    expected, settings = (
        trained(record=False),
        Training(epochs=5, learning_rate=1e-2, batch_size=3, crop=8, flips=True, device="cuda"),
    )
    objectives, ended = list[nn.Module](), threading.Event()
    for _ in range(2):
        torch.manual_seed(0)
        objectives.append(Net())
    calibrator = create("ts", 3, spatial_dims=2).fit(simulated(3, size=(16, 12), num_classes=3, seed=0))

    def calibrate() -> None:
        calibrator.to("cuda")
        while not ended.is_set():
            with deferred_checks():
                found = calibrator(torch.randn(1, 3, 16, 12, device="cuda"))
            assert torch.isfinite(found).all()

    with ThreadPoolExecutor(3) as pool:
        other = pool.submit(calibrate)
        try:
            list(pool.map(lambda own: train(own, samples(), settings, validation=samples(2), record=True), objectives))
        finally:
            ended.set()
        other.result()
    for objective in objectives:
        for name, value in objective.state_dict().items():
            torch.testing.assert_close(value.cpu(), expected[name], rtol=1e-4, atol=1e-6)


def test_a_step_asks_the_device_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the samples are on the device, an epoch waits for it only to read its loss."""
    waits: list[str] = []

    def counted(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            waits.append(name)
            return original(*arguments, **options)

        return call

    for name in ("item", "tolist", "cpu", "__bool__", "__int__", "__float__"):
        monkeypatch.setattr(Tensor, name, counted(getattr(Tensor, name), name))
    counts = []

    def watch(_: Any) -> None:
        counts.append(len(waits))

    objective = Net()
    train(objective, samples(12), Training(epochs=4, batch_size=3, device="cuda", watch=watch), record=True)
    assert counts[3] - counts[2] == counts[2] - counts[1] <= 2


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("lts", {}),
    ("ibts", {}),
    ("lts", {"condition": "class"}),
    ("lts", {"preset": "paper"}),
    ("ibts", {"positivity": "softplus"}),
]
SIZES: list[tuple[int, tuple[int, ...]]] = [(3, (24, 20)), (11, (90, 120)), (21, (64, 64)), (4, (10, 12, 9))]
BUSY = """
import torch
values = torch.randn(2048, 2048, device="cuda")
print("busy", flush=True)
while True:
    values = (values @ values).tanh()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
"""


@contextmanager
def beside_a_busy_process() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
            assert process.poll() is None
        finally:
            process.kill()


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a busy process"])
def test_twenty_calibrators_are_trained_in_one_process(beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without validation images, with cases on the device and read ahead, and all of them recorded."""
    recorded, record = list[bool](), Recorder._record

    def counted(self: Recorder, inputs: tuple[Tensor, ...]) -> nn.Module:
        found = record(self, inputs)
        recorded.append(not self.failed)
        return found

    monkeypatch.setattr(Recorder, "_record", counted)
    with beside_a_busy_process() if beside else nullcontext():
        for k in range(20):
            (method, options), (classes, size) = KINDS[k % 5], SIZES[k % 4]
            cases = simulated(9, size=size, num_classes=classes, contrast=2.0, seed=k)
            monkeypatch.setattr(stream, "_DEVICE_SHARE", 0.0 if k % 3 == 2 else 0.5)
            calibrator = create(method, classes, spatial_dims=len(size), image_channels=k % 2, **options)
            validation = cases[7:] if k // 2 % 2 else None
            calibrator.fit(cases[:7], validation=validation, epochs=3, batch_size=2, learning_rate=1e-3, device="cuda")
            assert bool(calibrator.fitted)
            assert np.isfinite(calibrator.fit_report_.nll_after)
    assert len(recorded) == 40, "two sizes of batches each"
    assert all(recorded)
