"""Comparison of the candidates of an automatic choice: which are tried, and their scores on one sample that all share.

The candidate that is trained is timed first, by a few epochs on one image. A candidate is fitted without each fold and
scored on the sampled pixels of that fold. Methods that are not trained are fitted on the sample too. Contextual methods
share one path of fits: what a method may use is a choice of penalties, and the penalties for a fold are chosen on the
other folds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import distributed

from segcal.calibrators.base import Calibrator
from segcal.calibrators.contextual import ContextualTemperatureScaling
from segcal.calibrators.pool import pool_of
from segcal.calibrators.shared.context_fit import ContextFit
from segcal.calibrators.shared.context_sample import ContextSample
from segcal.calibrators.shared.cross_validation import FALLBACK, CrossValidation
from segcal.cases import CaseStream, StreamedCase
from segcal.functional.log_linear import FeaturePixels, loss_sums, read_loss
from segcal.functional.pairs import PairPath
from segcal.functional.temperature import likelihood
from segcal.progress import begin_stage
from segcal.training.processes import process_group
from segcal.training.settings import Training
from segcal.types import Array, InputError

TRAINED = "lts"
"""The candidate that is trained on whole images, which takes long."""
_EPOCHS = (1, 3)  # by which it is timed
_LEAST_GROWTH = 0.1
_log = logging.getLogger("segcal")


@dataclass(frozen=True)
class Plan:
    """Candidates to try.

    Attributes:
        quick: Candidates that are scored on a sample, which takes seconds.
        seconds: Estimated seconds of the candidate that is trained, if it is one.
        spent: Seconds that reading and estimating took.
        time_limit: Seconds allowed in all; None for any.
    """

    quick: tuple[str, ...]
    seconds: float | None = None
    spent: float = 0.0
    time_limit: float | None = None

    @property
    def left_out(self) -> bool:
        """True if the time allowed is too short for the trained candidate.

        Examples:
            >>> Plan(("ts", "cts"), 90.0, time_limit=60.0).left_out
            True
        """
        return self.seconds is not None and self.time_limit is not None and self.spent + self.seconds > self.time_limit

    @property
    def tried(self) -> tuple[str, ...]:
        """The candidates that are tried, in their order."""
        return self.quick if self.seconds is None or self.left_out else (*self.quick, TRAINED)

    def announcement(self) -> str:
        """Return the plan in a sentence or two."""
        text = f"auto compares {', '.join(self.quick)} on a sample, in seconds"
        if self.seconds is None:
            return text
        trained = f"{TRAINED} (about {_words(self.seconds)})"
        if self.left_out:
            return f"{text}; not tried because of the time limit of {_words(self.time_limit or 0)}: {trained}"
        return f"{text}, and trains {trained}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a fit report."""
        return {
            "seconds": {} if self.seconds is None else {TRAINED: self.seconds},
            "left_out": [TRAINED] if self.left_out else [],
            "time_limit": self.time_limit,
            "announcement": self.announcement() if self.quick else None,
        }


