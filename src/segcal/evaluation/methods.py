"""Methods and metrics of an evaluation as users give them, doubts about them, and how methods map a case.

A head is the classes of a softmax, or one channel of a sigmoid head as a problem of two classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from segcal.calibrators import Calibrator, SigmoidHead
from segcal.cases import CaseStream, StreamedCase, as_collection
from segcal.cases.channels import channel_case, channel_cases
from segcal.evaluation.protocol import Protocol, ProtocolSettings
from segcal.functional.catalogue import CATALOGUE, SURFACES
from segcal.functional.checks import check_logits, probability_doubt
from segcal.functional.probability import two_class_logits
from segcal.text import both_classes, printable
from segcal.types import Case, InputError, Logits

if TYPE_CHECKING:  # readers of pictures are not needed to measure
    from segcal.data.folders.folder import Folder

Method: TypeAlias = Calibrator | Callable[[Logits], Logits] | None
"""A fitted calibrator, a function from logits `[1, L, *S]` to calibrated logits, or None for the scores as they are."""

MetricFunction = Callable[[Float32[Tensor, "L *S"], Int64[Tensor, "*S"]], float]
"""A metric of a user: from probabilities `[L, *S]` and labels `[*S]`, -1 where a pixel is left out, to a number."""

UNCALIBRATED = "UC"

_TAKEN = {name.lower() for metric in (*CATALOGUE.values(), *SURFACES.values()) for name in (metric.name, metric.title)}


def methods_of(given: Mapping[str, Method] | Calibrator) -> Mapping[str, Method]:
    """Return methods by name; one calibrator is compared with the uncalibrated scores."""
    return {UNCALIBRATED: None, given.method.upper(): given} if isinstance(given, Calibrator) else given


def settings_of(given: Mapping[str, Method] | Calibrator, settings: ProtocolSettings) -> ProtocolSettings:
    """Return the settings, with those that one calibrator was built with where they are not given."""
    if not isinstance(given, Calibrator):
        return settings
    own = {name: getattr(given, name) for name in ("num_classes", "activation", "ignore_index", "background")}
    return cast(ProtocolSettings, {**own, **settings})


def check_methods(methods: Mapping[str, Method], protocol: Protocol) -> None:
    """Raise unless every method is a function, or a calibrator that was built for such a head."""
    for name, method in methods.items():
        if method is not None and not callable(method):
            raise InputError(
                f"a method must be a fitted calibrator, a function of logits or None, got {type(method).__name__} for "
                f"'{name}'; load a saved calibrator with segcal.load"
            )
        if isinstance(getattr(method, "calibrator", None), Calibrator):  # a segcal.CalibratedModel
            raise InputError(
                f"a method maps logits to calibrated logits, got {type(method).__name__} for '{name}', which maps "
                f"images to probabilities; give its calibrator: {{'{name}': calibrated.calibrator}}"
            )
        if not isinstance(method, Calibrator):
            continue
        for setting in ("num_classes", "activation"):
            built, wanted = (f"{setting}={getattr(of, setting)!r}" for of in (method, protocol))
            if built != wanted:
                raise InputError(
                    f"calibrator '{name}' was built for {built}, got {wanted}; set {setting}, or fit one on such data"
                )


def chosen_metrics(metrics: Mapping[str, MetricFunction] | None) -> dict[str, MetricFunction]:
    """Return a user's metrics by name; raise unless each is a function under a name that segcal does not use."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise InputError(f"metrics must be a mapping from names to functions, got {type(metrics).__name__}")
    for name, function in metrics.items():
        if not isinstance(name, str) or not name.strip() or printable(name) != name:
            raise InputError(f"the name of a metric must be text that can be printed, got {name!r}; rename it")
        if name.lower() in _TAKEN:
            raise InputError(f"a metric cannot be called '{name}', which segcal defines; choose another name")
        if not callable(function):
            raise InputError(
                f"a metric must be a function of probabilities and labels, got {type(function).__name__} for '{name}'"
            )
    return dict(metrics)


