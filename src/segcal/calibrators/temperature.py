"""Temperature scaling (Sec. 3.3): one number divides every logit of every image."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from time import perf_counter
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.base import FitReport, TemperatureCalibrator
from segcal.cases import reread, slabs_of
from segcal.functional.probability import at_least_float32_dtype
from segcal.functional.temperature import Likelihood, likelihood, optimal_inverse_temperature
from segcal.types import Case, IgnoreIndex, Image, InputError, Logits, Temperature


class TemperatureScaling(TemperatureCalibrator):
    """Divide all logits by the temperature of least negative log-likelihood (Eq. 3.3).

    The NLL is convex in the inverse temperature, so its slope has one root (Theorem 1) and there is no step size to
    tune. Each step of the root finder reads the cases once and sums in float64; five to seven steps are usual.

    Args:
        num_classes: L.
        ignore_index: Label, or labels, left out of the fit.
        background: Class left out of the fit, except for its pixels near a boundary; None fits on every labelled pixel.
        bounds: Smallest and largest temperature that is applied.
    """

    method = "ts"

    inverse_temperature: Float64[Tensor, ""]
    """The exact optimum, NaN until fitted: 0 for scores no better than chance, infinite if every pixel is right."""

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: IgnoreIndex = None,
        background: int | None = None,
        bounds: tuple[float, float] = (0.05, 100.0),
    ) -> None:
        super().__init__(num_classes, ignore_index=ignore_index, background=background, bounds=bounds)
        self.register_buffer("inverse_temperature", torch.tensor(torch.nan, dtype=torch.float64))

    def fit(self, cases: Iterable[Case], *, validation: Iterable[Case] | None = None) -> Self:
        """Find the temperature of least NLL on the cases; `validation` is not used, since one number cannot overfit."""
        started = perf_counter()
        kept, names = reread(cases), dict[str, None]()
        at = cache(lambda alpha: self._likelihood(kept, alpha, names))
        root = optimal_inverse_temperature(at)
        self.inverse_temperature.fill_(root.inverse_temperature)
        before, after = at(1.0), at(1 / self._bounded())
        report = FitReport(
            cases=len(kept),
            pixels=int(before.pixels),
            nll_before=before.nll / before.pixels,
            nll_after=after.nll / after.pixels,
            steps=root.steps,
            seconds=perf_counter() - started,
            converged=root.converged,
            warnings=tuple(self._warnings(root.converged)),
            names=tuple(names),
            details={"temperature": self._bounded()},
        )
        return self._finish(report)

    def temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        """Return the one temperature, for every pixel."""
        self._check(logits)
        return self.temperature_of(logits)

    def temperature_of(self, logits: Logits, image: Image | None = None) -> Temperature:
        """Return the same for logits whose shape has been checked."""
        shape = (logits.shape[0], 1, *logits.shape[2:])
        return self._within_bounds().to(at_least_float32_dtype(logits.dtype)).expand(shape)

    def _main_numbers(self) -> dict[str, object]:
        return {"temperature": self._bounded()}

    def _bounded(self) -> float:
        return float(self._within_bounds())

    def _within_bounds(self) -> Float64[Tensor, ""]:
        return (1 / self.inverse_temperature).clamp(*self.bounds)

    def _likelihood(self, cases: Collection[Case], alpha: float, names: dict[str, None]) -> Likelihood:
        """Return the sums over all cases, and note their names."""
        total = [0.0] * len(Likelihood._fields)
        for case in cases:
            names[case.name] = None
            labels = self.fit_labels(case)[0]
            for slab in slabs_of(case, self.num_classes, device=labels.device):
                part = likelihood(slab.logits[0], labels[slab.rows], alpha)
                total = [a + b for a, b in zip(total, part, strict=True)]
        if total[0] == 0:
            raise InputError("no labelled pixel to fit on; check ignore_index, background and the labels")
        return Likelihood(*total)

    def _warnings(self, converged: bool) -> Iterable[str]:
        alpha, (low, high) = float(self.inverse_temperature), self.bounds
        if alpha == 0:
            yield f"the scores are no better than chance: the optimum is an infinite temperature, {high} is used"
        elif alpha == float("inf"):
            yield f"every pixel is predicted right: the optimum is a temperature of 0, {low} is used"
        elif not low <= 1 / alpha <= high:
            yield f"the optimum {1 / alpha:.6g} is out of bounds, {self._bounded():.6g} is used"
        if not converged:
            yield "the root finder stopped before it converged"
