"""What figures share: colours, sizes, and matplotlib without a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segcal.evaluation.results import Results
from segcal.functional.catalogue import CATALOGUE

FORMATS = (".pdf", ".png", ".svg")
COLUMN = 3.35
"""Width in inches of one column of a two-column page."""

BASELINE, OVER, UNDER, BAR = "#80868C", "#D55E00", "#0072B2", "#DFE3E6"
CLASSES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#666666")
REGION_COLOURS = ("#E4E5E0", "#56B4E9", "#E69F00")
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

_OKABE_ITO = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A7A00")
_MARKERS, _DASHES = "osD^", ("-", "--", ":", "-.")


def style_of(results: Results, method: str) -> dict[str, Any]:
    """Colour, marker and dash of a method, as on the page."""
    if method == results.baseline:
        return {"color": BASELINE, "marker": "o", "linestyle": "-"}
    k = [name for name in results.methods if name != results.baseline].index(method)
    colours = len(_OKABE_ITO)
    return {
        "color": _OKABE_ITO[k % colours],
        "marker": _MARKERS[(k + 1) % len(_MARKERS)],
        "linestyle": _DASHES[k // colours % len(_DASHES)],
    }


def literal(name: str) -> str:
    """A name in which matplotlib sees no formula."""
    return name.replace("$", r"\$")


def axis_title(metric: str) -> str:
    """Title of a metric with its unit."""
    shown = CATALOGUE[metric]
    return f"{shown.title}{' (%)' if shown.percent else ''}"


def name_above(figure: Any, methods: int) -> None:
    """Put the names of the methods above the axes, three per line, and make room for them."""
    figure.set_figheight(figure.get_figheight() + 0.17 * ((methods - 1) // 3))
    figure.legend(ncols=3, loc="outside upper center", columnspacing=1.2)


def bare(axes: Sequence[Any]) -> None:
    """Axes that hold pictures: no ticks and no frame."""
    for axis in axes:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
