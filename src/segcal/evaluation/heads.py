"""What is measured: the classes of a softmax, or each channel of a sigmoid head as a problem of two classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from segcal.calibrators import Calibrator, MultiLabel, OneLogit
from segcal.calibrators.channels import ChannelCases, channel_case
from segcal.cases import reread
from segcal.data.folders.folder import Folder
from segcal.evaluation.protocol import Protocol
from segcal.types import Case, InputError

Calibrators = Mapping[str, Calibrator | None]


@dataclass(frozen=True)
class Head:
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

    def cases(self, cases: Iterable[Case]) -> Iterable[Case]:
        """Return cases as this head sees them, each converted on access."""
        return ChannelCases(reread(cases), self.channel, self.channels) if self.channels else cases

    def calibrators(self, calibrators: Calibrators) -> dict[str, Calibrator | None]:
        """Return the calibrators of this head."""
        return {name: self._own(calibrator) for name, calibrator in calibrators.items()}

    def _own(self, calibrator: Calibrator | None) -> Calibrator | None:
        return calibrator.channel(self.channel) if isinstance(calibrator, OneLogit | MultiLabel) else calibrator


def heads_of(protocol: Protocol) -> list[Head]:
    """Return the heads that a protocol measures: one for a softmax, one per channel of a sigmoid head."""
    if protocol.activation != "sigmoid":
        return [Head("", protocol)]
    count = protocol.num_classes
    pairs = [protocol.names] if count == 1 else [(f"not {name}", name) for name in protocol.names]
    return [
        Head(pair[1], replace(protocol, num_classes=2, activation="softmax", class_names=pair), k, count)
        for k, pair in enumerate(pairs)
    ]


def heads_of_folder(folder: Folder) -> list[Head]:
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


def check_calibrators(calibrators: Calibrators, protocol: Protocol) -> None:
    """Raise unless every calibrator was built for such a head."""
    for name, calibrator in calibrators.items():
        if calibrator is None:
            continue
        if calibrator.num_classes != protocol.num_classes:
            raise InputError(
                f"calibrator '{name}' was built for num_classes={calibrator.num_classes}, "
                f"got num_classes={protocol.num_classes}; fit one on data with as many classes"
            )
        if calibrator.activation != protocol.activation:
            raise InputError(
                f"calibrator '{name}' was built for activation='{calibrator.activation}', "
                f"got activation='{protocol.activation}'; set activation, or fit one on such data"
            )
