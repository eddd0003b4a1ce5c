"""Results of a fit: what a method returns from learning, and the report that users read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from string import Formatter
from typing import Any, Literal

from segcal.text import both_classes, counted

_MOST_LINES = 10
"""Lines of a printed report."""

_SENTENCES = (
    "temperature {temperature:.4g}",
    "temperatures from {temperature_low:.4g} to {temperature_high:.4g} (ts: {ts_temperature:.4g})",
    "weights from epoch {best_epoch}",
    "{share:.0%} of their change from {start} is kept",
    "NLL of the validation images: {validation_nll:.4f} nats (ts: {validation_nll_ts:.4f})",
    "temperatures of the confidence bins: {temperatures}",
    "weights: {weights[scaled]:.3g} scaled, {weights[raw]:.3g} uncalibrated, {weights[uniform]:.3g} uniform",
    "scale factors of the classes: {scales}",
    "diagonal of the matrix: {diagonal}; largest other entry: {largest_off_diagonal:.3g}",
    "deviations of the classes: {deviations}",
    "offsets of the classes: {biases}",
    "steps of the fitted function: {knots}",
    "bins without pixels: {empty_bins}",
    "attended pixels: {attended:,}",
    "weights that are 0: {zero_share:.0%}",
)
"""Details of a fit in words; a sentence is used if all that it names is known."""


@dataclass(frozen=True)
class Learned:
    """Result of learning from a stream, which the base class completes to a report.

    Attributes:
        pixels: Number of fitted pixels.
        nll_before: Mean NLL of the fitted pixels before calibration.
        nll_after: Mean NLL of the fitted pixels after calibration.
        steps: Steps of the search.
        converged: Whether an optimum was reached.
        warnings: What the user should know, a sentence each.
        details: Plain values.
    """

    pixels: int
    nll_before: float
    nll_after: float
    steps: int = 1
    converged: bool = True
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FitReport(Learned):
    """Result of a fit. NLL is the mean over the fitted pixels, in nats.

    `converged` says whether an optimum was reached: the NLL was no longer falling when the fit ended.
    """

    cases: int
    seconds: float
    names: tuple[str, ...] = ()
    """Names of the fitted cases."""
    fingerprints: tuple[str, ...] = ()
    """Their content (`segcal.functional.fingerprint`), so that an evaluation on the same cases can be reported."""

    def learned(self, **changes: Any) -> Learned:
        """Return the result of learning, without the cases, with some fields changed."""
        return Learned(**{**{each.name: getattr(self, each.name) for each in fields(Learned)}, **changes})

    def __str__(self) -> str:
        """Ten lines at most: the NLL before and after, the cases, the search, what was learned, and warnings."""
        done = "converged" if self.converged else "not converged"
        lines = [
            f"NLL {self.nll_before:.4f} -> {self.nll_after:.4f} nats per pixel",
            f"{counted(self.cases, 'case')}, {counted(self.pixels, 'pixel')}",
            f"{counted(self.steps, 'step')}, {self.seconds:.1f} s, {done}",
            *self.sentences(),
        ]
        warned = [f"warning: {text}" for text in self.warnings]
        shown = lines[: max(_MOST_LINES - len(warned), 3)]
        if shown[-1].endswith(":"):  # nothing of this channel has room
            shown.pop()
        return "\n".join([*shown, *warned][:_MOST_LINES])

    def sentences(self, class_names: Sequence[str] = ()) -> list[str]:
        """Return what was learned, with classes or channels under their names if these are known."""
        return list(_sentences(self.details, class_names))


def with_class_names(sentence: str, class_names: Sequence[str], kind: Literal["class", "channel"] = "class") -> str:
    """Return a sentence of a fit, which knows classes or channels by their numbers, with their names.

    Examples:
        >>> with_class_names("pixels predicted as class 1 or class 2", ["field", "road"])
        "pixels predicted as 'road' or class 2"
    """

    def named(found: re.Match[str]) -> str:
        number = int(found[1])
        return f"'{class_names[number]}'" if number < len(class_names) else found[0]

    return re.sub(rf"\b{kind} (\d{{1,9}})\b", named, sentence)


def _sentences(details: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    """Yield the reason of a choice, and what was learned: in the method's own words if it has any.

    One name is that of a sigmoid channel, which was fitted as two classes.
    """
    classes = both_classes(names[0]) if len(names) == 1 else names
    why = details.get("why")
    if why is not None:
        yield why
    learned = details.get("chosen_details", details)
    told = (words for words in learned.get("words") or _in_words(learned) if words != why)
    yield from (with_class_names(words, classes) for words in told)
    for name, channel in details.items():
        if isinstance(channel, Mapping) and (number := re.fullmatch(r"channel (\d{1,9})", name)):
            own = names[int(number[1]) :][:1]
            yield f"channel {own[0]}:" if own else f"{name}:"
            yield from _sentences(channel, own)


def _in_words(details: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentences of which every value is known; lists of numbers are given as their range."""
    for sentence in _SENTENCES:
        names = {name.partition("[")[0] for _, name, _, _ in Formatter().parse(sentence) if name}
        known = {name: details[name] for name in names if details.get(name) not in (None, 0)}
        if names == known.keys():
            yield sentence.format_map({name: _shown(value) for name, value in known.items()})


def _shown(value: Any) -> Any:
    return f"{min(value):.4g} to {max(value):.4g}" if isinstance(value, list) and value else value
