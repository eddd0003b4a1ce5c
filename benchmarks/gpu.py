"""Applying, measuring, training and fitting on a GPU, with kernels and in plain PyTorch, against a copy of logits."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.fitting import counted_passes
from benchmarks.timing import console, scene, table
from segcal import CalibrationSuite, Case, create, deferred_checks
from segcal.calibrators import TemperatureCalibrator
from segcal.calibrators.local import LocalTemperatureScaling
from segcal.calibrators.shared.local_training import Objective
from segcal.kernels.dispatch import plain_only
from segcal.training.loop import train
from segcal.training.settings import Epoch, Training

SHAPES = {
    "21 x 512 x 512, batch 8": (8, 21, (512, 512)),
    "11 x 360 x 480, batch 8": (8, 11, (360, 480)),
    "57 x 96^3": (1, 57, (96, 96, 96)),
}
METHODS = ("ts", "ibts", "cts", "lts")
FITS = {"101 frames of 11 x 360 x 480": (101, 11, (360, 480)), "100 images of 21 x 384 x 384": (100, 21, (384, 384))}
FITTED = ("ts", "ets", "vector", "cts", "cts with pairs", "lts", "ibts", "auto")
_SETTINGS: dict[str, dict[str, Any]] = {"cts with pairs": {"pairs": True}}
_DISTINCT = 10
_ROUND = 20.0  # milliseconds of calls in a row


class Part(NamedTuple):
    """Something that is timed, and the least that it must read and write, in copies of the logits."""

    name: str
    run: Callable[[], Any]
    least: float = 1.0


def device_milliseconds(function: Callable[[], Any], *, rounds: int = 5) -> float:
    """Return the time of a call among others in a row, by CUDA events: the median of a few rounds.

    Calls are queued, as those of a loop over batches are, so that the time to launch one counts only as far as it
    exceeds the time that the one before runs.
    """
    for _ in range(2):
        function()
    calls = max(1, min(200, round(_ROUND / max(_elapsed(function, 3), 1e-3))))
    times = sorted(_elapsed(function, calls) for _ in range(rounds))
    return times[rounds // 2]


def _elapsed(function: Callable[[], Any], calls: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(calls):
        function()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop)) / calls


def prepared(method: str, classes: int, dims: int) -> TemperatureCalibrator:
    """Return a calibrator on the GPU with made-up numbers: the time does not depend on them."""
    settings: dict[str, Any] = {} if method == "ts" else {"spatial_dims": dims}
    calibrator = create(method, classes, **settings)
    assert isinstance(calibrator, TemperatureCalibrator)
    values = {"inverse_temperature": 0.8, "intercept": 0.2, "coefficients": 0.02, "class_offsets": 0.01}
    values |= {"feature_mean": 0.5, "feature_scale": 1.0, "floor": 1.0, "softness": 0.05, "base_temperature": 1.3}
    for name, buffer in calibrator.named_buffers():
        if name in values:
            buffer.fill_(values[name])
    if method in ("ibts", "lts"):
        for parameter in calibrator.parameters():
            parameter.normal_(std=0.01)
    calibrator.fitted.fill_(True)
    return calibrator.cuda()


def parts_of(logits: Tensor, labels: Tensor) -> list[Part]:
    """Return what is timed."""
    classes = logits.shape[1]
    read = 0.5
    parts = [
        Part("softmax + max", lambda: torch.softmax(logits, dim=1).max(dim=1)),
    ]
    for method in METHODS:
        calibrator = prepared(method, classes, logits.ndim - 2)
        if method != "ts":
            parts.append(Part(f"{method}: temperature", lambda c=calibrator: c.temperature(logits), read))  # type: ignore[misc]
        parts.append(Part(f"{method}: probabilities", lambda c=calibrator: c.predict_proba(logits)))  # type: ignore[misc]
    suite, two = CalibrationSuite(classes).cuda(), CalibrationSuite(classes, regions=("all", "boundary")).cuda()
    masks = {"all": labels >= 0, "boundary": labels % 3 == 0}
    parts.append(Part("suite, one region", lambda: suite.update(logits, labels), read))
    parts.append(Part("suite, two regions", lambda: two.update(logits, labels, masks), read))
    return parts


def applying() -> None:
    """Print the time of each part in copies of the logits, before and after, and its share of the bandwidth."""
    if not torch.cuda.is_available():
        console.print("no CUDA device, nothing to measure")
        return
    console.print(torch.cuda.get_device_name(), torch.__version__)
    for title, (batch, classes, size) in SHAPES.items():
        logits, labels = (values.cuda() for values in scene(classes, size, batch))
        with torch.no_grad():
            rate = 2 * logits.numel() * logits.element_size() / device_milliseconds(logits.clone) / 1e6
            columns = ("what", "plain, ms", "copies", "ms", "copies", "deferred, copies", "% of bandwidth")
            shown = table(f"{title}; a copy moves {rate:.0f} GB/s", *columns)
            for part in parts_of(logits, labels):
                shown.add_row(part.name, *measured(part, logits))
        console.print(shown)
        del logits, labels
        torch.cuda.empty_cache()


def measured(part: Part, logits: Tensor) -> tuple[str, ...]:
    """Return the cells of one row; the copy is timed next to each, since others may use the device."""
    with plain_only():
        before, copy = device_milliseconds(part.run, rounds=3), device_milliseconds(logits.clone)
    found = [f"{before:.3f}", f"{before / copy:.1f}"]
    after, copy = device_milliseconds(part.run), device_milliseconds(logits.clone)
    found += [f"{after:.3f}", f"{after / copy:.2f}"]
    with deferred_checks():
        queued, copy = device_milliseconds(part.run), device_milliseconds(logits.clone)
    return (*found, f"{queued / copy:.2f}", f"{100 * part.least * copy / queued:.0f}")


def counting(pixels: int = 1_000_000_000, classes: int = 19) -> None:
    """Print the time of the suite for 1e9 pixels, and whether its counts are exact."""
    if not torch.cuda.is_available():
        return
    logits, labels = (values.cuda() for values in scene(classes, (1024, 2048), 4))
    suite, each = CalibrationSuite(classes).cuda(), labels.numel()
    updates = -(-pixels // each)
    suite.update(logits, labels)
    suite.reset()
    seconds = _elapsed(lambda: suite.update(logits, labels), updates) * updates / 1e3
    found = suite.compute()["all"]
    right = int((logits.argmax(1) == labels).sum()) * updates
    exact = int(found["pixels"]) == updates * each and round(float(found["accuracy"]) * updates * each) == right
    console.print(
        f"{updates * each:,} pixels of {classes} classes: {seconds:.2f} s, "
        f"counts {'exact' if exact else 'WRONG'}, ECE {float(found['ece']):.6f}"
    )


def training(frames: int = 90, classes: int = 11, size: tuple[int, ...] = (360, 480)) -> None:
    """Print the time of a training step of LTS, batch 4, from samples in host memory, before and after."""
    if not torch.cuda.is_available():
        return
    logits, labels = scene(classes, size, 6)
    samples = [(logits[k % 6].numpy().copy(), labels[k % 6]) for k in range(frames)]
    shown = table(f"a training step of LTS, {frames} frames of {classes} x {size}, batch 4", "what", "ms")
    with plain_only():
        shown.add_row("plain", f"{step_milliseconds(classes, len(size), samples):.2f}")
    shown.add_row("with kernels", f"{step_milliseconds(classes, len(size), samples):.2f}")
    console.print(shown)


def step_milliseconds(classes: int, dims: int, samples: list[Any], epochs: int = 4) -> float:
    """Return the mean time of a step in the last epochs; in the first, samples are copied and passes are recorded."""
    lts, seen = prepared("lts", classes, dims), list[float]()
    assert isinstance(lts, LocalTemperatureScaling)
    lts.requires_grad_(True)

    def watch(epoch: Epoch) -> None:
        seen.append(epoch.seconds)

    settings = Training(epochs=epochs, batch_size=4, device="cuda", spatial_dims=dims, watch=watch)
    train(Objective(lts), samples, settings, record=True)
    return 1e3 * sum(seen[2:]) / len(seen[2:]) / math.ceil(len(samples) / 4)


def fitting(methods: tuple[str, ...] = FITTED, device: str = "cuda") -> None:
    """Print the seconds of each fit from `.npy` files, the first and the second of its kind, and its passes.

    The unit is a softmax of all logits on the device; reading is every file, once, to the device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        return
    for title, (count, classes, size) in FITS.items():
        with tempfile.TemporaryDirectory() as folder:
            cases = written(Path(folder), count, classes, size)
            copied = _seconds(lambda cases=cases: [torch.from_numpy(np.load(p)).to(device) for p, _ in cases])  # type: ignore[misc]
            logits = torch.from_numpy(np.load(cases[0][0]))[None].to(device)
            once = partial(torch.softmax, logits, dim=1)
            softmax = count * (device_milliseconds(once) if device == "cuda" else 1.0)
            console.print(f"{title}: reading {copied:.2f} s, a softmax pass {softmax:.1f} ms")
            for method in methods:
                console.print(f"  {method:16}", *_fits(method, cases, classes, device), sep="  ")


