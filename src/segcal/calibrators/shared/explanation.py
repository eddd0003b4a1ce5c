"""The numbers that contextual temperature scaling has learned, as plain values and in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from segcal.calibrators.shared.context_fit import ContextFit, Outcome
from segcal.functional.context import FEATURES, WORDS
from segcal.functional.division import soft_floor
from segcal.functional.pairs import PairChoice, strongest_pairs
from segcal.functional.ridge import TEMPERATURE_SCALING, RidgeChoice, Strengths, jackknife_intervals

_PAIRS_SHOWN = 5


def account(fit: ContextFit, choice: RidgeChoice | None, outcome: Outcome) -> dict[str, Any]:
    """Return what was learned as plain values, and in words; a strength of None is infinite."""
    point, pixels, sample, many = outcome.point, fit.data, fit.sample, fit.many
    strength = TEMPERATURE_SCALING if choice is None else choice.strength
    predicted = pixels.logits.argmax(dim=0).numpy()
    weights, offsets = slice(1, 1 + many), slice(1 + many, None)
    exponent = torch.from_numpy(point[0] + point[weights] @ pixels.features.numpy() + point[offsets][predicted])
    if fit.floor.value > 0:
        exponent = soft_floor(exponent, *exponent.new_tensor(fit.floor))
    spans = np.stack([point, point], axis=1) if choice is None else jackknife_intervals(point, choice.refits)
    found = {
        "temperature": float(exponent.clamp(*np.log(fit.bounds).tolist()).mean().exp()),
        "floor": fit.floor.value,
        "softness": fit.floor.softness,
        "raised_share": outcome.raised,
        "features": list(FEATURES[:many]),
        "coefficients": point[weights].tolist(),
        "coefficient_intervals": spans[weights].tolist(),
        "feature_means": sample.mean.tolist(),
        "feature_scales": sample.scale.tolist(),
        "intercept": float(point[0]),
        "class_shares": (np.bincount(predicted, minlength=fit.num_classes) / predicted.size).tolist(),
        "class_offsets": point[offsets].tolist(),
        "class_offset_intervals": spans[offsets].tolist(),
        **_strengths(strength),
        "groups": sample.grouping.count,
        "grouping": sample.grouping.to_dict(),
        "folds": sample.folds,
        "cv_nll": [
            {**_strengths(row.strength), "nll": row.nll, "loss": row.loss}
            for row in (() if choice is None else choice.tried)
        ],
    }
    return {**found, "words": list(_sentences(found))}


def _sentences(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for the mean temperature, each feature, each predicted class, and the floor."""
    if found["ridge_features"] is None and found["ridge_classes"] is None:
        yield f"all pixels have the temperature {found['temperature']:.3g}"
        yield "nothing more could be learned that holds for other groups"
        return
    yield f"geometric mean of the temperatures: {found['temperature']:.3g}"
    if found["ridge_features"] is not None:
        for words, value, (low, high) in zip(WORDS, found["coefficients"], found["coefficient_intervals"], strict=True):
            effect = "has no clear effect on" if low <= 0 <= high else "raises" if value > 0 else "lowers"
            yield f"{words} {effect} the temperature: {_factor(value, low, high)} per standard deviation"
    if found["ridge_classes"] is not None:
        classes = zip(found["class_offsets"], found["class_offset_intervals"], found["class_shares"], strict=True)
        for number, (value, span, share) in enumerate(classes):
            words = _factor(value, *span) if share else "none were seen, so nothing was learned"
            yield f"pixels predicted as class {number}: {words}"
    if (floor := found["floor"]) > 0:
        share = 100 * found["raised_share"]
        yield f"temperatures below {floor:.3g} are set to {floor:.3g}, at {share:.0f} % of the pixels"


def account_of_pairs(offsets: Float64[np.ndarray, "L L"], choice: PairChoice) -> dict[str, Any]:
    """Return the offsets of pairs of classes, how their ridge was chosen, and the largest in words."""
    words = [
        f"where class {k} is predicted, class {j} is {'more' if offset < 0 else 'less'} likely than the scores "
        f"suggest: odds x{np.exp(-offset):.2f}"
        for k, j, offset in strongest_pairs(offsets, _PAIRS_SHOWN)
    ]
    return {
        "ridge_pairs": plain_strength(choice.strength),
        "pair_offsets": offsets.tolist(),
        "cv_nll_pairs": [{"ridge_pairs": plain_strength(row.strength), "nll": row.nll} for row in choice.tried],
        "words": words or ["nothing could be learned about pairs of classes that holds for other groups"],
    }


def _factor(value: float, low: float, high: float) -> str:
    low, high = np.exp(np.clip([low, high], -20, 20))
    return f"x{np.exp(value):.2f} [{low:.2f}, {high:.2f}]"


def _strengths(strengths: Strengths) -> dict[str, float | None]:
    return {"ridge_features": plain_strength(strengths.features), "ridge_classes": plain_strength(strengths.classes)}


def plain_strength(strength: float) -> float | None:
    """Return a strength for JSON, which has no infinity."""
    return float(strength) if np.isfinite(strength) else None
