"""Joint label fusion of 17 atlases on 64^3 voxels against one solve per voxel, and against antspyx.

antspyx pins an old numpy, so it is measured where it is installed: `python -m benchmarks fusion` in such an environment
prints its row; elsewhere the row is left out.
"""

from __future__ import annotations

import importlib.util
from time import perf_counter

import numpy as np

from benchmarks.timing import console, milliseconds, table
from experiments.multi_atlas.simulated import simulated_volumes
from segcal.fusion.joint_label_fusion import joint_label_fusion_weights
from segcal.fusion.voting import weighted_vote
from segcal.types import Array

ATLASES, SIDE = 17, 64


def solve_each_voxel(probabilities: Array, alpha: float = 0.1) -> Array:
    """The weights by a loop over voxels, as the equation is written."""
    errors = 1 - probabilities.reshape(len(probabilities), -1)
    diagonal, ones = alpha * np.eye(len(errors)), np.ones(len(errors))
    weights = np.empty_like(errors)
    for voxel in range(errors.shape[1]):
        own = errors[:, voxel]
        found = np.linalg.solve(np.outer(own, own) + diagonal, ones)
        weights[:, voxel] = found / found.sum()
    return weights.reshape(probabilities.shape)


def against_a_loop_and_antspyx() -> None:
    """Print how long the weights, and the whole fusion, take."""
    random = np.random.default_rng(0)
    probabilities = random.uniform(size=(ATLASES, SIDE, SIDE, SIDE))
    labels = random.integers(0, 4, probabilities.shape)
    ours = milliseconds(lambda: joint_label_fusion_weights(probabilities), repetitions=5, warm_up=1)
    fused = milliseconds(
        lambda: weighted_vote(labels, joint_label_fusion_weights(probabilities)), repetitions=3, warm_up=1
    )
    start = perf_counter()
    expected = solve_each_voxel(probabilities)
    loop = 1e3 * (perf_counter() - start)
    gap = np.abs(expected - joint_label_fusion_weights(probabilities)).max()
    shown = table(f"joint label fusion, {ATLASES} atlases, {SIDE}^3 voxels", "what", "ms", "times segcal")
    shown.add_row("segcal, weights", f"{ours:.0f}", "1")
    shown.add_row("segcal, weights and labels", f"{fused:.0f}", f"{fused / ours:.1f}")
    shown.add_row("numpy.linalg.solve for each voxel", f"{loop:.0f}", f"{loop / ours:.0f}")
    if (peer := _antspyx()) is not None:
        shown.add_row("antspyx joint_label_fusion, r_search 3", f"{peer:.0f}", f"{peer / fused:.0f}")
    console.print(shown)
    console.print(f"largest difference to the solve: {gap:.1e}")


def _antspyx() -> float | None:
    """Milliseconds of antspyx's fusion of as many simulated atlases of this size; None where it is not installed."""
    if not importlib.util.find_spec("ants"):
        return None
    import ants

    volumes = simulated_volumes(ATLASES + 1, (SIDE,) * 3)
    images = [ants.from_numpy(volume.image.astype(np.float32)) for volume in volumes]
    labels = [ants.from_numpy(volume.labels.astype(np.float32)) for volume in volumes]
    mask = ants.from_numpy(np.ones((SIDE,) * 3, np.float32))
    start = perf_counter()
    ants.joint_label_fusion(images[0], mask, images[1:], label_list=labels[1:], r_search=3, verbose=False)
    return 1e3 * (perf_counter() - start)
