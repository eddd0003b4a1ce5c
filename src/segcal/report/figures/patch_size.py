"""Local errors against the size of the patches."""

from __future__ import annotations

from typing import Any

from segcal.functional.catalogue import CATALOGUE
from segcal.regions import region_title
from segcal.report.figures.request import Request
from segcal.report.figures.style import COLUMN, axis_title, literal, name_above, style_of
from segcal.types import InputError


def draw(request: Request) -> Any:
    """Local-Avg or Local-Max against the size of the patches, mean over images."""
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
            CATALOGUE[metric].scale * means.to_numpy(),
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
