"""Shapes, types and errors that every module uses.

`B` images, `L` classes, `C` image channels, `*S` = `H W` or `D H W`. Logits and probabilities are never distinguished
by their values: they have different names here and explicit converters in `segcal.functional.probability`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from operator import index
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
from jaxtyping import Bool, Float, Integer
from torch import Tensor

Logits: TypeAlias = Float[Tensor, "B L *S"]
Probs: TypeAlias = Float[Tensor, "B L *S"]
Passes: TypeAlias = Float[Tensor, "B K L *S"]
"""Logits of K further passes over the same image: mirrored, rescaled, of other networks."""
Labels: TypeAlias = Integer[Tensor, "B *S"]
Mask: TypeAlias = Bool[Tensor, "B *S"]
Masks: TypeAlias = Integer[Tensor, "B L *S"]
"""Labels of sigmoid channels: 0 and 1 in each."""
Shares: TypeAlias = Float[Tensor, "B L *S"]
"""Soft labels: the share of several raters that chose each class or channel."""
Image: TypeAlias = Float[Tensor, "B C *S"]
Temperature: TypeAlias = Float[Tensor, "B 1 *S"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
IgnoreIndex: TypeAlias = int | Sequence[int] | None
Activation: TypeAlias = Literal["softmax", "sigmoid"]
"""Function from logits to probabilities: a softmax over exclusive classes, or a sigmoid of each channel separately."""


Public = TypeVar("Public")


def public(thing: Public) -> Public:
    """Mark a public class or function, which then calls itself `segcal.X` in tracebacks, reprs and pickles."""
    if isinstance(thing, type):  # typing.get_type_hints would look for the names of the annotations in segcal
        thing.__annotations__ = inspect.get_annotations(thing, eval_str=True)
    thing.__module__ = "segcal"
    return thing


@public
class InputError(ValueError):
    """Data or settings that give no correct answer; the message says what to do."""


@public
@dataclass(frozen=True, slots=True, repr=False)
class Case:
    """One image or volume with its scores and labels, without the batch axis.

    Examples:
        >>> Case("scan", logits=np.zeros((2, 8, 8), np.float32), labels=np.zeros((8, 8), np.uint8), group="patient 1")
        Case('scan', logits=float32[2, 8, 8], labels=uint8[8, 8], group='patient 1')

    Args:
        name: Name in messages, tables and files.
        logits: Scores `[L, *S]`; a memory-mapped array stays on disk until it is needed.
        labels: True classes `[*S]`, or a mask of 0 and 1 for each sigmoid channel `[L, *S]`; None if there are none,
            which is enough to apply a calibrator.
        image: Image `[C, *S]` that the scores were computed from, for methods that use it.
        spacing: Size of a pixel along each axis of `*S`.
        group: Cases of one group (a video, a patient) are never split between fitting and validation.
        orientation: Directions of the patient in which the axes of `*S` count, such as "SAR" (superior, anterior,
            right); None if they are not known.
        passes: Logits `[K, L, *S]` of K further passes over the same image (mirrored, rescaled, other networks), or a
            sequence of K arrays `[L, *S]`; in the same order in all cases. K = 1 can hold the logarithm of their mean
            probability.
    """

    name: str
    logits: Array | Tensor
    labels: Array | Tensor | None
    image: Array | Tensor | None = None
    spacing: tuple[float, ...] | None = None
    group: str | None = None
    orientation: str | None = None
    passes: Array | Tensor | Sequence[Array | Tensor] | None = None

    @property
    def each_pass(self) -> list[Array | Tensor]:
        """Logits `[L, *S]` of each further pass."""
        return [] if self.passes is None else [self.passes[number] for number in range(len(self.passes))]

    def __repr__(self) -> str:
        """Shapes and dtypes instead of values."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "name"}
        shown = [f"{name}={_short(value)}" for name, value in given.items() if value is not None or name == "labels"]
        return f"Case({', '.join([repr(self.name), *shown])})"


Item = TypeVar("Item")


