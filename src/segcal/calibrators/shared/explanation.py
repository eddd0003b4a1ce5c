"""The numbers that contextual temperature scaling has learned, as plain values and in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from segcal.calibrators.shared.context_sample import ContextSample
from segcal.functional.context import FEATURES, WORDS
from segcal.functional.floor import Floor, soft_floor
from segcal.functional.log_linear import FeaturePixels
from segcal.functional.pairs import PairChoice, strongest_pairs
from segcal.functional.ridge import TEMPERATURE_SCALING, Choice, Strengths
from segcal.types import Array

_PAIRS_SHOWN = 5


def account(
    point: Float64[np.ndarray, " P"],
    pixels: FeaturePixels,
    choice: Choice | None,
    sample: ContextSample,
    *,
    bounds: tuple[float, float],
    floor: Floor,
    raised: float,
) -> dict[str, Any]:
    """Return what was learned as plain values; a strength of None is infinite.

    Args:
        point: Intercept, what each feature adds to the exponent, and what each predicted class adds.
        pixels: The pixels of the sample, with standardised features.
        choice: Of the strengths, where there was one.
        sample: What was fitted on.
        bounds: Of the temperatures.
        floor: Under the temperatures.
        raised: Share of the pixels that would be below the floor without it.
    """
    strengths = TEMPERATURE_SCALING if choice is None else choice.strengths
    many, classes = len(pixels.features), len(pixels.logits)
    predicted = pixels.logits.argmax(dim=0).numpy()
    shares = np.bincount(predicted, minlength=classes) / predicted.size
    weights, offsets = slice(1, 1 + many), slice(1 + many, None)
    exponent = torch.from_numpy(point[0] + point[weights] @ pixels.features.numpy() + point[offsets][predicted])
    if floor.value > 0:
        exponent = soft_floor(exponent, *exponent.new_tensor(floor))
    temperature = float(exponent.clamp(*np.log(bounds).tolist()).mean().exp())
    spans = np.stack([point, point], axis=1) if choice is None else choice.intervals(point)
    return {
        "temperature": temperature,
        "floor": floor.value,
        "softness": floor.softness,
        "raised_share": raised,
        "features": list(FEATURES[:many]),
        "coefficients": point[weights].tolist(),
        "coefficient_intervals": spans[weights].tolist(),
        "feature_means": sample.mean.tolist(),
        "feature_scales": sample.scale.tolist(),
        "intercept": float(point[0]),
        "class_shares": shares.tolist(),
        "class_offsets": point[offsets].tolist(),
        "class_offset_intervals": spans[offsets].tolist(),
        "ridge_features": _plain(strengths.features),
        "ridge_classes": _plain(strengths.classes),
        "groups": sample.grouping.count,
        "grouping": sample.grouping.to_dict(),
        "folds": sample.folds,
        "cv_nll": [
            {
                "ridge_features": _plain(row.strengths.features),
                "ridge_classes": _plain(row.strengths.classes),
                "nll": row.nll,
                "loss": row.loss,
            }
            for row in (() if choice is None else choice.tried)
        ],
        "words": list(_sentences(temperature, point, spans, strengths, shares, floor.value, raised)),
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
    """Yield a sentence for the mean temperature, each feature, each predicted class, and the floor.

    Args:
        temperature: The geometric mean over pixels.
        point: Intercept, what each feature adds to the exponent, and what each predicted class adds.
        spans: Their 95 % intervals.
        strengths: Of the ridges that they were fitted with.
        shares: Of the pixels that are predicted as each class.
        floor: The least temperature that is applied; 0 for none.
        raised: Share of the pixels that would be below it.
    """
    if strengths == TEMPERATURE_SCALING:
        yield f"all pixels have the temperature {temperature:.3g}"
        yield "nothing more could be learned that holds for other groups"
        return
    features = point.size - 1 - shares.size
    yield f"geometric mean of the temperatures: {temperature:.3g}"
    if np.isfinite(strengths.features):
        for k, words in enumerate(WORDS[:features], start=1):
            yield f"{words} {_effect(point[k], spans[k])} per standard deviation"
    if np.isfinite(strengths.classes):
        for number, k in enumerate(range(1 + features, point.size)):
            words = _factor(point[k], spans[k]) if shares[number] else "none were seen, so nothing was learned"
            yield f"pixels predicted as class {number}: {words}"
    if floor > 0:
        yield f"temperatures below {floor:.3g} are set to {floor:.3g}, at {100 * raised:.0f} % of the pixels"


def account_of_pairs(offsets: Float64[np.ndarray, "L L"], choice: PairChoice) -> dict[str, Any]:
    """Return the offsets of pairs of classes, how their ridge was chosen, and the largest in words."""
    words = [
        f"where class {k} is predicted, class {j} is {'more' if offset < 0 else 'less'} likely than the scores "
        f"suggest: odds x{np.exp(-offset):.2f}"
        for k, j, offset in strongest_pairs(offsets, _PAIRS_SHOWN)
    ]
    return {
        "ridge_pairs": _plain(choice.ridge),
        "pair_offsets": offsets.tolist(),
        "cv_nll_pairs": [{"ridge_pairs": _plain(ridge), "nll": nll} for ridge, nll in choice.tried],
        "words": words or ["nothing could be learned about pairs of classes that holds for other groups"],
    }


def _effect(value: float, span: Array) -> str:
    clear = span[0] > 0 or span[1] < 0
    what = ("raises" if value > 0 else "lowers") if clear else "has no clear effect on"
    return f"{what} the temperature: {_factor(value, span)}"


def _factor(value: float, span: Array) -> str:
    low, high = np.exp(np.clip(span, -20, 20))
    return f"x{np.exp(value):.2f} [{low:.2f}, {high:.2f}]"


def _plain(strength: float) -> float | None:
    """JSON has no infinity."""
    return float(strength) if np.isfinite(strength) else None
