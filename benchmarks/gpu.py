"""Applying calibrators and measuring on a GPU, with kernels and in plain PyTorch, against a copy of the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import console, scene, table
from segcal import CalibrationSuite, create
from segcal.calibrators.base import TemperatureCalibrator
from segcal.data.datasets.simulate import simulate
from segcal.functional.division import confidence_and_label
from segcal.functional.pixels import pixel_statistics
from segcal.kernels.dispatch import plain_only

SHAPES = {
    "21 x 512 x 512, batch 8": (8, 21, (512, 512)),
    "11 x 360 x 480, batch 8": (8, 11, (360, 480)),
    "57 x 96^3": (1, 57, (96, 96, 96)),
}
METHODS = ("ts", "ibts", "cts", "lts")


def device_milliseconds(function: Callable[[], Any], repetitions: int = 20) -> float:
    """Return the median time of a call on the device, by CUDA events."""
    for _ in range(3):
        function()
    times = []
    for _ in range(repetitions):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        function()
        stop.record()
        torch.cuda.synchronize()
        times.append(float(start.elapsed_time(stop)))
    return sorted(times)[len(times) // 2]


def fitted(method: str, classes: int, dims: int) -> TemperatureCalibrator:
    """Return a calibrator with sensible weights, fitted on a few small scenes."""
    cases = [made.case for made in simulate(4, num_classes=classes, size=(24,) * dims)]
    settings: dict[str, Any] = {} if method == "ts" else {"spatial_dims": dims}
    if method in ("ibts", "lts"):
        settings["image_channels"] = 0
    calibrator = create(method, classes, **settings)
    options: dict[str, Any] = {"epochs": 1, "device": "cpu"} if method in ("ibts", "lts") else {}
    calibrator.fit(cases, **options)
    assert isinstance(calibrator, TemperatureCalibrator)
    return calibrator.cuda()


def parts_of(logits: Tensor, labels: Tensor) -> dict[str, Callable[[], Any]]:
    """Return what is timed, by name."""
    classes, heat = logits.shape[1], torch.full_like(logits[:, :1], 1.3)
    parts: dict[str, Callable[[], Any]] = {
        "softmax + max": lambda: torch.softmax(logits, dim=1).max(dim=1),
        "confidence and label": lambda: confidence_and_label(logits, heat),
        "pixel statistics of one image": lambda: pixel_statistics(logits[0].flatten(1), labels[0].flatten()),
    }
    for method in METHODS:
        calibrator = fitted(method, classes, logits.ndim - 2)
        parts[f"{method}: temperature"] = lambda c=calibrator: c.temperature(logits)  # type: ignore[misc]
        parts[f"{method}: probabilities"] = lambda c=calibrator: c.predict_proba(logits)  # type: ignore[misc]
    suite = CalibrationSuite(classes).cuda()
    parts["CalibrationSuite.update"] = lambda: suite.update(logits, labels)
    return parts


def applying() -> None:
    """Print the time of each part in copies of the logits, and the bandwidth of the copy that it would reach."""
    if not torch.cuda.is_available():
        console.print("no CUDA device, nothing to measure")
        return
    console.print(torch.cuda.get_device_name(), torch.__version__)
    for title, (batch, classes, size) in SHAPES.items():
        logits, labels = (values.cuda() for values in scene(classes, size, batch))
        with torch.no_grad():
            copy = device_milliseconds(logits.clone)
            rate = 2 * logits.numel() * logits.element_size() / copy / 1e6
            columns = ("what", "plain ms", "copies", "ms", "copies", "% of copy")
            shown = table(f"{title}; copy {copy:.3f} ms, {rate:.0f} GB/s", *columns)
            for name, function in parts_of(logits, labels).items():
                with plain_only():
                    before = device_milliseconds(function)
                after = device_milliseconds(function)
                times = (f"{before:.3f}", f"{before / copy:.1f}", f"{after:.3f}", f"{after / copy:.2f}")
                shown.add_row(name, *times, f"{100 * copy / after:.0f}")
        console.print(shown)
        del logits, labels
        torch.cuda.empty_cache()


def counting(pixels: int = 1_000_000_000, classes: int = 19) -> None:
    """Print the time of the suite for 1e9 pixels, and whether its counts are exact."""
    if not torch.cuda.is_available():
        return
    logits, labels = (values.cuda() for values in scene(classes, (1024, 2048), 4))
    suite, each = CalibrationSuite(classes).cuda(), labels.numel()
    updates = -(-pixels // each)
    suite.update(logits, labels)
    suite.reset()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(updates):
        suite.update(logits, labels)
    stop.record()
    torch.cuda.synchronize()
    found = suite.compute()["all"]
    right = int((logits.argmax(1) == labels).sum()) * updates
    exact = int(found["pixels"]) == updates * each and int(suite.hit.sum()) == right
    console.print(
        f"{updates * each:,} pixels of {classes} classes: {start.elapsed_time(stop) / 1e3:.2f} s, "
        f"counts {'exact' if exact else 'WRONG'}, ECE {float(found['ece']):.6f}"
    )


if __name__ == "__main__":
    applying()
    counting()
