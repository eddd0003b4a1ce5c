"""The contract of every calibrator: fit on cases, map logits to calibrated logits, save and load without pickle."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, SupportsIndex

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from segcal.cases import Slab, labels_of, slabs_of
from segcal.files import MARKER, staged_folder, write_json
from segcal.functional.checks import IGNORED, ignored_labels
from segcal.functional.division import divided, finite_in, scaled_logits, scaled_probabilities
from segcal.functional.probability import keep_labels, probabilities
from segcal.regions import foreground
from segcal.types import Case, IgnoreIndex, Image, InputError, Logits, Probs, Temperature
from segcal.version import __version__

FORMAT = 1
"""Version of the saved form; raised when an older segcal could not read a newer file."""

WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class FitReport:
    """What a fit did. NLL is the mean over the fitted pixels, in nats."""

    cases: int
    pixels: int
    nll_before: float
    nll_after: float
    steps: int
    seconds: float
    converged: bool
    warnings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Of the cases fitted on, so that an evaluation on the same ones can say so."""
    details: dict[str, Any] = field(default_factory=dict)


class Calibrator(nn.Module, ABC):
    """A map from logits to calibrated logits.

    Args:
        num_classes: L.
        ignore_index: Label, or labels, left out of the fit.
        background: Class left out of the fit but for its pixels near a boundary (the region *All*); None fits on every
            labelled pixel.
    """

    method: ClassVar[str]
    """The name by which `segcal.create` knows it."""

    preserves_labels: bool
    """Whether the predicted label of every pixel stays what it was; for most methods a fact of the class."""

    context: int | None = 0
    """How far a pixel's result looks, in pixels: 0 for methods that see one pixel at a time, None for whole images."""

    fitted: Tensor
    fit_report_: FitReport

    def __init__(self, num_classes: int, *, ignore_index: IgnoreIndex = None, background: int | None = None) -> None:
        super().__init__()
        if num_classes < 1:
            raise InputError(f"num_classes must be at least 1, got {num_classes}")
        # plain numbers and tuples, so that the settings are the same after a way through JSON
        labels = ignored_labels(ignore_index)
        self.ignore_index = labels[0] if isinstance(ignore_index, SupportsIndex) else labels or None
        self.num_classes = int(num_classes)
        self.background = None if background is None else int(background)
        self.register_buffer("fitted", torch.tensor(False))

    @abstractmethod
    def fit(self, cases: Iterable[Case], *, validation: Iterable[Case] | None = None) -> Self:
        """Learn from cases, which are gone through one at a time."""

    def fit_roughly(self, cases: Iterable[Case], **settings: Any) -> Self:
        """A fit to compare methods by: that of `fit`, or near it and faster where a method knows how."""
        return self.fit(cases, **settings)

    @abstractmethod
    def calibrate(self, logits: Logits, image: Image | None = None) -> Logits:
        """Calibrated logits, in the precision that suits the method; `forward` takes care of the rest."""

    def forward(self, logits: Logits, image: Image | None = None) -> Logits:
        """Calibrated logits of the same shape and dtype."""
        self._check(logits)
        calibrated = finite_in(self.calibrate(logits, image), logits.dtype)
        return keep_labels(calibrated, logits) if self.preserves_labels else calibrated

    def predict_proba(self, logits: Logits, image: Image | None = None) -> Probs:
        """Calibrated probabilities, of the same shape and dtype as the logits."""
        self._check(logits)
        calibrated = self.calibrate(logits, image)
        probs = probabilities(finite_in(calibrated, calibrated.dtype)).to(logits.dtype)
        return keep_labels(probs, logits) if self.preserves_labels else probs

    def calibrate_case(self, case: Case) -> Iterator[tuple[Slab, Logits]]:
        """Calibrated logits of a case, slab by slab: the slab as read, and the result for its inner slices."""
        if self.context is None:
            raise NotImplementedError(f"{type(self).__name__} looks at whole images and must say how it goes by slabs")
        for slab in slabs_of(case, self.num_classes, context=self.context, device=self.fitted.device):
            with torch.no_grad():  # never around a yield: the mode would leak to whoever goes through the slabs
                calibrated = self(slab.logits, slab.image)[:, :, slab.inner]
            yield slab, calibrated

    @property
    def applied(self) -> Calibrator:
        """What does the work: the calibrator itself, or the one that it has chosen."""
        return self

    def fit_labels(self, case: Case) -> Tensor:
        """Labels `[1, *S]` with -1 at every pixel that the fit leaves out."""
        labels = labels_of(case, self.num_classes, self.ignore_index)
        if self.background is None:  # ignored pixels are -1 already
            return labels.to(self.fitted.device)
        inside = foreground(labels, IGNORED, background=self.background)
        # numpy, because small operations wake PyTorch's threads, which then spin
        kept = np.where(inside.cpu().numpy(), labels.cpu().numpy(), IGNORED)
        return torch.from_numpy(kept).to(self.fitted.device)

    @property
    def learned(self) -> int:
        """How many numbers it has learned: all that it saves."""
        return sum(values.numel() for name, values in self.state_dict().items() if name != "fitted")

    def config(self) -> dict[str, Any]:
        """The arguments that build an equal, unfitted calibrator."""
        names = [name for name in inspect.signature(type(self).__init__).parameters if name != "self"]
        return {name: getattr(self, name) for name in names}

    def save(self, path: str | Path) -> None:
        """Write the folder `path`: settings and report as JSON, learned values as safetensors."""
        self._check_fitted()
        with staged_folder(path) as folder:
            report = asdict(self.fit_report_) if hasattr(self, "fit_report_") else None
            content = {"format": FORMAT, "segcal": __version__, "method": self.method}
            write_json(folder / MARKER, {**content, "config": self.config(), "report": report})
            save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / WEIGHTS)

    def _finish(self, report: FitReport) -> Self:
        self.fit_report_ = report
        self.fitted.fill_(True)
        self.requires_grad_(False)
        return self

    def _check_fitted(self) -> None:
        if not torch.compiler.is_compiling() and not self.fitted:  # an exported graph cannot raise
            raise InputError(f"this {type(self).__name__} has not been fitted; call fit or load one that was")

    def _check(self, logits: Tensor) -> None:
        self._check_fitted()
        if logits.ndim < 2 or logits.shape[1] != self.num_classes:
            raise InputError(
                f"logits must have shape (B, {self.num_classes}, *S), got {tuple(logits.shape)}; "
                f"this {type(self).__name__} was built for num_classes={self.num_classes}"
            )


