"""Stage `table`: both tables next to the paper's, as Markdown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.beside_paper import lines, markdown, mean_with_interval
from experiments.multi_atlas.calibrating import METHODS, OUTLINE
from experiments.multi_atlas.fusing import BASELINES, BOUNDS, MEASURES
from experiments.multi_atlas.volumes import REPORT
from segcal.evaluation.results import Results
from segcal.files import read_json
from segcal.statistics import Test
from segcal.types import Array, InputError

_COLUMNS = (
    ("ASD (mm)", "all", "asd", 1),
    ("SD (%)", "all", "surface_dice", 100),
    ("95MD (mm)", "all", "md95", 1),
    ("VD All (%)", "all", "vd", 100),
    ("VD Boundary (%)", "boundary", "vd", 100),
    ("VC All: rate", "all", "rate", 100),
    ("w->c", "all", "w->c", 100),
    ("c->w", "all", "c->w", 100),
    ("VC Boundary: rate", "boundary", "rate", 100),
    ("w->c", "boundary", "w->c", 100),
    ("c->w", "boundary", "c->w", 100),
)
PAPER = {
    "Best Fusion": "0.04 99.06 0.18 98.99 97.29 20.53 94.62 0.00 35.85 94.11 0.00",
    "Best Calibration": "0.27 93.51 1.69 93.71 87.70 13.96 98.88 0.00 25.93 98.68 0.00",
    "UC": "0.99 75.89 3.82 81.19 61.01 - - - - - -",
    "TS": "0.99 75.85 3.83 81.21 61.01 0.45 43.20 40.16 0.73 39.34 41.37",
    "IBTS": "1.00 75.75 3.86 81.20 60.87 1.43 41.14 43.27 2.35 36.93 45.14",
    "LTS": "0.98 75.96 3.82 81.27 61.15 1.88 42.42 37.53 2.96 40.51 35.59",
}
"""The means that the paper prints in Table 2, in the order of the columns."""
_ACE = "ACE: the paper's columns for VoteNet+ have a form that is not known, so that ours are not comparable with them."
_ORDER = (*BOUNDS, "UC", *METHODS.values(), *BASELINES)


def tables(out: Path, test: Test = "wilcoxon") -> str:
    """Return the tables of what is finished as Markdown."""
    parts = [_facts(out), fusion_table(out), difference_table(out)]
    if (calibration := calibration_table(out, test)) is not None:
        parts.append(calibration)
    return "\n\n".join(parts)


def read_measures(out: Path) -> pd.DataFrame:
    """The measures of all folds."""
    found = [pd.read_csv(path) for path in sorted(out.glob(f"fold-*/{MEASURES}"))]
    if not found:
        raise InputError(f"'{out}' holds no measures; run the stage `fuse` first")
    return pd.concat(found, ignore_index=True)


def fusion_table(out: Path) -> str:
    """Table 2: mean(std) over targets, and below each row the paper's mean."""
    frame, rows = read_measures(out), []
    for method in _ORDER:
        cells = [_cell(_values(frame, method, region, metric), scale) for _, region, metric, scale in _COLUMNS]
        rows.append([method, *cells])
        if method in PAPER:
            rows.append([f"paper: {method}", *PAPER[method].split()])
    count = frame.target.nunique()
    title = f"## Table 2: label fusion, {count} targets, mean(std) over targets; the paper's is of LPBA40"
    return f"{title}\n\n{lines(['Method', *(column[0] for column in _COLUMNS)], rows)}"


def difference_table(out: Path) -> str:
    """The mean difference to UC over the same targets, with 95 % intervals over targets."""
    frame, rows = read_measures(out), []
    columns = _COLUMNS[:5]
    for method in _ORDER:
        if method == "UC":
            continue
        cells = []
        for _, region, metric, scale in columns:
            gap = scale * (_values(frame, method, region, metric) - _values(frame, "UC", region, metric))
            cells.append("{:+.3f} [{:+.3f}, {:+.3f}]".format(*mean_with_interval(gap)))
        rows.append([method, *cells])
    return f"## Difference to UC\n\n{lines(['Method', *(column[0] for column in columns)], rows)}"


def calibration_table(out: Path, test: Test = "wilcoxon") -> str | None:
    """Table 1: the calibration of VoteNet+ over all pairs; *Boundary* is that of the anatomical labels."""
    found = [Results.load(path) for path in sorted(out.glob("fold-*/half-*/results"))]
    if not found:
        return None
    frames = [part.frame for part in found]
    frame = pd.concat(frames, ignore_index=True)
    frame = frame[frame.region != "boundary"].replace({"region": {OUTLINE: "boundary"}})
    patches = pd.concat([part.patch_frame for part in found], ignore_index=True)
    whole = replace(found[0], frame=frame, patch_frame=patches, pooled_frame=found[0].pooled_frame[:0])
    title = f"## Table 1: calibration of VoteNet+, {frame.case.nunique()} pairs"
    return f"{title}\n\n{_ACE}\n\n{markdown(whole, reference='LTS', experiment='votenet', test=test)}"


def _facts(out: Path) -> str:
    report = read_json(out / REPORT)
    trainings = [read_json(path) for path in sorted(out.glob("fold-*/training.json"))]
    trained = "; ".join(f"{part['seconds']:.0f} s, best epoch {part['best_epoch']}" for part in trainings)
    means = {name: round(value, 3) for name, value in report["mean"].items()}
    return f"{report['pairs']} registrations, {len(report['failed'])} failed, means {means}; VoteNet+: {trained}"


def _values(frame: pd.DataFrame, method: str, region: str, metric: str) -> Array:
    rows = frame[(frame.method == method) & (frame.region == region) & (frame.metric == metric)]
    return rows.sort_values("target")["value"].to_numpy(np.float64)


def _cell(values: Array, scale: float) -> str:
    defined = scale * values[~np.isnan(values)]
    return f"{defined.mean():.2f}({defined.std(ddof=0):.2f})" if len(defined) > 1 else "-"
