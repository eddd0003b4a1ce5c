"""The whole suite of one image against one softmax+max pass, and against what peers take for a single number."""

from __future__ import annotations

import resource
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.timing import console, milliseconds, scene, table
from segcal import CalibrationSuite
from segcal.evidence import Evidence, describe, read
from segcal.functional.checks import IGNORED, check_labels, check_logits
from segcal.functional.counting import positions, positions_in_box
from segcal.functional.geometry import boundary, foreground
from segcal.regions import local_patches

CLASSES = 11


def suite_of_one_image(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """ECE, MCE, SCE, ACE and more for All, Boundary and ten Local patches, from logits and labels."""
    check_logits(logits, CLASSES, class_axis=1)
    truth = check_labels(labels, CLASSES, ignore_index=CLASSES)
    near = boundary(truth, IGNORED)
    inside = foreground(truth, IGNORED, near=near)
    boxes = local_patches(truth.shape[1:], name="image")
    regions = [positions(inside), positions(near), *(positions_in_box(inside[0], box) for box in boxes)]
    pixels = describe(logits[0], truth[0])
    return read(Evidence.of(pixels, regions, num_classes=CLASSES))


def against_peers() -> None:
    """Print how many softmax+max passes each takes."""
    from netcal.metrics import ECE
    from torchmetrics.classification import MulticlassCalibrationError

    logits, labels = scene(CLASSES)
    peer = MulticlassCalibrationError(CLASSES, n_bins=10)

    def torchmetrics_ece() -> Tensor:
        peer.reset()
        peer.update(logits, labels)
        value: Tensor = peer.compute()
        return value

    def netcal_ece() -> float:
        probs = torch.softmax(logits, dim=1)[0].reshape(CLASSES, -1).T.numpy()
        return float(ECE(10).measure(probs, labels.reshape(-1).numpy()))

    streamed = CalibrationSuite(CLASSES, ignore_index=CLASSES)
    parts: dict[str, tuple[Callable[[], Any], str]] = {
        "a copy of the logits": (logits.clone, "the limit"),
        "softmax + max": (lambda: torch.softmax(logits, dim=1).max(dim=1), "the unit"),
        "segcal, 12 regions x 9 metrics": (lambda: suite_of_one_image(logits, labels), "108"),
        "  of it: describe every pixel": (lambda: describe(logits[0], labels[0]), ""),
        "segcal CalibrationSuite.update": (lambda: streamed.update(logits, labels), "9, pooled"),
        "torchmetrics ECE": (torchmetrics_ece, "1"),
        "netcal ECE": (netcal_ece, "1"),
    }
    threads = torch.get_num_threads()
    for used in sorted({1, threads}):
        torch.set_num_threads(used)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            times = {name: milliseconds(function) for name, (function, _) in parts.items()}
        title = f"one image, {CLASSES} x 360 x 480, float32, CPU, {used} thread{'s' if used > 1 else ''}"
        shown = table(title, "what", "numbers", "ms", "softmax+max passes")
        for name, time in times.items():
            shown.add_row(name, parts[name][1], f"{time:.2f}", f"{time / times['softmax + max']:.2f}")
        console.print(shown)
    torch.set_num_threads(threads)


def exact_counts() -> None:
    """Print ECE of 50 million pixels of one confidence, where float32 counters fail."""
    from torchmetrics.classification import MulticlassCalibrationError

    pixels, right = 50_331_648, 0.90
    confidence = 0.93
    suite, peer = CalibrationSuite(2), MulticlassCalibrationError(2, n_bins=10)
    logit = float(np.log(confidence / (1 - confidence)))
    part = 1 << 20
    labels = (torch.arange(part) >= round(right * part)).long().unsqueeze(0)
    logits = torch.tensor([logit, 0.0]).view(1, 2, 1).expand(1, 2, part).contiguous()
    for _ in range(pixels // part):
        suite.update(logits, labels)
        peer.update(logits, labels)
    shown = table(f"ECE of {pixels:,} pixels of one confidence; the truth is 0.0300", "what", "ECE")
    shown.add_row("segcal", f"{float(suite.compute()['all']['ece']):.4f}")
    shown.add_row("torchmetrics", f"{float(peer.compute()):.4f}")
    console.print(shown)


def streaming(pixels: int = 1_000_000_000) -> None:
    """Print how memory grows while a billion pixels are streamed."""
    logits, labels = scene(CLASSES, (1440, 1920))
    suite = CalibrationSuite(CLASSES, regions=("all", "boundary"))
    masks = {"all": labels >= 0, "boundary": boundary(labels)}
    suite.update(logits, labels, masks)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, perf_counter()
    updates = -(-pixels // labels.numel())
    for _ in range(updates):
        suite.update(logits, labels, masks)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    seconds = perf_counter() - start
    shown = table("streaming", "pixels", "seconds", "million pixels/s", "peak memory growth, MB")
    total = updates * labels.numel()
    shown.add_row(f"{total:,}", f"{seconds:.0f}", f"{total / seconds / 1e6:.0f}", f"{grown:.0f}")
    console.print(shown)
