"""The weights of several passes: shrunk towards equal ones as far as cross-validation over groups asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.shared.context_sample import ContextSample, draw_sample
from segcal.cases import CaseStream, StreamedCase
from segcal.functional.pixels import moved_labels
from segcal.functional.pooling import mixture_weights, pooled_logits
from segcal.functional.probability import probabilities
from segcal.functional.ridge import first_least, within_one_error
from segcal.functional.temperature import likelihood, optimal_inverse_temperature
from segcal.types import Array, Logits, Slab

STRENGTHS = (np.inf, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4)
"""Strengths of the pull towards equal weights to choose from, the strongest first."""


@dataclass(frozen=True)
class PoolWeights:
    """Weights of the members, the first of which are the logits themselves.

    Attributes:
        weights: Fitted on all folds, at the chosen strength.
        without: Fitted without each fold.
        strength: The chosen pull towards equal weights.
        temperature: Temperature of all members before they are pooled: 1, or that of temperature scaling.
        tried: Mean NLL on the folds left out, by temperature of the members and strength.
        keep: Whether pooling keeps the labels of the first member.
    """

    weights: Float64[np.ndarray, " M"]
    without: Float64[np.ndarray, "folds M"]
    strength: float
    temperature: float
    tried: dict[tuple[float, float], float]
    keep: bool

    def pool(self, stream: CaseStream, fold: Array | None = None) -> CaseStream:
        """Return the pooled cases; those of a fold, if folds of the cases are given, by the weights fitted without it.

        Without folds, every case is pooled by the weights of all.
        """

        def change(case: StreamedCase, slab: Slab) -> Slab:
            own = -1 if fold is None else int(fold[case.number])
            weights = self.weights if own < 0 else self.without[own]
            return slab._replace(logits=self.pooled(slab.logits, slab.passes, weights), passes=None)

        return stream.changed(change)

    def pooled(self, logits: Logits, passes: Tensor | None, weights: Array) -> Logits:
        """Return logits pooled with their passes."""
        assert passes is not None
        share, warm = torch.from_numpy(weights), torch.tensor(self.temperature, dtype=torch.float64)
        with torch.no_grad():
            return pooled_logits(logits, passes, share.to(logits.device), warm.to(logits.device), keep=self.keep)

    def pooled_sample(self, stream: CaseStream, sample: ContextSample, spatial_dims: int) -> ContextSample:
        """Return the same pixels of the pooled cases, each pooled by weights to which its fold has not contributed."""
        return draw_sample(self.pool(stream, sample.fold), spatial_dims=spatial_dims, features=True, like=sample)

    def moved(self, sample: ContextSample) -> float:
        """Return the fraction of the drawn pixels whose label is another one in the pool."""
        assert sample.passes is not None
        logits = sample.data.logits
        pooled = self.pooled(logits[None], sample.passes[None], self.weights)[0]
        return moved_labels(pooled, logits) / logits.shape[1]

    def details(self) -> dict[str, Any]:
        """Return plain values for a fit report."""
        path = [
            {"member_temperature": warm, "strength": _plain(strength), "nll": nll}
            for (warm, strength), nll in self.tried.items()
        ]
        chosen = {"member_temperature": self.temperature, "strength": _plain(self.strength)}
        return {"weights": self.weights.tolist(), **chosen, "cv_weights": path}


def _plain(strength: float) -> float | None:
    """Return a strength for JSON, which has no infinity."""
    return float(strength) if np.isfinite(strength) else None


def choose_weights(sample: ContextSample, *, keep: bool) -> PoolWeights:
    """Fit weights without each fold at each strength, choose by the NLL of the fold left out, and fit them on all.

    Members are pooled as they are, and at the temperature of temperature scaling. A pool is scored with the one
    temperature that is best on the folds it is fitted on. The first choice within one standard error of the best is
    taken: members as they are before members at another temperature, and the strongest pull.
    """
    folds, strengths = range(sample.folds), STRENGTHS if sample.folds > 1 else STRENGTHS[:1]
    one = sample.temperature
    warm = {temperature: _Members(sample, temperature, keep) for temperature in (1.0, one) if 0 < temperature < np.inf}
    among = [(temperature, strength) for temperature in warm for strength in strengths]
    fits = [np.stack([warm[t].fit(strength, without=fold) for fold in folds]) for t, strength in among]
    totals = np.array(
        [[warm[t].score(fit[fold], fold) for fold in folds] for (t, _), fit in zip(among, fits, strict=True)]
    )
    losses = totals[:, :, 2].sum(axis=1) / totals[:, :, 0].sum(axis=1)
    best = int(np.argmax(within_one_error(totals, first_least(losses.tolist()))))
    temperature, strength = among[best]
    return PoolWeights(
        weights=warm[temperature].fit(strength),
        without=fits[best],
        strength=strength,
        temperature=temperature,
        tried=dict(zip(among, losses.tolist(), strict=True)),
        keep=keep,
    )


class _Members:
    """Members at one temperature, and the probability that each gives the true class of the drawn pixels."""

    def __init__(self, sample: ContextSample, temperature: float, keep: bool) -> None:
        assert sample.passes is not None
        self.data, self.passes, self.temperature, self.keep = sample.data, sample.passes, temperature, keep
        index, members = self.data.labels.unsqueeze(0), (self.data.logits, *self.passes)
        self.truth = np.stack([probabilities(one.T / temperature).T.gather(0, index)[0].numpy() for one in members])

    def fit(self, strength: float, without: int | None = None) -> Array:
        """Return the weights of all folds, or of all except one if there are others."""
        truth, edges = self.truth, self.data.edges
        if without is not None and len(edges) > 2:
            truth = np.delete(truth, np.s_[edges[without] : edges[without + 1]], axis=1)
        return mixture_weights(truth, strength)

    def score(self, weights: Array, fold: int) -> tuple[float, float, float]:
        """Return pixels, NLL and loss of a fold, with weights and temperature fitted without it."""
        data, edges = self.data, self.data.edges
        share, warm = torch.from_numpy(weights), torch.tensor(self.temperature, dtype=torch.float64)
        pooled = pooled_logits(data.logits[None], self.passes[None], share, warm, keep=self.keep)[0]
        inside = torch.zeros(len(data.labels), dtype=torch.bool)
        inside[edges[fold] : edges[fold + 1]] = True
        others = ~inside if len(edges) > 2 else inside
        fitted, labels = pooled[:, others].contiguous(), data.labels[others]
        root = optimal_inverse_temperature(lambda alpha: likelihood(fitted, labels, alpha)).inverse_temperature
        alpha = root if np.isfinite(root) else 1.0
        found = likelihood(pooled[:, inside].contiguous(), data.labels[inside], alpha)
        return found.pixels, found.nll, found.nll
