"""Reprs of calibrators: one line with the method and its main numbers."""

from __future__ import annotations

import re

import pytest

import segcal
from support.scenes import simulated


@pytest.mark.parametrize("method", segcal.methods())
def test_an_unfitted_one_says_so(method: str) -> None:
    calibrator = segcal.create(method, num_classes=3, spatial_dims=2)
    assert repr(calibrator) == f"{type(calibrator).__name__}(num_classes=3, not fitted)"


@pytest.mark.parametrize(
    ("method", "numbers"),
    [
        ("ts", "temperature="),
        ("ats", "temperature="),
        ("ets", "temperature=.*, weights=\\["),
        ("lts", "temperature_low=.*, temperature_high="),
        ("ibts", "temperature_low=.*, temperature_high="),
        ("isotonic", "nll_before=.*, nll_after="),
        ("auto", "chosen=\\w+\\(num_classes=.*\\)"),
    ],
)
def test_a_fitted_one_shows_its_main_numbers(method: str, numbers: str) -> None:
    settings = {"epochs": 1} if method in ("lts", "ibts") else {}
    options = {"candidates": ("ts", "ets")} if method == "auto" else {}
    calibrator = segcal.create(method, num_classes=3, spatial_dims=2, **options).fit(scenes(), **settings)
    assert re.fullmatch(rf"{type(calibrator).__name__}\(num_classes=\d+, {numbers}.*\)", repr(calibrator))


def test_the_temperature_is_the_one_applied() -> None:
    ts = segcal.create("ts", num_classes=3).fit(scenes())
    shown = float(repr(ts).rpartition("temperature=")[2].rstrip(")"))
    assert shown == pytest.approx(ts.fit_report_.details["temperature"], rel=1e-3)


def scenes() -> list[segcal.Case]:
    return simulated(2, num_classes=3, size=(16, 16))
