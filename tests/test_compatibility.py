"""What segcal 0.1.0 saved is read today and gives the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import segcal
from segcal.evaluation.results import Results

SAVED = Path(__file__).parent / "support" / "saved-0.1.0"
METHODS = sorted(path.parent.name for path in SAVED.glob("*/weights.safetensors"))


@pytest.mark.parametrize("method", METHODS)
def test_calibrators_of_0_1_0_give_the_same_probabilities(method: str) -> None:
    with np.load(SAVED / "probabilities.npz", allow_pickle=False) as kept:
        logits, image, expected = (torch.from_numpy(kept[name]).unsqueeze(0) for name in ("logits", "image", method))
    calibrator = segcal.load(SAVED / method)
    torch.testing.assert_close(calibrator.predict_proba(logits, image), expected, rtol=1e-5, atol=1e-7)
    assert calibrator.fit_report_.names
    assert calibrator.fit_report_.fingerprints == ()  # compared by name


def test_every_method_of_0_1_0_is_still_there() -> None:
    assert len(METHODS) == 14
    assert set(METHODS) <= set(segcal.methods())


def test_results_of_0_1_0_are_read() -> None:
    results = Results.load(SAVED / "results")
    assert results.methods == ("UC", "TS", "LTS")
    ece = results.to_frame().query("method == 'TS' and region == 'all' and metric == 'ece'")["value"].mean()
    assert ece == pytest.approx(0.0413, abs=5e-5)  # as that version printed it
    assert "LTS" in str(results.table(reference="TS", floor=True))
