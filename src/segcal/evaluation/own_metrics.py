"""Metrics of a user: functions of the calibrated probabilities and the labels of a whole case, region by region."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from segcal.functional.catalogue import CATALOGUE, SURFACES
from segcal.functional.checks import IGNORED
from segcal.text import printable
from segcal.types import Array, InputError

MetricFunction = Callable[[Float32[Tensor, "L *S"], Int64[Tensor, "*S"]], float]
"""A metric of a user: from probabilities `[L, *S]` and labels `[*S]`, -1 where a pixel is left out, to a number."""

_TAKEN = {name.lower() for metric in (*CATALOGUE.values(), *SURFACES.values()) for name in (metric.name, metric.title)}


def chosen_metrics(metrics: Mapping[str, MetricFunction] | None) -> dict[str, MetricFunction]:
    """Return a user's metrics by name; raise unless each is a function under a name that segcal does not use."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise InputError(f"metrics must be a mapping from names to functions, got {type(metrics).__name__}")
    for name, function in metrics.items():
        if not isinstance(name, str) or not name.strip() or printable(name) != name:
            raise InputError(f"the name of a metric must be text that can be printed, got {name!r}; rename it")
        if name.lower() in _TAKEN:
            raise InputError(f"a metric cannot be called '{name}', which segcal defines; choose another name")
        if not callable(function):
            raise InputError(
                f"a metric must be a function of probabilities and labels, got {type(function).__name__} for '{name}'"
            )
    return dict(metrics)


@dataclass(frozen=True)
class OwnMetrics:
    """The metrics of a user on one case.

    Attributes:
        functions: The functions by name.
        case: Name of the case.
        regions: Positions of the pixels of each region, by name.
    """

    functions: Mapping[str, MetricFunction]
    case: str
    regions: Mapping[str, Tensor]

    def values(self, probs: Tensor | None, labels: Int64[Tensor, " N"]) -> Array:
        """Return the values Float64 `[K, M]` of every metric in every region, NaN where a region has no pixels."""
        found = np.full((len(self.functions), len(self.regions)), np.nan)
        for m, (region, index) in enumerate(self.regions.items()):
            if probs is None or not len(index):
                continue
            for k, name in enumerate(self.functions):
                inside = torch.full_like(labels, IGNORED)  # made for each call, so that a function may change it
                inside[index] = labels[index]
                found[k, m] = self._value(name, region, probs, inside.reshape(probs.shape[1:]))
        return found

    def _value(self, name: str, region: str, probs: Tensor, labels: Tensor) -> float:
        returned = self.functions[name](probs, labels)
        try:
            value = float(returned)
        except (TypeError, ValueError, RuntimeError):  # a tensor of several values raises the last
            value = math.nan
        if not math.isfinite(value):
            got = returned if isinstance(returned, float) else type(returned).__name__
            raise InputError(
                f"metric '{name}' must return a finite number, got {got} for case '{self.case}' in region '{region}'; "
                "return a number of your choice where it is not defined"
            )
        return value
