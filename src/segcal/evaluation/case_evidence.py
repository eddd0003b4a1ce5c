"""The evidence of one case: everything that its tables and those of the whole data set are made of.

It depends on nothing but the case, and evidence is added up in the order of the cases, so that results are the same
bits however the cases are divided between processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from segcal.evidence.statistic import OccupiedCells
from segcal.types import Array

Rows = Mapping[str, Sequence[Sequence[Any]]]
"""Rows by the name of their table (`segcal.evaluation.saved.TABLES`), without the columns case and method."""


class Key(NamedTuple):
    """A method, whether its labels were drawn for the floor, and the sigmoid channel."""

    method: str
    redrawn: bool = False
    channel: int = 0


@dataclass(frozen=True)
class MethodEvidence:
    """The evidence of one method on one case.

    Attributes:
        rows: Rows of this case and method in the tables of results.
        vectors: Evidence of the regions, without the patches: Float64 `[M, E]` (`Evidence.to_vectors`).
        inside: Number of pixels of *All*.
        moved: Number of them whose predicted label differs from that of the uncalibrated scores.
        cells: Occupied cells of the fine histograms of the regions `[M, L, 65536]`; None once they are added up.
        class_cells: The same for the probability of every class, in the form `marginal`.
    """

    rows: Rows
    vectors: Array
    inside: int
    moved: int = 0
    cells: OccupiedCells | None = None
    class_cells: OccupiedCells | None = None


@dataclass(frozen=True)
class CaseEvidence:
    """The evidence of every method on one case.

    Attributes:
        name: The case.
        group: Its group, "" for none.
        fingerprint: Hash of its content.
        doubt: Warning about its logits, "" for none.
        unit: Unit of its surface distances.
        methods: The evidence of each method.
    """

    name: str
    group: str
    fingerprint: str
    doubt: str
    unit: str
    methods: Mapping[Key, MethodEvidence]

    def without_cells(self) -> CaseEvidence:
        """Return it without fine histograms, which take far more memory than the rest."""
        methods = {key: replace(own, cells=None, class_cells=None) for key, own in self.methods.items()}
        return replace(self, methods=methods)

    def to_bytes(self) -> bytes:
        """Return the content of a safetensors file."""
        arrays, methods = dict[str, Array](), list[Any]()
        for k, (key, own) in enumerate(self.methods.items()):
            arrays[f"{k}.vectors"] = np.ascontiguousarray(own.vectors)  # `save` needs it
            for kind, cells in (("cells", own.cells), ("class_cells", own.class_cells)):
                if cells is not None:
                    arrays |= {f"{k}.{kind}.{part}": _narrow(values) for part, values in cells._asdict().items()}
            methods.append([key, own.rows, own.inside, own.moved])
        return save(arrays, {"about": json.dumps({**vars(self), "methods": methods})})

    @classmethod
    def from_bytes(cls, content: bytes) -> CaseEvidence:
        """Read what `to_bytes` wrote; the metadata begin the file: 8 bytes of length, then JSON."""
        length = int.from_bytes(content[:8], "little")
        about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"])
        arrays, methods = load(content), dict[Key, MethodEvidence]()
        for k, (key, rows, inside, moved) in enumerate(about["methods"]):
            cells, class_cells = (
                OccupiedCells(*(arrays[f"{k}.{kind}.{part}"] for part in OccupiedCells._fields))
                if f"{k}.{kind}.position" in arrays
                else None
                for kind in ("cells", "class_cells")
            )
            methods[Key(*key)] = MethodEvidence(rows, arrays[f"{k}.vectors"], inside, moved, cells, class_cells)
        return cls(**{**about, "methods": methods})


def _narrow(values: Array) -> Array:
    """Return whole numbers in 32 bits if they fit; most of a file are positions and counts of cells."""
    fits = values.dtype == np.int64 and values.max(initial=0) < 1 << 31 and values.min(initial=0) >= 0
    return values.astype(np.int32) if fits else values
