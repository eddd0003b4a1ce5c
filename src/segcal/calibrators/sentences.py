"""What contextual temperature scaling has learned, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64

from segcal.functional.context import WORDS
from segcal.functional.ridge import TEMPERATURE_SCALING, Strengths
from segcal.types import Array


def sentences(
    temperature: float,
    point: Float64[np.ndarray, " P"],
    spans: Float64[np.ndarray, "P 2"],
    strengths: Strengths,
    shares: Float64[np.ndarray, " L"],
    floor: float,
    raised: float,
) -> Iterator[str]:
    """One for the mean temperature, each feature, each predicted class, and the floor.

    Args:
        temperature: The geometric mean over pixels.
        point: Intercept, what each feature adds to log T, and what each predicted class adds.
        spans: Their 95 % intervals.
        strengths: Of the ridges that they were fitted with.
        shares: Of the pixels that are predicted as each class.
        floor: The least temperature that is applied; 0 for none.
        raised: Share of the pixels that it raises.
    """
    if strengths == TEMPERATURE_SCALING:
        yield f"all pixels have the temperature {temperature:.3g}"
        yield "nothing more could be learned that holds for other groups"
        return
    features = point.size - 1 - shares.size
    yield f"temperatures are {temperature:.3g} in the geometric mean"
    if np.isfinite(strengths.features):
        for k, words in enumerate(WORDS[:features], start=1):
            yield f"{words} {_effect(point[k], spans[k])} for one standard deviation"
    if np.isfinite(strengths.classes):
        for number, k in enumerate(range(1 + features, point.size)):
            told = _factor(point[k], spans[k]) if shares[number] else "none were seen, so that nothing was learned"
            yield f"pixels predicted as class {number}: {told}"
    if floor > 0:
        yield f"no temperature is below {floor:.3g}; {raised:.0%} of the pixels would have a lower one"


def _effect(value: float, span: Array) -> str:
    clear = span[0] > 0 or span[1] < 0
    what = ("raises" if value > 0 else "lowers") if clear else "does not clearly move"
    return f"{what} the temperature: {_factor(value, span)}"


def _factor(value: float, span: Array) -> str:
    low, high = np.exp(np.clip(span, -20, 20))
    return f"x{np.exp(value):.2f} [{low:.2f}, {high:.2f}]"
