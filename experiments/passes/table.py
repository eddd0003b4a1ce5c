"""Tables of the passes: gain against TS and CTS, calibration by region, and gain by number of passes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.beside_paper import lines
from experiments.beyond.table import difference, mean_value
from experiments.passes.sets import CHAINS, FOLD_ROWS, FOLDS, FREE, MEAN_ROWS, OTHERS, POOL, SETS, methods
from segcal.text import counted

MEASURED = Path(__file__).with_name("measured.csv.xz")
"""The published measurements, an archive of `experiments.rows`."""
COLUMNS = tuple((metric, region) for region in ("all", "boundary") for metric in ("nll", "brier", "ece"))
"""Metrics and regions of the tables."""
TITLES = {
    "camvid, 0001TP": "CamVid, `val` to 0001TP",
    "camvid, Seq05VD": "CamVid, `val` to Seq05VD",
    "camvid-0001TP": "CamVid, within 0001TP",
    "camvid-Seq05VD": "CamVid, within Seq05VD",
    "hippocampus-200": "Hippocampus, 200 volumes",
    "mouse": "Mouse brain, 37 structures",
    "hippocampus-mirrored": "Hippocampus, flips in training",
    "hippocampus-mirrored-mean": "Hippocampus, flips in training, mean of 8 mirrors",
    "nnunet": "Hippocampus, nnU-Net, mean of 3 folds",
    "nnunet-fold-0": "Hippocampus, nnU-Net, one fold",
}


def tables(rows: pd.DataFrame) -> str:
    """All tables as Markdown."""
    tasks = {part: rows[rows["part"] == part] for part in TITLES if part in set(rows["part"])}
    parts = ["## NLL and Brier score against the better of TS and CTS"]
    pictures = {part: own for part, own in tasks.items() if part.startswith("camvid")}
    volumes = [{part: own} for part, own in tasks.items() if part not in pictures]  # each has its own passes
    for alike in (pictures, *volumes):
        for metric, name in (("nll", "NLL"), ("brier", "Brier score")):
            parts += _against(alike, 2 if alike is pictures else 3, metric, name) if alike else []
    parts += _by_number(tasks)
    for part, own in tasks.items():
        parts += [f"## {TITLES[part]}", _counts(own), _values(own)]
    return "\n\n".join(parts)


def better(rows: pd.DataFrame) -> str:
    """Return which of TS and CTS has the lower NLL on the measured images, over all splits."""
    return min(("TS", "CTS"), key=lambda name: mean_value(rows[rows["method"] == name], "nll", "all"))


def _against(tasks: dict[str, pd.DataFrame], dims: int, metric: str, name: str) -> list[str]:
    header = [f"{name}, All, % of the better", "passes", *(TITLES[part] for part in tasks)]
    best = [better(own) for own in tasks.values()]
    compared = [own[(own["metric"] == metric) & (own["region"] == "all")] for own in tasks.values()]
    body = [["TS or CTS", "0", *best]]
    for method in dict.fromkeys((*methods(dims), *MEAN_ROWS, *FOLD_ROWS)):
        pairs = list(zip(compared, best, strict=True))
        if any(method in set(own["method"]) and method != base for own, base in pairs):
            cells = [
                difference(own, method, base, metric, "all") if method != base else "the better" for own, base in pairs
            ]
            body.append([method, _number(method, dims), *cells])
    return [lines(header, body)]


def _number(method: str, dims: int) -> str:
    if method == POOL + FOLDS:
        return FOLDS
    views = SETS[dims].get(method.removeprefix(POOL).removeprefix(FREE), ())
    many = sum(view != OTHERS for view in views)
    return f"{many} + networks" if OTHERS in views and many else "networks" if OTHERS in views else str(many)


def _by_number(tasks: dict[str, pd.DataFrame]) -> list[str]:
    """Return the gain in NLL by number of passes, where everything that it needs was measured."""
    chains = {
        title: (among, chain)
        for title, (among, chain) in CHAINS.items()
        if all(
            part in tasks and {POOL + name for name in chain.values()} <= set(tasks[part]["method"]) for part in among
        )
    }
    if not chains:
        return []
    numbers = sorted({number for _, chain in chains.values() for number in chain})
    body = []
    for number in numbers:
        cells = []
        for among, chain in chains.values():
            name = chain.get(number)
            gains = [_change(tasks[part], POOL + name) for part in among] if name else []
            cells.append(f"{np.mean(gains):+.1f} ({name})" if gains else "")
        body.append([str(number), *cells])
    return ["## Gain by number of passes", lines(["passes: NLL, All, % of the better of TS and CTS", *chains], body)]


def _change(rows: pd.DataFrame, method: str) -> float:
    ours, base = (mean_value(rows[rows["method"] == name], "nll", "all") for name in (method, better(rows)))
    return 100 * (ours / base - 1)


def _counts(rows: pd.DataFrame) -> str:
    images, splits = rows["images"], rows["split"].nunique()
    cases = rows.groupby("split")["case"].nunique()
    many = counted(splits, "combination")
    return f"{_span(images)} images to fit on, {_span(cases)} to measure, {many} of network and split."


def _span(counts: pd.Series) -> str:
    low, high = counts.min(), counts.max()
    return str(low) if low == high else f"{low} to {high}"


def _values(rows: pd.DataFrame) -> str:
    """NLL, Brier score and ECE in both regions, labels that were moved, and the seconds of a fit."""
    found = [name for name in (*methods(2), *methods(3), *MEAN_ROWS, *FOLD_ROWS) if name in set(rows["method"])]
    body = []
    for method in dict.fromkeys(found):
        split = [each for _, each in rows[rows["method"] == method].groupby("split")]
        cells = [_mean(split, metric, region) for metric, region in COLUMNS]
        seconds = np.mean([each["seconds"].iloc[0] for each in split])
        body.append([method, *cells, f"{max(each['changed'].iloc[0] for each in split):,}", f"{seconds:.1f}"])
    names = {"nll": "NLL", "brier": "Brier", "ece": "ECE(%)"}
    header = ["Method", *(f"{names[metric]} {region}" for metric, region in COLUMNS), "labels changed", "fit, s"]
    return lines(header, body)


def _mean(splits: Sequence[pd.DataFrame], metric: str, region: str) -> str:
    value = float(np.mean([mean_value(each, metric, region) for each in splits]))
    return f"{100 * value:.2f}" if metric == "ece" else f"{value:.4f}"
