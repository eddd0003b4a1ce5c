"""Draws `overview.png`, the picture of the README: `python docs/figures/overview.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import torch

mpl.use("Agg")
from matplotlib import pyplot as plt

from segcal import CalibrationSuite, create
from segcal.data.sample.scenes import simulate

SCENE = {"size": (96, 96), "temperatures": (0.5, 4.0), "contrast": 3.0}
COLOURS = {"UC": "#b2182b", "TS": "#e08214", "LTS": "#2166ac"}


def main() -> None:
    """Fit on simulated scenes, measure on others, draw."""
    fitted, held_out = simulate(34, seed=1, **SCENE), simulate(12, seed=2, **SCENE)
    fit, validation = [scene.case for scene in fitted[:30]], [scene.case for scene in fitted[30:]]
    ts = create("ts", num_classes=5).fit(fit)
    lts = create("lts", num_classes=5, image_channels=1)
    lts.fit(fit, validation=validation, epochs=60, learning_rate=3e-3, flips=True)
    suites = {name: CalibrationSuite(num_classes=5) for name in COLOURS}
    for scene in held_out:
        logits, image = torch.from_numpy(scene.case.logits)[None], torch.from_numpy(scene.case.image)[None]
        labels = torch.from_numpy(scene.case.labels)[None]
        with torch.no_grad():
            for name, method in (("UC", None), ("TS", ts), ("LTS", lts)):
                suites[name].update(logits if method is None else method(logits, image), labels)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), width_ratios=[1.15, 1, 1], constrained_layout=True)
    axes[0].plot([0, 1], [0, 1], color="0.6", lw=1, ls="--")
    for name, suite in suites.items():
        curve, ece = suite.compute_curves()["all"], 100 * float(suite.compute()["all"]["ece"])
        axes[0].plot(
            curve["confidence"], curve["accuracy"], "o-", ms=4, color=COLOURS[name], label=f"{name}  ECE {ece:.1f} %"
        )
    axes[0].set(xlabel="confidence", ylabel="accuracy", xlim=(0.15, 1.02), ylim=(0.15, 1.02))
    axes[0].legend(frameon=False)
    scene = held_out[0]
    with torch.no_grad():
        found = lts.temperature(torch.from_numpy(scene.case.logits)[None], torch.from_numpy(scene.case.image)[None])
    for axis, values, title in ((axes[1], scene.temperature, "true temperature"), (axes[2], found[0, 0], "LTS")):
        shown = axis.imshow(values, cmap="viridis", vmin=0.5, vmax=4.0)
        axis.set(title=title, xticks=[], yticks=[])
    figure.colorbar(shown, ax=axes[1:], shrink=0.9)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
