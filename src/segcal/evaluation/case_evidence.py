"""The evidence of one case: everything that its tables and those of the whole data set are made of.

It depends on nothing but the case, and evidence is added up in the order of the cases, so that results are the same
bits however the cases are divided between processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load, save

from segcal.evidence.cells import OccupiedCells
from segcal.types import Array


class Key(NamedTuple):
    """A method, whether its labels were drawn for the floor, and the sigmoid channel."""

    method: str
    redrawn: bool = False
    channel: int = 0


@dataclass(frozen=True)
class MethodEvidence:
    """The evidence of one method on one case.

    Attributes:
        values: Every metric of every region and patch, Float64 `[K, G]`, then a user's own, NaN in patches.
        pixels: Pixels of every region and patch, Int64 `[G]`.
        vectors: Evidence of the regions, without the patches: Float64 `[M, E]` (`Evidence.to_vectors`).
        volumes: Expected and true pixels of each class, Float64 `[2, L]`.
        surfaces: Class and surface metrics of each structure, Float64 `[S, 7]`; no rows where they are not measured.
        moved: Number of pixels of *All* whose predicted label differs from that of the uncalibrated scores.
        cells: Occupied cells of the fine histograms of the regions `[M, L, 65536]`; None once they are added up.
        class_cells: The same for the probability of every class, in the form `marginal`.
    """

    values: Array
    pixels: Array
    vectors: Array
    volumes: Array
    surfaces: Array
    moved: int = 0
    cells: OccupiedCells | None = None
    class_cells: OccupiedCells | None = None


_ARRAYS = ("values", "pixels", "vectors", "volumes", "surfaces")
_CELLS = ("cells", "class_cells")


@dataclass(frozen=True)
class CaseEvidence:
    """The evidence of every method on one case.

    Attributes:
        name: The case.
        group: Its group, "" for none.
        fingerprint: Hash of its content.
        doubt: Warning about its logits, "" for none.
        unit: Unit of its surface distances.
        origins: Origins of its Local patches.
        patches: Number of patches of each size, that of the Local regions first.
        methods: The evidence of each method.
    """

    name: str
    group: str
    fingerprint: str
    doubt: str
    unit: str
    origins: tuple[tuple[int, ...], ...]
    patches: Mapping[int, int]
    methods: Mapping[Key, MethodEvidence]

    def without_cells(self) -> CaseEvidence:
        """Return it without fine histograms, which take far more memory than the rest."""
        methods = {key: replace(own, cells=None, class_cells=None) for key, own in self.methods.items()}
        return replace(self, methods=methods)

    def to_bytes(self) -> bytes:
        """Return the content of a safetensors file."""
        arrays = dict[str, Array]()
        for k, own in enumerate(self.methods.values()):
            arrays |= {f"{k}.{name}": np.ascontiguousarray(getattr(own, name)) for name in _ARRAYS}  # `save` needs it
            for kind in _CELLS:
                if (cells := getattr(own, kind)) is not None:
                    arrays |= {f"{k}.{kind}.{part}": _narrow(values) for part, values in cells._asdict().items()}
        about = {**vars(self), "patches": [*self.patches.items()]}
        about["methods"] = [[*key, own.moved] for key, own in self.methods.items()]
        return save(arrays, {"about": json.dumps(about)})

    @classmethod
    def from_bytes(cls, content: bytes) -> CaseEvidence:
        """Read what `to_bytes` wrote; the metadata begin the file: 8 bytes of length, then JSON."""
        length = int.from_bytes(content[:8], "little")
        about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"])
        arrays, methods = load(content), dict[Key, MethodEvidence]()
        for k, (*key, moved) in enumerate(about["methods"]):
            values, pixels, vectors, volumes, surfaces = (arrays[f"{k}.{name}"] for name in _ARRAYS)
            cells, class_cells = (
                OccupiedCells(*(arrays[f"{k}.{kind}.{part}"] for part in OccupiedCells._fields))
                if f"{k}.{kind}.position" in arrays
                else None
                for kind in _CELLS
            )
            methods[Key(*key)] = MethodEvidence(values, pixels, vectors, volumes, surfaces, moved, cells, class_cells)
        about["origins"] = tuple(tuple(origin) for origin in about["origins"])
        return cls(**about | {"patches": dict(about["patches"]), "methods": methods})


def _narrow(values: Array) -> Array:
    """Return whole numbers in 32 bits if they fit; most of a file are positions and counts of cells."""
    fits = values.dtype == np.int64 and values.max(initial=0) < 1 << 31 and values.min(initial=0) >= 0
    return values.astype(np.int32) if fits else values
