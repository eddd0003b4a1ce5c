"""Applying calibrators on a GPU, against a copy of the logits on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.timing import console, table
from segcal import CalibrationSuite, create
from segcal.data.datasets.simulate import simulate

SHAPES = {
    "11 x 360 x 480, batch 8": (8, 11, 3, (360, 480)),
    "21 x 512 x 512, batch 8": (8, 21, 3, (512, 512)),
    "57 x 96^3": (1, 57, 1, (96, 96, 96)),
}


def device_milliseconds(function: Callable[[], Any], repetitions: int = 20) -> float:
    """Mean time of a call on the device, by CUDA events."""
    for _ in range(3):
        function()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(repetitions):
        function()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop)) / repetitions


def applying() -> None:
    """Print how many copies of the logits each method takes."""
    console.print(torch.cuda.get_device_name(), torch.__version__)
    for title, (batch, classes, channels, size) in SHAPES.items():
        logits = torch.randn(batch, classes, *size, device="cuda")
        image = torch.rand(batch, channels, *size, device="cuda")
        labels = torch.randint(0, classes, (batch, *size), device="cuda")
        small = [scene.case for scene in simulate(2, num_classes=classes, size=(16,) * len(size))]
        parts: dict[str, Callable[[], Any]] = {
            "copy of the logits": logits.clone,
            "softmax + max": lambda z=logits: torch.softmax(z, dim=1).max(dim=1),  # type: ignore[misc]
        }
        for method in ("ts", "ibts", "lts"):
            settings = {"spatial_dims": len(size), "image_channels": 0}
            calibrator = create(method, classes, **settings)
            options: dict[str, Any] = {} if method == "ts" else {"epochs": 1, "device": "cpu"}
            calibrator.fit(small, **options)
            calibrator.cuda()
            parts[f"{method}: probabilities"] = lambda c=calibrator, z=logits: c.predict_proba(z)  # type: ignore[misc]
            if method == "lts":
                parts["lts: temperature alone"] = lambda c=calibrator, z=logits: c.temperature(z)  # type: ignore[misc]
        suite = CalibrationSuite(classes).cuda()
        parts["CalibrationSuite.update"] = lambda s=suite, z=logits, y=labels: s.update(z, y)  # type: ignore[misc]
        shown = table(title, "what", "ms", "copies")
        with torch.no_grad():
            times = {name: device_milliseconds(function) for name, function in parts.items()}
        for name, time in times.items():
            shown.add_row(name, f"{time:.3f}", f"{time / times['copy of the logits']:.1f}")
        console.print(shown)
        del logits, image, labels, parts


if __name__ == "__main__":
    applying()
