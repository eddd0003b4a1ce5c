"""Several passes over an image pooled: a weighted mean of their probabilities, then contextual temperature scaling.

A second look at an image (mirrored, rescaled, by another network) shows which pixels are harder than they look, which
no function of the first logits can. The weights of the passes are learned (`functional.pooling`), the pool is
calibrated as `cts` calibrates single passes, and the predicted labels stay those of the first pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.base import Calibrator, FitRegion
from segcal.calibrators.contextual import ContextualTemperatureScaling, plain_strength
from segcal.calibrators.report import Learned
from segcal.calibrators.shared.context_fit import ContextFit
from segcal.calibrators.shared.context_sample import ContextSample, draw_sample
from segcal.calibrators.shared.survey import inverse_temperature_of, one_thread
from segcal.cases import CaseStream, StreamedCase
from segcal.functional.pixels import moved_labels
from segcal.functional.pooling import mixture_weights, pooled_logits
from segcal.functional.probability import probabilities
from segcal.functional.ridge import Choice, FoldPath, within_one_error
from segcal.functional.temperature import likelihood
from segcal.text import counted
from segcal.types import Array, Image, InputError, Logits, Passes, Slab

STRENGTHS = (np.inf, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4)
"""Strengths of the pull towards equal weights to choose from, the strongest first."""


class PooledPasses(Calibrator):
    """Pool several passes over each image with learned weights, and calibrate the pool by `cts`.

    The weights maximise the mean log of the pooled probability of the true class, which is concave, and are pulled
    towards equal weights with a strength that cross-validation over groups chooses. The pool is used only if its NLL on
    the groups left out is below that of `cts` without passes by more than one standard error; otherwise the result is
    `cts`, or temperature scaling where `cts` chooses that, and passes are not needed any more.

    Args:
        num_classes: L.
        spatial_dims: 2 or 3.
        free_labels: Whether predicted labels are those of the pool rather than those of the first pass.
        bounds: Smallest and largest temperature that is applied.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    spatial_dims: int
    method = "pool"
    reads_passes = True
    sized_by_fit = ("weights",)
    weights: Float64[Tensor, " M"]
    """Weight of each member, the first of which are the logits; the number 1 alone if passes are not used."""
    member_temperature: Float64[Tensor, ""]
    """Temperature of all members before they are pooled."""

    def __init__(
        self,
        num_classes: int,
        *,
        spatial_dims: int = 2,
        free_labels: bool = False,
        bounds: tuple[float, float] = (0.05, 100.0),
        **region: Unpack[FitRegion],
    ) -> None:
        super().__init__(num_classes, **region)
        self.inner = ContextualTemperatureScaling(num_classes, spatial_dims=spatial_dims, bounds=bounds)
        self.spatial_dims, self.bounds, self.context = spatial_dims, self.inner.bounds, self.inner.context
        self.free_labels, self.preserves_labels = bool(free_labels), not free_labels
        self._register_learned(weights=(1,), member_temperature=())

    @property
    def uses_passes(self) -> bool:
        """True if it was found that passes help, so that they are needed to calibrate."""
        return self.weights.numel() > 1

    @property
    def learned(self) -> int:
        """The weights, which sum to 1, the temperature of the members, and the values of `cts`."""
        return self.weights.numel() - 1 + int(self.uses_passes) + self.inner.learned

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Choose weights by cross-validation, compare the pool with single passes, and fit the better one.

        As settings, a sample that was drawn before from the same cases can be given.
        """
        sample = settings if isinstance(settings, ContextSample) else draw_sample(
            stream, spatial_dims=self.spatial_dims, features=True
        )  # fmt: skip
        pool, known, why = None, sample, "the cases have no further passes"
        if sample.passes is not None:
            pool, known, why = compare(
                stream, sample, self.bounds, keep=not self.free_labels, spatial_dims=self.spatial_dims
            )
        self.inner._fit_stream(stream.without_passes() if pool is None else pool.pool(stream), None, known)
        found = self.inner.fit_report_
        details: dict[str, Any] = {"chosen": _name_of(found.details), "weights": [1.0], "member_temperature": 1.0}
        if pool is not None:
            details |= {"chosen": "pool", **pool.details()}
        details["why"] = why
        if self.free_labels:
            details["moved"] = 0.0 if pool is None else pool.moved(sample)
        self.register_buffer("weights", torch.tensor(details["weights"], dtype=torch.float64, device=stream.device))
        self.member_temperature.fill_(details["member_temperature"])
        return found.learned(
            pixels=sample.pixels,
            nll_before=sample.nll / sample.pixels,
            details={**found.details, **details, "words": [*_words(details), *found.details["words"]]},
        )

    def _map(self, logits: Logits, image: Image | None = None, passes: Passes | None = None) -> Logits:
        if not self.uses_passes:
            return self.inner._map(logits)
        needed = self.weights.numel() - 1
        if passes is None or passes.shape[1] != needed:
            raise InputError(
                f"this PooledPasses needs the {counted(needed, 'pass', 'passes')} that it was fitted with, got "
                f"{0 if passes is None else passes.shape[1]}; give them (--passes, or passes of shape (B, K, L, *S)), "
                "in the same order"
            )
        pooled = pooled_logits(logits, passes, self.weights, self.member_temperature, keep=self.preserves_labels)
        return self.inner._map(pooled)

    def _summary(self) -> dict[str, object]:
        return {"weights": [round(weight, 3) for weight in self.weights.tolist()]}

    def _problem(self) -> str | None:
        shares = self.weights
        if shares.ndim != 1 or not bool((shares >= 0).all()) or abs(float(shares.sum()) - 1) > 1e-6:
            return "'weights' must be at least 0 and sum to 1"
        if not 0 < float(self.member_temperature) < float("inf"):
            return "'member_temperature' must be above 0"
        return self.inner._problem()


@dataclass(frozen=True)
class PoolWeights:
    """Weights of the members, the first of which are the logits themselves.

    Attributes:
        weights: Fitted on all folds, at the chosen strength.
        choice: Temperature of all members before they are pooled (1, or that of temperature scaling) and pull towards
            equal weights, with the weights fitted without each fold.
        keep: Whether pooling keeps the labels of the first member.
    """

    weights: Float64[np.ndarray, " M"]
    choice: Choice[tuple[float, float], Array]
    keep: bool

    def pool(self, stream: CaseStream, fold: Array | None = None) -> CaseStream:
        """Return the pooled cases; those of a fold, if folds of the cases are given, by the weights fitted without it.

        Without folds, every case is pooled by the weights of all.
        """

        def change(case: StreamedCase, slab: Slab) -> Slab:
            own = -1 if fold is None else int(fold[case.number])
            weights = self.weights if own < 0 else self.choice.refits[own]
            return slab._replace(logits=self.pooled(slab.logits, slab.passes, weights), passes=None)

        return stream.changed(change)

    def pooled(self, logits: Logits, passes: Tensor | None, weights: Array) -> Logits:
        """Return logits pooled with their passes."""
        assert passes is not None
        share, warm = torch.from_numpy(weights), torch.tensor(self.choice.strength[0], dtype=torch.float64)
        with torch.no_grad():
            return pooled_logits(logits, passes, share.to(logits.device), warm.to(logits.device), keep=self.keep)

    def moved(self, sample: ContextSample) -> float:
        """Return the fraction of the drawn pixels whose label is another one in the pool."""
        assert sample.passes is not None
        logits = sample.data.logits
        pooled = self.pooled(logits[None], sample.passes[None], self.weights)[0]
        return moved_labels(pooled, logits) / logits.shape[1]

    def details(self) -> dict[str, Any]:
        """Return plain values for a fit report."""
        path = [{**_pull(row.strength), "nll": row.nll} for row in self.choice.tried]
        return {"weights": self.weights.tolist(), **_pull(self.choice.strength), "cv_weights": path}


def _pull(strength: tuple[float, float]) -> dict[str, float | None]:
    return {"member_temperature": strength[0], "strength": plain_strength(strength[1])}


@one_thread()
def choose_weights(sample: ContextSample, *, keep: bool) -> PoolWeights:
    """Fit weights without each fold at each strength, choose by the NLL of the fold left out, and fit them on all.

    Members are pooled as they are, and at the temperature of temperature scaling. A pool is scored with the one
    temperature that is best on the folds it is fitted on. The first choice within one standard error of the best is
    taken: members as they are before members at another temperature, and the strongest pull.
    """
    assert sample.passes is not None
    data, passes = sample.data, sample.passes
    fold_of = np.repeat(np.arange(sample.folds), np.diff(data.edges))
    left = [fold_of == fold for fold in range(sample.folds)]
    rest = [~inside if sample.folds > 1 else inside for inside in left]
    index, members = data.labels.unsqueeze(0), (data.logits, *passes)
    # the probability that each member gives the true class of each pixel, at each temperature
    truth = {
        one: np.stack([probabilities(z.T / one).T.gather(0, index)[0].numpy() for z in members])
        for one in (1.0, sample.temperature)
        if 0 < one < np.inf
    }
    among = tuple(product(truth, STRENGTHS if sample.folds > 1 else STRENGTHS[:1]))

    def score(temperature: float, weights: Array, fold: int) -> tuple[float, float, float]:
        share, warm = torch.from_numpy(weights), torch.tensor(temperature, dtype=torch.float64)
        pooled = pooled_logits(data.logits[None], passes[None], share, warm, keep=keep)[0]
        alpha = inverse_temperature_of(pooled[:, rest[fold]], data.labels[rest[fold]])
        found = likelihood(pooled[:, left[fold]], data.labels[left[fold]], alpha if np.isfinite(alpha) else 1.0)
        return found.pixels, found.nll, found.nll

    fits, totals = [], []
    for one, strength in among:
        fits.append(tuple(mixture_weights(truth[one][:, part], strength) for part in rest))
        totals.append([score(one, weights, fold) for fold, weights in enumerate(fits[-1])])
    choice = FoldPath(among, np.array(totals), tuple(fits)).choice(cautious=True)
    one, strength = choice.strength
    return PoolWeights(mixture_weights(truth[one], strength), choice, keep)


def pool_of(
    stream: CaseStream, sample: ContextSample, *, keep: bool, spatial_dims: int
) -> tuple[PoolWeights, ContextSample]:
    """Return the chosen weights, and the same pixels of the pooled cases; those of a sample are chosen once.

    Each case is pooled by weights to which its fold has not contributed.
    """
    key = "pool", keep
    if key not in sample.fits:
        pool = choose_weights(sample, keep=keep)
        pooled = draw_sample(pool.pool(stream, sample.fold), spatial_dims=spatial_dims, features=True, like=sample)
        sample.fits[key] = pool, pooled
    found: tuple[PoolWeights, ContextSample] = sample.fits[key]
    return found


def compare(
    stream: CaseStream, sample: ContextSample, bounds: tuple[float, float], *, keep: bool, spatial_dims: int
) -> tuple[PoolWeights | None, ContextSample, str]:
    """Choose weights, and compare the pool with single passes, both calibrated by `cts`, on groups left out.

    Returns the pool if passes help, the sample to calibrate on, and the reason in a sentence.
    """
    pool, pooled = pool_of(stream, sample, keep=keep, spatial_dims=spatial_dims)
    totals = np.stack([ContextFit.of(one, stream, bounds).held_out() for one in (sample, pooled)])
    single, several = (totals[:, :, 2].sum(axis=1) / totals[:, :, 0].sum(axis=1)).tolist()
    where = "in cross-validation over the groups" if sample.folds > 1 else "on the only group"
    words = f"{where} the NLL of the pool is {several:.4f} and the NLL of the first pass alone {single:.4f}"
    if several < single and not within_one_error(totals, 1)[0]:
        return pool, pooled, f"passes are used: {words}"
    reason = ", which is not lower by more than one standard error" if several < single else ""
    return None, sample, f"passes are not used: {words}{reason}"


def _name_of(details: Mapping[str, Any]) -> str:
    """Return the method that a fit of `cts` amounts to."""
    return "ts" if details["ridge_features"] is None and details["ridge_classes"] is None else "cts"


def _words(details: dict[str, Any]) -> list[str]:
    first, *others = details["weights"]
    shares = ", ".join(f"{weight:.2f}" for weight in others)
    moved = [f"labels changed: {details['moved']:.2%} of the pixels"] if "moved" in details else []
    return [
        details["why"],
        *([f"weights: {first:.2f} of the first pass, {shares} of the others"] if others else []),
        *moved,
    ]
