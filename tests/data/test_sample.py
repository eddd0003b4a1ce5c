"""The samples: scenes as ever, brains that are the same on every machine and that the network never saw."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from segcal import InputError, create, evaluate, load_sample
from segcal.calibrators import Calibrator
from segcal.data.sample import BRAIN_SUBJECTS, BRAIN_TRAINING, BRAIN_WEIGHTS, brain, brain_cases, brain_network
from segcal.data.sample.brain import CLASSES, simulate_brain

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "contextual-temperature-scaling.md"
needs_template = pytest.mark.skipif(not brain.has_template(), reason="needs the extra demo (nilearn)")
needs_weights = pytest.mark.skipif(
    not BRAIN_WEIGHTS.exists(), reason="needs the weights that `python -m experiments.brain_sample` makes"
)


def test_other_names_and_a_missing_extra_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="must be one of scenes, brain, got 'liver'"):
        load_sample("liver")  # type: ignore[arg-type]
    monkeypatch.setattr(brain, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install segcal\[demo\]"):
        load_sample("brain")


def test_nobody_is_both_in_the_sample_and_in_the_training() -> None:
    everyone = [number for part in (*BRAIN_SUBJECTS.values(), BRAIN_TRAINING) for number in part]
    assert len(everyone) == len(set(everyone))


@needs_weights
def test_the_weights_are_small_and_fit_the_network() -> None:
    assert BRAIN_WEIGHTS.stat().st_size < 2e6
    brain_network().load_state_dict(load_file(BRAIN_WEIGHTS))


@needs_template
def test_a_subject_is_reproducible_and_has_every_tissue() -> None:
    one, again, other = simulate_brain(3), simulate_brain(3), simulate_brain(4)
    np.testing.assert_array_equal(one.image, again.image)
    assert one.image.shape == one.labels.shape == other.image.shape
    counts = np.bincount(one.labels.ravel(), minlength=len(CLASSES)) / one.labels.size
    assert 0.5 < counts[0] < 0.8
    assert (counts > 0.005).all()
    both = (one.labels > 0) & (other.labels > 0)
    assert 0.4 < (one.labels == other.labels)[both].mean() < 0.95, "subjects share an anatomy and differ in detail"
    means = [one.image[one.labels == label].mean() for label in range(len(CLASSES))]
    assert means == sorted(means), "in T1, white matter is brighter than grey matter, and that than fluid"
    brain = one.image[one.labels > 0]
    assert abs(brain.mean()) < 0.1
    assert abs(brain.std() - 1) < 0.1


@needs_weights
@needs_template
def test_the_network_is_good_and_overconfident() -> None:
    network = brain_network()
    network.load_state_dict(load_file(BRAIN_WEIGHTS))
    (case,) = brain_cases(network.eval(), [simulate_brain(BRAIN_SUBJECTS["test"][0])])
    logits, labels = np.asarray(case.logits, dtype=np.float64), np.asarray(case.labels)
    probs = np.exp(logits - logits.max(axis=0))
    probs /= probs.sum(axis=0)
    brain = labels > 0
    accuracy, confidence = (logits.argmax(axis=0) == labels)[brain].mean(), probs.max(axis=0)[brain].mean()
    assert accuracy > 0.8
    assert confidence > accuracy + 0.02


@needs_weights
@needs_template
def test_the_expected_volumes_are_those_of_the_page_on_cts() -> None:
    """Fitted in All, temperatures of the interior of the background are those of pixels near the other classes."""
    sample, fitted = load_sample("brain"), dict[str, Calibrator | None](uncalibrated=None)
    for name, background in (("with `background=0`", 0), ("on all voxels", None)):
        for method in ("ts", "cts"):
            own = create(method, num_classes=4, spatial_dims=3, background=background).fit(sample["fit"])
            fitted[f"{name} {method}"] = own
    bias = evaluate(sample["test"], fitted, num_classes=4, patches=0, repetitions=2).volume_bias()
    found = bias[bias.label.astype(str) == "1"].set_index("method").bias
    rows = re.findall(r"^\| (?:with `back|on all).*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(rows) == 2
    for row in rows:
        name, *printed = row.strip("| ").split(" | ")
        own = [found["uncalibrated"], found[f"{name} ts"], found[f"{name} cts"]]
        assert printed == [f"{100 * bias:+.0f} %" for bias in own]
