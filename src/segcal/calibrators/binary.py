"""One-logit heads: networks that end in a sigmoid, `[B, 1, *S]`, calibrated exactly as two-class logits `[0, z]`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator, TemperatureCalibrator
from segcal.cases import Slab
from segcal.cases.channels import ChannelCases, channel_case
from segcal.functional.probability import keep_sides, log_odds, two_class_logits
from segcal.types import Case, Image, Logits, Probs, Temperature


class OneLogit(Calibrator):
    """A calibrator of one-logit heads: a two-class calibrator that reads and returns one channel.

    Args:
        two_class: Calibrator with `num_classes=2` that does the work.
    """

    activation = "sigmoid"

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
    def fit_settings(self) -> frozenset[str]:
        """Names of the arguments of `fit` besides the cases."""
        return self.two_class.fit_settings

    @property
    def applied(self) -> OneLogit:
        """The calibrator that does the work: itself, or the one of the method that was chosen."""
        chosen = self.two_class.applied
        if chosen is self.two_class:
            return self
        applied = one_logit(chosen)
        applied.fitted.fill_(True)
        return applied

    def channel(self, index: int) -> Calibrator:
        """Return the two-class calibrator of the channel."""
        return (self.two_class,)[index]

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
        held_out = None if validation is None else ChannelCases(validation)
        self.two_class.fit(ChannelCases(cases), validation=held_out, **settings)
        return self._finish(self.two_class.fit_report_)

    def fit_roughly(self, cases: Iterable[Case], **settings: Any) -> Self:
        """Fit as `fit` does, or nearly and faster."""
        self.two_class.fit_roughly(ChannelCases(cases), **settings)
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
        return keep_sides(probs, logits) if self.preserves_labels else probs

    def calibrate_case(self, case: Case) -> Iterator[tuple[Slab, Logits]]:
        """Yield the calibrated logit of a case slab by slab: the slab as read, and the result of its inner slices."""
        self._check_fitted()
        for slab, logits in self.two_class.calibrate_case(channel_case(case)):
            yield slab._replace(logits=slab.logits[:, 1:]), log_odds(logits)

    def fit_labels(self, case: Case) -> Tensor:
        """Return labels `[1, *S]` with -1 at every pixel that the fit leaves out."""
        return self.two_class.fit_labels(channel_case(case))


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
        for slab, temperature in self.two_class.temperature_case(channel_case(case)):
            yield slab._replace(logits=slab.logits[:, 1:]), temperature

    def scale(self, logits: Logits, temperature: Temperature) -> Logits:
        """Return the logit divided by known temperatures, with every label kept."""
        return log_odds(self.two_class.scale(two_class_logits(logits), temperature))


def one_logit(two_class: Calibrator) -> OneLogit:
    """Return the calibrator of one-logit heads that works as a two-class calibrator does."""
    if isinstance(two_class, TemperatureCalibrator):
        return OneLogitTemperature(two_class)
    return OneLogit(two_class)
