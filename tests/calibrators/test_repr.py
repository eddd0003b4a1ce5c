"""Reprs of calibrators: one line with the method and its main numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import segcal

SAVED = Path(__file__).parents[1] / "support" / "saved-0.1.0"


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
    calibrator = segcal.load(SAVED / method)
    assert re.fullmatch(rf"{type(calibrator).__name__}\(num_classes=\d+, {numbers}.*\)", repr(calibrator))


def test_the_temperature_is_the_one_applied() -> None:
    ts = segcal.load(SAVED / "ts")
    shown = float(repr(ts).rpartition("temperature=")[2].rstrip(")"))
    assert shown == pytest.approx(ts.fit_report_.details["temperature"], rel=1e-3)
