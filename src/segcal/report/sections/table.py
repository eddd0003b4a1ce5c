"""Every method, metric and region, over images and over pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segcal.report.view import KEYS, View, nested, short
from segcal.tables.presentation import Average


def table(view: View) -> dict[str, Any]:
    """Return cells [value, spread or low, high, best, beaten] for both averages; the note says what they are."""
    return {
        "images": _images(view),
        "pixels": _pixels(view),
        "best": view.recommendation.method,
    }


def _images(view: View) -> Any:
    """Return mean and standard deviation; marks in the paper's regions."""
    marks = _marks(view, "images")
    return nested(view.means, KEYS, lambda row: [short(row.value), short(row.std), None, *marks(row)])


def _pixels(view: View) -> Any:
    """Return value and interval over all pixels together; patches are not pooled."""
    marks = _marks(view, "pixels")
    return nested(
        view.results.pooled(), KEYS, lambda row: [short(row.value), short(row.low), short(row.high), *marks(row)]
    )


def _marks(view: View, average: Average) -> Callable[[Any], tuple[bool, bool]]:
    """Return a function from a row to whether its value is the best, and significantly worse than the reference's."""
    cells = view.results.table(average=average).cells

    def marks(row: Any) -> tuple[bool, bool]:
        cell = cells.get((row.method, row.metric, row.region))
        return (False, False) if cell is None else (cell.best, cell.beaten)

    return marks
