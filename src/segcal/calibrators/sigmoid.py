"""Calibrators of sigmoid heads: one channel `[B, 1, *S]`, or several that may overlap `[B, C, *S]`.

Each channel is calibrated by a two-class calibrator of the logits `[0, z]` (`cases.channels`), whose softmax is
`[1 - sigmoid(z), sigmoid(z)]`. `forward` returns one calibrated logit per channel (the log-odds), `predict_proba` one
probability, and `temperature` one temperature. The predicted label of a channel is 1 where its logit is above 0, or its
probability above 0.5; methods that preserve labels preserve it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator
from segcal.calibrators.report import FitReport, Learned
from segcal.calibrators.slabs import CalibratedSlab
from segcal.cases import CaseStream, StreamedCase
from segcal.cases.channels import channel_case, channel_cases
from segcal.cases.collections import as_collection
from segcal.functional.arrays import to_tensor
from segcal.functional.probability import keep_sides, log_odds, two_class_logits
from segcal.types import Case, Image, InputError, Logits, Passes, Probs, Slab

_ROUNDING = 1e-4
"""Difference of calibrated logits up to which two channels count as equal."""


class SigmoidHead(Calibrator):
    """A calibrator of C sigmoid channels: the same method, fitted separately for each channel.

    Args:
        channels: One unfitted calibrator with `num_classes=2` per channel, all with the same settings.
    """

    activation = "sigmoid"

    def __init__(self, channels: Sequence[Calibrator]) -> None:
        nn.Module.__init__(self)  # its settings are those of the channels
        first = channels[0]
        self.channels = nn.ModuleList(channels)
        self.method = first.method  # type: ignore[misc]
        self.num_classes, self.preserves_labels = len(channels), first.preserves_labels
        self.ignore_index, self.background = first.ignore_index, first.background
        self.image_channels, self.spatial_dims = first.image_channels, first.spatial_dims
        self.fit_settings, self.reads_passes = first.fit_settings, first.reads_passes
        self.register_buffer("fitted", torch.tensor(False))

    def channel(self, index: int) -> Calibrator:
        """Return the two-class calibrator of a channel."""
        return cast(Calibrator, self.channels[index])

    @property
    def context(self) -> int:  # type: ignore[override]
        """Reach of a pixel's result, in the channel that looks furthest."""
        return max(channel.context for channel in self.parts)

    @property
    def parts(self) -> Sequence[Calibrator]:
        """The calibrators of the channels."""
        return [self.channel(k) for k in range(self.num_classes)]

    def config(self) -> dict[str, Any]:
        """Return the arguments that build an equal, unfitted calibrator."""
        return {**self.channel(0).config(), "num_classes": self.num_classes, "activation": "sigmoid"}

    def forward(self, logits: Logits, image: Image | None = None, passes: Passes | None = None) -> Logits:
        """Return calibrated logits of the same shape and dtype."""
        self._check(logits, image)
        parts = [channel(z, image, own) for channel, z, own in self._split(logits, passes)]
        return torch.cat([log_odds(part) for part in parts], dim=1)

    def predict_proba(self, logits: Logits, image: Image | None = None, passes: Passes | None = None) -> Probs:
        """Return the probability of each channel, of the same shape and dtype as the logits; they need not sum to 1."""
        self._check(logits, image)
        parts = [channel.predict_proba(z, image, own) for channel, z, own in self._split(logits, passes)]
        probs = torch.cat([part[:, 1:] for part in parts], dim=1)
        return keep_sides(probs, logits) if self.preserves_labels else probs

    def temperature(self, logits: Logits, image: Image | None = None) -> Tensor:
        """Return the temperature of each channel `[B, C, *S]`, within the bounds."""
        self._check(logits, image)
        if not self.has_temperature:
            raise InputError(f"'{self.method}' has no temperature; use forward or predict_proba")
        return torch.cat([cast(Any, channel).temperature(z, image) for channel, z, _ in self._split(logits)], dim=1)

    def calibrate_case(self, case: Case | StreamedCase) -> Iterator[CalibratedSlab]:
        """Yield a case slab by slab, all channels together."""
        self._check_fitted()
        yield from self._slabs(case.case if isinstance(case, StreamedCase) else case)

    def _slabs(self, own: Case) -> Iterator[CalibratedChannels]:
        views = [channel_case(own, k, self.num_classes) for k in range(self.num_classes)]
        slabs = [channel.calibrate_case(view) for channel, view in zip(self.parts, views, strict=True)]
        for parts in zip(*slabs, strict=True):
            yield CalibratedChannels(self, parts)
            del parts  # before the next is read

    def _split(
        self, logits: Logits, passes: Passes | None = None
    ) -> Iterator[tuple[Calibrator, Logits, Passes | None]]:
        """Yield the calibrator and the two-class logits of each channel, and of its passes."""
        for k, channel in enumerate(self.parts):
            own = None if passes is None else passes[:, :, k : k + 1]
            both = None if own is None else torch.cat([torch.zeros_like(own), own], dim=2)
            yield channel, two_class_logits(logits[:, k : k + 1]), both

    def _settings(self, given: Any, changes: Mapping[str, Any]) -> Any:
        return self.channel(0)._settings(given, changes)

    def _summary(self) -> dict[str, object]:
        return self.channel(0)._summary() if self.num_classes == 1 else super()._summary()

    def _fit(self, cases: Iterable[Case], validation: Iterable[Case] | None, settings: Any) -> None:
        started, count = perf_counter(), self.num_classes
        kept, held_out = as_collection(cases), None if validation is None else as_collection(validation)
        fitted = deepcopy([*self.parts])  # a refused fit leaves what was learned
        for k, channel in enumerate(fitted):
            checked = None if held_out is None else channel_cases(held_out, k, count)
            try:
                channel._fit(channel_cases(kept, k, count), checked, settings)
            except InputError as error:
                raise (error if count == 1 else InputError(f"channel {k}: {error}")) from error
        self.channels = nn.ModuleList(fitted)
        reports = [channel.fit_report_ for channel in fitted]
        prints = dict(zip(reports[0].names, reports[0].fingerprints, strict=True))
        learned = _joined(reports)
        learned = replace(learned, warnings=(*learned.warnings, *self._lost_nesting(kept)))
        self._finish(learned, reports[0].cases, prints, perf_counter() - started)

    def _lost_nesting(self, cases: Collection[Case]) -> list[str]:
        """Return a warning for each nested pair of channels of which the inner one becomes the more probable one."""
        pairs, found = nested_channels(cases, self.num_classes), list[str]()
        lost, pixels = dict.fromkeys(pairs, 0), 0
        for case in cases if pairs else ():
            for slab in self._slabs(case):
                raw, calibrated = slab.raw[0], slab.logits()[0]
                pixels += raw[0].numel()
                for inner, outer in pairs:
                    kept = calibrated[inner] <= calibrated[outer] + _ROUNDING
                    lost[inner, outer] += int(((raw[inner] <= raw[outer]) & ~kept).sum())
        for (inner, outer), count in lost.items():
            if count:
                found.append(
                    f"channel {inner} lies within channel {outer}, but after calibration it is the more probable one "
                    f"at {count:,} of {pixels:,} pixels; where this matters, use the smaller of the two probabilities"
                )
        return found

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None, settings: Any) -> Learned:
        raise NotImplementedError("each channel learns from its own stream")

    def _map(self, logits: Logits, image: Image | None = None) -> Logits:
        raise NotImplementedError("each channel maps its own logits")


