"""Contextual temperature scaling: what it takes to apply it, and to fit it on a hundred images that lie on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.timing import console, milliseconds, scene, table
from segcal import Case
from segcal.calibrators import ContextualTemperatureScaling
from segcal.functional.context import context_features

CLASSES, IMAGES = 21, 100


def applying() -> None:
    """Print how many softmax+max passes the application takes."""
    shown = table("apply to one image", "what", "ms", "softmax+max passes")
    for title, classes, size in (
        ("11 x 360 x 480", 11, (360, 480)),
        ("21 x 360 x 480", CLASSES, (360, 480)),
        ("3 x 64^3", 3, (64, 64, 64)),
    ):
        logits, labels = scene(classes, size, batch=2)
        one = logits[:1].contiguous()
        unit = milliseconds(partial(_pass, one))  # before the fit, which leaves memory in pieces and slows it down
        cases = [Case(f"{k}", logits[k], labels[k]) for k in range(2)]
        cts = ContextualTemperatureScaling(classes, spatial_dims=len(size)).fit(cases)
        parts: dict[str, Callable[[], Any]] = {
            "all features, as for a fit": partial(context_features, one),
            "temperature": partial(cts.temperature, one),
            "temperature and softmax, labels guarded": partial(cts.predict_proba, one),
        }
        shown.add_row(f"{title}, softmax + max", f"{unit:.2f}", "1.00")
        times = {name: milliseconds(function) for name, function in parts.items()}
        for name, time in times.items():
            shown.add_row(f"{title}, {name}", f"{time:.2f}", f"{time / unit:.2f}")
    console.print(shown)


def _pass(logits: Tensor) -> Any:
    return torch.softmax(logits, dim=1).max(dim=1)


def fitting(images: int = IMAGES) -> None:
    """Print the seconds of a fit on memory-mapped images of 21 x 360 x 480."""
    shown = table(f"fit on {images} images of 21 x 360 x 480 from disk", "what", "s", "passes over all", "strengths")
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (np.float32, np.float16):
            cases = [_on_disk(Path(folder), k, dtype) for k in range(images)]
            for name, settings in (("cts", {}), ("without features", {"features": False})):
                cts, start = ContextualTemperatureScaling(CLASSES, **settings), perf_counter()  # type: ignore[arg-type]
                details = cts.fit(cases).fit_report_.details
                chosen = f"{details['ridge_features']}, {details['ridge_classes']}"
                seconds = f"{perf_counter() - start:.1f}"
                shown.add_row(f"{name}, {np.dtype(dtype)}", seconds, f"{1 + cts.fit_report_.steps}", chosen)
    console.print(shown)


def _on_disk(folder: Path, number: int, dtype: type[np.floating[Any]]) -> Case:
    """A scene whose images differ, with its logits in a file."""
    path = folder / f"{number}-{np.dtype(dtype)}.npy"
    logits, labels = scene(CLASSES)
    turned = np.roll(logits[0].numpy(), number, axis=0) * np.float32(0.8 + 0.004 * number)
    np.save(path, turned.astype(dtype))
    moved = (labels[0].numpy() + number) % CLASSES
    return Case(f"{number}", np.load(path, mmap_mode="r", allow_pickle=False), moved.astype(np.uint8))