class TemperatureCalibrator(Calibrator):
    """A calibrator that divides the logits of each pixel by one positive number, and so keeps every label.

    Args:
        num_classes: L.
        ignore_index: Label, or labels, left out of the fit.
        background: Class left out of the fit but for its pixels near a boundary.
        bounds: Smallest and largest temperature. Far outside, float32 no longer tells logits apart and labels change.
    """

    preserves_labels = True

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
        self.bounds = (low, high)

    @abstractmethod
    def temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        """The temperature of each pixel, within the bounds: `[B, 1, *S]`."""

    def temperature_case(self, case: Case) -> Iterator[tuple[Slab, Temperature]]:
        """Temperatures of a case, slab by slab: the slab as read, and the temperatures of its inner slices."""
        if self.context is None:
            raise NotImplementedError(f"{type(self).__name__} looks at whole images and must say how it goes by slabs")
        for slab in slabs_of(case, self.num_classes, context=self.context, device=self.fitted.device):
            self._check(slab.logits)
            with torch.no_grad():
                temperature = self.temperature(slab.logits, slab.image)[:, :, slab.inner]
            yield slab, temperature

    def calibrate(self, logits: Logits, image: Image | None = None) -> Logits:
        """Logits divided by the temperature."""
        return divided(logits, self.temperature(logits, image))

    def forward(self, logits: Logits, image: Image | None = None) -> Logits:
        """Calibrated logits of the same shape and dtype."""
        self._check(logits)
        return self.scale(logits, self.temperature(logits, image))

    def predict_proba(self, logits: Logits, image: Image | None = None) -> Probs:
        """Calibrated probabilities, of the same shape and dtype as the logits."""
        self._check(logits)
        return scaled_probabilities(logits, self.temperature(logits, image))

    def calibrate_case(self, case: Case) -> Iterator[tuple[Slab, Logits]]:
        """Calibrated logits of a case, slab by slab: the slab as read, and the result for its inner slices."""
        for slab, temperature in self.temperature_case(case):
            yield slab, self.scale(slab.logits[:, :, slab.inner], temperature)

    def scale(self, logits: Logits, temperature: Temperature) -> Logits:
        """Logits divided by temperatures that are known, in their own precision and with every label kept."""
        return scaled_logits(logits, temperature)
