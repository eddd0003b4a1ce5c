"""What limits calibration: oracles at every level against brute force, and levels that must not get worse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize_scalar

from segcal.data.sample.scenes import simulate
from segcal.evaluation.limits import LEVELS, limits, limits_table, verdict
from segcal.evaluation.protocol import Protocol
from segcal.functional.context import changes, distance
from segcal.types import Case, InputError

CLASSES = 3


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    scenes = simulate(3, num_classes=CLASSES, size=(24, 20), variation="image", contrast=2.0, seed=1)
    return [replace(scene.case, image=None) for scene in scenes]


@pytest.fixture(scope="module")
def found(cases: list[Case]) -> pd.DataFrame:
    return limits(cases, Protocol(CLASSES))


def value(table: pd.DataFrame, level: str, metric: str = "nll") -> float:
    return float(table.query("level == @level and metric == @metric")["value"].item())


def test_every_level_has_both_metrics(found: pd.DataFrame) -> None:
    assert list(found.columns) == ["level", "metric", "value"]
    assert list(dict.fromkeys(found["level"])) == list(LEVELS)
    assert len(found) == 2 * len(LEVELS)
    shown = limits_table(found)
    rows = {level: numbers for level, *numbers in shown.rows}
    assert list(rows) == list(LEVELS)
    assert rows["image"][1] == f"{value(found, 'image'):.4f}"
    assert rows["image"][0] == f"{100 * value(found, 'image', 'ece'):.2f}"
    assert shown.note == verdict(found)


def slow_nll(cases: list[Case], groups: list[np.ndarray]) -> float:
    """One temperature for each group number, by a search in one number."""
    z = np.concatenate([np.asarray(case.logits, float).reshape(CLASSES, -1) for case in cases], axis=1)
    y = np.concatenate([np.asarray(case.labels).ravel() for case in cases])
    group = np.concatenate([part.ravel() for part in groups])

    def nll(log_heat: float, own: np.ndarray) -> float:
        scaled = torch.from_numpy(z[:, own].T / np.exp(log_heat))
        return float(torch.nn.functional.cross_entropy(scaled, torch.from_numpy(y[own]).long(), reduction="sum"))

    total = 0.0
    for name in np.unique(group):
        own = np.flatnonzero(group == name)
        total += minimize_scalar(lambda u, own=own: nll(u, own), bounds=np.log([0.05, 100]), method="bounded").fun
    return total / len(y)


@pytest.mark.parametrize("level", ["dataset", "class", "distance", "image", "image and class"])
def test_the_oracle_is_that_of_a_search(level: str, cases: list[Case], found: pd.DataFrame) -> None:
    predicted = [np.asarray(case.logits).argmax(0) for case in cases]
    of_image = [np.full(labels.shape, 100 * k) for k, labels in enumerate(predicted)]
    groups = {
        "dataset": [np.zeros_like(labels) for labels in predicted],
        "class": predicted,
        "distance": [distance(changes(torch.from_numpy(p)[None]).float())[0].long().numpy() for p in predicted],
        "image": of_image,
        "image and class": [a + b for a, b in zip(of_image, predicted, strict=True)],
    }[level]
    assert value(found, level) == pytest.approx(slow_nll(cases, groups), abs=1e-5)


def test_the_floor_is_small_and_repeatable(cases: list[Case], found: pd.DataFrame) -> None:
    again = limits(cases, Protocol(CLASSES))
    pd.testing.assert_frame_equal(found, again)
    assert 0 < value(found, "floor", "ece") < 0.05
    assert value(limits(cases, Protocol(CLASSES, seed=1)), "floor", "ece") != value(found, "floor", "ece")


def test_slabs_and_ignored_pixels_change_nothing(
    cases: list[Case], found: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = []
    for case in cases:
        labels = np.asarray(case.labels).astype(np.int64)
        more = np.concatenate([labels, np.full((2, labels.shape[1]), 255)])
        logits = np.concatenate([np.asarray(case.logits), np.asarray(case.logits)[:, -1:].repeat(2, 1)], axis=1)
        wider.append(replace(case, logits=logits, labels=more))
    monkeypatch.setattr("segcal.cases.stream.SLAB", CLASSES * 20 * 8)
    table = limits(wider, Protocol(CLASSES, ignore_index=255))
    for level in ("uncalibrated", "dataset", "class", "image", "image and class"):
        assert value(table, level) == pytest.approx(value(found, level), rel=1e-9)


def test_the_verdict_follows_the_numbers() -> None:
    def table(floor: float, **nll: float) -> pd.DataFrame:
        levels = {"uncalibrated": 0.9, "dataset": 0.5, "class": 0.5, "distance": 0.5, "image": 0.5, "floor": 0.5, **nll}
        rows = [(level, "nll", value) for level, value in levels.items()]
        rows += [(level, "ece", floor if level == "floor" else 0.05) for level in levels]
        return pd.DataFrame(rows, columns=["level", "metric", "value"])

    assert "little is left to gain" in verdict(table(0.049))
    assert "by more than 1\xa0%: information other" in verdict(table(0.0, image=0.496))
    assert "for each class would lower the NLL by 20.0\xa0%" in verdict(table(0.049, image=0.49, **{"class": 0.4}))


def test_no_pixel_is_refused(cases: list[Case]) -> None:
    empty = [replace(case, labels=np.full((24, 20), 255)) for case in cases]
    with pytest.raises(InputError, match="no labelled pixel to measure"):
        limits(empty, Protocol(CLASSES, ignore_index=255))
