"""What contextual temperature scaling has learned, in numbers and in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float64

from segcal.functional.context import FEATURES, WORDS
from segcal.functional.log_linear import Pixels
from segcal.functional.ridge import TEMPERATURE_SCALING, Choice, Strengths
from segcal.types import Array


def account(
    point: Float64[np.ndarray, " P"],
    sample: Pixels,
    choice: Choice | None,
    strengths: Strengths,
    *,
    bounds: tuple[float, float],
    floor: float,
    raised: float,
    standardisation: tuple[Float64[np.ndarray, " F"], Float64[np.ndarray, " F"]],
    groups: int,
) -> dict[str, Any]:
    """What was learned, as plain values; a strength of None is infinite.

    Args:
        point: Intercept, what each feature adds to log T, and what each predicted class adds.
        sample: Pixels that were fitted on, with standardised features.
        choice: Of the strengths, where there was one.
        strengths: That were taken.
        bounds: Of the temperatures.
        floor: The least temperature that is applied; 0 for none.
        raised: Share of the pixels that the floor raises.
        standardisation: Means and deviations of the features.
        groups: How many there were.
    """
    many, classes = len(sample.features), len(sample.logits)
    predicted = sample.logits.argmax(dim=0).numpy()
    shares = np.bincount(predicted, minlength=classes) / predicted.size
    weights, offsets = slice(1, 1 + many), slice(1 + many, None)
    exponent = point[0] + point[weights] @ sample.features.numpy() + point[offsets][predicted]
    low, high = np.log(max(bounds[0], floor)), np.log(bounds[1])
    temperature = float(np.exp(np.clip(exponent, low, high).mean()))
    spans = np.stack([point, point], axis=1) if choice is None else choice.intervals(point)
    return {
        "temperature": temperature,
        "floor": floor,
        "raised_share": raised,
        "features": list(FEATURES[:many]),
        "coefficients": point[weights].tolist(),
        "coefficient_intervals": spans[weights].tolist(),
        "feature_means": standardisation[0].tolist(),
        "feature_scales": standardisation[1].tolist(),
        "intercept": float(point[0]),
        "class_shares": shares.tolist(),
        "class_offsets": point[offsets].tolist(),
        "class_offset_intervals": spans[offsets].tolist(),
        "ridge_features": _told(strengths.features),
        "ridge_classes": _told(strengths.classes),
        "groups": groups,
        "folds": len(sample.edges) - 1,
        "cv_nll": [
            {
                "ridge_features": _told(row.strengths.features),
                "ridge_classes": _told(row.strengths.classes),
                "nll": row.nll,
                "loss": row.loss,
            }
            for row in (() if choice is None else choice.tried)
        ],
        "words": list(_sentences(temperature, point, spans, strengths, shares, floor, raised)),
    }


def _sentences(
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


def _told(strength: float) -> float | None:
    """JSON has no infinity."""
    return float(strength) if np.isfinite(strength) else None
