"""Comparison of the candidates of an automatic choice: which are tried, and their scores on one sample that all share.

The candidate that is trained is timed first, by a few epochs on one image. A candidate is fitted without each fold and
scored on the sampled pixels of that fold. Methods that are not trained are fitted on the sample too. Contextual methods
share one path of fits: what a method may use is a choice of penalties, and the penalties for a fold are chosen on the
other folds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import distributed

from segcal.calibrators.base import Calibrator
from segcal.calibrators.contextual import ContextualTemperatureScaling
from segcal.calibrators.pool import pool_of
from segcal.calibrators.shared.context_fit import ContextFit, losses_of
from segcal.calibrators.shared.context_sample import ContextSample
from segcal.calibrators.shared.cross_validation import FALLBACK, CrossValidation
from segcal.calibrators.shared.survey import one_thread
from segcal.cases import CaseStream, StreamedCase
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
        sample: Pixels that candidates are scored on.
        stream: All cases without their passes, for candidates that are trained.
        several: All cases with their passes, if they have any.
        validation: Cases on which trained candidates choose their weights.
        settings: Settings of training.
        bounds: Bounds of the temperatures.
    """

    new: Callable[[str], Calibrator]
    sample: ContextSample
    stream: CaseStream
    several: CaseStream
    validation: CaseStream | None
    settings: Training
    bounds: tuple[float, float]

    def __post_init__(self) -> None:
        self.scores = CrossValidation.of(self.sample)

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
        started, score, candidate, sample = perf_counter(), self.scores.begin(name), self.new(name), self.sample
        score.numbers = candidate.learned
        if candidate.reads_passes:
            assert sample.passes is not None
            dims = self.stream[0].case.logits.ndim - 1
            candidate, members = self.new("cts+classes"), len(sample.passes) + 1
            sample = pool_of(self.several, sample, keep=True, spatial_dims=dims)[1]
            score.numbers = candidate.learned + members
        losses: Callable[[int], Array] = partial(self.sampled, name, sample)
        if contextual := isinstance(candidate, ContextualTemperatureScaling):
            fit = ContextFit.of(sample, self.stream, self.bounds)
            used = {own: getattr(candidate, own) for own in ("features", "classes", "pairs")}
            losses = partial(self.sampled, FALLBACK, sample) if fit.only_one else partial(fit.losses, **used)
        elif name == TRAINED:
            losses = self.trained
        with nullcontext() if name == TRAINED else one_thread():
            for fold in range(self.scores.folds):
                try:
                    found = losses(fold)
                except InputError as error:
                    if name == FALLBACK:
                        raise
                    self.scores.fail(name, error)
                    break
                groups = self.scores.group[sample.case[slice(*sample.data.edges[fold : fold + 2])]]
                score.sums += np.bincount(groups, weights=found, minlength=self.scores.groups)
                if fold == 0 and name != FALLBACK and not contextual and self.scores.is_far_behind(name):
                    break
        score.seconds = perf_counter() - started

    def sampled(self, name: str, sample: ContextSample, fold: int) -> Float64[np.ndarray, " N"]:
        """Return the NLL of each pixel of a fold for a method of single pixels, fitted on the other folds."""
        fitted, data = self.new(name), sample.data.part(fold, fold + 1)
        fitted._fit_stream(CaseStream([sample.case_without(fold)], self.stream.num_classes), None, None)
        logits = data.logits.double()
        with torch.no_grad():
            calibrated = fitted((logits - logits.amax(dim=0))[None, :, :, None])[0, :, :, 0]
        return losses_of(calibrated, data.labels)

    def trained(self, fold: int) -> Float64[np.ndarray, " N"]:
        """Return the NLL of each pixel of a fold for the method that is trained on whole images."""
        rest, held_out = self.scores.parts(fold)
        left = self.stream.part(held_out)
        apart = None if self.validation is None else cases_apart(self.validation, left)
        fitted = self.new(TRAINED).to(self.stream.device)
        fitted._fit_stream(self.stream.part(rest), apart, self.settings)
        self.scores.scored[TRAINED].numbers = fitted.learned
        cases = zip(held_out, left, strict=True)
        return np.concatenate([losses_at(self.sample, fitted, case, number) for number, case in cases])


def losses_at(sample: ContextSample, fitted: Calibrator, case: StreamedCase, number: int) -> Float64[np.ndarray, " N"]:
    """Return the NLL of each sampled pixel of a case, in their order."""
    own = np.flatnonzero(sample.case == number)
    places, labels, found = sample.position[own], sample.data.labels[torch.from_numpy(own)], [np.zeros(0)]
    for slab in fitted.calibrate_case(case):
        logits = slab.relative_logits()[0].flatten(1)
        begin = slab.rows.start * math.prod(case.shape[2:])
        inside = slice(*np.searchsorted(places, [begin, begin + logits.shape[1]]))
        index = torch.from_numpy(places[inside] - begin).to(logits.device)
        found.append(losses_of(logits[:, index].double().cpu(), labels[inside]))
        del slab, logits
    return np.concatenate(found)


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
