"""Reprs of calibrators, printed reports, and settings of fits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import segcal
from segcal.calibrators import FitReport, create
from segcal.training.settings import Training
from segcal.types import InputError
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


def test_a_printed_report_has_ten_lines_at_most() -> None:
    report = FitReport(1200, 0.9, 0.5, 7, details={"temperature": 1.5, "scores": {"ts": 1}}, cases=3, seconds=1.25)
    assert str(report).splitlines() == [
        "NLL 0.9000 -> 0.5000 nats per pixel",
        "3 cases, 1,200 pixels",
        "7 steps, 1.2 s, converged",
        "temperature 1.5",
    ]
    long = replace(report, warnings=tuple("abcdefgh"), details={f"number {k}": float(k) for k in range(20)})
    lines = str(long).splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("NLL")
    assert lines[-1] == "warning: g"


def test_a_printed_report_has_no_heading_without_lines() -> None:
    channels = {f"channel {k}": {"temperature": 2.0} for k in range(3)}
    report = FitReport(12, 0.9, 0.5, 7, details=channels, warnings=("a", "b"), cases=1, seconds=1.0)
    shown = ["channel 0:", "temperature 2", "channel 1:", "temperature 2", "warning: a", "warning: b"]
    assert str(report).splitlines()[3:] == shown


def test_settings_of_training_are_given_at_once_or_by_name() -> None:
    cases = simulated(2, num_classes=3, size=(16, 14), contrast=2.0)
    by_name = create("lts", 3).fit(cases, epochs=2, learning_rate=1e-3, seed=4)
    at_once = create("lts", 3).fit(cases, settings=Training(epochs=2, learning_rate=1e-3, seed=4))
    mixed = create("lts", 3).fit(cases, settings=Training(epochs=9, learning_rate=1e-3, seed=4), epochs=2)
    for other in (at_once, mixed):
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in by_name.state_dict().items())
    with pytest.raises(InputError, match="'ts' has no fit setting 'epochs'; it has none"):
        create("ts", 3).fit(cases, epochs=2)
    with pytest.raises(InputError, match=r"'lts' has no fit setting 'epoch'; .* did you mean 'epochs'"):
        create("lts", 3).fit(cases, epoch=2)