@dataclass
class Search:
    """Cross-validation of candidates.

    Attributes:
        new: Returns an unfitted candidate by its name.
        scores: Folds, and the scores found so far.
        sample: FeaturePixels that candidates are scored on.
        stream: All cases without their passes, for candidates that are trained.
        several: All cases with their passes, if they have any.
        validation: Cases on which trained candidates choose their weights.
        settings: Settings of training.
        bounds: Bounds of the temperatures.
    """

    new: Callable[[str], Calibrator]
    scores: CrossValidation
    sample: ContextSample
    stream: CaseStream
    several: CaseStream
    validation: CaseStream | None
    settings: Training
    bounds: tuple[float, float]

    def plan(self, candidates: Sequence[str], time_limit: float | None, started: float) -> Plan:
        """Return what will be tried; the candidate that is trained is timed by a few epochs on one image."""
        used, seconds = np.flatnonzero(self.scores.fold >= 0).tolist(), None
        if TRAINED in candidates:
            begin_stage(f"estimating the time of {TRAINED}", 1, 1)
            first, short = self.stream.part(used[:1]), replace(self.settings, watch=None)

            def train(epochs: int) -> None:
                self.new(TRAINED).to(first.device)._fit_stream(first, None, replace(short, epochs=epochs))

            try:
                seconds = extrapolated(train, _EPOCHS, short.epochs * len(used) * (self.scores.folds - 1))
            except InputError as error:
                self.scores.begin(TRAINED)
                self.scores.fail(TRAINED, error)
        without = (TRAINED, "pool") if self.sample.passes is None else (TRAINED,)
        quick = tuple(name for name in candidates if name not in without)
        return Plan(quick, agreed(seconds, self.stream.device), perf_counter() - started, time_limit)

    def compare(self, plan: Plan) -> tuple[str, str]:
        """Return the candidate that does best on groups left out, and the reason in a sentence."""
        _log.info(plan.announcement())
        for number, name in enumerate(plan.tried, 1):
            begin_stage(f"{name}, candidate {number} of {len(plan.tried)}", number, len(plan.tried))
            self.score(name)
        chosen, why = self.scores.choose()
        if plan.left_out:
            why += f"; {TRAINED} was not tried because of the time limit of {plan.time_limit:.0f} s"
        return chosen, why

    def score(self, name: str) -> None:
        """Score a candidate on each fold; it is given up if it is far behind after the first.

        TS, the fallback, is scored whatever happens, and so are contextual methods, whose fits are shared.
        """
        started, score, candidate = perf_counter(), self.scores.begin(name), self.new(name)
        score.numbers, search = candidate.learned, self
        if candidate.reads_passes:
            assert self.sample.passes is not None
            search, candidate = self.pooled, self.new("cts+classes")
            score.numbers = candidate.learned + len(self.sample.passes) + 1
        contextual = candidate if isinstance(candidate, ContextualTemperatureScaling) else None
        for fold in range(self.scores.folds):
            try:
                if name == TRAINED:
                    sums = self._trained(name, fold)
                elif contextual is not None:
                    sums = search._contextual(contextual, fold)
                else:
                    sums = self._sampled(name, fold)
            except InputError as error:
                if name == FALLBACK:
                    raise
                self.scores.fail(name, error)
                break
            score.sums += sums
            if fold == 0 and name != FALLBACK and contextual is None and self.scores.is_far_behind(name):
                break
        score.seconds = perf_counter() - started

    @property
    def pooled(self) -> Search:
        """The same search over the cases pooled with their passes, each by weights learned without its fold."""
        dims = self.stream[0].case.logits.ndim - 1
        return replace(self, sample=pool_of(self.several, self.sample, keep=True, spatial_dims=dims)[1])

    @cached_property
    def fit(self) -> ContextFit:
        """The problem that contextual methods share."""
        return ContextFit.of(self.sample, self.stream, self.bounds)

    @cached_property
    def pairs(self) -> PairPath:
        """Offsets of pairs without each fold, at the temperatures that were chosen for it."""
        return self.fit.pair_path([self._point(fold) for fold in range(self.scores.folds)])

    def _point(self, fold: int, *, features: bool = True, classes: bool = True) -> Array:
        """Return the fit without a fold, with penalties chosen on the other folds among those of a method."""
        path = self.fit.path()
        allowed = [
            k
            for k, strengths in enumerate(path.among)
            if (features or np.isinf(strengths.features)) and (classes or np.isinf(strengths.classes))
        ]
        return path.fits[path.best(cautious=self.fit.cautious, allowed=allowed, without=fold)][fold]

    def _contextual(self, candidate: ContextualTemperatureScaling, fold: int) -> Array:
        """Return the NLL of the groups of a fold for a contextual method."""
        if self.fit.only_one is not None:
            return self._sampled(FALLBACK, fold)
        point = self._point(fold, features=candidate.features, classes=candidate.classes)
        sums, offsets = np.zeros(self.scores.groups), None
        if candidate.pairs:
            offsets = self.pairs.fits[self.pairs.best(cautious=self.fit.cautious, without=fold)][fold]
        for group, index in self._groups(fold):
            data = self.fit.data
            own = FeaturePixels(data.logits[:, index], data.labels[index], data.features[:, index], (0, len(index)))
            if offsets is not None:
                sums[group] = float(self.fit.pairs_of(own, point).sums(offsets).nll.sum())
            else:
                found = loss_sums(*own.values, point, self.fit.bounds, floor=self.fit.floor)
                sums[group] = read_loss(found, point.size).nll
        return sums

    def _sampled(self, name: str, fold: int) -> Array:
        """Return the NLL of the groups of a fold for a method of single pixels."""
        fitted = self.new(name)
        fitted._fit_stream(CaseStream([self.sample.case_without(fold)], self.stream.num_classes), None, None)
        sums = np.zeros(self.scores.groups)
        for group, index in self._groups(fold):
            logits = self.sample.data.logits[:, index].double()
            below = (logits - logits.amax(dim=0)).unsqueeze(0).unsqueeze(3)
            with torch.no_grad():
                calibrated = fitted(below)[0, :, :, 0]
            sums[group] = likelihood(calibrated, self.sample.data.labels[index], 1.0).nll
        return sums

    def _trained(self, name: str, fold: int) -> Array:
        """Return the NLL of the groups of a fold for a method that is trained on whole images."""
        rest, held_out = self.scores.parts(fold)
        left = self.stream.part(held_out)
        apart = None if self.validation is None else cases_apart(self.validation, left)
        fitted = self.new(name).to(self.stream.device)
        fitted._fit_stream(self.stream.part(rest), apart, self.settings)
        self.scores.scored[name].numbers = fitted.learned
        sums = np.zeros(self.scores.groups)
        for number, case in zip(held_out, left, strict=True):
            sums[self.scores.group[number]] += self._at_positions(fitted, case, number)
        return sums

    def _at_positions(self, fitted: Calibrator, case: StreamedCase, number: int) -> float:
        """Return the NLL of the sampled pixels of a case."""
        own, total = np.flatnonzero(self.sample.case == number), 0.0
        for slab in fitted.calibrate_case(case):
            logits = slab.relative_logits()[0].flatten(1)
            begin = slab.rows.start * int(np.prod(case.shape[2:]))
            positions = self.sample.position[own] - begin
            inside = (positions >= 0) & (positions < logits.shape[1])
            index = torch.from_numpy(positions[inside]).to(logits.device)
            labels = self.sample.data.labels[torch.from_numpy(own[inside])].to(logits.device)
            total += likelihood(logits[:, index].contiguous(), labels, 1.0).nll
            del slab
        return total

    def _groups(self, fold: int) -> Iterator[tuple[int, Int64[torch.Tensor, " n"]]]:
        """Yield each group of a fold, and the positions of its pixels in the sample."""
        first, last = self.sample.data.edges[fold : fold + 2]
        groups = self.scores.group[self.sample.case[first:last]]
        for group in np.unique(groups):
            yield int(group), torch.from_numpy(first + np.flatnonzero(groups == group))


