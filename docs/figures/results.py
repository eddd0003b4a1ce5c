"""Draws the charts at the top of the result pages from the archived measurements: `python docs/figures/results.py`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib as mpl
import pandas as pd

mpl.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from experiments.archive import unpack  # noqa: E402
from experiments.beyond import table as beyond  # noqa: E402
from experiments.camvid.table import both_forms  # noqa: E402
from experiments.coco import __main__ as coco  # noqa: E402
from experiments.lpba40 import gathered as volumes  # noqa: E402
from experiments.passes import table as passes  # noqa: E402
from experiments.rows import unpack_rows  # noqa: E402
from segcal import Results  # noqa: E402

KEEP = ("TS by class", "CTS", "CTS with classes", "CTS with pairs", "LTS", "LTS (preset paper)", "IBTS")
KEEP += ("IBTS (preset paper)", "LTS (paper's schedule)", "IBTS (paper's schedule)", "ETS", "CMSop", "auto", "IsoReg")
camvid = HERE.parents[1] / "experiments" / "camvid" / "measured"
MARKERS = "osD^vP"


def main() -> None:
    """Draw NLL relative to TS of the methods that keep labels, by task."""
    draw(relative_2d(), "results-beyond.svg")
    draw(relative_3d(), "results-volumes.svg")
    draw(relative_camvid(), "results-camvid.svg")
    draw(relative_voc(), "results-voc.svg")
    draw(relative_passes(), "results-passes.svg")


def relative_2d() -> pd.DataFrame:
    """Return the NLL over all pixels, in % of that of TS, by method and task, for the splits that each method has."""
    titles = {"camvid, 0001TP": "CamVid, val to 0001TP", "camvid, Seq05VD": "CamVid, val to Seq05VD", "voc": "VOC"}
    titles |= {"camvid-0001TP": "CamVid, within 0001TP", "camvid-Seq05VD": "CamVid, within Seq05VD"}
    return relative(unpack_rows(beyond.MEASURED), titles)


def relative_passes() -> pd.DataFrame:
    """Return the NLL over all pixels, in % of that of TS, by method and task."""
    rows = unpack_rows(passes.MEASURED)
    without = ("hippocampus-mirrored-mean", "nnunet", "nnunet-fold-0")  # few volumes, or no task of its own
    return relative(rows[~rows["part"].isin(without)], passes.TITLES)


def relative(rows: pd.DataFrame, titles: Mapping[str, str]) -> pd.DataFrame:
    """Return the mean over splits of the NLL over all pixels, in % of that of TS, by method and task."""
    own = rows[(rows["metric"] == "nll") & (rows["region"] == "all")].dropna(subset="value")
    sums = own.assign(total=own["value"] * own["pixels"]).groupby(["part", "split", "method"])[["total", "pixels"]]
    nll = (sums.sum()["total"] / sums.sum()["pixels"]).unstack("method")
    change = 100 * (nll.div(nll["TS"], axis=0) - 1)
    return change.groupby("part").mean().rename(index=titles).T


def relative_3d() -> pd.DataFrame:
    """Return the mean NLL over volumes, in % of that of TS, by method and task."""
    found = {}
    for measured in volumes.unpack(volumes.MEASURED):
        rows = measured.rows["labelled"].images
        rows = rows[(rows["metric"] == "nll") & (rows["region"] == "all")]
        nll = rows.groupby("method")["value"].mean()
        found[f"{measured.job.preset}, seed {measured.job.seed}"] = 100 * (nll / nll["TS"] - 1)
    return pd.DataFrame(found)


def relative_camvid() -> pd.DataFrame:
    """Return the mean NLL over frames of the paper's table, in % of that of TS, by method and network."""
    found = {}
    with TemporaryDirectory() as folder:
        for archive in sorted(camvid.glob("fc-densenet103-ce-*.zip")):
            unpack(archive, Path(folder) / archive.stem)
        for job, results in both_forms(Path(folder)).items():
            if "LTS" not in results.methods:  # a network of the comparison of losses
                continue
            rows = results.frame[(results.frame["metric"] == "nll") & (results.frame["region"] == "all")]
            nll = rows.groupby("method")["value"].mean()
            found[f"cross-entropy, seed {job.seed}"] = 100 * (nll / nll["TS"] - 1)
    return pd.DataFrame(found)


def relative_voc() -> pd.DataFrame:
    """Return the NLL over all pixels of VOC, in % of that of TS, by method and split."""
    found = {}
    with TemporaryDirectory() as folder:
        for seed in (0, 1):
            unpack(coco.MEASURED / f"voc-seed{seed}.zip", run := Path(folder) / f"{seed}")
            rows = Results.load(run / "results").pooled_frame.query("metric == 'nll' and region == 'all'")
            nll = rows.set_index("method")["value"]
            found[f"VOC, split {seed}"] = 100 * (nll / nll["TS"] - 1)
    return pd.DataFrame(found)


def draw(change: pd.DataFrame, name: str) -> None:
    """Draw one row per method and one marker per task."""
    pooled = [method for method in change.index if method.startswith("POOL") and "free" not in method]
    shown = [method for method in (*KEEP, *pooled) if method in change.index]
    figure, axis = plt.subplots(figsize=(8, 0.38 * len(shown) + 1.3), constrained_layout=True)
    for k, task in enumerate(change.columns):
        axis.plot(change.loc[shown, task], range(len(shown)), MARKERS[k % len(MARKERS)], ms=6, label=task, alpha=0.85)
    axis.axvline(0, color="0.3", lw=1)
    axis.set_yticks(range(len(shown)), shown)
    axis.invert_yaxis()
    axis.set_xlabel("NLL relative to TS, % (left is better); all keep labels")
    axis.grid(axis="x", color="0.9")
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    plt.rcParams["svg.hashsalt"] = "segcal"  # the same file each time
    figure.savefig(HERE / name, metadata={"Date": None})


if __name__ == "__main__":
    main()