def leaks(methods: Mapping[str, Method], content: Mapping[str, str], consequence: str) -> list[str]:
    """Return a warning for each calibrator that was fitted on some of the cases.

    Args:
        methods: Methods by name; only fitted calibrators can leak.
        content: Fingerprint of each case by its name (`segcal.functional.fingerprint`), "" for none.
        consequence: What follows from it and what to do, as the end of the sentence.
    """
    return [
        f"{name} was fitted on {shared_in_words(shared, len(content))}: {consequence}"
        for name, method in methods.items()
        if (shared := shared_cases(method, content))
    ]


def shared_in_words(shared: int, cases: int) -> str:
    """Return on how many of some cases a method was fitted.

    Examples:
        >>> shared_in_words(2, 3), shared_in_words(3, 3), shared_in_words(1, 1)
        ('2 of these 3 cases', 'all of these 3 cases', 'this case')
    """
    if cases == 1:
        return "this case"
    return f"{'all' if shared == cases else shared} of these {cases} cases"


def shared_cases(method: Method, content: Mapping[str, str]) -> int:
    """Return on how many of the cases, known by their fingerprints, a method was fitted."""
    report = getattr(method, "fit_report_", None)
    known = set() if report is None else {*report.fingerprints} - {""}
    return sum(own in known for own in content.values())


def different_backgrounds(methods: Mapping[str, Method], protocol: Protocol) -> list[str]:
    """Return a warning for each calibrator that was fitted with a background other than the one of the evaluation."""
    found = []
    for name, method in methods.items():
        if isinstance(method, Calibrator) and method.background != protocol.background:
            fitted, measured = (
                "without a background" if own is None else f"with background={own}"
                for own in (method.background, protocol.background)
            )
            found.append(f"{name} was fitted {fitted} and is measured {measured}; use the same for both")
    return found


def stream_for(protocol: Protocol, case: Case, methods: Iterable[Method], *, labelled: bool = True) -> CaseStream:
    """Return a case as a stream of all labelled pixels, with what methods read, on the device of the first if any."""
    known = [method for method in methods if isinstance(method, Calibrator)]
    return CaseStream(
        [case],
        protocol.num_classes,
        ignore_index=protocol.ignore_index,
        device=next((method.fitted.device for method in known), None),
        passes=any(method.reads_passes for method in known),
        labelled=labelled,
    )


def calibrated_slabs(case: StreamedCase, method: Method) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    """Yield the position of each slab of a case, its logits as the method maps them, and its temperatures, if any.

    A function that is not a calibrator may look at any distance, so it is given the whole case.
    """
    if isinstance(method, Calibrator):
        for part in method.calibrate_case(case):
            rows, logits, temperature = part.rows, part.logits(), part.temperature
            del part  # as read, with its context, before the next is read
            yield rows, logits, temperature
        return
    if method is None:
        for slab in case.slabs():
            yield slab.rows, slab.logits, None
        return
    whole = torch.cat([slab.logits for slab in case.slabs()], dim=2)
    with torch.no_grad():
        found = method(whole)
    if not isinstance(found, Tensor) or found.shape != whole.shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"a method must return calibrated logits of shape {tuple(whole.shape)}, as it is given, got {got} for "
            f"case '{case.name}'; return log-probabilities where it computes probabilities"
        )
    if probability_doubt(found[0]):
        raise InputError(
            f"a method must return calibrated logits, got probabilities for case '{case.name}'; return their logarithms"
        )
    found = check_logits(found, case.shape[0], class_axis=1, of=f"a method on case '{case.name}'")
    yield slice(0, found.shape[2]), found, None


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
        return channel_cases(cases, self.channel, self.channels) if self.channels else as_collection(cases)

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
    pairs = [protocol.names] if count == 1 else [both_classes(name) for name in protocol.names]
    return [
        ExclusiveHead(pair[1], replace(protocol, num_classes=2, activation="softmax", class_names=pair), k, count)
        for k, pair in enumerate(pairs)
    ]


def heads_of_folder(folder: Folder) -> list[ExclusiveHead]:
    """Return the heads that the scores of a folder hold."""
    names = ("num_classes", "activation", "ignore_index", "background", "class_names")
    return heads_of(Protocol(**{name: getattr(folder, name) for name in names}))
