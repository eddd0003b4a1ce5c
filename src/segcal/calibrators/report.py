"""Results of a fit: what a method returns from learning, and the report that users read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from segcal.text import counted

_MOST_LINES = 10
"""Lines of a printed report."""


@dataclass(frozen=True)
class Learned:
    """Values that a method has learned from a stream, for the base class to store and report.

    Attributes:
        pixels: Number of fitted pixels.
        nll_before: Mean NLL of the fitted pixels before calibration.
        nll_after: Mean NLL of the fitted pixels after calibration.
        steps: Steps of the search.
        converged: Whether an optimum was reached.
        warnings: What the user should know, a sentence each.
        details: Plain values for the report.
        values: Learned buffers by name; a method may also store them itself.
    """

    pixels: int
    nll_before: float
    nll_after: float
    steps: int = 1
    converged: bool = True
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class FitReport:
    """Result of a fit. NLL is the mean over the fitted pixels, in nats.

    `converged` says whether an optimum was reached: the NLL was no longer falling when the fit ended.
    """

    cases: int
    pixels: int
    nll_before: float
    nll_after: float
    steps: int
    seconds: float
    converged: bool
    warnings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Names of the fitted cases."""
    fingerprints: tuple[str, ...] = ()
    """Their content (`segcal.functional.fingerprint`), so that an evaluation on the same cases can be reported."""
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Ten lines at most: the NLL before and after, the cases, the search, short details and warnings."""
        done = "converged" if self.converged else "not converged"
        lines = [
            f"NLL {self.nll_before:.4f} -> {self.nll_after:.4f} per pixel",
            f"{counted(self.cases, 'case')}, {counted(self.pixels, 'pixel')}",
            f"{counted(self.steps, 'step')}, {self.seconds:.1f} s, {done}",
        ]
        lines += [f"{name}: {_short(value)}" for name, value in self.details.items() if isinstance(value, float | str)]
        warned = [f"warning: {text}" for text in self.warnings]
        room = max(_MOST_LINES - len(warned), 3)
        return "\n".join([*lines[:room], *warned][:_MOST_LINES])


def _short(value: float | str) -> str:
    return f"{value:.5g}" if isinstance(value, float) else value
