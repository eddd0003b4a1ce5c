"""The label manager that replaces nnU-Net's activation, which needs no nnU-Net."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import segcal
from segcal.integrations.nnunet import CalibratedLabelManager
from segcal.types import Case, InputError


def test_regions_are_calibrated_channel_by_channel(rng: np.random.Generator) -> None:
    scores = rng.normal(scale=3, size=(2, 4, 5, 6)).astype(np.float32)
    scores[0, 0] = [1e-7, -1e-7, 0, 80, -80, 1]
    case = Case("a", scores, (scores + rng.logistic(size=scores.shape) > 0).astype(np.uint8))
    ts = segcal.create("ts", 2, activation="sigmoid").fit([case])
    regions = SimpleNamespace(has_regions=True, num_segmentation_heads=2)
    found = CalibratedLabelManager(regions, ts).apply_inference_nonlin(scores)
    expected = ts.predict_proba(torch.from_numpy(scores)[None])[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(found > 0.5, torch.from_numpy(scores) > 0)
    with pytest.raises(InputError, match=r"predicts exclusive classes, and the calibrator .* activation='sigmoid'"):
        CalibratedLabelManager(SimpleNamespace(has_regions=False, num_segmentation_heads=2), ts)
