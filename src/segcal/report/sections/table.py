"""Every method, metric and region, over images and over pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segcal.report.view import KEYS, View, nested, short
from segcal.tables import Average


def table(view: View) -> dict[str, Any]:
    """Return cells [value, spread or low, high, best, beaten] for both averages; patches are not pooled."""
    images, pixels = _marks(view, "images"), _marks(view, "pixels")
    pooled = view.results.pooled()
    return {
        "images": nested(view.means, KEYS, lambda row: [short(row.value), short(row.std), None, *images(row)]),
        "pixels": nested(pooled, KEYS, lambda row: [*map(short, (row.value, row.low, row.high)), *pixels(row)]),
        "best": view.recommendation.method,
    }


def _marks(view: View, average: Average) -> Callable[[Any], tuple[bool, bool]]:
    """Return a function from a row to whether its value is the best, and significantly worse than the reference's."""
    cells = view.results.table(average=average).cells

    def marks(row: Any) -> tuple[bool, bool]:
        cell = cells.get((row.method, row.metric, row.region))
        return (False, False) if cell is None else (cell.best, cell.beaten)

    return marks
