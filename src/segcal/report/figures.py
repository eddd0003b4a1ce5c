"""Static figures for papers, in matplotlib: reliability diagrams, temperature maps, regions, patch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segcal.evaluation.portraits import Portrait
from segcal.evaluation.results import Results
from segcal.files import staged_file
from segcal.functional.catalogue import CATALOGUE
from segcal.regions import region_title
from segcal.report.words import curve_of
from segcal.types import Array, InputError

KINDS = ("reliability", "temperature", "regions", "patch-size")
FORMATS = (".pdf", ".png", ".svg")

_OKABE_ITO = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A7A00")
_BASELINE, _OVER, _UNDER, _BAR = "#80868C", "#D55E00", "#0072B2", "#DFE3E6"
_MARKERS, _DASHES = "osD^", ("-", "--", ":", "-.")
_COLUMN = 3.35  # inches, of a page in two columns
_STYLE = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # letters stay letters, as publishers ask
    "svg.fonttype": "none",
    "savefig.dpi": 300,
}


def write_figure(
    kind: str,
    results: Results,
    path: str | Path,
    *,
    portraits: Sequence[Portrait] = (),
    methods: Sequence[str] = (),
    metric: str = "ece",
    region: str | None = None,
    label: str = "",
    case: str | None = None,
) -> None:
    """Draw one figure of an evaluation into a PDF, PNG or SVG file that appears whole or not at all.

    Args:
        kind: One of `KINDS`.
        results: Of the evaluation.
        path: Its ending says the format.
        portraits: Those of the cases, which temperature maps are taken from.
        methods: Only these, in this order.
        metric: Of the regions and of the patch sizes.
        region: Of the reliability diagrams (All) and of the patch sizes (Local-Avg).
        label: Class predicted; "" for all pixels.
        case: Whose temperature is shown; by default the first portrait.
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise InputError(f"a figure ends in {', '.join(FORMATS)}, got '{target.name}'")
    chosen = _chosen(methods, results)
    pyplot = _pyplot()
    with pyplot.rc_context(_STYLE):
        if kind == "reliability":
            figure = _reliability(pyplot, results, chosen, region or "all", label)
        elif kind == "temperature":
            figure = _temperature(pyplot, _portrait(portraits, case), chosen)
        elif kind == "regions":
            figure = _regions(pyplot, results, chosen, metric)
        elif kind == "patch-size":
            figure = _patch_size(pyplot, results, chosen, metric, region or "local-avg")
        else:
            raise InputError(f"a figure is one of {', '.join(KINDS)}, got '{kind}'")
        try:
            with staged_file(target) as staging:
                figure.savefig(staging, format=target.suffix[1:].lower())
        finally:
            pyplot.close(figure)


