"""Reliability diagrams and the study of patch sizes (appendix), as tables and as figures without any picture."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.camvid.jobs import Job, Recipe
from experiments.camvid.network import names_of
from experiments.camvid.protocols import Source
from experiments.datasets.camvid import CLASSES, VOID, CamVid
from segcal import evaluate, load
from segcal.calibrators import Calibrator
from segcal.files import staged_file
from segcal.training.processes import choose_device
from segcal.types import InputError

SIZES = (24, 48, 72, 96, 144)
_STUDIED = ("TS", "IBTS", "LTS")
_REGIONS = ("all", "boundary")
_COLOURS = ("#b2182b", "#e08214", "#1b7837", "#2166ac")


def study(job: Job, data: CamVid, out: Path, recipe: Recipe, *, device: str) -> None:
    """Measure UC, TS, IBTS and LTS of the paper's protocol over patch sizes, and write their reliability curves."""
    folder = job.folder(out) / "paper"
    if (folder / "reliability.csv").exists():
        print(f"{job.name}: studied already")
        return
    place = choose_device(device)
    saved = [folder / "calibrators" / job.method(name) for name in _STUDIED]
    found: dict[str, Calibrator | None] = {job.method("UC"): None}
    found |= {path.name: load(path).to(place) for path in saved if path.is_dir()}
    if len(found) == 1:
        raise InputError(f"'{folder}' holds no calibrators; run the stage `calibrate` first")
    source, names = Source(job, data, out, str(place)), names_of(data, "test", recipe)

    settings = {"num_classes": len(CLASSES), "ignore_index": VOID, "patch_sizes": SIZES, "repetitions": 2}
    results = evaluate(source.stream("test", names), found, **settings)  # type: ignore[arg-type]
    sizes = results.patch_sizes().query("metric == 'ece' and region == 'local-avg'")
    _write(sizes.groupby(["method", "size"])["value"].agg(["mean", "std"]).reset_index(), folder / "patch-sizes.csv")
    curves = results.curves().query("label == '' and region in @_REGIONS")
    shares = {"accuracy": curves["hit"] / curves["count"], "confidence": curves["confidence"] / curves["count"]}
    told = curves[["method", "region"]].assign(pixels=curves["count"], **shares)
    _write(told, folder / "reliability.csv")  # last: its presence says that all is done


def draw(job: Job, out: Path) -> Path:
    """Draw what `study` wrote; needs matplotlib."""
    folder = job.folder(out) / "paper"
    if not (folder / "reliability.csv").exists():
        raise InputError(f"'{folder}' holds nothing to draw; run the stage `study` first")
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    curves, patches = pd.read_csv(folder / "reliability.csv"), pd.read_csv(folder / "patch-sizes.csv")
    colours = dict(zip(dict.fromkeys(curves["method"]), _COLOURS, strict=False))
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), constrained_layout=True)
    for axis, region in zip(axes, _REGIONS, strict=False):
        axis.plot([0, 1], [0, 1], color="0.6", lw=1, ls="--")
        for name, colour in colours.items():
            own = curves[(curves["method"] == name) & (curves["region"] == region) & (curves["pixels"] > 0)]
            axis.plot(own["confidence"], own["accuracy"], "o-", ms=3.5, color=colour, label=name)
        axis.set(xlabel="confidence", ylabel="accuracy", title=f"{region.capitalize()}, all pixels of test")
    for name, colour in colours.items():
        own = patches[patches["method"] == name]
        axes[2].plot(own["size"], 100 * own["mean"], "o-", ms=3.5, color=colour, label=name)
    axes[2].set(xlabel="side of the patches (pixels)", ylabel="ECE (%)", title="Local-Avg")
    axes[2].set_xticks(SIZES)
    axes[0].legend(frameon=False)
    target = folder / "figures.png"
    with staged_file(target) as file:
        figure.savefig(file, dpi=110)
    plt.close(figure)
    return target


def _write(frame: pd.DataFrame, path: Path) -> None:
    with staged_file(path) as file:
        frame.to_csv(file, index=False)
