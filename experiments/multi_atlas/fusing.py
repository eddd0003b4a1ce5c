"""Stage `fuse`: joint label fusion of each test target with the probabilities of every method, measured (Table 2)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.special import expit

from experiments.multi_atlas.calibrating import anatomical_regions, fitted, two_classes
from experiments.multi_atlas.learning import fold_folder, read_logits, read_warps
from experiments.multi_atlas.presets import Fold, Preset
from experiments.multi_atlas.volumes import label_set, reader
from experiments.processes import spawned
from segcal.calibrators import Calibrator
from segcal.files import staged_file
from segcal.functional.surfaces import overlaps, segmentation_quality
from segcal.fusion.joint_label_fusion import joint_label_fusion_weights, similarity_weights
from segcal.fusion.registration import Volume
from segcal.fusion.table2 import best_fusion, best_probabilities, voxel_changes
from segcal.fusion.voting import plurality_vote, weighted_vote
from segcal.types import Array

MEASURES = "measures.csv"
BOUNDS = ("Best Fusion", "Best Calibration")
BASELINES = ("Plurality", "JLF of intensities")
COLUMNS = ["target", "method", "region", "metric", "value"]


class Atlases(NamedTuple):
    """The atlases of a target: images, labels and VoteNet+ logits, each `[n, *S]`."""

    images: Array
    labels: Array
    logits: Array


def fuse(out: Path, fold: Fold, preset: Preset, *, processes: int) -> None:
    """Fuse and measure every test target of a fold, unless that is done."""
    path = fold_folder(out, fold) / MEASURES
    if path.exists():
        print(f"fold {fold.number}: fused already")
        return
    started = perf_counter()
    jobs = [(target, half) for half, (_, test) in enumerate(fold.halves) for target in test]
    work = partial(_rows_of, out=out, fold=fold, preset=preset, labels=label_set(out))
    if processes == 1:
        found = list(map(work, jobs))
    else:
        with spawned(processes) as pool:
            found = list(pool.map(work, jobs))
    rows = [row for part in found for row in part]
    with staged_file(path) as file:
        pd.DataFrame(rows, columns=COLUMNS).to_csv(file, index=False)
    print(f"fold {fold.number}: {len(jobs)} targets fused in {perf_counter() - started:.0f} s", flush=True)


def _rows_of(
    job: tuple[str, int], *, out: Path, fold: Fold, preset: Preset, labels: list[int]
) -> list[tuple[str, str, str, str, float]]:
    target, half = job
    torch.set_num_threads(1)
    volume, warps = reader(out)(target), read_warps(out, fold, target)
    atlases = Atlases(
        np.stack([warp.image for warp in warps]),
        np.stack([warp.labels for warp in warps]).astype(np.int16),
        read_logits(out, fold, target),
    )
    calibrators = fitted(fold_folder(out, fold) / f"half-{half}")
    segmentations = dict(fused_labels(volume, atlases, calibrators))
    found = []
    for method, labelled in segmentations.items():
        figures = measures(labelled, segmentations["UC"], volume, atlases.labels, labels, preset.tolerance)
        found += [(target, method, *figure) for figure in figures]
    return found


def fused_labels(
    volume: Volume, atlases: Atlases, calibrators: dict[str, Calibrator | None]
) -> Iterator[tuple[str, Array]]:
    """Yield the name and the fused labels of each method, the bounds and the baselines."""
    raw = expit(atlases.logits.astype(np.float64))
    images = np.stack([np.broadcast_to(volume.image, atlases.images.shape), atlases.images], axis=1)
    for name, calibrator in calibrators.items():
        probabilities = raw if calibrator is None else _calibrated(calibrator, atlases.logits, images)
        labels = weighted_vote(atlases.labels, joint_label_fusion_weights(probabilities)).labels
        if calibrator is None:
            uncalibrated = labels
        yield name, labels
    best = best_probabilities(raw, atlases.labels == volume.labels)
    yield "Best Calibration", weighted_vote(atlases.labels, joint_label_fusion_weights(best)).labels
    yield "Best Fusion", best_fusion(atlases.labels, volume.labels, uncalibrated)
    yield "Plurality", plurality_vote(atlases.labels).labels
    yield "JLF of intensities", weighted_vote(atlases.labels, similarity_weights(volume.image, atlases.images)).labels


def measures(
    labelled: Array, uncalibrated: Array, volume: Volume, atlases: Array, labels: list[int], tolerance: float
) -> Iterator[tuple[str, str, float]]:
    """Yield region, metric and value of the figures of Table 2."""
    truth = volume.labels.astype(np.int16)
    quality = segmentation_quality(labelled, truth, labels, spacing=volume.spacing, tolerance=tolerance)
    yield from (("all", name, value) for name, value in quality.rows())
    for region, inside in anatomical_regions(truth).items():
        dice = [entry.dice for entry in overlaps(labelled, truth, labels, inside=inside)]
        yield region, "vd", float(np.nanmean(dice))
        changes = voxel_changes(uncalibrated, labelled, truth, atlases, inside)
        yield region, "rate", changes.rate
        yield region, "w->c", changes.wrong_to_correct
        yield region, "c->w", changes.correct_to_wrong


@torch.no_grad()
def _calibrated(calibrator: Calibrator, logits: Array, images: Array) -> Array:
    """The probability that each atlas is right, one atlas at a time."""
    found = []
    for own, image in zip(logits, images, strict=True):
        pair = torch.from_numpy(two_classes(own))[None], torch.from_numpy(np.ascontiguousarray(image))[None]
        found.append(calibrator.predict_proba(*pair)[0, 1].double().numpy())
    clipped: Array = np.clip(np.stack(found), 0, 1)
    return clipped
