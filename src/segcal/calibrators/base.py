"""The contract of every calibrator: fit on cases, map logits to calibrated logits, save and load without pickle.

One-logit heads (networks that end in a sigmoid) have logits `[B, 1, *S]` and labels 0 and 1. `segcal.create(method,
num_classes=1)` builds a calibrator for them (`calibrators.binary`). It behaves exactly as the same method does on the
two-class logits `[0, z]`, whose softmax is `[1 - sigmoid(z), sigmoid(z)]`: `forward` returns one calibrated logit (the
log-odds of class 1), `predict_proba` one channel (the probability of class 1), and `temperature` is unchanged. The
predicted label is 1 where the logit is above 0, or the probability above 0.5; methods that preserve labels preserve it.
`segcal.create(method, num_classes=C, activation="sigmoid")` builds one such calibrator for each of C channels, whose
labels `[C, *S]` may overlap (`calibrators.multilabel`).
"""

from __future__ import annotations

import hashlib
import inspect
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, SupportsIndex

import numpy as np
import torch
from torch import Tensor, nn

from segcal.calibrators.saving import write_calibrator
from segcal.cases import Slab, labels_of, slabs_of
from segcal.files import staged_folder
from segcal.functional.checks import IGNORED, check_logits, ignored_labels, probability_doubt
from segcal.functional.division import (
    NotFiniteError,
    divided,
    finite_in,
    found_nonfinite,
    scaled_logits,
    scaled_probabilities,
)
from segcal.functional.fingerprint import fingerprint
from segcal.functional.geometry import foreground
from segcal.functional.probability import at_least_float32, keep_labels, probabilities
from segcal.kernels.constants import LARGEST_TEMPERATURE, LEAST_TEMPERATURE
from segcal.kernels.denormals import with_denormals
from segcal.kernels.dispatch import engine_for
from segcal.text import CalibrationWarning
from segcal.types import (
    MOST_CLASSES,
    Activation,
    Case,
    IgnoreIndex,
    Image,
    InputError,
    Logits,
    Probs,
    Temperature,
    public,
)