def nested_channels(cases: Iterable[Case], channels: int) -> list[tuple[int, int]]:
    """Return the pairs of channels (inner, outer) of which the inner one lies within the other in all labels.

    Examples:
        >>> labels = np.array([[[1, 1, 1, 0]], [[0, 1, 1, 0]], [[0, 0, 1, 1]]])
        >>> nested_channels([Case("a", np.zeros((3, 1, 4)), labels)], 3)
        [(1, 0)]
    """
    pairs = [(inner, outer) for inner in range(channels) for outer in range(channels) if inner != outer]
    sizes = np.zeros(channels, np.int64)
    for case in cases if channels > 1 else ():
        assert case.labels is not None  # or the channels would not have been fitted
        labels = np.asarray(to_tensor(case.labels))
        inside, outside = labels == 1, labels == 0  # neither where it is ignored
        sizes += inside.reshape(channels, -1).sum(axis=1)
        pairs = [(inner, outer) for inner, outer in pairs if not (inside[inner] & outside[outer]).any()]
    return [(inner, outer) for inner, outer in pairs if 0 < sizes[inner] < sizes[outer]]


class CalibratedChannels(CalibratedSlab):
    """The inner slices of all channels of a slab; channels may look at different distances."""

    def __init__(self, calibrator: SigmoidHead, parts: Sequence[CalibratedSlab]) -> None:
        self.parts, first = parts, parts[0].slab
        rows = first.inner_rows
        logits = torch.cat([part.raw[:, 1:] for part in parts], dim=1)
        image = None if first.image is None else first.image[:, :, first.inner]
        super().__init__(calibrator, Slab(logits, None, image, rows, slice(0, rows.stop - rows.start)))
        heats = [part.temperature for part in parts]
        self.temperature = None if any(heat is None for heat in heats) else torch.cat(cast(list[Tensor], heats), dim=1)

    def disagreement(self) -> Tensor | None:
        """Return the mutual information of each channel `[1, C, *S]`; None without passes."""
        found = [part.disagreement() for part in self.parts]
        return None if any(part is None for part in found) else torch.cat(cast(list[Tensor], found), dim=1)

    def logits(self) -> Logits:
        """Return the calibrated logit of each channel, in at least float32."""
        return torch.cat([log_odds(part.logits()) for part in self.parts], dim=1)

    def probabilities(self) -> Probs:
        """Return the float32 probability of each channel."""
        return torch.cat([part.probabilities()[:, 1:] for part in self.parts], dim=1)


def _joined(reports: Sequence[FitReport]) -> Learned:
    """Return what all channels learned together: pixels are counted once per channel, NLL is their mean."""
    if len(reports) == 1:
        return reports[0].learned()
    pixels = sum(report.pixels for report in reports)

    def mean(nll: Callable[[FitReport], float]) -> float:
        return sum(nll(report) * report.pixels for report in reports) / pixels

    return Learned(
        pixels=pixels,
        nll_before=mean(lambda report: report.nll_before),
        nll_after=mean(lambda report: report.nll_after),
        steps=sum(report.steps for report in reports),
        converged=all(report.converged for report in reports),
        warnings=tuple(f"channel {k}: {text}" for k, report in enumerate(reports) for text in report.warnings),
        details={f"channel {k}": report.details for k, report in enumerate(reports)},
    )
