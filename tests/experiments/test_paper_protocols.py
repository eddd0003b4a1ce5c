"""Protocols of the paper's experiments on volumes: schedules, regions and measures (appendix "Implementation")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from experiments.lpba40 import network as unet
from experiments.lpba40.recipes import PRESETS as RECIPES
from experiments.lpba40.recipes import Job
from experiments.multi_atlas.calibrating import OUTLINE, OUTSIDE, anatomical_regions, cases_of
from experiments.multi_atlas.fusing import measures
from experiments.multi_atlas.learning import train_network
from experiments.multi_atlas.presets import PRESETS, Fold, folds_of
from experiments.multi_atlas.simulated import simulated_volumes
from experiments.multi_atlas.table import calibration_table
from segcal import evaluate
from segcal.fusion.registration import Volume
from segcal.training.settings import Training
from support import references


class Reached(Exception):  # noqa: N818  (no error)
    """The training would begin here."""


def test_the_training_of_the_unet_is_the_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam from 1e-3, reduced by 90 % at 150 and 250 of 300 epochs, on the cross-entropy, in patches of 72."""
    asked: dict[str, Any] = {}

    def train(objective: nn.Module, source: object, settings: Training, **others: Any) -> None:
        asked.update(objective=objective, settings=settings, **others)
        raise Reached

    class Data:
        classes = tuple(range(57))
        read = staticmethod(str)

    monkeypatch.setattr(unet, "train", train)
    monkeypatch.setattr(unet, "_held", lambda volumes, _: volumes)
    job, names = Job("lpba40", 0), tuple(f"S{k:02d}" for k in range(40))
    parts = job.split(names)[0].network
    with pytest.raises(Reached):
        unet.train_network(job, 0, parts, Data(), tmp_path, tmp_path, "cpu")  # type: ignore[arg-type]
    settings = asked["settings"]
    assert (settings.optimiser, settings.learning_rate, settings.epochs) == ("adam", 1e-3, 300)
    assert (settings.milestones, settings.gamma, settings.weight_decay) == ((150, 250), 0.1, 0)
    assert len(asked["validation"]) == 3
    assert (asked["augment"].size, asked["augment"].share) == (72, 0.05)
    assert (RECIPES["lpba40"].patch, RECIPES["lpba40"].centre) == (72, 40)
    image, labels = torch.randint(256, (1, 1, 16, 16, 16), dtype=torch.uint8), torch.randint(57, (1, 16, 16, 16))
    objective = asked["objective"].train()
    loss, voxels = objective(image, labels)
    logits = objective.network(unet.normalised(image))
    torch.testing.assert_close(loss / voxels, cross_entropy(logits, labels))


def test_the_training_of_votenet_is_the_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam from 1e-3, halved at 200, 350 and 450 of 500 epochs, on the binary cross-entropy."""
    asked: dict[str, Any] = {}

    def train(objective: nn.Module, source: object, settings: Training, **others: Any) -> None:
        asked.update(objective=objective, settings=settings, **others)
        raise Reached

    monkeypatch.setattr("experiments.multi_atlas.learning.train", train)
    monkeypatch.setattr("experiments.multi_atlas.learning.PairSource", lambda pairs, *_: pairs)
    (fold, _) = folds_of([f"v{k:02d}" for k in range(40)], PRESETS["lpba40"])
    with pytest.raises(Reached):
        train_network(tmp_path, fold, PRESETS["lpba40"], device="cpu")
    settings = asked["settings"]
    assert (settings.optimiser, settings.learning_rate, settings.epochs) == ("adam", 1e-3, 500)
    assert (settings.milestones, settings.gamma, settings.weight_decay) == ((200, 350, 450), 0.5, 0)
    assert len(asked["validation"]) == 51
    assert asked["augment"].size == 72
    images, right = torch.rand(2, 1, 1, 16, 16, 16), torch.rand(1, 1, 16, 16, 16) < 0.5
    loss, voxels = asked["objective"](*images, right, torch.ones_like(right))
    logits = asked["objective"].network(*images)
    torch.testing.assert_close(loss / voxels, binary_cross_entropy_with_logits(logits, right.float()))


@pytest.fixture
def labelled_pair(monkeypatch: pytest.MonkeyPatch) -> Volume:
    """A target of which one atlas is known, warped to it."""
    volume, other = simulated_volumes(2)
    logits = np.random.default_rng(0).normal(size=(1, *volume.image.shape)).astype(np.float32)
    for name, value in {
        "reader": lambda _: lambda _: volume,
        "read_logits": lambda *_: logits,
        "read_warps": lambda *_: [other],
    }.items():
        monkeypatch.setattr(f"experiments.multi_atlas.calibrating.{name}", value)
    return volume


def test_regions_are_those_of_the_anatomical_labels(tmp_path: Path, labelled_pair: Volume) -> None:
    labels = labelled_pair.labels.astype(int)
    near = references.boundary(labels)
    found = anatomical_regions(labelled_pair.labels)
    np.testing.assert_array_equal(found["boundary"], near)
    np.testing.assert_array_equal(found["all"], (labels > 0) | near)
    (case,) = cases_of(tmp_path, Fold(0, ("a",), (), ("t",)), ("t",))
    np.testing.assert_array_equal(np.asarray(case.labels) == OUTSIDE, ~found["all"])


def test_boundary_in_table_1_is_that_of_the_anatomical_labels(tmp_path: Path, labelled_pair: Volume) -> None:
    fold = Fold(0, ("a",), (), ("t",))
    outline = torch.from_numpy(anatomical_regions(labelled_pair.labels)["boundary"])[None]
    results = evaluate(
        cases_of(tmp_path, fold, ("t",)),
        {"UC": None, "LTS": None},
        num_classes=2,
        ignore_index=OUTSIDE,
        regions={OUTLINE: lambda case, labels: outline},
        patch_size=8,
    )
    results.save(tmp_path / "fold-0" / "half-0" / "results")
    frame = results.to_frame().query("method == 'UC' and metric == 'ece'").set_index("region")["value"]
    text = calibration_table(tmp_path)
    assert text is not None
    cells = next(line for line in text.splitlines() if line.startswith("| UC |")).strip("| ").split(" | ")
    assert frame[OUTLINE] != pytest.approx(frame["boundary"], abs=1e-4), "that of right and wrong labels differs"
    assert cells[2].startswith(f"{100 * frame[OUTLINE]:.2f}(")


def test_measures_of_table_2_by_loops(labelled_pair: Volume) -> None:
    """Volume Dice is the mean over the structures, in All and in Boundary of the anatomical labels."""
    truth, labels = labelled_pair.labels.astype(int), [1, 2, 3]
    fused = np.roll(truth, 1, axis=0)
    found = {
        (region, metric): value
        for region, metric, value in measures(fused, fused, labelled_pair, np.stack([truth, fused]), labels, 1.0)
    }
    for region, inside in anatomical_regions(labelled_pair.labels).items():
        dice = []
        for k in labels:
            mine, theirs = inside & (fused == k), inside & (truth == k)
            dice.append(2 * (mine & theirs).sum() / (mine.sum() + theirs.sum()))
        assert found[region, "vd"] == pytest.approx(np.mean(dice))
    assert found["all", "vd"] > found["boundary", "vd"]
