"""A metric by region, and against the size of the patches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from segcal.functional.catalogue import metric_named
from segcal.regions import region_title
from segcal.report.figures.drawing import COLUMN, Request, axis_title, literal, name_above, style_of
from segcal.types import Array, InputError


def draw_regions(request: Request) -> Any:
    """Draw the mean of a metric by region, a bar for each method; whiskers bound the middle half of the images."""
    results, methods, metric = request.results, request.methods, request.metric
    frame = results.to_frame()
    rows = frame[frame.metric == metric]
    if not len(rows):
        raise InputError(f"metric must be one of {', '.join(dict.fromkeys(frame.metric))}, got '{metric}'")
    regions = list(dict.fromkeys(rows["region"]))
    unit = metric_named(metric).scale
    figure, axis = request.pyplot.subplots(figsize=(max(COLUMN, 0.9 * len(regions) + 0.5), 2.2), layout="constrained")
    width = 0.8 / len(methods)
    for k, method in enumerate(methods):
        samples = [_values(rows, method, region) for region in regions]
        means = [unit * sample.mean() if sample.size else np.nan for sample in samples]
        quarters = [unit * np.quantile(s, (0.25, 0.75)) if s.size else np.full(2, np.nan) for s in samples]
        at = np.arange(len(regions)) + (k - (len(methods) - 1) / 2) * width
        axis.bar(at, means, 0.92 * width, color=style_of(results, method)["color"], label=literal(method))
        axis.vlines(at, *np.stack(quarters, axis=1), color="black", lw=0.8)
    axis.set_xticks(range(len(regions)), [region_title(region) for region in regions])
    axis.tick_params(axis="x", length=0)
    axis.set_ylabel(axis_title(metric))
    name_above(figure, len(methods))
    return figure


def _values(rows: pd.DataFrame, method: str, region: str) -> Array:
    values = rows[(rows.method == method) & (rows.region == region)]["value"].to_numpy(float)
    return np.asarray(values[~np.isnan(values)])


def draw_patch_sizes(request: Request) -> Any:
    """Draw Local-Avg or Local-Max against the size of the patches, mean over images."""
    results, methods, metric = request.results, request.methods, request.metric
    region = request.region or "local-avg"
    frame = results.patch_sizes()
    rows = frame[(frame.metric == metric) & (frame.region == region)]
    if not len(rows):
        raise InputError(f"no patch sizes of metric '{metric}' and region '{region}'; see results.patch_sizes()")
    figure, axis = request.pyplot.subplots(figsize=(COLUMN, 2.3), layout="constrained")
    for method in methods:
        means = rows[rows.method == method].groupby("size")["value"].mean()
        axis.plot(
            means.index,
            metric_named(metric).scale * means.to_numpy(),
            ms=3.5,
            lw=1.2,
            label=literal(method),
            **style_of(results, method),
        )
    axis.set(xlabel="patch size (pixels)", ylabel=f"{axis_title(metric)}, {region_title(region)}")
    axis.set_xticks(sorted(set(rows["size"])))
    axis.set_ylim(bottom=0)
    name_above(figure, len(methods))
    return figure
