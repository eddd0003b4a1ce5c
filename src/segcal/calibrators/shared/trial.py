"""How candidates do on groups of images that they were not fitted on, which one to choose, and why, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from segcal.calibrators.shared.context_sample import ContextSample
from segcal.statistics import Difference, clusters_of, mean_of, paired_difference, simplest_good

FALLBACK = "ts"
"""The candidate that is chosen unless another is better by more than chance."""

_BEHIND = 0.02
"""A trained method is given up if it is behind by this share of the NLL after the first fold."""


def _nearness(behind: Difference) -> str:
    """By which part of the rule a method that is so far behind the best counts as good as it."""
    return "within one standard error" if behind.mean <= behind.error else "within a thousandth"


@dataclass
class Score:
    """The result of one candidate: its NLL summed over each group left out."""

    sums: Float64[np.ndarray, " groups"]
    seconds: float = 0.0
    numbers: int | None = None
    failure: str | None = None
    given_up: str | None = None

    @property
    def usable(self) -> bool:
        """Whether it was scored on every group."""
        return self.failure is None and self.given_up is None and bool(np.isfinite(self.sums).all())


@dataclass
class Trial:
    """Which cases are left out together, and how each candidate does on them."""

    group: Int64[np.ndarray, " cases"]
    """Of each case, -1 for those without a pixel to measure."""
    fold: Int64[np.ndarray, " cases"]
    pixels: Float64[np.ndarray, " groups"]
    tried: dict[str, Score] = field(default_factory=dict)

    @classmethod
    def of(cls, sample: ContextSample) -> Trial:
        """Return the groups and folds of the cases that a sample was drawn from."""
        places = np.flatnonzero(sample.sizes > 0)
        group = np.full(len(sample.sizes), -1)
        group[places] = clusters_of([name or "" for name in sample.grouping.groups])
        return cls(group, sample.fold, np.bincount(group[places], weights=sample.sizes[places]))

    @property
    def groups(self) -> int:
        """How many there are."""
        return len(self.pixels)

    @property
    def units(self) -> str:
        """The groups, in words."""
        alone = self.groups == int((self.group >= 0).sum())
        return f"{self.groups} images" if alone else f"{self.groups} groups of images"

    @property
    def folds(self) -> int:
        """How many there are."""
        return int(self.fold.max()) + 1

    def parts(self, fold: int) -> tuple[list[int], list[int]]:
        """Places of the cases to fit on, and of those left out."""
        used = self.fold >= 0
        return np.flatnonzero(used & (self.fold != fold)).tolist(), np.flatnonzero(self.fold == fold).tolist()

    def begin(self, name: str) -> Score:
        """The score of a candidate, to be filled in."""
        self.tried[name] = Score(np.zeros(self.groups))
        return self.tried[name]

    def is_far_behind(self, name: str) -> bool:
        """Whether the first fold says that a candidate is hopeless; that is noted."""
        inside = np.isin(np.arange(self.groups), self.group[self.fold == 0])
        rivals = {name: self.tried[name], **self._usable()}
        mean = {other: mean_of(score.sums[inside], self.pixels[inside]) for other, score in rivals.items()}
        best = min((other for other in mean if other != name), key=lambda other: mean[other])
        if mean[name] <= (1 + _BEHIND) * mean[best]:
            return False
        words = f"NLL {mean[name]:.4f} against {mean[best]:.4f} of {best}"
        self.tried[name].given_up = f"given up after the first of {self.folds} folds: {words}"
        return True

    def verdict(self) -> tuple[str, str]:
        """The candidate to take, and why, in a sentence."""
        usable = self._usable()
        names = list(usable)
        chosen, best = (names[k] for k in simplest_good(np.stack([s.sums for s in usable.values()]), self.pixels))
        if chosen == FALLBACK:
            return chosen, self._why_not(best)
        base, gain = self._nll(FALLBACK), self._gain(chosen)
        words = (
            f"{chosen} is chosen: on the {self.units} left out in turn its NLL is "
            f"{self._nll(chosen):.4f}, {100 * gain.mean / base:.1f} % below that of {FALLBACK} "
            f"(standard error {100 * gain.error / base:.1f} %)"
        )
        if chosen == best:
            return chosen, f"{words}, and nothing simpler that is no worse than {FALLBACK} comes near it"
        behind = paired_difference(self.tried[chosen].sums, self.tried[best].sums, self.pixels)
        return chosen, f"{words}, {_nearness(behind)} of the best, {best} ({self._nll(best):.4f})"

    def _why_not(self, best: str) -> str:
        words = f"{FALLBACK} is chosen: on the {self.units} left out in turn"
        if best == FALLBACK:
            return f"{words} no other method has a lower NLL"
        gain = self._gain(best)
        return (
            f"{words} its NLL is {self._nll(FALLBACK):.4f}, {_nearness(gain)} of the best, {best}, "
            f"which lowers it by {gain.mean:.2g} (standard error {gain.error:.2g})"
        )

    def scores(self) -> dict[str, dict[str, Any]]:
        """NLL of each candidate on the groups left out, as plain values; None where it was not measured on all."""
        rows = {}
        for name, score in self.tried.items():
            row: dict[str, Any] = {"nll": None, "error": None, "difference": None, "difference_error": None}
            if score.usable:
                mean = paired_difference(score.sums, np.zeros(self.groups), self.pixels)
                gain = self._gain(name)
                row = {"nll": mean.mean, "error": mean.error}
                row |= {"difference": 0.0 - gain.mean, "difference_error": gain.error}
            note = score.failure or score.given_up
            rows[name] = {**row, "seconds": score.seconds, "numbers": score.numbers, "note": note}
        return rows

    @property
    def failures(self) -> Iterator[str]:
        """Candidates that could not be tried, in words."""
        return (f"{name} {score.failure}" for name, score in self.tried.items() if score.failure)

    def _usable(self) -> dict[str, Score]:
        return {name: score for name, score in self.tried.items() if score.usable}

    def _nll(self, name: str) -> float:
        return mean_of(self.tried[name].sums, self.pixels)

    def _gain(self, name: str) -> Difference:
        return paired_difference(self.tried[FALLBACK].sums, self.tried[name].sums, self.pixels)
