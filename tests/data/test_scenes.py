"""Simulated scenes hold what they promise: calibrated truth, a known temperature, the same on every machine."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from segcal import CalibrationSuite, load_sample
from segcal.data.sample.scenes import Scene, Variation, simulate
from segcal.types import InputError

VARIATIONS: tuple[Variation, ...] = get_args(Variation)
SIZES = [(24, 20), (10, 12, 8)]


def ece(logits: np.ndarray, scenes: list[Scene]) -> float:
    suite = CalibrationSuite(num_classes=logits.shape[1])
    suite.update(torch.from_numpy(logits), torch.from_numpy(np.stack([scene.case.labels for scene in scenes])))
    return float(suite.compute()["all"]["ece"])


@pytest.mark.parametrize("size", [(64, 64), (16, 16, 16)], ids=str)
@pytest.mark.parametrize("variation", VARIATIONS)
def test_the_true_logits_are_calibrated_and_the_published_are_not(variation: Variation, size: tuple[int, ...]) -> None:
    # confidences of one scene hang together, so that many scenes are needed rather than many pixels
    scenes = simulate(24, size=size, variation=variation, seed=5)
    assert ece(np.stack([scene.true_logits for scene in scenes]), scenes) < 0.01
    assert ece(np.stack([scene.case.logits for scene in scenes]), scenes) > 0.02
    divided = np.stack([scene.case.logits / scene.temperature for scene in scenes])
    assert ece(divided, scenes) < 0.01


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("variation", VARIATIONS)
def test_published_logits_over_temperature_are_the_true_ones(variation: Variation, size: tuple[int, ...]) -> None:
    for scene in simulate(3, num_classes=4, size=size, variation=variation, temperatures=(0.4, 2.5), seed=1):
        case = scene.case
        assert case.logits.shape == scene.true_logits.shape == (4, *size)
        assert (case.logits.dtype, case.labels.dtype, case.image.dtype) == (np.float32, np.uint8, np.float32)
        assert case.labels.shape == scene.temperature.shape == size
        assert case.image.shape == (1, *size)
        np.testing.assert_allclose(case.logits / scene.temperature, scene.true_logits, rtol=1e-6)
        assert (scene.temperature >= 0.4).all()
        assert (scene.temperature <= 2.5).all()


def test_the_temperature_varies_as_asked_and_the_image_shows_it() -> None:
    local, image, same = (simulate(4, variation=variation, temperatures=(0.5, 3.0)) for variation in VARIATIONS)
    for scene in local:
        assert (scene.temperature.min(), scene.temperature.max()) == pytest.approx((0.5, 3.0))
        np.testing.assert_allclose(0.5 + 2.5 * scene.case.image[0], scene.temperature, atol=0.15)
    assert all(np.ptp(scene.temperature) == 0 for scene in image)
    assert len({scene.temperature.flat[0] for scene in image}) == 4
    assert all((scene.temperature == 3.0).all() for scene in same)


@pytest.mark.parametrize("variation", VARIATIONS)
def test_a_seed_gives_the_same_scenes_and_another_seed_others(variation: Variation) -> None:
    def arrays(count: int, seed: int) -> list[np.ndarray]:
        scenes = simulate(count, size=(12, 12), variation=variation, seed=seed)
        return [a for s in scenes for a in (s.case.logits, s.case.labels, s.case.image, s.true_logits, s.temperature)]

    one, again, more, other = arrays(2, 3), arrays(2, 3), arrays(4, 3), arrays(2, 4)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(one, more[:10], strict=True))
    assert not np.array_equal(one[0], other[0])
    assert not np.array_equal(one[0], one[5])


def test_names_and_extremes() -> None:
    scenes = simulate(2, num_classes=300, size=(4, 4))
    assert [scene.case.name for scene in scenes] == ["scene-000", "scene-001"]
    assert scenes[0].case.labels.dtype == np.int32
    assert simulate(0) == []
    assert np.isfinite(simulate(1, size=(1, 1))[0].case.logits).all()
    assert not simulate(1, contrast=0.0)[0].true_logits.any()
    with pytest.raises(InputError, match="variation must be one of local, image, global, got 'none'"):
        simulate(1, variation="none")


def test_the_sample_is_split_without_overlap() -> None:
    sample = load_sample()
    names = [case.name for cases in sample.values() for case in cases]
    assert {split: len(cases) for split, cases in sample.items()} == {"fit": 30, "validation": 4, "test": 12}
    assert len(set(names)) == 46
