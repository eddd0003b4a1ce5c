"""Readings of the evidence by name: every metric of `segcal.functional.catalogue` that is computed from it.

A new metric is one line in the catalogue (name, title, unit, direction) and one line in `READINGS`; it then appears in
the results of every case, patch and region.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float64
from torch import Tensor

from segcal.evidence import errors
from segcal.evidence.decomposition import FURTHER, further_readings
from segcal.evidence.errors import Form, Histogram
from segcal.evidence.statistic import Evidence
from segcal.functional.catalogue import METRICS

Reading = Float64[Tensor, "*G"]


@dataclass(frozen=True)
class Readable:
    """The evidence of any number of regions, with the quantities that several metrics share computed once."""

    evidence: Evidence
    form: Form = "tables"

    @cached_property
    def merged(self) -> Histogram:
        """The reliability histogram with all predicted classes merged into one."""
        return errors.merge_classes(self.evidence.top)

    @property
    def static(self) -> Histogram:
        """The histogram that SCE is read from."""
        return self.evidence.top if self.evidence.static is None else self.evidence.static

    @cached_property
    def pixels(self) -> Reading:
        """The number of pixels."""
        return self.merged.pixels.sum(dim=(-2, -1)).double()

    @cached_property
    def means(self) -> Float64[Tensor, "*G 3"]:
        """Mean NLL, Brier score and entropy."""
        return self.evidence.sums / self.pixels.unsqueeze(-1)

    @cached_property
    def further(self) -> dict[str, Reading]:
        """Debiased errors and the decompositions of NLL and Brier score."""
        return further_readings(self.evidence)


def _further(name: str) -> Callable[[Readable], Reading]:
    return lambda of: of.further[name]


READINGS: Mapping[str, Callable[[Readable], Reading]] = {
    "ece": lambda of: errors.ece(of.merged),
    "mce": lambda of: errors.mce(of.merged),
    "sce": lambda of: errors.sce(of.static, of.form),
    "ace": lambda of: errors.ace(of.evidence.adaptive(of.form), of.form),
    "accuracy": lambda of: errors.accuracy(of.merged),
    "miou": lambda of: errors.intersection_over_union(of.evidence.top, of.evidence.support).nanmean(dim=-1),
    "nll": lambda of: of.means[..., 0],
    "brier": lambda of: of.means[..., 1],
    "entropy": lambda of: of.means[..., 2],
    **{name: _further(name) for name in FURTHER},
}
"""Functions that read a metric, by its name."""


def read(evidence: Evidence, names: Sequence[str] = METRICS, form: Form = "tables") -> dict[str, Reading]:
    """Return metrics by name, and `pixels`; NaN for a region without pixels."""
    of = Readable(evidence, form)
    return {**{name: READINGS[name](of) for name in names}, "pixels": of.pixels.long()}
