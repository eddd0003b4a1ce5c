"""Cases that are kept for several passes: in memory while they fit, then in temporary files that are memory-mapped."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, overload

import numpy as np
from torch import Tensor, distributed

from segcal.functional.arrays import to_array
from segcal.training.processes import rank_and_world
from segcal.types import Array, Case

IN_MEMORY = 2 << 30
"""Bytes of scores and images that are kept in memory by default."""


class SpilledCases(Sequence[Case]):
    """Cases in the order they were added; use it in a `with` statement, whose end deletes the files.

    Args:
        in_memory: Bytes kept in memory; further cases are written to a temporary folder.
        folder: Where to make that folder; by default where the system keeps temporary files.
    """

    def __init__(self, in_memory: int = IN_MEMORY, folder: str | Path | None = None) -> None:
        self._in_memory, self._left, self._parent = in_memory, in_memory, folder
        self._cases: list[Case] = []
        self._given: dict[str, Any] = {}  # arrays of the last case, and what is kept of them
        self._kept: dict[str, Any] = {}
        self._folder: TemporaryDirectory[str] | None = None
        self._numbers = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the cases and delete the files; cases can be added again afterwards."""
        self._cases, self._left, self._given, self._kept = [], self._in_memory, {}, {}
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __len__(self) -> int:
        return len(self._cases)

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> list[Case]: ...
    def __getitem__(self, index: int | slice) -> Case | list[Case]:
        """Return one case, or several; arrays on disk are read when they are used."""
        return self._cases[index]

    @property
    def folder(self) -> Path | None:
        """The temporary folder; None while everything is in memory."""
        return None if self._folder is None else Path(self._folder.name)

    def add(self, case: Case) -> None:
        """Keep a case; arrays that it shares with the one before, as the cases of several raters do, are kept once."""
        arrays = {
            name: value
            for name in ("logits", "labels", "image", "passes")
            if (value := getattr(case, name)) is not None
        }
        new = {name: value for name, value in arrays.items() if value is not self._given.get(name)}
        self._left -= sum(value.nbytes for value in new.values())
        if self._left < 0:
            self._kept |= {name: self._written(name, value) for name, value in new.items()}
        else:
            self._kept |= new
        self._given = arrays
        self._cases.append(replace(case, **{name: self._kept[name] for name in arrays}))

    def extend(self, cases: Iterable[Case]) -> None:
        """Keep several cases."""
        for case in cases:
            self.add(case)

    def share(self) -> None:
        """Hold the cases of all processes of `torch.distributed`, in the order of their ranks, in each process.

        A distributed sampler repeats images to give every process as many; a case that another process has already
        given is left out.
        """
        rank, world = rank_and_world()
        if world == 1:
            return
        own, self._cases = self._cases, []
        seen, names = defaultdict[bytes, list[tuple[int, Case]]](list), set[str]()
        for source, case in _from_all(own, rank, world):
            alike = seen[_digest(case.labels)]
            if any(other != source and _same_scores(case, known) for other, known in alike):
                continue
            alike.append((source, case))
            if case.name in names:  # crops of one image in several processes
                case = replace(case, name=f"{case.name}-rank{source}", group=case.group or case.name)  # noqa: PLW2901
            names.add(case.name)
            if source == rank:
                self._cases.append(case)
            else:
                self.add(case)

    def _written(self, name: str, values: Array | Tensor) -> Array:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="segcal-", dir=self._parent, ignore_cleanup_errors=True)
        path = Path(self._folder.name) / f"{next(self._numbers)}-{name}.npy"
        np.save(path, to_array(values), allow_pickle=False)
        mapped: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped


def _from_all(own: Sequence[Case], rank: int, world: int) -> Iterator[tuple[int, Case]]:
    """Yield the rank and each case of every process, one at a time."""
    counts: list[int] = [0] * world
    distributed.all_gather_object(counts, len(own))
    for source, many in enumerate(counts):
        for k in range(many):
            sent = [own[k] if rank == source else None]
            distributed.broadcast_object_list(sent, src=source)
            case = own[k] if rank == source else sent[0]
            assert case is not None  # what the process of that rank has sent
            yield source, case


def _digest(labels: Any) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(to_array(labels)).tobytes()).digest()


def _same_scores(case: Case, other: Case) -> bool:
    """Return whether two cases have the same scores; those of an image depend on its batch in the last digits."""
    ours, theirs = (to_array(one.logits) for one in (case, other))
    return ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=1e-3, atol=1e-4)
