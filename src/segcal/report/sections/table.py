"""Every method, metric and region, over images and over pixels."""

from __future__ import annotations

from typing import Any

from segcal.report.view import Nested, View, short


def table(view: View) -> dict[str, Any]:
    """Return cells [value, spread or low, high, best, beaten] for both averages; the note says what they are."""
    return {
        "images": _images(view),
        "pixels": _pixels(view),
        "best": view.scores.recommendation.method,
    }


def _images(view: View) -> Nested:
    """Return mean and standard deviation; marks in the paper's regions."""
    found: Nested = {}
    for row in view.scores.means.itertuples():
        entry = found.setdefault(str(row.method), {}).setdefault(str(row.region), {})
        entry[str(row.metric)] = [short(row.value), short(row.std), None, False, False]
    for (method, metric, region), cell in view.results.table(average="images").cells.items():
        found[method][region][metric] = [short(cell.mean), short(cell.std), None, cell.best, cell.beaten]
    return found


def _pixels(view: View) -> Nested:
    """Return value and interval over all pixels together; patches are not pooled."""
    found: Nested = {}
    cells = view.results.table(average="pixels").cells
    for row in view.results.pooled().itertuples():
        cell = cells.get((str(row.method), str(row.metric), str(row.region)))
        marks = (False, False) if cell is None else (cell.best, cell.beaten)
        entry = found.setdefault(str(row.method), {}).setdefault(str(row.region), {})
        entry[str(row.metric)] = [short(row.value), short(row.low), short(row.high), *marks]
    return found
