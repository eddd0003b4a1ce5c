"""Contextual temperature scaling: a temperature for every pixel from a few numbers that can be read.

    u(x) = b + w . f(x) + c[predicted class of x],        log T(x) = log floor + s softplus((u(x) - log floor) / s)

where f are the features of the pixel and its surroundings (`functional.context`), standardised on the fitting data.
The floor is 1, or the temperature of temperature scaling where that is less: a pixel that looks underconfident on the
fitting images is the first to be wrong on others. It is soft (`functional.division`) and part of the fitted model, so
that numbers are fitted as they are applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, Unpack, get_args

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.report import Learned
from segcal.calibrators.shared.context_fit import ContextFit, Outcome
from segcal.calibrators.shared.context_sample import CONTEXT, ContextSample, draw_sample
from segcal.calibrators.temperature import FitLimits, TemperatureCalibrator
from segcal.cases import CaseStream
from segcal.functional.context import FEATURES, WORDS, context_temperature
from segcal.functional.division import (
    Floor,
    finite_in,
    kernels_check_finite,
    require_finite,
    scaled_probabilities,
    soft_floor,
)
from segcal.functional.pairs import PairChoice, pair_margins, strongest_pairs
from segcal.functional.probability import at_least_float32, at_least_float32_dtype, keep_labels
from segcal.functional.ridge import TEMPERATURE_SCALING, Choice, RidgeChoice, Strengths, jackknife_intervals
from segcal.types import Image, Logits, Probs, Temperature, check_choice

ContextLoss = Literal["nll", "nll+brier"]
_PAIRS_SHOWN = 5


class ContextualTemperatureScaling(TemperatureCalibrator):
    """Divide the logits of each pixel by a temperature that depends on its features and its predicted class.

    The numbers are those of least mean loss plus `ridge_w / 2 |w|^2 + ridge_c / 2 |c|^2`. The loss is a mean over
    pixels, so the penalty weighs more against classes with few pixels: rare classes stay near the common temperature.
    Both strengths are chosen by cross-validation over folds of whole groups (`Case.group`; without groups, see
    `statistics.grouping`), from infinity, which is temperature scaling, downwards; with few groups the strongest ridge
    on class offsets within one standard error of the best is taken. They are chosen on a sample in memory; Newton's
    method with the exact curvature then finishes on all pixels, from the solution of the sample.
    There is no learning rate and nothing is random.

    With `pairs`, each pair of a predicted class and a rival then has an offset of its margin (`functional.pairs`),
    under a ridge chosen by the same cross-validation from infinity, which is none, downwards. Unless `sharpen` is set,
    offsets only lower margins.

    Args:
        num_classes: L.
        spatial_dims: 2 or 3.
        features: Whether the temperature depends on the context; without, it is class-wise temperature scaling.
        classes: Whether each predicted class has an offset; without both, it is temperature scaling.
        pairs: Whether each pair of predicted class and rival has an offset of its margin.
        loss: "nll", or "nll+brier" for the sum of both scores.
        sharpen: Whether a pixel may become more confident than both the network and temperature scaling make it:
            better where new images are like the fitting images, worse where they are not.
        limits: `ignore_index`, `background` and `bounds`, as of every `TemperatureCalibrator`.
    """

    spatial_dims: int
    method = "cts"
    intercept: Float64[Tensor, ""]
    """u where every feature is at its mean, of a class without offset; NaN until fitted."""
    coefficients: Float64[Tensor, " F"]
    """Change of u per standard deviation of each feature."""
    class_offsets: Float64[Tensor, " L"]
    pair_offsets: Float64[Tensor, "L L"]
    """With `pairs`: row k holds the offsets of the margins over each class where k is predicted."""
    feature_mean: Float64[Tensor, " F"]
    feature_scale: Float64[Tensor, " F"]
    floor: Float64[Tensor, ""]
    """The least temperature that is applied; 0 where `sharpen` is set."""
    softness: Float64[Tensor, ""]
    """Over how much of log T the floor takes effect; 0 is a hard floor."""

    def __init__(
        self,
        num_classes: int,
        *,
        spatial_dims: int = 2,
        features: bool = True,
        classes: bool = True,
        pairs: bool = False,
        loss: ContextLoss = "nll",
        sharpen: bool = False,
        **limits: Unpack[FitLimits],
    ) -> None:
        super().__init__(num_classes, **limits)
        check_choice("spatial_dims", spatial_dims, (2, 3))
        check_choice("loss", loss, get_args(ContextLoss))
        self.spatial_dims, self.features, self.classes = spatial_dims, bool(features), bool(classes)
        self.context = CONTEXT if features else 0
        self.loss: ContextLoss = loss
        self.pairs, self.sharpen = bool(pairs), bool(sharpen)
        many = (self._many,)
        self._register_learned(intercept=(), floor=(), softness=(), class_offsets=(num_classes,))
        self._register_learned(coefficients=many, feature_mean=many, feature_scale=many)
        if self.pairs:
            self._register_learned(pair_offsets=(num_classes, num_classes))

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Choose penalties by cross-validation among the cases, then fit all pixels; `validation` is not used.

        As settings, a sample that was drawn before from the same cases can be given.
        """
        sample = settings
        if not isinstance(sample, ContextSample):
            sample = draw_sample(stream, spatial_dims=self.spatial_dims, features=self.features)
        seen, brier = sample if self.features else sample.without_features(), 1.0 if self.loss == "nll+brier" else 0.0
        fit = ContextFit.of(seen, stream, self.bounds, sharpen=self.sharpen, brier=brier)
        doubt = fit.only_one if self.features or self.classes or self.pairs else ""
        choice: RidgeChoice = Choice(TEMPERATURE_SCALING)
        if doubt is None:
            choice = fit.path(classes=self.classes).choice(cautious=fit.cautious)
        if choice.strength == TEMPERATURE_SCALING:
            outcome = fit.solve_one()
            # that of all pixels, where the floor is of the sample; with one temperature there is nothing to soften
            fit = replace(fit, floor=Floor(min(fit.floor.value, float(np.exp(outcome.point[0]))), 0.0))
        else:
            outcome = fit.solve(choice)
        self._store(fit, outcome)
        details = account(fit, choice, outcome)
        if self.pairs:
            found, picked = fit.solve_pairs(choice, outcome)
            self.pair_offsets.copy_(found.offsets)
            steps, converged = outcome.steps + found.steps, outcome.converged and found.converged
            outcome = replace(outcome, nll=found.nll, steps=steps, converged=converged)
            pairs = account_of_pairs(found.offsets.numpy(), picked)
            details = {**details, **pairs, "words": [*details["words"], *pairs["words"]]}
        return Learned(
            pixels=seen.pixels,
            nll_before=seen.nll / seen.pixels,
            nll_after=outcome.nll,
            steps=outcome.steps,
            converged=outcome.converged,
            warnings=(*seen.grouping.warnings, *([doubt] if doubt else []), *outcome.warnings),
            details=details,
        )

    def _temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        if not self.features:
            exponent = self.intercept + self.class_offsets
            least = self.floor.clamp(min=self.bounds[0])
            of_class = soft_floor(exponent, least, self.softness).exp().clamp(*self.bounds)
            return of_class.to(at_least_float32_dtype(logits.dtype))[logits.argmax(dim=1, keepdim=True)]
        weights = self.coefficients / self.feature_scale  # of the features as they are computed
        intercept = self.intercept - (weights * self.feature_mean).sum()
        settings = (self.class_offsets, self.bounds, self.floor, self.softness)
        return context_temperature(logits, weights, intercept, *settings)

    def _refuses(self, logits: Logits, image: Image | None) -> bool:
        return self.features and kernels_check_finite(logits)

    def _divide(self, logits: Logits, temperature: Temperature) -> Logits:
        if not self.pairs:
            return super()._divide(logits, temperature)
        return keep_labels(finite_in(self._margins(logits, temperature), logits.dtype), logits)

    def _softmax(self, logits: Logits, temperature: Temperature) -> Probs:
        if not self.pairs:
            return super()._softmax(logits, temperature)
        margins = self._margins(logits, temperature)
        probs = scaled_probabilities(finite_in(margins, margins.dtype), torch.ones_like(temperature))
        return keep_labels(probs.to(logits.dtype), logits)

    def _margins(self, logits: Logits, temperature: Temperature) -> Logits:
        """Return logits with calibrated margins over every rival."""
        require_finite(logits)
        wide = at_least_float32(logits)
        return pair_margins(wide, temperature.to(wide.dtype), self.pair_offsets.to(wide.dtype))

    @property
    def learned(self) -> int:
        """The intercept, and the weights and offsets that it has; the standardisation is a matter of units."""
        classes = self.num_classes
        own = classes if self.classes else 0
        return 1 + self._many + own + (classes * (classes - 1) if self.pairs else 0)

    @property
    def _many(self) -> int:
        return len(FEATURES) if self.features else 0

    def _store(self, fit: ContextFit, outcome: Outcome) -> None:
        point, many = torch.from_numpy(outcome.point), 1 + self._many
        self.floor.fill_(fit.floor.value)
        self.softness.fill_(fit.floor.softness)
        self.intercept.copy_(point[0])
        self.coefficients.copy_(point[1:many])
        self.class_offsets.copy_(point[many:])
        self.feature_mean.copy_(torch.from_numpy(fit.sample.mean))
        self.feature_scale.copy_(torch.from_numpy(fit.sample.scale))

    def _problem(self) -> str | None:
        if not bool((self.feature_scale > 0).all()):
            return "'feature_scale' must be above 0"
        return None if float(self.softness) >= 0 else "'softness' must be at least 0"


def account(fit: ContextFit, choice: RidgeChoice, outcome: Outcome) -> dict[str, Any]:
    """Return what was learned as plain values, and in words; a strength of None is infinite."""
    point, sample, many = outcome.point, fit.sample, fit.many
    predicted = sample.data.logits.argmax(dim=0).numpy()
    weights, offsets = slice(1, 1 + many), slice(1 + many, None)
    spans = np.stack([point, point], axis=1) if not choice.refits else jackknife_intervals(point, choice.refits)
    found = {
        "temperature": float(fit.inverse_temperatures(sample.data.values, point).log().mean().neg().exp()),
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
        **_strengths(choice.strength),
        "groups": sample.grouping.count,
        "grouping": sample.grouping.to_dict(),
        "folds": sample.folds,
        "cv_nll": [{**_strengths(row.strength), "nll": row.nll, "loss": row.loss} for row in choice.tried],
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