def _fits(method: str, cases: list[tuple[Path, Tensor]], classes: int, device: str) -> list[str]:
    """Return the seconds of two fits, their passes over the cases and the NLL after them."""
    shown = []
    for _ in range(1 if method == "auto" else 2):
        mapped = [Case(p.stem, np.load(p, mmap_mode="r"), labels.numpy()) for p, labels in cases]
        calibrator = create(method.split(maxsplit=1)[0], classes, **_SETTINGS.get(method, {})).to(device)
        with warnings.catch_warnings(), counted_passes(len(mapped)) as passes:
            warnings.simplefilter("ignore")
            seconds = _seconds(lambda c=calibrator, m=mapped: c.fit(m))  # type: ignore[misc]
        shown.append(f"{seconds:.2f} s")
    return [*shown, f"{passes[0]:.1f} passes", f"NLL {calibrator.fit_report_.nll_after:.6f}"]


def written(folder: Path, count: int, classes: int, size: tuple[int, ...]) -> list[tuple[Path, Tensor]]:
    """Write logits that differ by noise, and return their files and labels."""
    logits, labels = scene(classes, size, _DISTINCT)
    generator = torch.Generator().manual_seed(1)
    found = []
    for k in range(count):
        noise = 0.3 * torch.randn(logits.shape[1:], generator=generator)
        path = folder / f"{k:03}.npy"
        np.save(path, (logits[k % _DISTINCT] + noise).numpy())
        found.append((path, labels[k % _DISTINCT]))
    return found


def _seconds(function: Callable[[], Any]) -> float:
    started = perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter() - started


if __name__ == "__main__":
    applying()
    counting()
    training()