@dataclass(frozen=True)
class FitReport:
    """Result of a fit. NLL is the mean over the fitted pixels, in nats.

    `converged` says whether an optimum was reached: the NLL was no longer falling when the fit ended.
    """

    cases: int
    pixels: int
    nll_before: float
    nll_after: float
    steps: int
    seconds: float
    converged: bool
    warnings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Names of the fitted cases."""
    fingerprints: tuple[str, ...] = ()
    """Their content (`segcal.functional.fingerprint`), so that an evaluation on the same cases can be reported."""
    details: dict[str, Any] = field(default_factory=dict)


@public
class Calibrator(nn.Module, ABC):
    """A map from logits to calibrated logits.

    Args:
        num_classes: L, at least 2; see the module for one-logit heads.
        ignore_index: Label, or labels, left out of the fit.
        background: Class left out of the fit, except for its pixels near a boundary (the region *All*); None fits on
            every labelled pixel.
    """

    method: ClassVar[str]
    """Its name in `segcal.create`."""

    preserves_labels: bool
    """Whether the predicted label of every pixel is preserved; for most methods a property of the class."""

    activation: Activation = "softmax"
    """Whether its logits are of exclusive classes or of sigmoid channels."""

    context: int | None = 0
    """Reach of a pixel's result, in pixels: 0 for methods that read one pixel at a time, None for whole images."""

    fitted: Tensor
    fit_report_: FitReport
    _known_fitted = False

    def __init__(self, num_classes: int, *, ignore_index: IgnoreIndex = None, background: int | None = None) -> None:
        super().__init__()
        if num_classes < 2:
            raise InputError(
                f"num_classes must be at least 2, got {num_classes}; "
                "for a one-logit (sigmoid) head use segcal.create with num_classes=1"
            )
        if num_classes > MOST_CLASSES:
            raise InputError(f"num_classes must be at most {MOST_CLASSES:,}, got {num_classes}; count the classes")
        # plain numbers and tuples, so that the settings survive a round trip through JSON
        labels = ignored_labels(ignore_index)
        self.ignore_index = labels[0] if isinstance(ignore_index, SupportsIndex) else labels or None
        self.num_classes = int(num_classes)
        self.background = None if background is None else int(background)
        self.register_buffer("fitted", torch.tensor(False))

    @abstractmethod
    def fit(self, cases: Iterable[Case], *, validation: Iterable[Case] | None = None) -> Self:
        """Learn from cases, which are read one at a time."""

    def fit_roughly(self, cases: Iterable[Case], **settings: Any) -> Self:
        """Fit as `fit` does, or faster and nearly as well, to compare methods."""
        return self.fit(cases, **settings)

    @abstractmethod
    def calibrate(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return calibrated logits in the precision that suits the method; `forward` does the rest."""

    @with_denormals
    def forward(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return calibrated logits of the same shape and dtype; they are finite, also where a class is impossible."""
        finite = self._checked(logits)
        calibrated = finite_in(self.calibrate(finite, image), logits.dtype)
        return keep_labels(calibrated, logits) if self.preserves_labels else calibrated

    @with_denormals
    def predict_proba(self, logits: Logits, image: Image | None = None) -> Probs:
        """Return calibrated probabilities of the same shape and dtype as the logits."""
        calibrated = self.calibrate(self._checked(logits), image)
        probs = probabilities(finite_in(calibrated, calibrated.dtype)).to(logits.dtype)
        return keep_labels(probs, logits) if self.preserves_labels else probs

    def calibrate_case(self, case: Case) -> Iterator[tuple[Slab, Logits]]:
        """Yield the calibrated logits of a case slab by slab: the slab as read, and the result of its inner slices.

        Those of a case in half precision are float32, so that what is measured and written is not rounded to it.
        """
        if self.context is None:
            raise NotImplementedError(f"{type(self).__name__} reads whole images and must define how it reads slabs")
        for slab in slabs_of(case, self.num_classes, context=self.context, device=self.fitted.device):
            with torch.no_grad():  # never around a yield: the mode would leak to the caller
                calibrated = self(at_least_float32(slab.logits), slab.image)[:, :, slab.inner]
            yield slab, calibrated

    @property
    def fit_settings(self) -> frozenset[str]:
        """Names of the arguments of `fit` besides the cases."""
        return frozenset(inspect.signature(self.fit).parameters) - {"cases", "validation"}

    @property
    def applied(self) -> Calibrator:
        """The calibrator that does the work: itself, or the one that it has chosen."""
        return self

    def fit_labels(self, case: Case) -> Tensor:
        """Return labels `[1, *S]` with -1 at every pixel that the fit leaves out.

        The content of the case is noted for the report of the fit: every fit reads its cases through here.
        """
        labels = labels_of(case, self.num_classes, self.ignore_index)
        self._note(case)
        if self.background is None:  # ignored pixels are -1 already
            return labels.to(self.fitted.device)
        inside = foreground(labels, IGNORED, background=self.background)
        # numpy, because small operations wake PyTorch's threads, which then spin
        kept = np.where(inside.cpu().numpy(), labels.cpu().numpy(), IGNORED)
        return torch.from_numpy(kept).to(self.fitted.device)

    @property
    def learned(self) -> int:
        """Number of learned values: all that it saves."""
        return sum(values.numel() for name, values in self.state_dict().items() if name != "fitted")

    def _main_numbers(self) -> dict[str, object]:
        """What the repr of a fitted calibrator shows; methods override it."""
        report = getattr(self, "fit_report_", None)
        return {"nll_before": report.nll_before, "nll_after": report.nll_after} if report else {}

    def __repr__(self) -> str:
        """Method and main numbers instead of PyTorch's tree of modules."""
        numbers = self._main_numbers() if self.fitted else {}
        shown = [f"{k}={f'{v:.4g}' if isinstance(v, float) else v}" for k, v in numbers.items()]
        state = [] if self.fitted else ["not fitted"]
        return f"{type(self).__name__}({', '.join([f'num_classes={self.num_classes}', *shown, *state])})"

    def config(self) -> dict[str, Any]:
        """Return the arguments that build an equal, unfitted calibrator."""
        names = [name for name in inspect.signature(type(self).__init__).parameters if name != "self"]
        return {name: getattr(self, name) for name in names}

    def identity(self) -> str:
        """Return a hash of settings, learned values and engine: calibrators with the same one give the same bits."""
        about = [self.method, self.config(), engine_for(self.fitted)]
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for name, value in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:32]

    def save(self, path: str | Path) -> None:
        """Write the folder `path`: settings and report as JSON, learned values as safetensors."""
        self._check_fitted()
        with staged_folder(path) as folder:
            write_calibrator(self, folder)

    def wrong_values(self) -> str | None:
        """Return what makes learned values unusable, if anything does; asked after loading, when all are numbers."""
        return None

    def _note(self, case: Case) -> None:
        """Keep the content of a case with labels, and a doubt about its logits, until the fit is reported."""
        prints, doubts = self._noted()
        if case.name not in prints and (doubt := probability_doubt(case.logits)):
            doubts[doubt] = ""
        if case.labels is not None:
            prints[case.name] = fingerprint(case.logits, case.labels)

    def _noted(self) -> tuple[dict[str, str], dict[str, str]]:
        """The content of cases that were read since the last fit by name, and doubts about them."""
        noted: tuple[dict[str, str], dict[str, str]] = self.__dict__.setdefault("_notes", ({}, {}))
        return noted

    def _finish(self, report: FitReport) -> Self:
        prints, doubts = self._noted()
        if prints and not report.fingerprints:  # a report that was taken over from another calibrator has them
            report = replace(report, fingerprints=tuple(prints.get(name, "") for name in report.names))
        for doubt in doubts:
            if not any(doubt in text for text in report.warnings):  # one that was taken over may be quoted
                warnings.warn(doubt, CalibrationWarning, stacklevel=3)
                report = replace(report, warnings=(*report.warnings, doubt))
        prints.clear()
        doubts.clear()
        self.fit_report_ = report
        self.fitted.fill_(True)
        self.requires_grad_(False)
        return self

    def _check_fitted(self) -> None:
        if torch.compiler.is_compiling() or self._known_fitted:  # an exported graph cannot raise
            return
        if not self.fitted:
            raise InputError(f"this {type(self).__name__} has not been fitted; call fit, or load a fitted one")
        self._known_fitted = True  # to read `fitted` each time would wait for a GPU

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move to another device but keep the precision of learned values, which `Module.half` would change.

        Edges of bins and temperatures are few, and rounding them changes probabilities. Logits of any precision can be
        calibrated as it is.
        """

        def keeping_precision(values: Tensor) -> Tensor:
            moved = fn(values)
            return moved if moved.dtype == values.dtype else values.to(moved.device)

        return super()._apply(keeping_precision, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self._known_fitted = False
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _check(self, logits: Tensor) -> None:
        self._check_fitted()
        if logits.ndim < 2 or logits.shape[1] != self.num_classes:
            raise InputError(
                f"logits must have shape (B, {self.num_classes}, *S), got {tuple(logits.shape)}; "
                f"this {type(self).__name__} was built for num_classes={self.num_classes}"
            )

        if self.context == 0 or torch.compiler.is_compiling():
            return
        dims = getattr(self, "spatial_dims", None)
        if dims is not None and logits.ndim != dims + 2:
            raise InputError(
                f"logits must have shape (B, {self.num_classes}, *S) with {dims} axes in S, got {tuple(logits.shape)}; "
                "set spatial_dims"
            )
        if 0 in logits.shape[2:]:
            raise InputError(f"logits must have a pixel along each axis, got shape {tuple(logits.shape)}; crop less")

    def _checked(self, logits: Tensor) -> Tensor:
        """Return logits that are all finite: minus infinity is replaced, NaN and plus infinity are refused."""
        self._check(logits)
        return check_logits(logits, self.num_classes, class_axis=1)


class TemperatureCalibrator(Calibrator):
    """A calibrator that divides the logits of each pixel by one positive number, and so keeps every label.

    Args:
        num_classes: L.
        ignore_index: Label, or labels, left out of the fit.
        background: Class left out of the fit, except for its pixels near a boundary.
        bounds: Smallest and largest temperature. Far outside the default, float32 cannot tell logits apart any more.
    """

    preserves_labels = True

    @property
    def only_divides(self) -> bool:
        """Whether dividing by the temperature is all that it does to the logits."""
        return True

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: IgnoreIndex = None,
        background: int | None = None,
        bounds: tuple[float, float] = (0.05, 100.0),
    ) -> None:
        super().__init__(num_classes, ignore_index=ignore_index, background=background)
        if len(bounds) != 2:
            raise InputError(f"bounds must be two numbers, got {tuple(bounds)}")
        low, high = (float(bound) for bound in bounds)
        if not 0 < low <= high < float("inf"):
            raise InputError(f"bounds must be positive, finite and in order, got {tuple(bounds)}")
        if low < LEAST_TEMPERATURE or high > LARGEST_TEMPERATURE:  # float32 can neither hold nor invert them all
            raise InputError(f"bounds must lie in {LEAST_TEMPERATURE:g}..{LARGEST_TEMPERATURE:g}, got {tuple(bounds)}")
        self.bounds = (low, high)

    @abstractmethod
    def temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        """Return the temperature of each pixel, within the bounds: `[B, 1, *S]`."""

    def temperature_of(self, logits: Logits, image: Image | None = None) -> Temperature:
        """Return what `temperature` returns, for callers that themselves refuse logits that are not finite.

        Methods that compute it from the logits override it, and leave the check to kernels that look for NaN as they
        read (`functional.division.kernels_check_finite`): a pass for the check alone takes as long as the calibration.
        """
        return self.temperature(logits, image)

    def _refusing_temperature(self, logits: Logits, image: Image | None) -> Temperature:
        """Return `temperature_of`; raise for logits that it has found not to be finite."""
        self._check(logits)
        found = self.temperature_of(logits, image)
        if found_nonfinite(logits):
            self._checked(logits)  # raises, and says where
        return found

    def temperature_case(self, case: Case) -> Iterator[tuple[Slab, Temperature]]:
        """Yield the temperatures of a case slab by slab: the slab as read, and those of its inner slices."""
        if self.context is None:
            raise NotImplementedError(f"{type(self).__name__} reads whole images and must define how it reads slabs")
        for slab in slabs_of(case, self.num_classes, context=self.context, device=self.fitted.device):
            self._check(slab.logits)
            with torch.no_grad():
                temperature = self.temperature_of(slab.logits, slab.image)[:, :, slab.inner]
            yield slab, temperature
            del slab  # before the next is read

    def calibrate(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return the logits divided by the temperature."""
        return divided(logits, self.temperature(logits, image))

    def forward(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return calibrated logits of the same shape and dtype; they are finite, also where a class is impossible."""
        return self._with_finite(logits, lambda finite: self.scale(finite, self.temperature_of(finite, image)))

    def predict_proba(self, logits: Logits, image: Image | None = None) -> Probs:
        """Return calibrated probabilities of the same shape and dtype as the logits."""
        return self._with_finite(
            logits, lambda finite: scaled_probabilities(finite, self.temperature_of(finite, image))
        )

    def calibrate_case(self, case: Case) -> Iterator[tuple[Slab, Logits]]:
        """Yield the calibrated logits of a case slab by slab: the slab as read, and the result of its inner slices."""
        for slab, temperature in self.temperature_case(case):
            yield slab, self.scale(at_least_float32(slab.logits[:, :, slab.inner]), temperature)
            del slab

    def scale(self, logits: Logits, temperature: Temperature) -> Logits:
        """Return the logits divided by known temperatures, in their own precision, with every label kept."""
        return scaled_logits(logits, temperature)

    def _with_finite(self, logits: Logits, compute: Callable[[Logits], Tensor]) -> Tensor:
        """Return `compute(logits)`, which refuses logits that are not finite; impossible classes are then replaced.

        Looking for them beforehand would take another pass over the logits. A graph that is compiled or exported cannot
        look, and replaces them in any case.
        """
        self._check(logits)
        if torch.compiler.is_compiling():
            return compute(self._checked(logits))
        try:
            return compute(logits)
        except NotFiniteError:
            return keep_labels(compute(self._checked(logits)), logits)
