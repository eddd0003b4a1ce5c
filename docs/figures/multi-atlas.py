"""Draw `multi-atlas.png`: one target, its labels and three fusions of simulated atlases."""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
from scipy.ndimage import gaussian_filter

from experiments.multi_atlas.simulated import LABELS, simulated_volumes
from segcal.functional.surfaces import segmentation_quality
from segcal.fusion import Pair, joint_label_fusion_weights, plurality_vote, read_warp, register_pairs, weighted_vote


def main() -> None:
    """Register five simulated atlases to a sixth subject and draw the middle slice."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    volumes = {str(k): volume for k, volume in enumerate(simulated_volumes(6, (36, 48, 40)))}
    pairs, target = [Pair(str(k), "0") for k in range(1, 6)], volumes["0"]
    with tempfile.TemporaryDirectory() as folder:
        register_pairs(pairs, volumes.__getitem__, folder)
        warps = [read_warp(Path(folder), pair) for pair in pairs]
    labels = np.stack([warp.labels for warp in warps]).astype(int)
    right = labels == target.labels
    honest = np.clip([gaussian_filter(one.astype(float), 1.0) for one in right], 0.02, 0.98)
    overconfident = 1 / (1 + (1 / honest - 1) ** 6)
    fused = {
        "plurality": plurality_vote(labels),
        "JLF, overconfident": weighted_vote(labels, joint_label_fusion_weights(overconfident)),
        "JLF, calibrated": weighted_vote(labels, joint_label_fusion_weights(honest)),
    }
    slice_ = target.labels.shape[0] // 2
    figure, axes = plt.subplots(1, 5, figsize=(13, 3.2), constrained_layout=True)
    axes[0].imshow(target.image[slice_], cmap="gray")
    axes[0].set_title("target")
    axes[1].imshow(target.labels[slice_], cmap="Pastel1", vmin=0, vmax=8, interpolation="nearest")
    axes[1].set_title("true labels")
    for axis, (name, one) in zip(axes[2:], fused.items(), strict=True):
        wrong = np.ma.masked_where(one.labels == target.labels, np.ones(target.labels.shape))
        axis.imshow(one.labels[slice_], cmap="Pastel1", vmin=0, vmax=8, interpolation="nearest")
        axis.imshow(wrong[slice_], cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        dice = dict(segmentation_quality(one.labels, target.labels.astype(int), LABELS).rows())["dice"]
        axis.set_title(f"{name}\nDice {dice:.3f}")
    for axis in axes:
        axis.set_axis_off()
    figure.suptitle("Simulated atlases; the probabilities are the truth, blurred; errors in black", fontsize=10)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=90)


if __name__ == "__main__":
    main()
