"""The method that does best on images it was not fitted on, found by cross-validation in groups of images.

Each group of images (a video, a patient: `Case.group`) is left out once, and every method is scored by the NLL of what
was left out. Of those that are as good as the best the simplest one is chosen, which is temperature scaling unless
another is better by more than one standard error (`segcal.statistics.simplest_good`).

One pass draws a sample of pixels that all candidates are fitted on, except those that are trained on whole images. A
small part of it is timed first, so that the plan, with the time of each candidate, is known before anything is fitted.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from segcal.calibrators.base import CalibratedSlab, Calibrator
from segcal.calibrators.class_conditional import ArgmaxPreservingScaling, OrderPreservingScaling
from segcal.calibrators.contextual import ContextualTemperatureScaling
from segcal.calibrators.ensemble import EnsembleTemperatureScaling
from segcal.calibrators.local import LocalTemperatureScaling
from segcal.calibrators.report import Learned
from segcal.calibrators.shared.context_sample import ContextSample, draw_sample
from segcal.calibrators.shared.cross_validation import FALLBACK, CrossValidation
from segcal.calibrators.shared.plan import Plan, agreed, extrapolated, seconds_of
from segcal.calibrators.shared.survey import summed_nll
from segcal.calibrators.temperature import TemperatureScaling
from segcal.calibrators.tempered import TemperatureCalibrator
from segcal.cases import CaseStream, StreamedCase
from segcal.progress import begin_stage
from segcal.training.environment import launched
from segcal.training.processes import choose_device
from segcal.training.settings import Training, override
from segcal.types import Case, IgnoreIndex, Image, InputError, Logits, Probs, Temperature

_FEWEST_GROUPS = 4
"""With fewer, a standard error has two degrees of freedom at most and one odd image decides; TS is used as it is."""
_PIXELS, _EPOCHS = (1 << 12, 1 << 14), (1, 3)  # on which candidates are timed
_log = logging.getLogger("segcal")


class _Candidate(NamedTuple):
    kind: type[Calibrator]
    number: int
    """Under which the choice is saved; never to be reused for another."""
    settings: Mapping[str, Any] = MappingProxyType({})
    trained: bool = False


_CANDIDATES = {
    "ts": _Candidate(TemperatureScaling, 0),
    "ets": _Candidate(EnsembleTemperatureScaling, 1),
    "classwise": _Candidate(ContextualTemperatureScaling, 3, {"features": False, "classes": True}),
    "cts": _Candidate(ContextualTemperatureScaling, 4, {"features": True, "classes": False}),
    "cts+classes": _Candidate(ContextualTemperatureScaling, 5, {"features": True, "classes": True}),
    "cts+pairs": _Candidate(ContextualTemperatureScaling, 6, {"features": True, "classes": True, "pairs": True}),
    "cmsop": _Candidate(OrderPreservingScaling, 7),
    "cmsap": _Candidate(ArgmaxPreservingScaling, 8),
    "lts": _Candidate(LocalTemperatureScaling, 2, trained=True),
}
"""In order of simplicity."""

CANDIDATES = tuple(_CANDIDATES)
DEFAULT_CANDIDATES = tuple(name for name in CANDIDATES if name not in ("cmsop", "cmsap"))
"""Without the methods of L^2 (L - 1) numbers: fitted on one video they win every cross-validation within it, and on
other videos they can be worse than TS (docs/results/beyond-lts.md)."""


class AutomaticChoice(Calibrator):
    """Choose among label-preserving methods by cross-validation, and fit the chosen one on all cases.

    Args:
        num_classes: L.
        spatial_dims: 2 or 3.
        image_channels: C; 0 for methods to look at the logits only.
        ignore_index: Label, or labels, left out of the fit.
        background: Class left out of the fit except near boundaries; None fits on every labelled pixel.
        bounds: Smallest and largest temperature that is applied.
        candidates: Names of the methods to choose among; must include "ts", the fallback. "cmsop" and "cmsap" are not
            tried by default, since they transfer badly to data unlike those they are fitted on.
        time_limit: Seconds for all candidates together, by the estimate made before they are fitted; those that would
            exceed it are left out, the most expensive first. The estimate itself takes a few small fits of each, for
            at most a third of that time, and the chosen one is fitted on all cases afterwards. None tries all.
    """

    spatial_dims: int
    method = "auto"
    preserves_labels = True
    fit_settings = LocalTemperatureScaling.fit_settings - {"checkpoint"}

    choice: Int64[Tensor, ""]
    """Number of the chosen method, -1 until fitted; a saved state says with it what to build."""
    chosen: Calibrator | None

    def __init__(
        self,
        num_classes: int,
        *,
        spatial_dims: int = 2,
        image_channels: int = 0,
        ignore_index: IgnoreIndex = None,
        background: int | None = None,
        bounds: tuple[float, float] = (0.05, 100.0),
        candidates: Sequence[str] = DEFAULT_CANDIDATES,
        time_limit: float | None = 60.0,
    ) -> None:
        super().__init__(num_classes, ignore_index=ignore_index, background=background)
        if unknown := [name for name in candidates if name not in CANDIDATES]:
            raise InputError(f"candidates must be among {', '.join(CANDIDATES)}, got '{unknown[0]}'")
        if FALLBACK not in candidates:
            raise InputError(f"candidates must include '{FALLBACK}', the fallback; add it")
        if time_limit is not None and not time_limit > 0:
            raise InputError(f"time_limit must be a positive number of seconds, got {time_limit}")
        self.time_limit = None if time_limit is None else float(time_limit)
        self.spatial_dims, self.image_channels, self.bounds = spatial_dims, image_channels, tuple(bounds)
        self.candidates = tuple(name for name in CANDIDATES if name in candidates)
        for name in self.candidates:  # to refuse wrong settings now
            self._new(name)
        self.register_buffer("choice", torch.tensor(-1))
        self.register_module("chosen", None)

    def _settings(self, given: Training | None, changes: Mapping[str, Any]) -> Training | Mapping[str, Any]:
        """Return the settings of trained candidates; a wrong one is an error of the caller, not of a candidate."""
        wanted = self._new("lts")._settings(given, changes)
        choose_device(wanted.device)
        return cast(Training, wanted)

    def _stream_options(self, settings: Training) -> dict[str, Any]:
        return self._new("lts")._stream_options(settings)

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Training) -> Learned:
        """Announce the plan, score every candidate on groups left out, choose, and fit the chosen one on all cases.

        The settings are for candidates that are trained. The plan is logged by the logger "segcal" (level INFO) before
        candidates are fitted, and kept in the report.
        """
        begin_stage("reading the cases", 1, 1)
        simplest = self._new(FALLBACK)
        simplest._fit_stream(stream, None, None)  # goes through all cases, so that bad ones are refused by name
        context = any(isinstance(self._new(name), ContextualTemperatureScaling) for name in self.candidates)
        sample = draw_sample(stream, spatial_dims=self.spatial_dims, features=context)
        search = _Search(self, CrossValidation.of(sample), sample, stream, validation, settings)
        chosen, why, plan = search.run()
        found = simplest if chosen == FALLBACK else self._new(chosen).to(stream.device)
        if chosen != FALLBACK:
            begin_stage(f"fitting {chosen}, which is chosen", 1, 1)
            found._fit_stream(stream, validation, settings)
        self._adopt(chosen, found.to(self.fitted.device))
        report = found.fit_report_
        return Learned(
            pixels=report.pixels,
            nll_before=report.nll_before,
            nll_after=report.nll_after,
            steps=report.steps,
            converged=report.converged,
            warnings=tuple(dict.fromkeys((*sample.grouping.warnings, *report.warnings, *search.scores.failures))),
            details={
                "chosen": chosen,
                "why": why,
                "groups": search.scores.groups,
                "grouping": sample.grouping.to_dict(),
                "plan": plan.to_dict(),
                "scores": search.scores.scores(),
                "chosen_details": report.details,
            },
        )

    @property
    def applied(self) -> Calibrator:
        """The chosen calibrator."""
        self._check_fitted()
        assert self.chosen is not None
        return self.chosen

    @property
    def has_temperature(self) -> bool:  # type: ignore[override]
        """True if the chosen method has a temperature."""
        return self.applied.has_temperature

    @property
    def learned(self) -> int:
        """Number of values that the chosen calibrator has learned."""
        return self.applied.learned

    def forward(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return calibrated logits of the same shape and dtype."""
        self._check(logits, image)
        return self.applied.forward(logits, image)

    def predict_proba(self, logits: Logits, image: Image | None = None) -> Probs:
        """Return calibrated probabilities of the same shape and dtype as the logits."""
        self._check(logits, image)
        return self.applied.predict_proba(logits, image)

    def calibrate_case(self, case: Case | StreamedCase) -> Iterator[CalibratedSlab]:
        """Yield a case slab by slab."""
        return self.applied.calibrate_case(case)

    def temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        """Return the temperature of each pixel, where the chosen method has one."""
        applied = self.applied
        if not isinstance(applied, TemperatureCalibrator):
            raise InputError(f"'{applied.method}' was chosen, which has no temperature; use forward or predict_proba")
        return applied.temperature(logits, image)

    def _map(self, logits: Logits, image: Image | None = None) -> Logits:
        return self.applied._map(logits, image)

    def _summary(self) -> dict[str, object]:
        return {"chosen": self.applied}

    def _new(self, name: str) -> Calibrator:
        """Return an unfitted candidate with the settings of this calibrator."""
        candidate = _CANDIDATES[name]
        shared = {**self.config(), **candidate.settings}
        known = inspect.signature(candidate.kind).parameters
        settings = {setting: value for setting, value in shared.items() if setting in known}
        return candidate.kind(**settings)

    def _adopt(self, name: str, calibrator: Calibrator) -> None:
        self.choice.fill_(_CANDIDATES[name].number)
        self.chosen = calibrator
        self.context = calibrator.context

    def _problem(self) -> str | None:
        return "'choice' must be one of the candidates" if self.chosen is None else self.chosen._problem()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Build what was chosen; its own state is looked at after this."""
        number = int(state_dict.get(f"{prefix}choice", -1))
        for name in (name for name, candidate in _CANDIDATES.items() if candidate.number == number):
            self._adopt(name, self._new(name))
        super()._load_from_state_dict(state_dict, prefix, *rest)


@dataclass(frozen=True)
class _Search:
    """Everything that candidates are compared with: the folds, the sample, all cases, and settings of training."""

    owner: AutomaticChoice
    scores: CrossValidation
    sample: ContextSample
    stream: CaseStream
    validation: CaseStream | None
    settings: Training

    def run(self) -> tuple[str, str, Plan]:
        """Return the chosen candidate, the reason in a sentence, and the plan."""
        plan, candidates = Plan({}, {}, self.owner.time_limit), self.owner.candidates
        if self.scores.groups < _FEWEST_GROUPS or len(candidates) == 1:
            return FALLBACK, _unscored(self.scores, len(candidates)), plan
        plan = self._plan(candidates)
        _log.info(plan.announcement())
        for number, name in enumerate(plan.tried, 1):
            about = f"{name}, candidate {number} of {len(plan.tried)}, {plan.remaining(name)} left"
            begin_stage(about, number, len(plan.tried))
            self._score(name)
        return *self.scores.choose(), plan

    def _plan(self, candidates: Sequence[str]) -> Plan:
        """Return what will be tried, and roughly how long it takes."""
        costs, failures = dict[str, float](), dict[str, str]()
        started, most = perf_counter(), (self.owner.time_limit or math.inf) / 3
        for number, name in enumerate(candidates, 1):
            late = name != FALLBACK and perf_counter() - started > most
            if late and launched()[1] == 1:  # several processes must time the same candidates
                costs[name] = math.inf
                continue
            begin_stage(f"estimating the time of {name}", number, len(candidates))
            try:
                costs[name] = self._seconds(name)
            except InputError as error:
                if name == FALLBACK:
                    raise
                failures[name] = f"could not be fitted: {error}"
                self.scores.begin(name).failure = failures[name]
        return Plan(agreed(costs, self.stream.device), failures, self.owner.time_limit)

    def _seconds(self, name: str) -> float:
        """Return roughly how long a candidate takes, from fits on a few pixels, or of a few epochs on one image."""
        used = np.flatnonzero(self.scores.fold >= 0).tolist()
        first, fitted = self.stream.part(used[:1]), list[Calibrator]()
        if _CANDIDATES[name].trained:
            short = override(self.settings, watch=None)
            epochs = short.epochs * len(used) * (self.scores.folds - 1)  # of one image
            fit = extrapolated(
                lambda n: fitted.append(self._trained(name, first, None, replace(short, epochs=n, watch=None))),
                _EPOCHS,
                epochs,
            )
        else:
            fit = self.scores.folds * extrapolated(
                lambda n: fitted.append(self._fitted(name, self.sample.thinned(n))), _PIXELS, len(self.sample.case)
            )
        return fit + seconds_of(lambda: summed_nll(fitted[-1], first)) * len(used)

    def _score(self, name: str) -> None:
        """Score a candidate on each fold, fitted on the others."""
        started, score, trained = perf_counter(), self.scores.begin(name), _CANDIDATES[name].trained
        for fold in range(self.scores.folds):
            rest, held_out = self.scores.parts(fold)
            try:
                if trained:
                    apart = None if self.validation is None else _apart(self.validation, self.stream.part(held_out))
                    fitted = self._trained(name, self.stream.part(rest), apart, self.settings)
                else:
                    fitted = self._fitted(name, self.sample.without(fold))
            except InputError as error:
                if name == FALLBACK:
                    raise
                score.failure = f"could not be fitted: {error}"
                break
            score.numbers = fitted.learned
            for position in held_out:
                score.sums[self.scores.group[position]] += summed_nll(fitted, self.stream.part([position]))[0]
            if fold == 0 and trained and self.scores.is_far_behind(name):
                break
        score.seconds = perf_counter() - started

    def _trained(self, name: str, stream: CaseStream, validation: CaseStream | None, settings: Training) -> Calibrator:
        new = self.owner._new(name).to(stream.device)
        new._fit_stream(stream, validation, settings)
        return new

    def _fitted(self, name: str, sample: ContextSample) -> Calibrator:
        """Return a candidate that is not trained, fitted on a sample."""
        new = self.owner._new(name)
        if isinstance(new, ContextualTemperatureScaling):
            new._learn_from(sample, None)
        else:
            new._fit_stream(CaseStream([sample.as_case()], self.stream.num_classes), None, None)
        new.fitted.fill_(True)
        return new.to(self.stream.device)


def _unscored(scores: CrossValidation, candidates: int) -> str:
    if candidates == 1:
        return f"{FALLBACK} is chosen: it is the only candidate"
    if scores.groups == 1:
        return f"{FALLBACK} is chosen: with one group of images none can be left out to see which method does better"
    return (
        f"{FALLBACK} is chosen: {scores.units} are too few to see which method does better on others; "
        f"give {_FEWEST_GROUPS} or more"
    )


def _apart(validation: CaseStream, held_out: CaseStream) -> CaseStream | None:
    """Return the validation cases of no group that is left out; None if there are none."""
    groups = {case.group for case in held_out} - {None}
    positions = [k for k, case in enumerate(validation) if case.group not in groups]
    return validation.part(positions) if positions else None
