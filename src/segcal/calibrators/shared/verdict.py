"""How a trained calibrator compares with temperature scaling (TS), and what its report says about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """Mean NLL on the cases that training is judged on.

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
    """Temperatures before they are bounded, and the share of pixels at which a ReLU at the root is 0."""

    low: float
    high: float
    dead: float

    def warnings(self, bounds: tuple[float, float]) -> Iterator[str]:
        """Yield what the user should know."""
        if self.dead > 0.01:
            yield (
                f"the ReLU at the root is 0 at {self.dead:.0%} of the pixels, which therefore have no gradient; "
                "try positivity='softplus' or a smaller learning rate"
            )
        low, high = bounds
        if self.low < low or self.high > high:
            yield (
                f"temperatures from {self.low:.3g} to {self.high:.3g} were found, "
                f"and are clipped to {low:.3g} and {high:.3g}"
            )

    def details(self) -> dict[str, Any]:
        """Return what the report keeps."""
        return {"temperature_low": self.low, "temperature_high": self.high, "dead_share": self.dead}
