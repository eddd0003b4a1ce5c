"""Small cases with ignored pixels and background, and their figures by slow loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import segcal
from segcal.calibrators import Calibrator
from segcal.data.sample.scenes import simulate
from segcal.functional.catalogue import METRICS
from segcal.types import Case
from support import references

IGNORED = 9
SIZES = {2: (15, 12), 3: (6, 7, 8)}
PROTOCOL: dict[str, Any] = {
    "num_classes": 3,
    "ignore_index": IGNORED,
    "background": 0,
    "patch_size": 5,
    "patches": 4,
    "repetitions": 50,
}
HIGHER = ("accuracy", "miou")


def make_cases(dims: int = 2, count: int = 3) -> list[Case]:
    """Scenes with a corner of plain background and a stripe that is ignored."""
    cases = []
    for scene in simulate(count, num_classes=3, size=SIZES[dims], contrast=2.0, seed=7):
        labels = scene.case.labels.copy()
        labels[tuple(slice(0, 2 * length // 3) for length in labels.shape)] = 0
        labels[..., -2] = IGNORED
        cases.append(replace(scene.case, labels=labels))
    return cases


def fixed_temperature(temperature: float) -> Calibrator:
    """A calibrator whose temperature is known, fitted on a case of other content."""
    (case,) = make_cases(count=1)
    elsewhere = replace(case, name="elsewhere", logits=2 * case.logits)
    return segcal.create("ts", 3, ignore_index=IGNORED, bounds=(temperature, temperature)).fit([elsewhere])


METHODS = {"UC": 1.0, "TS": 2.5}


def methods() -> dict[str, Calibrator | None]:
    return {name: None if temperature == 1 else fixed_temperature(temperature) for name, temperature in METHODS.items()}


def slow(case: Case, temperature: float, inside: np.ndarray, **options: Any) -> dict[str, float]:
    """Every metric over the pixels of a mask, of the logits divided in their own precision."""
    logits = np.asarray(case.logits)[:, inside] / np.float32(temperature)
    return references.readings(logits, np.asarray(case.labels, np.int64)[inside], **options)


def slow_regions(case: Case, background: int | None = 0) -> dict[str, np.ndarray]:
    labels = np.asarray(case.labels).astype(np.int64)
    known = labels != IGNORED
    near = references.boundary(labels) & known
    return {"all": known & ((labels != background) | near), "boundary": near}


def patch_mask(case: Case, origin: str, size: int = 5) -> np.ndarray:
    mask = np.zeros(case.labels.shape, bool)
    mask[tuple(slice(int(start), int(start) + size) for start in origin.split())] = True
    return mask


def value_of(frame: pd.DataFrame, **chosen: Any) -> tuple[float, int]:
    for column, wanted in chosen.items():
        frame = frame[frame[column] == wanted]
    (row,) = frame.itertuples()
    return row.value, row.pixels


def assert_readings(frame: pd.DataFrame, expected: dict[str, float], **chosen: Any) -> None:
    metrics = set(expected) & set(METRICS)
    assert len(metrics) == len(expected) - 1  # all but the number of pixels
    for metric in metrics:
        value, pixels = value_of(frame, metric=metric, **chosen)
        assert pixels == expected["pixels"]
        assert value == pytest.approx(expected[metric], abs=1e-9, nan_ok=True), (metric, chosen)
