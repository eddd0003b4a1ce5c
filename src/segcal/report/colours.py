"""Colours that the page and the figures share.

Methods, classes, regions, and over- and underconfidence have colours of their own: none of them means two things.
"""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hls_to_rgb

BASELINE, OVER, UNDER, BAR = "#737980", "#D55E00", "#0072B2", "#DFE3E6"
METHODS = ("#9A5FBF", "#00875F", "#D0549B", "#8A7A00", "#A9692B", "#1B9AAA", "#5C6BC0")
"""Medium lightness, at least 3:1 on white and on the page's dark ground."""

REGIONS = ("#E4E5E0", "#A9B4C0", "#4A5563")
"""Greys: outside All, All, Boundary."""

_CLASSES = ("#77AADD", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#EE8866", "#DDB3E6")
_GOLDEN_ANGLE = 137.508


def method_colours(methods: Sequence[str], baseline: str) -> dict[str, str]:
    """Return the colour of each method; the baseline is grey, and colours repeat after seven others."""
    others = [method for method in methods if method != baseline]
    return {baseline: BASELINE, **{method: METHODS[k % len(METHODS)] for k, method in enumerate(others)}}


def class_colours(count: int) -> list[str]:
    """Return a pale colour for each class: the light palette of Paul Tol, then hues a golden angle apart."""
    further = range(len(_CLASSES), max(count, len(_CLASSES)))
    hues = [((k * _GOLDEN_ANGLE) % 360 / 360, (0.7, 0.78, 0.86)[k % 3]) for k in further]
    return [*_CLASSES[:count], *(_hexadecimal(hls_to_rgb(hue, light, 0.6)) for hue, light in hues)]


def _hexadecimal(shares: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * share):02X}" for share in shares)
