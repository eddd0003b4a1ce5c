"""Style of all figures: colours, sizes, and matplotlib without a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segcal.evaluation.results import Results
from segcal.functional.catalogue import CATALOGUE
from segcal.report.colours import METHODS, method_colours

FORMATS = (".pdf", ".png", ".svg")
COLUMN = 3.35
"""Width in inches of one column of a two-column page."""

STYLE = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text, as publishers ask
    "svg.fonttype": "none",
    "savefig.dpi": 300,
}

_MARKERS, _DASHES = "osD^", ("-", "--", ":", "-.")


def style_of(results: Results, method: str) -> dict[str, Any]:
    """Return colour, marker and dash of a method, as on the page."""
    k = [results.baseline, *(name for name in results.methods if name != results.baseline)].index(method)
    return {
        "color": method_colours(results.methods, results.baseline)[method],
        "marker": _MARKERS[k % len(_MARKERS)],
        "linestyle": _DASHES[max(k - 1, 0) // len(METHODS) % len(_DASHES)],
    }


def literal(name: str) -> str:
    """Return a name in which matplotlib sees no formula."""
    return name.replace("$", r"\$")


def axis_title(metric: str) -> str:
    """Return the title of a metric with its unit."""
    shown = CATALOGUE[metric]
    return f"{shown.title}{' (%)' if shown.percent else ''}"


def name_above(figure: Any, methods: int) -> None:
    """Put the names of the methods above the axes, three per line, and make room for them."""
    figure.set_figheight(figure.get_figheight() + 0.17 * ((methods - 1) // 3))
    figure.legend(ncols=3, loc="outside upper center", columnspacing=1.2)


def bare(axes: Sequence[Any]) -> None:
    """Remove ticks and frames of axes that hold pictures."""
    for axis in axes:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
