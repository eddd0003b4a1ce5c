"""Sigmoid heads of several channels whose classes may overlap: one calibrator per channel, `[B, C, *S]`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator, FitReport
from segcal.calibrators.binary import OneLogit, OneLogitTemperature, one_logit
from segcal.cases import Slab, reread
from segcal.cases.channels import ChannelCases, channel_case
from segcal.functional.probability import log_odds
from segcal.types import Case, Image, InputError, Logits, Probs


class MultiLabel(Calibrator):
    """A calibrator of C sigmoid channels: the same method, fitted for each channel by itself.

    The predicted label of a channel is 1 where its logit is above 0; methods that preserve labels preserve it.

    Args:
        two_class: One unfitted calibrator with `num_classes=2` per channel, all with the same settings.
    """

    activation = "sigmoid"

    def __init__(self, two_class: Sequence[Calibrator]) -> None:
        nn.Module.__init__(self)  # its settings are those of the channels
        first = two_class[0]
        self.channels = nn.ModuleList(one_logit(calibrator) for calibrator in two_class)
        self.method = first.method  # type: ignore[misc]
        self.num_classes, self.preserves_labels = len(two_class), first.preserves_labels
        self.ignore_index, self.background = first.ignore_index, first.background
        self.image_channels = int(getattr(first, "image_channels", 0))
        self.spatial_dims = getattr(first, "spatial_dims", None)
        self.register_buffer("fitted", torch.tensor(False))

    @property
    def heads(self) -> tuple[OneLogit, ...]:
        """The calibrator of each channel."""
        return tuple(cast(OneLogit, head) for head in self.channels)

    @property
    def context(self) -> int | None:  # type: ignore[override]
        """How far a pixel's result looks in the channel that looks furthest; None for whole images."""
        reach = [head.context for head in self.heads]
        return None if None in reach else max(cast(list[int], reach))

    @property
    def learned(self) -> int:
        """Number of learned values."""
        return sum(head.learned for head in self.heads)

    @property
    def fit_settings(self) -> frozenset[str]:
        """Names of the arguments of `fit` besides the cases."""
        return self.heads[0].fit_settings

    def config(self) -> dict[str, Any]:
        """Return the arguments that build an equal, unfitted calibrator."""
        return {**self.heads[0].config(), "num_classes": self.num_classes, "activation": "sigmoid"}

    def channel(self, index: int) -> Calibrator:
        """Return the two-class calibrator of a channel."""
        return self.heads[index].two_class

    def fit(self, cases: Iterable[Case], *, validation: Iterable[Case] | None = None, **settings: Any) -> Self:
        """Fit each channel on cases with logits `[C, *S]` and labels `[C, *S]` of 0 and 1."""
        held_out = None if validation is None else reread(validation)

        def fit_channel(two_class: Calibrator, own: ChannelCases) -> Calibrator:
            checked = None if held_out is None else ChannelCases(held_out, own.channel, own.channels)
            return two_class.fit(own, validation=checked, **settings)

        return self._fit_each(cases, fit_channel)

    def fit_roughly(self, cases: Iterable[Case], **settings: Any) -> Self:
        """Fit as `fit` does, or nearly as well and faster."""
        return self._fit_each(cases, lambda two_class, own: two_class.fit_roughly(own, **settings))

    def _fit_each(self, cases: Iterable[Case], fit: Callable[[Calibrator, ChannelCases], Calibrator]) -> Self:
        kept = reread(cases)
        fitted = [deepcopy(head) for head in self.heads]  # a refused fit leaves what was learned
        for k, head in enumerate(fitted):
            try:
                head._finish(fit(head.two_class, ChannelCases(kept, k, self.num_classes)).fit_report_)
            except InputError as error:
                raise InputError(f"channel {k}: {error}") from error
        self.channels = nn.ModuleList(fitted)
        return self._finish(joint_report([head.fit_report_ for head in fitted]))

    def calibrate(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return calibrated logits in the precision that suits the method."""
        return torch.cat([head.calibrate(own, image) for head, own in self._split(logits)], dim=1)

    def forward(self, logits: Logits, image: Image | None = None) -> Logits:
        """Return calibrated logits, of the same shape and dtype."""
        self._check(logits)
        return torch.cat([head(own, image) for head, own in self._split(logits)], dim=1)

    def predict_proba(self, logits: Logits, image: Image | None = None) -> Probs:
        """Return the calibrated probability of each channel, of the same shape and dtype; they need not sum to 1."""
        self._check(logits)
        return torch.cat([head.predict_proba(own, image) for head, own in self._split(logits)], dim=1)

    def temperature(self, logits: Logits, image: Image | None = None) -> Tensor:
        """Return the temperatures of each channel `[B, C, *S]`, if the method has them."""
        self._check(logits)
        return torch.cat([_tempered(head).temperature(own, image) for head, own in self._split(logits)], dim=1)

    @property
    def has_temperature(self) -> bool:
        """Whether every channel is calibrated by a temperature."""
        return all(isinstance(head.applied, OneLogitTemperature) for head in self.heads)

    def scale(self, logits: Logits, temperature: Tensor) -> Logits:
        """Return the logits divided by known temperatures `[B, C, *S]`, with every label kept."""
        each = zip(self._split(logits), _channels_of(temperature), strict=True)
        return torch.cat([_tempered(head).scale(own, heat) for (head, own), heat in each], dim=1)

    def calibrate_case(self, case: Case) -> Iterator[tuple[Slab, Logits]]:
        """Yield the calibrated logits of a case slab by slab: its inner slices as read, and their result."""
        self._check_fitted()
        parts = [
            head.two_class.calibrate_case(channel_case(case, k, self.num_classes)) for k, head in enumerate(self.heads)
        ]
        for slab, each in _side_by_side(parts):
            yield slab, torch.cat([log_odds(calibrated) for calibrated in each], dim=1)

    def temperature_case(self, case: Case) -> Iterator[tuple[Slab, Tensor]]:
        """Yield the temperatures `[1, C, *S]` of a case slab by slab, if the method has them."""
        self._check_fitted()
        parts = [
            _tempered(head).two_class.temperature_case(channel_case(case, k, self.num_classes))
            for k, head in enumerate(self.heads)
        ]
        for slab, each in _side_by_side(parts):
            yield slab, torch.cat(list(each), dim=1)

    def _split(self, logits: Logits) -> Iterator[tuple[OneLogit, Logits]]:
        return zip(self.heads, _channels_of(logits), strict=True)


def joint_report(reports: Sequence[FitReport]) -> FitReport:
    """Return the report of all channels together: pixels are counted once per channel, NLL is their mean."""
    pixels = sum(report.pixels for report in reports)

    def mean(nll: str) -> float:
        return float(sum(getattr(report, nll) * report.pixels for report in reports) / pixels)

    return FitReport(
        cases=reports[0].cases,
        pixels=pixels,
        nll_before=mean("nll_before"),
        nll_after=mean("nll_after"),
        steps=sum(report.steps for report in reports),
        seconds=sum(report.seconds for report in reports),
        converged=all(report.converged for report in reports),
        warnings=tuple(f"channel {k}: {text}" for k, report in enumerate(reports) for text in report.warnings),
        names=reports[0].names,
        fingerprints=reports[0].fingerprints,
        details={f"channel {k}": report.details for k, report in enumerate(reports)},
    )


def _channels_of(values: Tensor) -> list[Tensor]:
    """Return values `[B, C, *S]` as a `[B, 1, *S]` of each channel."""
    return [values[:, k : k + 1] for k in range(values.shape[1])]


def _tempered(head: OneLogit) -> OneLogitTemperature:
    applied = head.applied
    if not isinstance(applied, OneLogitTemperature):
        raise InputError(f"'{applied.method}' has no temperature; use forward or predict_proba")
    return applied


def _side_by_side(parts: Sequence[Iterator[tuple[Slab, Tensor]]]) -> Iterator[tuple[Slab, list[Tensor]]]:
    """Yield the inner slices of all channels together, and the result of each channel.

    Channels may look at different distances (`auto` chooses for each), so only the inner slices agree.
    """
    for each in zip(*parts, strict=True):
        slabs = [slab for slab, _ in each]
        first, rows = slabs[0], slabs[0].inner_rows
        logits = torch.cat([slab.logits[:, 1:, slab.inner] for slab in slabs], dim=1)
        image = None if first.image is None else first.image[:, :, first.inner]
        yield Slab(logits, None, image, rows, slice(0, rows.stop - rows.start)), [result for _, result in each]
