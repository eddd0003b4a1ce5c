"""Isotonic regression, histogram binning and beta calibration, with every option, on data that say little."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from segcal import Case, create

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("isotonic", {}),
    ("isotonic", {"scope": "one-vs-rest"}),
    ("histogram", {}),
    ("histogram", {"equal": "mass"}),
    ("beta", {}),
]
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(3, 12, 10)).astype(np.float32) * 2
DATA: dict[str, tuple[np.ndarray, np.ndarray, str | None]] = {
    "one class only": (LOGITS, np.zeros((12, 10), int), "class 0 is the only one among the labels"),
    "a class never present": (LOGITS, RANDOM.integers(0, 2, (12, 10)), "no pixel to fit on is labelled 2"),
    "one score everywhere": (np.zeros((3, 4, 5), np.float32), RANDOM.integers(0, 3, (4, 5)), None),
    "no doubt at all": (1e4 * LOGITS, LOGITS.argmax(0), "every pixel is predicted right"),
}


@pytest.mark.parametrize(("method", "settings"), KINDS, ids=str)
@pytest.mark.parametrize("name", DATA)
def test_the_answer_is_defined(method: str, settings: dict[str, Any], name: str) -> None:
    logits, labels, warning = DATA[name]
    calibrator = create(method, 3, **settings).fit([Case("a", logits, labels)])
    report = calibrator.fit_report_
    assert report.converged
    assert np.isfinite([report.nll_before, report.nll_after]).all()
    probs = calibrator.predict_proba(torch.from_numpy(LOGITS)[None])
    assert probs.isfinite().all()
    torch.testing.assert_close(probs.sum(1), torch.ones(1, 12, 10))
    if name == "a class never present" and (method, settings) == ("isotonic", {}):
        assert not report.warnings
    elif warning is not None:
        assert any(re.search(warning, line) for line in report.warnings), report.warnings
    if name == "one class only" and (method, settings) != ("isotonic", {}):  # the pooled function knows no classes
        assert (probs[:, 0] > 0.9).all()
    if name == "a class never present" and (method, settings) != ("isotonic", {}):
        assert probs[:, 2].max() < 0.05


def test_more_pixels_than_are_calibrated_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("a", LOGITS, LOGITS.argmax(0) % 2)
    logits = torch.from_numpy(LOGITS)[None].repeat(2, 1, 1, 1)
    for method, settings in KINDS:
        whole = create(method, 3, **settings).fit([case])
        expected = whole(logits)
        monkeypatch.setattr("segcal.calibrators.scores._PART", 50)
        parts = create(method, 3, **settings).fit([case])
        assert torch.equal(parts(logits), expected)
        assert parts.fit_report_.nll_after == pytest.approx(whole.fit_report_.nll_after)
        monkeypatch.undo()
