"""Draws the pictures of the quickstart: `python docs/figures/quickstart.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import torch

mpl.use("Agg")
from matplotlib import pyplot as plt

import segcal

HERE = Path(__file__).parent
COLOURS = {"UC": "#b2182b", "TS": "#e08214", "LTS": "#2166ac"}


def main() -> None:
    """Run the quickstart, and draw the reliability diagrams and the temperatures of a test scene."""
    sample = segcal.load_sample("scenes")
    ts = segcal.create("ts", num_classes=5).fit(sample["fit"])
    lts = segcal.create("lts", num_classes=5, image_channels=1)
    lts.fit(sample["fit"], validation=sample["validation"], epochs=30, learning_rate=3e-3)
    draw_reliability(sample["test"], {"UC": None, "TS": ts, "LTS": lts})
    draw_temperature(sample["test"][0], ts, lts)


def draw_reliability(cases: list[segcal.Case], methods: dict[str, segcal.Calibrator | None]) -> None:
    """Draw accuracy against confidence, one panel per method."""
    figure, axes = plt.subplots(1, len(methods), figsize=(10, 3.4), sharey=True, constrained_layout=True)
    for axis, (name, method) in zip(axes, methods.items(), strict=True):
        suite = segcal.CalibrationSuite(num_classes=5)
        for case in cases:
            logits, image = torch.as_tensor(case.logits)[None], torch.as_tensor(case.image)[None]
            with torch.no_grad():
                calibrated = logits if method is None else method(logits, image)
            suite.update(calibrated, torch.as_tensor(case.labels)[None])
        curve, ece = suite.compute_curves()["all"], 100 * float(suite.compute()["all"]["ece"])
        axis.bar(torch.arange(10) / 10 + 0.05, curve["accuracy"].nan_to_num(), 0.096, color=COLOURS[name], alpha=0.75)
        axis.plot([0, 1], [0, 1], color="0.3", lw=1, ls="--")
        axis.set(title=f"{name}: ECE {ece:.1f} %", xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
    axes[0].set_ylabel("accuracy")
    figure.savefig(HERE / "quickstart-reliability.png", dpi=100)


def draw_temperature(case: segcal.Case, ts: segcal.Calibrator, lts: segcal.Calibrator) -> None:
    """Draw the image, the labels and the temperatures of both methods."""
    logits, image = torch.as_tensor(case.logits)[None], torch.as_tensor(case.image)[None]
    with torch.no_grad():
        maps = {"TS": ts.temperature(logits)[0, 0], "LTS": lts.temperature(logits, image)[0, 0]}
    figure, axes = plt.subplots(1, 4, figsize=(10, 2.6), constrained_layout=True)
    axes[0].imshow(case.image[0], cmap="gray")
    axes[1].imshow(case.labels, cmap="tab10", vmax=9)
    for axis, values in zip(axes[2:], maps.values(), strict=True):
        shown = axis.imshow(values, cmap="viridis", vmin=0.5, vmax=4.0)
    for axis, title in zip(axes, ("image", "labels", "temperature, TS", "temperature, LTS"), strict=True):
        axis.set(title=title, xticks=[], yticks=[])
    figure.colorbar(shown, ax=axes[2:], shrink=0.9)
    figure.savefig(HERE / "quickstart-temperature.png", dpi=100)


if __name__ == "__main__":
    main()
