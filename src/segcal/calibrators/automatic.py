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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

import torch
from jaxtyping import Int64
from torch import Tensor

from segcal.calibrators.base import Calibrator, TemperatureCalibrator
from segcal.calibrators.class_conditional import ArgmaxPreservingScaling, OrderPreservingScaling
from segcal.calibrators.contextual import ContextualTemperatureScaling
from segcal.calibrators.ensemble import EnsembleTemperatureScaling
from segcal.calibrators.local import LocalTemperatureScaling
from segcal.calibrators.shared.context_sample import ContextSample, draw_sample
from segcal.calibrators.shared.plan import Plan, agreed, extrapolated, seconds_of
from segcal.calibrators.shared.streaming import summed_nll
from segcal.calibrators.shared.trial import FALLBACK, Trial
from segcal.calibrators.temperature import TemperatureScaling
from segcal.cases import Part, Slab, reread
from segcal.training.processes import choose_device
from segcal.training.progress import Watch
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
            exceed it are left out, the most expensive first. The estimate itself takes a few small fits of each, and
            the chosen one is fitted on all cases afterwards. None tries all.
    """

    method = "auto"
    preserves_labels = True

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
        time_limit: float | None = None,
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

    def fit(
        self,
        cases: Iterable[Case],
        *,
        validation: Iterable[Case] | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        device: str = "auto",
        patience: int | None = None,
        cosine: bool = False,
        crop: int | None = None,
        flips: bool = False,
        precision: Literal["float32", "bfloat16"] = "float32",
        cache_bytes: int = 2 << 30,
        watch: Watch | None = None,
    ) -> Self:
        """Announce the plan, score every candidate on groups left out, choose, and fit the chosen one on all cases.

        All arguments except the cases are for candidates that are trained, as in `LocalTemperatureScaling.fit`. The
        plan is logged by the logger "segcal" (level INFO) before candidates are fitted, and kept in the report.
        """
        started = perf_counter()
        training: dict[str, Any] = {
            "epochs": epochs,
            "learning_rate": learning_rate,
            "batch_size": batch_size,
            "seed": seed,
            "device": device,
            "patience": patience,
            "cosine": cosine,
            "crop": crop,
            "flips": flips,
            "precision": precision,
            "cache_bytes": cache_bytes,
        }
        for name in self.candidates:  # a wrong option is an error of the caller, not of a candidate
            if isinstance(trained := self._new(name), LocalTemperatureScaling):
                choose_device(trained.settings(**training).device)
        training["watch"] = watch
        kept = _in_order(cases)
        checked = None if validation is None else _in_order(validation)
        simplest = self._new(FALLBACK).fit(kept)  # goes through all cases, so that bad ones are refused by name
        context = any(isinstance(self._new(name), ContextualTemperatureScaling) for name in self.candidates)
        sample = draw_sample(self, kept, spatial_dims=self.spatial_dims, features=context)
        trial, plan = Trial.of(sample), Plan({}, {}, self.time_limit)
        if trial.groups < _FEWEST_GROUPS or len(self.candidates) == 1:
            name, why = FALLBACK, _untried(trial, len(self.candidates))
        else:
            plan = self._plan(trial, sample, kept, training)
            _log.info(plan.announcement())
            for name in plan.tried:
                self._try(name, trial, sample, kept, checked, training)
            name, why = trial.verdict()
        found = simplest if name == FALLBACK else self._fit(name, kept, checked, training)
        self._adopt(name, found)
        seconds = perf_counter() - started
        return self._finish(
            replace(
                found.fit_report_,
                seconds=seconds,
                warnings=tuple(
                    dict.fromkeys((*sample.grouping.warnings, *found.fit_report_.warnings, *trial.failures))
                ),
                details={
                    "chosen": name,
                    "why": why,
                    "groups": trial.groups,
                    "grouping": sample.grouping.to_dict(),
                    "plan": plan.to_dict(),
                    "scores": trial.scores(),
                    "chosen_details": found.fit_report_.details,
                },
            )
        )

    @property
    def applied(self) -> Calibrator:
        """The chosen calibrator."""
        self._check_fitted()
        assert self.chosen is not None
        return self.chosen

    @property
    def learned(self) -> int:
        """How many numbers the chosen calibrator has learned."""
        return self.applied.learned

    def forward(self, logits: Logits, image: Image | None = None) -> Logits:
        """Calibrated logits of the same shape and dtype."""
        self._check(logits)
        return self.applied.forward(logits, image)

    def predict_proba(self, logits: Logits, image: Image | None = None) -> Probs:
        """Calibrated probabilities, of the same shape and dtype as the logits."""
        self._check(logits)
        return self.applied.predict_proba(logits, image)

    def calibrate(self, logits: Logits, image: Image | None = None) -> Logits:
        """Calibrated logits, in the precision that suits the chosen method."""
        return self.applied.calibrate(logits, image)

    def calibrate_case(self, case: Case) -> Iterator[tuple[Slab, Logits]]:
        """Calibrated logits of a case, slab by slab: the slab as read, and the result for its inner slices."""
        return self.applied.calibrate_case(case)

    def temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        """The temperature of each pixel, where the chosen method has one."""
        applied = self.applied
        if not isinstance(applied, TemperatureCalibrator):
            raise InputError(f"'{applied.method}' was chosen, which has no temperature; use forward or predict_proba")
        return applied.temperature(logits, image)

    def _main_numbers(self) -> dict[str, object]:
        return {"chosen": self.applied}

    def _new(self, name: str) -> Calibrator:
        """An unfitted candidate with the settings of this calibrator."""
        candidate = _CANDIDATES[name]
        shared = {**self.config(), **candidate.settings}
        known = inspect.signature(candidate.kind).parameters
        settings = {setting: value for setting, value in shared.items() if setting in known}
        return candidate.kind(**settings).to(self.fitted.device)

    def _fit(
        self, name: str, cases: Sequence[Case], validation: Sequence[Case] | None, training: Mapping[str, Any]
    ) -> Calibrator:
        settings = training if _CANDIDATES[name].trained else {}
        return self._new(name).fit(cases, validation=validation, **settings)

    def _fit_sample(self, name: str, sample: ContextSample) -> Calibrator:
        """Fit a candidate that is not trained on a sample."""
        new = self._new(name)
        if isinstance(new, ContextualTemperatureScaling):
            return new.fit_sample(sample)
        # labels of the sample are classes, and pixels that do not count are not in it
        new.ignore_index = new.background = None
        fitted = new.fit([sample.as_case()])
        new.ignore_index, new.background = self.ignore_index, self.background
        return fitted

    def _plan(self, trial: Trial, sample: ContextSample, cases: Sequence[Case], training: Mapping[str, Any]) -> Plan:
        """Return what will be tried, and roughly how long it takes."""
        costs, failures = dict[str, float](), dict[str, str]()
        for name in self.candidates:
            try:
                costs[name] = self._seconds(name, trial, sample, cases, training)
            except InputError as error:
                if name == FALLBACK:
                    raise
                failures[name] = f"could not be fitted: {error}"
                trial.begin(name).failure = failures[name]
        return Plan(agreed(costs, choose_device(training["device"])), failures, self.time_limit)

    def _seconds(
        self, name: str, trial: Trial, sample: ContextSample, cases: Sequence[Case], training: Mapping[str, Any]
    ) -> float:
        """Return roughly how long a candidate takes, from fits on a few pixels, or of a few epochs on one image."""
        used, fitted = [k for k in range(len(cases)) if trial.fold[k] >= 0], list[Calibrator]()
        first, new = Part(cases, used[:1]), self._new(name)
        if isinstance(new, LocalTemperatureScaling):
            options = {key: value for key, value in training.items() if key != "watch"}
            epochs = new.settings(**options).epochs * len(used) * (trial.folds - 1)  # of one image
            fit = extrapolated(
                lambda n: fitted.append(self._fit(name, first, None, {**options, "epochs": n})), _EPOCHS, epochs
            )
        else:
            fit = trial.folds * extrapolated(
                lambda n: fitted.append(self._fit_sample(name, sample.thinned(n))), _PIXELS, len(sample.case)
            )
        return fit + seconds_of(lambda: summed_nll(fitted[-1], first)) * len(used)

    def _try(
        self,
        name: str,
        trial: Trial,
        sample: ContextSample,
        cases: Sequence[Case],
        validation: Sequence[Case] | None,
        training: Mapping[str, Any],
    ) -> None:
        """Score a candidate on each fold, fitted on the others."""
        started, score = perf_counter(), trial.begin(name)
        for fold in range(trial.folds):
            rest, held_out = trial.parts(fold)
            try:
                if _CANDIDATES[name].trained:
                    apart = None if validation is None else _apart(validation, Part(cases, held_out))
                    fitted = self._fit(name, Part(cases, rest), apart, training)
                else:
                    fitted = self._fit_sample(name, sample.without(fold))
            except InputError as error:
                if name == FALLBACK:
                    raise
                score.failure = f"could not be fitted: {error}"
                break
            score.numbers = fitted.learned
            for place in held_out:
                score.sums[trial.group[place]] += summed_nll(fitted, [cases[place]])[0]
            if fold == 0 and _CANDIDATES[name].trained and trial.is_far_behind(name):
                break
        score.seconds = perf_counter() - started

    def _adopt(self, name: str, calibrator: Calibrator) -> None:
        self.choice.fill_(_CANDIDATES[name].number)
        self.chosen = calibrator
        self.context = calibrator.context

    def wrong_values(self) -> str | None:
        """Return what makes learned values unusable, if anything does."""
        return "'choice' must be one of the candidates" if self.chosen is None else self.chosen.wrong_values()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Build what was chosen; its own state is looked at after this."""
        number = int(state_dict.get(f"{prefix}choice", -1))
        for name in (name for name, candidate in _CANDIDATES.items() if candidate.number == number):
            self._adopt(name, self._new(name))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _untried(trial: Trial, candidates: int) -> str:
    if candidates == 1:
        return f"{FALLBACK} is chosen: it is the only candidate"
    if trial.groups == 1:
        return f"{FALLBACK} is chosen: with one group of images none can be left out to see which method does better"
    return (
        f"{FALLBACK} is chosen: {trial.units} are too few to see which method does better on others; "
        f"give {_FEWEST_GROUPS} or more"
    )


def _in_order(cases: Iterable[Case]) -> Sequence[Case]:
    kept = reread(cases)
    return kept if isinstance(kept, Sequence) else list(kept)


def _apart(validation: Sequence[Case], held_out: Iterable[Case]) -> Part | None:
    """The validation cases of no group that is left out; None if there are none."""
    groups = {case.group for case in held_out} - {None}
    places = [place for place, case in enumerate(validation) if case.group not in groups]
    return Part(validation, places) if places else None
