"""Scores of the candidates of an automatic choice, on the pixels of one sample that all of them share.

A candidate is fitted without each fold and scored on the sampled pixels of that fold. Methods that are not trained are
fitted on the sample too. Contextual methods share one path of fits: what a method may use is a choice of penalties, and
the penalties for a fold are chosen on the other folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Int64

from segcal.calibrators.base import Calibrator
from segcal.calibrators.contextual import ContextualTemperatureScaling
from segcal.calibrators.local import LocalTemperatureScaling
from segcal.calibrators.pool import pool_of
from segcal.calibrators.shared.context_fit import ContextFit
from segcal.calibrators.shared.context_sample import ContextSample
from segcal.calibrators.shared.cross_validation import FALLBACK, CrossValidation
from segcal.cases import CaseStream, StreamedCase
from segcal.functional.log_linear import FeaturePixels, loss_sums, read_loss
from segcal.functional.pairs import PairPath
from segcal.functional.temperature import likelihood
from segcal.training.settings import Training
from segcal.types import Array, InputError


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
        trained = isinstance(candidate, LocalTemperatureScaling)
        for fold in range(self.scores.folds):
            try:
                if trained:
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
