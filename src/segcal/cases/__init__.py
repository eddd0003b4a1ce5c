"""The case stream: the only reader of cases."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from segcal.cases.collections import Subset as Part
from segcal.cases.collections import as_collection as reread
from segcal.cases.collections import no_cases
from segcal.cases.raters import rater_cases
from segcal.cases.reading import labels_of
from segcal.cases.stream import CaseStream, StreamedCase
from segcal.functional.arrays import to_tensor
from segcal.types import Case, Slab

__all__ = [
    "CaseStream",
    "Part",
    "Slab",
    "StreamedCase",
    "labels_of",
    "no_cases",
    "rater_cases",
    "reread",
    "slabs_of",
    "to_tensor",
]


def slabs_of(case: Case, num_classes: int, *, context: int = 0, device: torch.device | None = None) -> Iterator[Slab]:
    """Yield a case in slabs: the interface before the stream, until every caller iterates a stream."""
    yield from CaseStream([case], num_classes, device=device, labelled=False, memory=0).slabs(context)
