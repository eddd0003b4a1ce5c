"""One-logit heads: networks that end in a sigmoid, `[B, 1, *S]`, calibrated exactly as two-class logits `[0, z]`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self, cast, overload

import numpy as np
import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator, TemperatureCalibrator
from segcal.cases import Slab, reread
from segcal.data.io.base import split_index
from segcal.functional.probability import log_odds, two_class_logits
from segcal.types import Array, Case, Image, InputError, Logits, Probs, Temperature


class OneLogit(Calibrator):
    """A calibrator of one-logit heads: a two-class calibrator that reads and returns one channel.

    Args:
        two_class: Calibrator with `num_classes=2` that does the work.
    """

    def __init__(self, two_class: Calibrator) -> None:
        nn.Module.__init__(self)  # the base class would refuse one class
        self.two_class = two_class
        self.method = two_class.method  # type: ignore[misc]
        self.num_classes, self.preserves_labels = 1, two_class.preserves_labels
        self.ignore_index, self.background = two_class.ignore_index, two_class.background
        self.image_channels = int(getattr(two_class, "image_channels", 0))
        self.spatial_dims = getattr(two_class, "spatial_dims", None)
        self.register_buffer("fitted", torch.tensor(False))

    @property
    def context(self) -> int | None:  # type: ignore[override]
        """How far a pixel's result looks."""
        return self.two_class.context

    @property
    def learned(self) -> int:
        """Number of learned values."""
        return self.two_class.learned

    def wrong_values(self) -> str | None:
        """Return what makes learned values unusable, if anything does."""
        return self.two_class.wrong_values()

    def config(self) -> dict[str, Any]:
        """Return the arguments that build an equal, unfitted calibrator."""
        return {**self.two_class.config(), "num_classes": 1}

    def fit(self, cases: Iterable[Case], *, validation: Iterable[Case] | None = None, **settings: Any) -> Self:
        """Fit on cases with logits `[1, *S]` and labels 0 and 1."""
        held_out = None if validation is None else _TwoClassCases(validation)
        self.two_class.fit(_TwoClassCases(cases), validation=held_out, **settings)
        return self._finish(self.two_class.fit_report_)

    def fit_roughly(self, cases: Iterable[Case], **settings: Any) -> Self:
        """Fit as `fit` does, or nearly and faster."""
        self.two_class.fit_roughly(_TwoClassCases(cases), **settings)
        return self._finish(self.two_class.fit_report_)

    def calibrate(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return the calibrated logit in the precision that suits the method."""
        return log_odds(self.two_class.calibrate(two_class_logits(logits), image))

    def forward(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return the calibrated logit, of the same shape and dtype."""
        self._check(logits)
        return log_odds(self.two_class(two_class_logits(logits), image))

    def predict_proba(self, logits: Logits, image: Image | None = None) -> Probs:
        """Return the calibrated probability of class 1, of the same shape and dtype; above 0.5 where class 1 wins."""
        self._check(logits)
        probs = self.two_class.predict_proba(two_class_logits(logits), image)[:, 1:]
        if not self.preserves_labels:
            return probs
        half = 0.5 * torch.ones_like(probs)
        return torch.where((logits > 0) & (probs <= half), half + torch.finfo(probs.dtype).eps / 2, probs)

    def calibrate_case(self, case: Case) -> Iterator[tuple[Slab, Logits]]:
        """Yield the calibrated logit of a case slab by slab: the slab as read, and the result of its inner slices."""
        self._check_fitted()
        for slab, logits in self.two_class.calibrate_case(_two_class(case)):
            yield slab._replace(logits=slab.logits[:, 1:]), log_odds(logits)

    def fit_labels(self, case: Case) -> Tensor:
        """Return labels `[1, *S]` with -1 at every pixel that the fit leaves out."""
        return self.two_class.fit_labels(_two_class(case))


class OneLogitTemperature(OneLogit, TemperatureCalibrator):
    """The same for methods that divide the logits by a temperature."""

    two_class: TemperatureCalibrator

    def __init__(self, two_class: TemperatureCalibrator) -> None:
        super().__init__(two_class)
        self.bounds = two_class.bounds

    def temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        """Return the temperature of each pixel, within the bounds."""
        self._check(logits)
        return self.two_class.temperature(two_class_logits(logits), image)

    def temperature_case(self, case: Case) -> Iterator[tuple[Slab, Temperature]]:
        """Yield the temperatures of a case slab by slab."""
        self._check_fitted()
        for slab, temperature in self.two_class.temperature_case(_two_class(case)):
            yield slab._replace(logits=slab.logits[:, 1:]), temperature

    def scale(self, logits: Logits, temperature: Temperature) -> Logits:
        """Return the logit divided by known temperatures, with every label kept."""
        return log_odds(self.two_class.scale(two_class_logits(logits), temperature))


def one_logit(two_class: Calibrator) -> OneLogit:
    """Return the calibrator of one-logit heads that works as a two-class calibrator does."""
    if isinstance(two_class, TemperatureCalibrator):
        return OneLogitTemperature(two_class)
    return OneLogit(two_class)


class _TwoClassArray:
    """Scores `[1, *S]`, possibly on disk, as the two-class scores `[0, z]`; only what is indexed is read."""

    def __init__(self, one: Array | Tensor) -> None:
        self.one = one
        self.shape, self.dtype, self.ndim = (2, *one.shape[1:]), one.dtype, len(one.shape)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: Any) -> Array | Tensor:
        classes, space = split_index(key, self.ndim)
        part: Any = self.one[(slice(None), *space)]
        both: Array | Tensor
        if isinstance(part, Tensor):
            both = torch.cat([torch.zeros_like(part), part])
        else:
            both = np.concatenate([np.zeros_like(part), part])
        return both[classes]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)


class _TwoClassCases(Sequence[Case]):
    """Cases of a one-logit head as two-class cases, each converted when it is asked for."""

    def __init__(self, cases: Iterable[Case]) -> None:
        kept = reread(cases)
        self._cases = kept if isinstance(kept, Sequence) else list(kept)

    def __len__(self) -> int:
        return len(self._cases)

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> _TwoClassCases: ...
    def __getitem__(self, index: int | slice) -> Case | _TwoClassCases:
        """Return one case, or some of them."""
        if isinstance(index, slice):
            return _TwoClassCases(self._cases[index])
        return _two_class(self._cases[index])


def _two_class(case: Case) -> Case:
    shape = tuple(case.logits.shape)
    if len(shape) < 2 or shape[0] != 1:
        raise InputError(
            f"logits must have shape (1, *S) with num_classes=1, got {shape} of case '{case.name}'; set num_classes"
        )
    return replace(case, logits=cast(Array, _TwoClassArray(case.logits)))
