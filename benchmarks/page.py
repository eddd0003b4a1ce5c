"""The page of 233 images of 360x480 with 8 methods (CamVid's test set): how long it takes to build, and its size."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd
import torch

from benchmarks.timing import console, scene
from segcal import Case, Results, create, evaluate
from segcal.calibrators import Calibrator
from segcal.evaluation.portraits import make_portraits, save_portraits
from segcal.report import write_page_of_folder

IMAGES, METHODS, MEASURED = 233, 8, 6


def building() -> None:
    """Measure six noisy scenes, repeat their rows up to 233 images, save, and build the page from the folder."""
    logits, labels = scene(batch=MEASURED)
    images = torch.rand(MEASURED, 3, 360, 480, generator=torch.Generator().manual_seed(1))
    cases = [Case(f"image-{k:03d}", logits[k], labels[k], images[k]) for k in range(MEASURED)]
    methods: dict[str, Calibrator | None] = {"UC": None}
    for k in range(METHODS - 1):
        lts = create("lts", num_classes=11, image_channels=3)
        methods[f"LTS {k}"] = lts.fit(cases[:1], epochs=3, learning_rate=1e-2, seed=k)
    results = evaluate(cases, methods, num_classes=11, patch_sizes=(24, 48, 72, 144))
    with tempfile.TemporaryDirectory() as folder:
        many = _repeated(results)
        many.save(Path(folder) / "results")
        save_portraits(make_portraits(cases, methods, results), Path(folder) / "results")
        started = perf_counter()
        write_page_of_folder(Path(folder) / "results", Path(folder) / "page.html")
        seconds, size = perf_counter() - started, (Path(folder) / "page.html").stat().st_size
    console.print(f"page of {IMAGES} images with {METHODS} methods: {seconds:.1f} s, {size / 1e6:.1f} MB")


def _repeated(results: Results) -> Results:
    """The same rows under more names."""

    def more(frame: pd.DataFrame) -> pd.DataFrame:
        copies = -(-IMAGES // MEASURED)
        all_rows = pd.concat([frame.assign(case=frame["case"] + (f"-{k}" if k else "")) for k in range(copies)])
        kept = list(dict.fromkeys(all_rows["case"]))[:IMAGES]
        return all_rows[all_rows["case"].isin(kept)].reset_index(drop=True)

    names = ("frame", "patch_frame", "size_frame", "case_frame", "volume_frame")
    frames: dict[str, Any] = {name: more(getattr(results, name)) for name in names}
    return replace(results, **frames)
