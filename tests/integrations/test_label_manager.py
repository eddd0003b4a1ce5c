"""The label manager that replaces nnU-Net's activation, which needs no nnU-Net."""

from __future__ import annotations

import pickle
from copy import deepcopy
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


def test_it_can_be_copied(rng: np.random.Generator) -> None:
    """As nnU-Net's own manager can, to be handed to another process."""
    scores = rng.normal(size=(2, 4, 5, 6)).astype(np.float32)
    ts = segcal.create("ts", 2).fit([Case("a", scores, rng.integers(0, 2, (4, 5, 6)))])
    manager = CalibratedLabelManager(SimpleNamespace(has_regions=False, num_segmentation_heads=2), ts)
    for copied in (deepcopy(manager), pickle.loads(pickle.dumps(manager))):
        assert copied.num_segmentation_heads == 2
        assert torch.equal(copied.apply_inference_nonlin(scores), manager.apply_inference_nonlin(scores))
