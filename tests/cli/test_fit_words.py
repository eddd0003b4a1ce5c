"""What `segcal fit` prints about a fit: words, not the keys of its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import segcal
from segcal.calibrators import FitReport
from segcal.cli.fit import print_report
from support.scenes import simulated


@pytest.mark.parametrize("method", [name for name in segcal.methods() if name != "auto"])
def test_details_are_in_words(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    cases = simulated(3, num_classes=3, size=(16, 14), contrast=2.0)
    calibrator = segcal.create(method, num_classes=3)
    calibrator.fit(cases, **({"epochs": 1} if "epochs" in calibrator.fit_settings else {}))
    print_report(method, calibrator.fit_report_, Path("out"))
    shown = capsys.readouterr().out
    assert shown.startswith(f"{method}: NLL ")
    assert "_" not in shown, "a key"
    assert "{" not in shown
    assert "None" not in shown


def test_details_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    details = {"temperature_low": 1.0, "temperature_high": 2.5, "ts_temperature": 1.75, "best_epoch": 3, "share": 0.5}
    details |= {"start": "ts", "dead_share": 0.2, "validation_nll": 0.61, "validation_nll_ts": 0.65}
    print_report("lts", FitReport(10, 1.0, 0.5, 3, details=details, cases=2, seconds=1.0), Path("out"))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  temperatures from 1 to 2.5 (ts: 1.75)",
        "  weights from epoch 3",
        "  50% of their change from ts is kept",
        "  NLL of the validation images: 0.6100 nats (ts: 0.6500)",
        "saved in out",
    ]


def test_the_papers_form_has_no_share_of_a_change_from_ts() -> None:
    cases = simulated(3, num_classes=3, size=(16, 14), contrast=2.0)
    for preset in ("default", "paper"):
        fitted = segcal.create("lts", num_classes=3, preset=preset).fit(cases, validation=cases, epochs=2)
        told = list(fitted.fit_report_.sentences())
        assert any(words.startswith("weights from epoch") for words in told)
        assert any(words.endswith("of their change from ts is kept") for words in told) is (preset == "default")


def test_classes_have_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    details = {"words": ["pixels predicted as class 1: x1.2", "where class 0 is predicted, class 7 is more likely"]}
    report = FitReport(10, 1.0, 0.5, 3, details=details, cases=2, seconds=1.0)
    print_report("cts", report, Path("out"), class_names=("field", "road"))
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "  pixels predicted as 'road': x1.2",
        "  where 'field' is predicted, class 7 is more likely",
    ]


def test_channels_and_their_two_classes_have_their_names() -> None:
    own = {"words": ["pixels predicted as class 0: x1.2", "pixels predicted as class 1: x0.9"]}
    lines = ["pixels predicted as 'not core': x1.2", "pixels predicted as 'core': x0.9"]
    single = FitReport(10, 1.0, 0.5, 3, details=own, cases=2, seconds=1.0)
    assert single.sentences(["core"]) == lines
    several = replace(single, details={"channel 0": {"temperature": 2.0}, "channel 1": own})
    assert several.sentences(["whole", "core"]) == ["channel whole:", "temperature 2", "channel core:", *lines]
    assert several.sentences()[0] == "channel 0:"
