"""Heads to measure: the classes of a softmax, or each channel of a sigmoid head as a problem of two classes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from segcal.calibrators import Calibrator, SigmoidHead
from segcal.cases import CaseStream, as_collection
from segcal.cases.channels import ChannelCases, channel_case
from segcal.evaluation.methods import Method, calibrated_slabs
from segcal.evaluation.protocol import Protocol
from segcal.functional.probability import two_class_logits
from segcal.types import Case, Logits

if TYPE_CHECKING:  # readers of pictures are not needed to measure
    from segcal.data.folders.folder import Folder


@dataclass(frozen=True)
class ExclusiveHead:
    """A problem of exclusive classes: a softmax as it is, or one channel of a sigmoid head.

    Attributes:
        name: Name of the channel; "" for a softmax.
        protocol: How it is measured; a channel has two classes.
        channel: Index of the channel.
        channels: Number of channels; 0 for a softmax.
    """

    name: str
    protocol: Protocol
    channel: int = 0
    channels: int = 0

    def case(self, case: Case) -> Case:
        """Return a case as this head sees it."""
        return channel_case(case, self.channel, self.channels) if self.channels else case

    def cases(self, cases: Iterable[Case]) -> Collection[Case]:
        """Return cases as this head sees them, each converted on access."""
        return (
            ChannelCases(as_collection(cases), self.channel, self.channels) if self.channels else as_collection(cases)
        )

    @property
    def structures(self) -> tuple[int, ...]:
        """Classes whose segmentation is measured: the channel, or every class except the background.

        A class that is called "background", as that of nnU-Net is, is no structure either.
        """
        if self.channels:
            return (1,)
        names, background = self.protocol.names, self.protocol.background
        return tuple(k for k, name in enumerate(names) if k != background and name.lower() != "background")

    def method(self, method: Method, case: Case) -> Method:
        """Return a method as this head sees it on a case: a function is given the scores of all channels."""
        if isinstance(method, SigmoidHead):
            return method.channel(self.channel)
        if method is None or isinstance(method, Calibrator) or not self.channels:
            return method
        return self._channel_of(method, case)

    def calibrator(self, calibrator: Calibrator | None) -> Calibrator | None:
        """Return the calibrator of this head."""
        return calibrator.channel(self.channel) if isinstance(calibrator, SigmoidHead) else calibrator

    def _channel_of(self, function: Callable[[Logits], Logits], case: Case) -> Callable[[Logits], Logits]:
        def calibrated(_view: Logits) -> Logits:
            stream = CaseStream([case], self.channels, device=_view.device, labelled=False)
            ((_rows, whole, _none),) = calibrated_slabs(stream[0], function)
            return two_class_logits(whole[:, self.channel : self.channel + 1])

        return calibrated


def heads_of(protocol: Protocol) -> list[ExclusiveHead]:
    """Return the heads that a protocol measures: one for a softmax, one per channel of a sigmoid head."""
    if protocol.activation != "sigmoid":
        return [ExclusiveHead("", protocol)]
    count = protocol.num_classes
    pairs = [protocol.names] if count == 1 else [(f"not {name}", name) for name in protocol.names]
    return [
        ExclusiveHead(pair[1], replace(protocol, num_classes=2, activation="softmax", class_names=pair), k, count)
        for k, pair in enumerate(pairs)
    ]


def heads_of_folder(folder: Folder) -> list[ExclusiveHead]:
    """Return the heads that the scores of a folder hold."""
    return heads_of(
        Protocol(
            num_classes=folder.num_classes,
            activation=folder.activation,
            ignore_index=folder.ignore_index,
            background=folder.background,
            class_names=folder.class_names,
        )
    )
