"""Collections of cases: an iterator as a list, and some of the cases of a sequence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar, overload

from segcal.types import Case, InputError

Item = TypeVar("Item")


def as_collection(cases: Iterable[Item]) -> Collection[Item]:
    """Return the cases as a collection that can be iterated many times; an iterator is kept as a list."""
    kept = cases if isinstance(cases, Collection) else list(cases)
    if not len(kept):
        raise no_cases(cases)
    return kept


def no_cases(given: object, item: str = "case", place: str = "folder or the split") -> InputError:
    """Return the error to raise where nothing was found, and say why an iterator may be empty."""
    if isinstance(given, Iterator):
        return InputError(
            f"at least one {item} is needed, got an iterator that yields none; an iterator can be read only once, so "
            f"make a list of it, or create it again for each use"
        )
    return InputError(f"at least one {item} is needed, got none; is the {place} empty?")


class Subset(Sequence[Case]):
    """Some of the cases, by index; each is read on access."""

    def __init__(self, cases: Sequence[Case], positions: Sequence[int]) -> None:
        self._cases, self._positions = cases, list(positions)

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> Subset: ...
    def __getitem__(self, index: int | slice) -> Case | Subset:
        """Return one case, or some of them."""
        if isinstance(index, slice):
            return Subset(self._cases, self._positions[index])
        return self._cases[self._positions[index]]

    def __iter__(self) -> Iterator[Case]:
        return (self[k] for k in range(len(self)))  # that of a Sequence takes an IndexError for the end
