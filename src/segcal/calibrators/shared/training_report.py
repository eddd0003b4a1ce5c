"""Trained calibrators in comparison with temperature scaling (TS), for their report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrainingOutcome:
    """Mean NLL on the cases by which training is judged.

    Args:
        validated: Whether these are validation cases; otherwise they are the fitted ones.
        nll: NLL of the result.
        ts: NLL of TS.
        uncalibrated: NLL of the logits as they are.
        share: Share of the way from TS to what was learned; 0 if training found nothing better.
        falling: Whether the NLL was still falling when the epochs ended.
        temperature: T_TS.
    """

    validated: bool
    nll: float
    ts: float
    uncalibrated: float
    share: float
    falling: bool
    temperature: float

    def warnings(self) -> Iterator[str]:
        """Yield what the user should know."""
        where = f"on the {'validation' if self.validated else 'fitted'} images"
        if not self.share:
            yield f"kept the temperature of TS ({self.temperature:.4g}): training found nothing better {where}"
        elif self.nll > self.ts:
            yield f"worse than TS {where}: NLL {self.nll:.6g}, with TS {self.ts:.6g}"
        if self.nll > self.uncalibrated:
            yield f"worse than uncalibrated {where}: NLL {self.nll:.6g}, uncalibrated {self.uncalibrated:.6g}"
        if self.falling:
            yield (
                f"the {'validation' if self.validated else 'training'} NLL was still falling when the epochs ended; "
                "train for more epochs, or with a larger learning rate"
            )

    def details(self) -> dict[str, Any]:
        """Return what the report keeps."""
        return {
            "validation_nll": self.nll if self.validated else None,
            "validation_nll_ts": self.ts if self.validated else None,
            "validation_nll_before": self.uncalibrated if self.validated else None,
            "ts_temperature": self.temperature,
            "share": self.share,
        }


@dataclass(frozen=True)
class TemperatureRange:
    """Temperatures before they are bounded, and the share of pixels at which a ReLU at the root is 0.

    Args:
        low: Smallest temperature.
        high: Largest temperature.
        dead: Share of pixels.
        bounds: Bounds that the user gave.
        floor: Further lower bound, of a method that may not increase confidence.
    """

    low: float
    high: float
    dead: float
    bounds: tuple[float, float]
    floor: float

    def warnings(self) -> Iterator[str]:
        """Yield what the user should know."""
        if self.dead > 0.01:
            yield (
                f"the ReLU at the root is 0 at {self.dead:.0%} of the pixels, which therefore have no gradient; "
                "try positivity='softplus' or a smaller learning rate"
            )
        low, high = self.bounds
        if self.low < low or self.high > high:  # not where only the floor applies, which is no mistake
            yield (
                f"temperatures from {self.low:.3g} to {self.high:.3g} were found, "
                f"and are clipped to {max(low, self.floor):.3g} and {high:.3g}"
            )

    def details(self) -> dict[str, Any]:
        """Return what the report keeps: the range of the temperatures as they are applied."""
        low, high = self._applied(self.low), self._applied(self.high)
        return {"temperature_low": low, "temperature_high": high, "dead_share": self.dead}

    def _applied(self, temperature: float) -> float:
        low, high = self.bounds
        return max(min(max(temperature, low), high), self.floor)