def cases_apart(validation: CaseStream, held_out: CaseStream) -> CaseStream | None:
    """Return the validation cases of no group that is left out; None if there are none."""
    groups = {case.group for case in held_out} - {None}
    positions = [k for k, case in enumerate(validation) if case.group not in groups]
    return validation.part(positions) if positions else None


def agreed(seconds: float | None, device: torch.device) -> float | None:
    """Return the estimate of the first process of torchrun, so that all processes try the same candidates."""
    with process_group(device):
        if seconds is None or not distributed.is_initialized():
            return seconds
        value = torch.tensor(seconds, dtype=torch.float64, device=device)
        distributed.broadcast(value, 0)
    return float(value)


def extrapolated(work: Callable[[int], Any], sizes: tuple[int, int], size: int) -> float:
    """Return how long work of a size takes, by the straight line through two smaller sizes.

    What does not depend on the size is thus counted once, and a first call loads and compiles what is needed. At least
    a tenth of the larger time is taken to grow with the size: another process may slow down the smaller work only,
    and the line would say that any size takes no time.
    """
    small, large = (min(each, size) for each in sizes)
    work(small)
    first = _seconds(lambda: work(small))
    if small == large:
        return first
    second = _seconds(lambda: work(large))
    slope = max((second - first) / (large - small), _LEAST_GROWTH * second / large)
    return second + slope * (size - large)


def _seconds(work: Callable[[], Any]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
