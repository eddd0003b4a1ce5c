"""Measured tables next to the paper's, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from segcal.evaluation.results import Results
from segcal.statistics import Test, bootstrap_interval
from segcal.tables import CALIBRATION, QUALITY, REGIONS
from segcal.types import Array, InputError

AS_PRINTED = " (preset paper)"
"""Suffix of IBTS and LTS in the paper's form, where segcal's form is in the same table."""
CITED = " (cited)"
"""Part of the name of a training loss with the settings of the code that the paper cites."""
_PAPER = Path(__file__).with_name("paper.csv")
_REGION_TITLES = tuple(region.title for region in REGIONS.values())


@cache
def paper_numbers(experiment: str) -> Mapping[tuple[str, str, str], str]:
    """The paper's mean(std), in percent, by method, metric and region.

    >>> paper_numbers("camvid")["LTS", "ece", "all"]
    '3.40(3.59)'
    """
    table = pd.read_csv(_PAPER, dtype=str)
    rows = table[table.experiment == experiment].itertuples(index=False)
    return {(str(r.method), str(r.metric), str(r.region)): f"{r.mean}({r.std})" for r in rows}


def joined(parts: Sequence[Results]) -> Results:
    """Results of several networks on the same cases as one, the methods one after the other."""
    names = [name for part in parts for name in part.methods]
    if len(set(names)) < len(names):
        raise InputError(f"methods must differ to be joined, got {', '.join(names)}")
    if len({frozenset(part.frame.case) for part in parts}) > 1:
        raise InputError("results must be of the same cases to be joined; measure them on the same frames")
    frames = {
        name: pd.concat([getattr(part, name) for part in parts], ignore_index=True)
        for name in ("frame", "patch_frame", "pooled_frame", "curve_frame", "sensitivity_frame", "volume_frame")
    }
    settings = {**parts[0].settings, "methods": names}
    return Results(settings=settings, case_frame=parts[0].case_frame, redrawn=None, channels={}, **frames)


def of_methods(results: Results, wanted: Sequence[str]) -> Results:
    """Those methods only, in that order."""
    kept = [name for name in wanted if name in results.methods]
    return _changed(results, lambda frame: frame[frame["method"].isin(kept)], kept)


def renamed(results: Results, names: Mapping[str, str]) -> Results:
    """Methods under other names."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(method=frame["method"].map(lambda own: names.get(own, own)))

    return _changed(results, change, [names.get(own, own) for own in results.methods])


def of_cases(results: Results, wanted: Sequence[str]) -> Results:
    """Those cases only; figures over all pixels together are not known of a part."""
    none = replace(results, pooled_frame=results.pooled_frame[:0])
    return _changed(none, lambda frame: frame[frame["case"].isin(wanted)], results.methods)


def _changed(results: Results, change: Callable[[pd.DataFrame], pd.DataFrame], methods: Sequence[str]) -> Results:
    """The tables that are shown, changed, of these methods."""
    shown = ("frame", "patch_frame", "pooled_frame")
    frames: dict[str, Any] = {name: change(frame) for name in shown if len(frame := getattr(results, name))}
    return replace(results, **frames, settings={**results.settings, "methods": list(methods)})


def markdown(
    results: Results,
    *,
    reference: str | None,
    experiment: str | None = None,
    metrics: Sequence[str] = CALIBRATION,
    quality: bool = True,
    test: Test = "wilcoxon",
) -> str:
    """One table for each metric: measured, and beside it what the paper prints; then accuracy, mIoU, NLL and Brier."""
    table = results.table(reference=reference if reference in results.methods else None, test=test)
    paper = paper_numbers(experiment) if experiment else {}
    parts = []
    for metric in metrics:
        titles = [f"{metric.upper()}(%) {title}" for title in _REGION_TITLES]
        header = ["Method", *titles, *(f"paper: {title}" for title in _REGION_TITLES if paper)]
        rows = []
        for method in results.methods:
            ours = [str(table.cells.get((method, metric, region), "-")) for region in REGIONS]
            printed = method.removesuffix(AS_PRINTED).replace(CITED, "")
            theirs = [paper.get((printed, metric, region), "-") for region in REGIONS if paper]
            rows.append([method, *ours, *theirs])
        parts.append(lines(header, rows))
    if quality:
        titles = ["Accuracy(%)", "mIoU(%) of an image", "NLL", "Brier"]
        rows = [[m, *(str(table.cells.get((m, metric, "all"), "-")) for metric in QUALITY)] for m in results.methods]
        parts.append(lines(["Method", *titles], rows))
    return "\n\n".join([*parts, table.legend()])


def pooled(results: Results, *, intervals: bool = True) -> str:
    """Figures over all pixels of all cases together, with 95 % intervals unless too few groups were drawn from."""
    columns = [("ece", "all"), ("ece", "boundary"), ("nll", "all"), ("nll", "boundary"), ("miou", "all")]
    found = {(r.method, r.metric, r.region): r for r in results.pooled().itertuples(index=False)}
    rows = []
    for method in results.methods:
        cells = [found[method, metric, region] for metric, region in columns]
        rows.append([method, *(f"{c.value:.4f}" + f" [{c.low:.4f}, {c.high:.4f}]" * intervals for c in cells)])
    return lines(["Method", *(f"{metric} {region}" for metric, region in columns)], rows)


def mean_with_interval(values: Array) -> tuple[float, float, float]:
    """Return the mean of the values that there are, and its 95 % interval of a bootstrap over them."""
    kept = values[~np.isnan(values)]
    if len(kept) < 2:
        return float(np.nanmean(values)), float("nan"), float("nan")
    low, high = bootstrap_interval(lambda weights: weights @ kept / weights.sum(axis=1), len(kept))
    return float(np.mean(kept)), low, high


def lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    ruled = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled)