def _reliability(pyplot: Any, results: Results, methods: Sequence[str], region: str, label: str) -> Any:
    """Accuracy against confidence with the gaps shaded and intervals drawn, above the histogram of confidence."""
    across = min(len(methods), 4)
    down = -(-len(methods) // across)
    figure, axes = pyplot.subplots(
        2 * down,
        across,
        figsize=(1.75 * across + 0.35, 2.5 * down),
        height_ratios=[4, 1] * down,
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    pairs = [pair for k in range(down) for pair in axes[2 * k : 2 * k + 2].T]
    for pair in pairs[len(methods) :]:
        for axis in pair:
            axis.set_visible(False)
    for method, (upper, lower) in zip(methods, pairs, strict=False):
        curve = curve_of(results, method, region, label)
        if curve is None or not len(curve):
            raise InputError(f"no reliability diagram of region '{region}' and class '{label}'; see results.curves()")
        curve = curve[curve["count"] > 0]
        count, left = curve["count"].to_numpy(float), curve["low_edge"].to_numpy(float)
        width = curve["high_edge"].to_numpy(float) - left
        accuracy, confidence = curve["hit"].to_numpy() / count, curve["confidence"].to_numpy() / count
        upper.bar(left, accuracy, width, align="edge", color=_BAR, edgecolor="white", linewidth=0.5)
        colours = np.where(confidence > accuracy, _OVER, _UNDER).tolist()
        upper.bar(
            left, confidence - accuracy, width, accuracy, align="edge", color=colours, alpha=0.4, edgecolor="white"
        )
        ends = np.abs(np.stack([accuracy - curve["low"], curve["high"] - accuracy]))
        upper.errorbar(confidence, accuracy, np.nan_to_num(ends), fmt="o", ms=2.5, color="black", lw=0.8)
        upper.plot([0, 1], [0, 1], color="0.5", lw=0.7, ls=(0, (4, 3)))
        ece = np.abs(curve["hit"] - curve["confidence"]).sum() / max(count.sum(), 1)
        upper.set(title=f"{_literal(method)}   ECE {100 * ece:.2f} %", xlim=(0, 1), ylim=(0, 1), box_aspect=1)
        lower.bar(left, 100 * count / max(count.sum(), 1), width, align="edge", color="0.7", edgecolor="white")
        lower.set(xlabel="confidence", xticks=[0, 0.5, 1], box_aspect=0.25)
        lower.tick_params(labelbottom=True)
    for upper, lower in pairs[::across]:
        upper.set_ylabel("accuracy")
        lower.set_ylabel("pixels (%)")
    return figure


def _temperature(pyplot: Any, portrait: Portrait, methods: Sequence[str]) -> Any:
    """The image, and the temperature map of each method that has one, on one scale; the middle slice of a volume."""
    heats = {layer.method: layer for layer in portrait.layers if layer.kind == "temperature"}
    shown = [method for method in methods if method in heats]
    if not shown:
        raise InputError(f"none of {', '.join(methods)} has a temperature; choose a method such as LTS")
    images = [layer for layer in portrait.layers if layer.kind == "image"]
    middle, columns = len(portrait.slices) // 2, len(images) + len(shown)
    height, width = heats[shown[0]].values.shape[1:3]
    figure, axes = pyplot.subplots(
        1, columns, figsize=(1.7 * columns + 0.4, 1.7 * height / width + 0.3), squeeze=False, layout="constrained"
    )
    for axis in axes[0]:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    if images:
        axes[0, 0].imshow(images[0].values[middle], cmap="gray", interpolation="nearest")
        axes[0, 0].set_title(_literal(portrait.name))
    for method, axis in zip(shown, axes[0, len(images) :], strict=True):
        layer = heats[method]
        norm = pyplot.matplotlib.colors.LogNorm(layer.low, layer.high)
        drawn = axis.imshow(layer.numbers()[middle], cmap="PuOr_r", norm=norm, interpolation="nearest")
        axis.set_title(f"{_literal(method)} temperature")
    bar = figure.colorbar(drawn, ax=axes[0].tolist(), shrink=0.9, pad=0.02)
    marks = np.geomspace(heats[shown[0]].low, heats[shown[0]].high, 5)
    bar.set_ticks(marks.tolist(), labels=[f"{mark:.2g}" for mark in marks])
    bar.minorticks_off()
    bar.outline.set_linewidth(0.4)
    return figure


def _regions(pyplot: Any, results: Results, methods: Sequence[str], metric: str) -> Any:
    """Mean of a metric by region, a bar for each method; whiskers bound the middle half of the images."""
    frame = results.to_frame()
    rows = frame[frame.metric == metric]
    if not len(rows):
        raise InputError(f"metric must be one of {', '.join(dict.fromkeys(frame.metric))}, got '{metric}'")
    regions = list(dict.fromkeys(rows["region"]))
    unit = _unit(metric)
    figure, axis = pyplot.subplots(figsize=(max(_COLUMN, 0.9 * len(regions) + 0.5), 2.2), layout="constrained")
    width = 0.8 / len(methods)
    for k, method in enumerate(methods):
        samples = [_values(rows, method, region) for region in regions]
        means = [unit * sample.mean() if sample.size else np.nan for sample in samples]
        quarters = [unit * np.quantile(s, (0.25, 0.75)) if s.size else np.full(2, np.nan) for s in samples]
        at = np.arange(len(regions)) + (k - (len(methods) - 1) / 2) * width
        axis.bar(at, means, 0.92 * width, color=_style(results, method)["color"], label=_literal(method))
        axis.vlines(at, *np.stack(quarters, axis=1), color="black", lw=0.8)
    axis.set_xticks(range(len(regions)), [region_title(region) for region in regions])
    axis.tick_params(axis="x", length=0)
    axis.set_ylabel(_title(metric))
    _name_above(figure, len(methods))
    return figure


def _patch_size(pyplot: Any, results: Results, methods: Sequence[str], metric: str, region: str) -> Any:
    """Local-Avg or Local-Max against the size of the patches, mean over images."""
    frame = results.patch_sizes()
    rows = frame[(frame.metric == metric) & (frame.region == region)]
    if not len(rows):
        raise InputError(f"no patch sizes of metric '{metric}' and region '{region}'; see results.patch_sizes()")
    figure, axis = pyplot.subplots(figsize=(_COLUMN, 2.3), layout="constrained")
    for method in methods:
        means = rows[rows.method == method].groupby("size")["value"].mean()
        axis.plot(
            means.index,
            _unit(metric) * means.to_numpy(),
            ms=3.5,
            lw=1.2,
            label=_literal(method),
            **_style(results, method),
        )
    axis.set(xlabel="patch size (pixels)", ylabel=f"{_title(metric)}, {region_title(region)}")
    axis.set_xticks(sorted(set(rows["size"])))
    axis.set_ylim(bottom=0)
    _name_above(figure, len(methods))
    return figure


def _name_above(figure: Any, methods: int) -> None:
    """Name the methods above the axes, three side by side, in a figure that grows by as much as they need."""
    figure.set_figheight(figure.get_figheight() + 0.17 * ((methods - 1) // 3))
    figure.legend(ncols=3, loc="outside upper center", columnspacing=1.2)


def _style(results: Results, method: str) -> dict[str, Any]:
    """Colour, marker and dash of a method, as on the page."""
    if method == results.baseline:
        return {"color": _BASELINE, "marker": "o", "linestyle": "-"}
    k = [name for name in results.methods if name != results.baseline].index(method)
    colours = len(_OKABE_ITO)
    return {
        "color": _OKABE_ITO[k % colours],
        "marker": _MARKERS[(k + 1) % len(_MARKERS)],
        "linestyle": _DASHES[k // colours % len(_DASHES)],
    }


def _literal(name: str) -> str:
    """A name in which matplotlib sees no formula."""
    return name.replace("$", r"\$")


def _values(rows: Any, method: str, region: str) -> Array:
    values = rows[(rows.method == method) & (rows.region == region)]["value"].to_numpy(float)
    return np.asarray(values[~np.isnan(values)])


def _unit(metric: str) -> int:
    return CATALOGUE[metric].scale


def _title(metric: str) -> str:
    return f"{CATALOGUE[metric].title}{' (%)' if CATALOGUE[metric].unit == '%' else ''}"


def _chosen(methods: Sequence[str], results: Results) -> Sequence[str]:
    if unknown := [method for method in methods if method not in results.methods]:
        raise InputError(f"methods must be among {', '.join(results.methods)}, got '{unknown[0]}'")
    return methods or results.methods


def _portrait(portraits: Sequence[Portrait], case: str | None) -> Portrait:
    if not portraits:
        raise InputError("there are no portraits of cases here; '--out RESULTS' of evaluate and compare keeps them")
    found = [portrait for portrait in portraits if case in (None, portrait.name)]
    if not found:
        raise InputError(f"case must be one of {', '.join(p.name for p in portraits)}, got '{case}'")
    return found[0]


def _pyplot() -> Any:
    """Matplotlib without a screen."""
    try:
        from matplotlib import pyplot  # noqa: PLC0415
    except ImportError as error:
        raise InputError("figures need matplotlib; pip install segcal[figures]") from error
    pyplot.switch_backend("Agg")
    return pyplot
