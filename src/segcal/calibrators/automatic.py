"""The method that does best on images it was not fitted on, found by cross-validation in groups of images.

Each group of images (a video, a patient: `Case.group`) is left out once, and every method is scored by the NLL of what
was left out. Of those that are as good as the best the simplest one is chosen, which is temperature scaling unless
another is better by more than one standard error (`segcal.statistics.simplest_good`).

One pass draws a sample of pixels that all candidates are scored on, and fitted on, except those that are trained on
whole images. These are timed first, so that the plan is known before anything is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack, cast

import torch
from jaxtyping import Int64
from torch import Tensor

from segcal.calibrators.base import Calibrator, FitRegion
from segcal.calibrators.class_conditional import ArgmaxPreservingScaling, OrderPreservingScaling
from segcal.calibrators.contextual import ContextualTemperatureScaling
from segcal.calibrators.ensemble import EnsembleTemperatureScaling
from segcal.calibrators.local import LocalTemperatureScaling
from segcal.calibrators.pool import PooledPasses
from segcal.calibrators.report import Learned
from segcal.calibrators.shared.context_sample import draw_sample
from segcal.calibrators.shared.cross_validation import FALLBACK, CrossValidation
from segcal.calibrators.shared.search import Plan, Search
from segcal.calibrators.temperature import TemperatureCalibrator, TemperatureScaling
from segcal.cases import CaseStream
from segcal.progress import begin_stage
from segcal.training.processes import choose_device
from segcal.training.settings import Training
from segcal.types import (
    MOST_CLASSES,
    Image,
    InputError,
    Logits,
    Passes,
    Probs,
    Temperature,
    check_whole,
)

_FEWEST_GROUPS = 4
"""With fewer, a standard error has two degrees of freedom at most and one odd image decides; TS is used as it is."""


class _Candidate(NamedTuple):
    kind: type[Calibrator]
    number: int
    """Under which the choice is saved; never to be reused for another."""
    settings: Mapping[str, Any] = MappingProxyType({})


_CANDIDATES = {
    "ts": _Candidate(TemperatureScaling, 0),
    "ets": _Candidate(EnsembleTemperatureScaling, 1),
    "classwise": _Candidate(ContextualTemperatureScaling, 3, {"features": False, "classes": True}),
    "cts": _Candidate(ContextualTemperatureScaling, 4, {"features": True, "classes": False}),
    "cts+classes": _Candidate(ContextualTemperatureScaling, 5, {"features": True, "classes": True}),
    "cts+pairs": _Candidate(ContextualTemperatureScaling, 6, {"features": True, "classes": True, "pairs": True}),
    "cmsop": _Candidate(OrderPreservingScaling, 7),
    "cmsap": _Candidate(ArgmaxPreservingScaling, 8),
    "lts": _Candidate(LocalTemperatureScaling, 2),
    "pool": _Candidate(PooledPasses, 9),
}
"""In order of simplicity; "pool" is tried where the cases have further passes, which it then needs ever after."""

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
        bounds: Smallest and largest temperature that is applied.
        candidates: Names of the methods to choose among; must include "ts", the fallback. "cmsop" and "cmsap" are not
            tried by default, since they transfer badly to data unlike those they are fitted on.
        time_limit: Seconds for all candidates together. "lts", which is trained, is left out if the estimated time
            exceeds it; all others are fitted on a sample in seconds. The chosen one is fitted on all cases afterwards.
            None tries all.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    spatial_dims: int
    method = "auto"
    preserves_labels = True
    reads_passes = True
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
        bounds: tuple[float, float] = (0.05, 100.0),
        candidates: Sequence[str] = DEFAULT_CANDIDATES,
        time_limit: float | None = 60.0,
        **region: Unpack[FitRegion],
    ) -> None:
        super().__init__(num_classes, **region)
        if unknown := [name for name in candidates if name not in CANDIDATES]:
            raise InputError(f"candidates must be among {', '.join(CANDIDATES)}, got '{unknown[0]}'")
        if FALLBACK not in candidates:
            raise InputError(f"candidates must include '{FALLBACK}', the fallback; add it")
        if time_limit is not None and not time_limit > 0:
            raise InputError(f"time_limit must be a positive number of seconds, got {time_limit}")
        self.time_limit = None if time_limit is None else float(time_limit)
        check_whole("image_channels", image_channels, 0, MOST_CLASSES)
        self.spatial_dims, self.image_channels = spatial_dims, image_channels
        self.bounds = cast("tuple[float, float]", tuple(bounds))
        self.candidates = tuple(name for name in CANDIDATES if name in candidates)
        with torch.device("meta"):  # refuses wrong settings now, without memory for the candidates
            for name in self.candidates:
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
        started = perf_counter()
        begin_stage("reading the cases", 1, 1)
        simplest = self._new(FALLBACK)
        several, stream = stream, stream.without_passes()
        simplest._fit_stream(stream, None, None)  # goes through all cases, so that bad ones are refused by name
        contextual = (ContextualTemperatureScaling, PooledPasses)
        context = any(issubclass(_CANDIDATES[name].kind, contextual) for name in self.candidates)
        drawn = several if "pool" in self.candidates else stream
        sample = draw_sample(drawn, spatial_dims=self.spatial_dims, features=context)
        apart = None if validation is None else validation.without_passes()
        search = Search(self._new, sample, stream, several, apart, settings, self.bounds)
        scores = search.scores
        chosen, why, plan = FALLBACK, _unscored(scores, len(self.candidates)), Plan(())
        if scores.groups >= _FEWEST_GROUPS and len(self.candidates) > 1:
            plan = search.plan(self.candidates, self.time_limit, started)
            chosen, why = search.compare(plan)
        found = simplest
        if chosen != FALLBACK:
            begin_stage(f"fitting {chosen}, which is chosen", 1, 1)
            found = self._new(chosen).to(stream.device)
            if isinstance(found, contextual):
                found._fit_stream(several if found.reads_passes else stream, None, sample)
            else:
                found._fit_stream(stream, apart, settings)
        self._adopt(chosen, found.to(self.fitted.device))
        report = found.fit_report_
        return report.learned(
            warnings=tuple(dict.fromkeys((*sample.grouping.warnings, *report.warnings, *scores.failures))),
            details={
                "chosen": chosen,
                "why": why,
                "groups": scores.groups,
                "grouping": sample.grouping.to_dict(),
                "plan": plan.to_dict(),
                "scores": scores.scores(),
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
    def parts(self) -> Sequence[Calibrator]:
        """The chosen calibrator."""
        return (self.applied,)

    def forward(self, logits: Logits, image: Image | None = None, passes: Passes | None = None) -> Logits:
        """Return calibrated logits of the same shape and dtype."""
        self._check(logits, image)
        return self.applied.forward(logits, image, passes)

    def predict_proba(self, logits: Logits, image: Image | None = None, passes: Passes | None = None) -> Probs:
        """Return calibrated probabilities of the same shape and dtype as the logits."""
        self._check(logits, image)
        return self.applied.predict_proba(logits, image, passes)

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
        known = candidate.kind.settings()
        return candidate.kind(**{setting: value for setting, value in shared.items() if setting in known})

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


def _unscored(scores: CrossValidation, candidates: int) -> str:
    if candidates == 1:
        return f"{FALLBACK} is chosen: it is the only candidate"
    if scores.groups == 1:
        return f"{FALLBACK} is chosen: with one group of images none can be left out to see which method does better"
    return (
        f"{FALLBACK} is chosen: {scores.units} are too few to see which method does better on others; "
        f"give {_FEWEST_GROUPS} or more"
    )
