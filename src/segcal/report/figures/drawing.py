"""Parts that all figures share: the request for one, matplotlib to draw it with, and the style.

Figures are returned: shown once by a notebook, saved with `savefig` anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from segcal.evaluation.portraits import Portrait
from segcal.evaluation.results import Results
from segcal.functional.catalogue import metric_named
from segcal.report.colours import METHODS, method_colours
from segcal.types import InputError

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
    "svg.hashsalt": "segcal",  # names of its parts would be random
    "savefig.dpi": 300,
}

_MARKERS, _DASHES = "osD^", ("-", "--", ":", "-.")


class FigureOptions(TypedDict, total=False):
    """Choice of what to draw; see `Request`."""

    portraits: Sequence[Portrait]
    methods: Sequence[str]
    metric: str
    region: str | None
    label: str
    case: str | None


@dataclass(frozen=True)
class Request:
    """Results, and which part of them to draw.

    Attributes:
        pyplot: matplotlib.pyplot.
        results: Of the evaluation.
        portraits: Some of its cases, for figures that show them.
        methods: The methods to draw, in order; by default all.
        metric: For figures of one metric.
        region: For reliability diagrams, by default *All*, and patch sizes, by default *Local-Avg*.
        label: Predicted class of the pixels in reliability diagrams; "" for all pixels.
        case: Name of the portrait to draw; None for the first.
    """

    pyplot: Any
    results: Results
    portraits: Sequence[Portrait] = ()
    methods: Sequence[str] = ()
    metric: str = "ece"
    region: str | None = None
    label: str = ""
    case: str | None = None

    def portrait(self) -> Portrait:
        """Return the portrait to draw."""
        found = [portrait for portrait in self.some_portraits() if self.case in (None, portrait.name, portrait.title)]
        if not found:
            known = ", ".join(portrait.title for portrait in self.portraits)
            raise InputError(f"case must be one of {known}, got '{self.case}'")
        return found[0]

    def some_portraits(self) -> Sequence[Portrait]:
        """Return all portraits, of which there must be some."""
        if not self.portraits:
            raise InputError(
                "this figure shows cases, and there are no portraits of them; 'segcal evaluate --out' saves them, and "
                "in Python give portraits=segcal.evaluation.portraits.make_portraits(cases, calibrators, results)"
            )
        return self.portraits


def import_pyplot() -> Any:
    """Return matplotlib.pyplot; raise if it is not installed."""
    try:
        from matplotlib import pyplot  # noqa: PLC0415
    except ImportError as error:
        raise InputError("figures need matplotlib; pip install segcal[figures]") from error
    return pyplot


def drawn(draw: Callable[[Any], Any]) -> Any:
    """Return the figure that `draw(pyplot)` makes, in segcal's style.

    pyplot forgets it, because a notebook would show a figure that pyplot holds a second time.
    """
    pyplot = import_pyplot()
    with pyplot.rc_context(STYLE):
        figure = draw(pyplot)
        pyplot.close(figure)
    return figure


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
    shown = metric_named(metric)
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
