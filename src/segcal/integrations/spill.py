"""Cases that are kept for several passes: in memory while they fit, then in temporary files that are memory-mapped."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import distributed

from segcal.functional.arrays import TemporaryArrays, to_array
from segcal.training.processes import rank_and_world
from segcal.types import Case

IN_MEMORY = 2 << 30
"""Bytes of scores and images that are kept in memory by default."""


class SpilledCases:
    """Cases in the order they were added.

    Attributes:
        cases: The cases; the files of those on disk end with them.

    Args:
        in_memory: Bytes kept in memory; the arrays of further cases are written to temporary files.
        images: Whether to keep the images, for methods that read them.
    """

    def __init__(self, in_memory: int = IN_MEMORY, *, images: bool = True) -> None:
        self.cases: list[Case] = []
        self._names = ("logits", "labels", "passes", *(["image"] if images else []))
        self._left, self._files = in_memory, TemporaryArrays()
        self._given: dict[str, Any] = {}  # arrays of the last case, and what is kept of them
        self._kept: dict[str, Any] = {}

    def extend(self, cases: Iterable[Case]) -> None:
        """Keep cases; arrays that one shares with the case before, as those of several raters do, are kept once."""
        for case in cases:
            arrays = {name: value for name in self._names if (value := getattr(case, name)) is not None}
            for name, value in arrays.items():
                if value is not self._given.get(name):
                    self._left -= value.nbytes
                    self._kept[name] = value if self._left >= 0 else self._files.copy(to_array(value))
            self._given = arrays
            self.cases.append(replace(case, **{"image": None, **{name: self._kept[name] for name in arrays}}))

    def share(self) -> None:
        """Hold the cases of all processes of `torch.distributed`, in the order of their ranks, in each process.

        A distributed sampler repeats images to give every process as many; a case that another process has already
        given is left out.
        """
        rank, world = rank_and_world()
        if world == 1:
            return
        own, self.cases = self.cases, []
        seen, names = defaultdict[bytes, list[tuple[int, int]]](list), set[str]()
        for source, case in _from_all(own, rank, world):
            alike = seen[_digest(case.labels)]
            if any(other != source and _same_scores(case, self.cases[known]) for other, known in alike):
                continue
            alike.append((source, len(self.cases)))
            if case.name in names:  # crops of one image in several processes
                case = replace(case, name=f"{case.name}-rank{source}", group=case.group or case.name)  # noqa: PLW2901
            names.add(case.name)
            if source == rank:
                self.cases.append(case)
            else:
                self.extend([case])


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