class Lazy(Sequence[Item]):
    """Cases, or passes of one case, that are read or made from others on access.

    Args:
        make: Function from what stands for an item to the item.
        given: What stands for each item.
        keep: Whether an item is made only once.
    """

    def __init__(self, make: Callable[[Any], Item], given: Sequence[Any], *, keep: bool = False) -> None:
        self._make, self._given, self._kept = make, given, dict[int, Item]() if keep else None

    def __repr__(self) -> str:
        """Their number."""
        return f"{len(self)} items"

    def __len__(self) -> int:
        return len(self._given)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Lazy[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Lazy[Item]:
        """Return one item, or some of them."""
        if isinstance(index, slice):
            return Lazy(self.__getitem__, range(len(self))[index])
        if self._kept is None:
            return self._make(self._given[index])
        number = range(len(self))[index]
        if number not in self._kept:
            self._kept[number] = self._make(self._given[number])
        return self._kept[number]

    def __iter__(self) -> Iterator[Item]:
        # a progress bar counts iterations of what is given; that of a Sequence takes an IndexError for the end
        return map(self._make, self._given) if self._kept is None else map(self.__getitem__, range(len(self)))


class Slab(NamedTuple):
    """Consecutive slices of a case along its first spatial axis, checked, with a batch axis of one.

    Attributes:
        logits: Finite scores `[1, L, *S]` of the slices.
        labels: Their labels `[1, *S]`, -1 at pixels that are left out; None where there are none.
        image: Their image `[1, C, *S]`, if the case has one.
        rows: Position of the slices in the case.
        inner: Position, in the slab, of the slices that are not only context.
        passes: Finite scores `[1, K, L, *S]` of further passes, if the stream reads them.
    """

    logits: Tensor
    labels: Tensor | None
    image: Tensor | None
    rows: slice
    inner: slice
    passes: Tensor | None = None

    @property
    def inner_rows(self) -> slice:
        """Position of the inner slices in the case."""
        start = self.rows.start or 0
        return slice(start + self.inner.start, start + self.inner.stop)


LARGEST_SEED = 2**63 - 1
"""Seeds are in 0..2**63 - 1, which every generator accepts."""

MOST_BINS = 1 << 16
"""Bins are at most as many as the cells of a fine histogram: narrower ones cannot be told apart."""
MOST_CLASSES = 1 << 16
"""Classes of a network; more are a mistake, and would ask for too much memory."""


def extra(module: str, user: str, name: str) -> Any:
    """Return the module of an optional package; raise if it is not installed, with the extra that installs it.

    Args:
        module: Its name.
        user: Words for what needs it, such as "Zarr files need zarr".
        name: The extra of segcal.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"{user}, which is not installed; pip install segcal[{name}]") from error


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raise unless `value` is a whole number in `least..most`: sizes are checked before memory is taken.

    Examples:
        >>> check_whole("bins", 10, 1, 65536)
    """
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        raise InputError(f"{name} must be a whole number, got {str(value)[:50]!r}")
    if not least <= index(value) <= most:
        allowed = f"at least {least}" if index(value) < least else f"at most {most}"
        raise InputError(f"{name} must be {allowed}, got {str(index(value))[:50]}")


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Raise unless `value` is one of the choices.

    Examples:
        >>> check_choice("form", "tables", ("tables", "equations"))
    """
    known = list(choices)
    if value not in known:
        got = f"'{value}'" if isinstance(value, str) else value
        raise InputError(f"{name} must be one of {', '.join(map(str, known))}, got {got}")


def check_weight(name: str, value: float) -> float:
    """Return `value` as a float; raise unless it is finite and at least 0.

    Examples:
        >>> check_weight("penalty", 1)
        1.0
    """
    if not 0 <= value < math.inf:
        raise InputError(f"{name} must be finite and at least 0, got {value}")
    return float(value)


def _short(value: object) -> str:
    """An array or tensor as `float32[3, 64, 64]`, anything else as its repr."""
    if isinstance(value, np.ndarray | Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple) and any(isinstance(item, np.ndarray | Tensor) for item in value):
        return f"[{', '.join(map(_short, value))}]"
    return repr(value)
