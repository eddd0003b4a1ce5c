"""Cross-validation of candidates in groups of images: their NLL on groups left out, the choice, and its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from segcal.calibrators.shared.context_sample import ContextSample
from segcal.statistics import Difference, clusters_of, mean_of, paired_difference, simplest_good
from segcal.types import InputError

FALLBACK = "ts"
"""The candidate that is chosen unless another is better by more than chance."""

_BEHIND = 0.02
"""A method is given up if it is behind by this share of the NLL after the first fold."""


def _nearness(behind: Difference) -> str:
    """Return the part of the rule by which a method that is so far behind the best counts as good as it."""
    return "within one standard error" if behind.mean <= behind.error else "within a thousandth"


@dataclass
class Score:
    """The result of one candidate: its NLL summed over each group left out."""

    sums: Float64[np.ndarray, " groups"]
    seconds: float = 0.0
    numbers: int | None = None
    note: str | None = None
    """Why it was not scored on every group, if it was not."""

    @property
    def usable(self) -> bool:
        """True if it was scored on every group."""
        return self.note is None and bool(np.isfinite(self.sums).all())


@dataclass
class CrossValidation:
    """The cases that are left out together, and the NLL of each candidate on them."""

    group: Int64[np.ndarray, " cases"]
    """Group of each case, -1 for those without a pixel to measure."""
    fold: Int64[np.ndarray, " cases"]
    pixels: Float64[np.ndarray, " groups"]
    scored: dict[str, Score] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """Candidates that could not be fitted, in words."""

    @classmethod
    def of(cls, sample: ContextSample) -> CrossValidation:
        """Return the groups and folds of the cases that a sample was drawn from."""
        labelled = np.flatnonzero(sample.sizes > 0)
        names = [name or "" for name in sample.grouping.groups]
        drawn = sample.fold[labelled] >= 0
        group = np.full(len(sample.sizes), -1)
        group[labelled[drawn]] = clusters_of([name for name, own in zip(names, drawn, strict=True) if own])
        return cls(group, sample.fold, np.bincount(group[sample.case]).astype(np.float64))

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.pixels)

    @property
    def units(self) -> str:
        """Groups in words."""
        alone = self.groups == int((self.group >= 0).sum())
        return f"{self.groups} images" if alone else f"{self.groups} groups of images"

    @property
    def folds(self) -> int:
        """Number of folds."""
        return int(self.fold.max()) + 1

    def parts(self, fold: int) -> tuple[list[int], list[int]]:
        """Return the positions of the cases to fit on, and of those left out."""
        used = self.fold >= 0
        return np.flatnonzero(used & (self.fold != fold)).tolist(), np.flatnonzero(self.fold == fold).tolist()

    def begin(self, name: str) -> Score:
        """Return the score of a candidate, to be filled in."""
        self.scored[name] = Score(np.zeros(self.groups))
        return self.scored[name]

    def fail(self, name: str, error: InputError) -> None:
        """Note that a candidate could not be fitted."""
        self.scored[name].note = f"could not be fitted: {error}"
        self.failures.append(f"{name} {self.scored[name].note}")

    def is_far_behind(self, name: str) -> bool:
        """Return whether a candidate is hopeless after the first fold, and note it."""
        inside = np.isin(np.arange(self.groups), self.group[self.fold == 0])
        rivals = {name: self.scored[name], **self._usable()}
        mean = {other: mean_of(score.sums[inside], self.pixels[inside]) for other, score in rivals.items()}
        best = min((other for other in mean if other != name), key=lambda other: mean[other])
        if mean[name] <= (1 + _BEHIND) * mean[best]:
            return False
        words = f"NLL {mean[name]:.4f} against {mean[best]:.4f} of {best}"
        self.scored[name].note = f"given up after the first of {self.folds} folds: {words}"
        return True

    def choose(self) -> tuple[str, str]:
        """Return the candidate to take, and the reason in a sentence."""
        usable = self._usable()
        names = list(usable)
        chosen, best = (names[k] for k in simplest_good(np.stack([s.sums for s in usable.values()]), self.pixels))
        if chosen == FALLBACK:
            return chosen, self._why_not(best)
        base, gain = self._nll(FALLBACK), self._gain(chosen)
        words = (
            f"{chosen} is chosen: in cross-validation over {self.units} its NLL is "
            f"{self._nll(chosen):.4f}, {100 * gain.mean / base:.1f} % below that of {FALLBACK} "
            f"(standard error {100 * gain.error / base:.1f} %)"
        )
        if chosen == best:
            return chosen, f"{words}; every simpler one is worse by more than one standard error, or worse than ts"
        behind = paired_difference(self.scored[chosen].sums, self.scored[best].sums, self.pixels)
        return chosen, f"{words}, {_nearness(behind)} of the best, {best} ({self._nll(best):.4f})"

    def _why_not(self, best: str) -> str:
        words = f"{FALLBACK} is chosen: in cross-validation over {self.units}"
        if best == FALLBACK:
            return f"{words} no other method has a lower NLL"
        gain = self._gain(best)
        return (
            f"{words} its NLL is {self._nll(FALLBACK):.4f}, {_nearness(gain)} of the best, {best}, "
            f"which lowers it by {gain.mean:.2g} (standard error {gain.error:.2g})"
        )

    def scores(self) -> dict[str, dict[str, Any]]:
        """Return the NLL of each candidate on the groups left out as plain values; None where not measured on all."""
        rows = {}
        for name, score in self.scored.items():
            row: dict[str, Any] = {"nll": None, "error": None, "difference": None, "difference_error": None}
            if score.usable:
                mean = paired_difference(score.sums, np.zeros(self.groups), self.pixels)
                gain = self._gain(name)
                row = {"nll": mean.mean, "error": mean.error}
                row |= {"difference": 0.0 - gain.mean, "difference_error": gain.error}
            rows[name] = {**row, "seconds": score.seconds, "numbers": score.numbers, "note": score.note}
        return rows

    def _usable(self) -> dict[str, Score]:
        return {name: score for name, score in self.scored.items() if score.usable}

    def _nll(self, name: str) -> float:
        return mean_of(self.scored[name].sums, self.pixels)

    def _gain(self, name: str) -> Difference:
        return paired_difference(self.scored[FALLBACK].sums, self.scored[name].sums, self.pixels)
