"""Matplotlib figures that are returned: shown once by a notebook, saved with `savefig` anywhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segcal.report.figures.style import STYLE
from segcal.types import InputError


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
