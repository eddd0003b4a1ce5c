"""The table of real data in the README, from the archived measurements: `python -m experiments.headline`.

Each row is one task with its first split or seed: the NLL over all pixels (2D) or as a mean over volumes (3D), and ECE
as a mean over images, both in the region *All*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pandas as pd

from experiments.beyond.table import MEASURED
from experiments.lpba40 import gathered as volumes
from experiments.lpba40.calibrate import title_of
from experiments.rows import unpack_rows

_TASKS_2D = {
    "camvid, 0001TP": "CamVid, another video: 0001TP (FC-DenseNet103)",
    "camvid, Seq05VD": "CamVid, another video: Seq05VD",
    "camvid-0001TP": "CamVid, the same video: 0001TP",
    "camvid-Seq05VD": "CamVid, the same video: Seq05VD",
    "voc": "VOC (ESPNetv2, third party)",
}
_TASKS_3D = {
    "hippocampus": "hippocampus, 10 volumes to fit on (3D U-Net)",
    "hippocampus-200": "hippocampus, 50 volumes to fit on",
    "mouse": "mouse brain, 37 structures, 4 to fit on",
}
_SHOWN = ("UC", "TS", "LTS", "auto")


class Score(NamedTuple):
    """NLL and ECE of a method, and whether it kept every label."""

    nll: float
    ece: float
    keeps: bool

    def __str__(self) -> str:
        return f"{self.nll:.3f} / {100 * self.ece:.1f}"


def headline() -> str:
    """Return the table as Markdown."""
    head = ["data", *_SHOWN, "lowest NLL that keeps labels"]
    lines = [" | ".join(head), "|".join(["---"] * len(head))]
    for title, scores in [*_pictures(), *_volumes()]:
        best = min((name for name, score in scores.items() if score.keeps), key=lambda name: scores[name].nll)
        cells = [title, *(str(scores[name]) for name in _SHOWN), f"{best}, {scores[best].nll:.3f}"]
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" if " | " in line else f"|{line}|" for line in lines)


def _pictures() -> Iterator[tuple[str, Mapping[str, Score]]]:
    rows = unpack_rows(MEASURED)
    first = rows[(rows["split"] == 0) & (rows["region"] == "all")]
    for part, title in _TASKS_2D.items():
        own = first[first["part"] == part]
        nll = own[own["metric"] == "nll"].assign(total=lambda table: table["value"] * table["pixels"])
        sums = nll.groupby("method")[["total", "pixels"]].sum()
        changed = own.groupby("method")["changed"].max()
        yield title, _scores(sums["total"] / sums["pixels"], _mean_ece(own), set(changed[changed > 0].index))


def _volumes() -> Iterator[tuple[str, Mapping[str, Score]]]:
    for measured in volumes.unpack(volumes.MEASURED):
        if measured.job.seed == 0:
            rows = measured.rows["labelled"].images
            own = rows[rows["region"] == "all"]
            nll = own[own["metric"] == "nll"].groupby("method")["value"].mean()
            moving = {title_of(fit["method"]) for fit in measured.fits if fit["changed"][0]}
            yield _TASKS_3D[measured.job.preset], _scores(nll, _mean_ece(own), moving)


def _mean_ece(rows: pd.DataFrame) -> pd.Series:
    return rows[rows["metric"] == "ece"].groupby("method")["value"].mean()


def _scores(nll: pd.Series, ece: pd.Series, moving: set[str]) -> dict[str, Score]:
    return {str(name): Score(float(nll[name]), float(ece[name]), name not in moving) for name in nll.dropna().index}


if __name__ == "__main__":
    print(headline())
