"""Draws the pictures of the gallery from the bundled sample: `python docs/figures/gallery.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import segcal
from segcal.evaluation.portraits import make_portraits
from segcal.report.figures import KINDS, draw_figure

HERE = Path(__file__).parent


def main() -> None:
    """Fit two methods on the sample, measure them and draw every kind of figure."""
    sample = segcal.load_sample("scenes")
    ts = segcal.create("ts", num_classes=5).fit(sample["fit"])
    lts = segcal.create("lts", num_classes=5, image_channels=1)
    lts.fit(sample["fit"], validation=sample["validation"], epochs=30, learning_rate=3e-3)
    methods = {"UC": None, "TS": ts, "LTS": lts}
    cases = sample["test"]
    results = segcal.evaluate(cases, methods, num_classes=5, patch_size=24, patch_sizes=(12, 24, 36, 48))
    portraits = make_portraits(cases, methods, results, named=[cases[0].name, cases[1].name])
    for kind in KINDS:
        drawn = draw_figure(kind, results, portraits=portraits)
        drawn.savefig(HERE / f"gallery-{kind}.png", dpi=70)


if __name__ == "__main__":
    main()
