"""What was found on some cases, in a form that is saved, sent between processes and merged without losing a bit.

The numbers of a case depend on nothing but the case. Sums over cases are either taken once all cases are known, in the
order of the cases, or they are counts and fixed-point numbers in int64, which any order adds to the same bits. So the
findings of parts of a data set, measured by different processes, merge to those of one process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import load, save

from segcal.evaluation.measure import Measured
from segcal.evaluation.places import Places
from segcal.evaluation.quality import distance_unit
from segcal.functional.binning import Evidence, Form, Histogram
from segcal.functional.catalogue import readings
from segcal.functional.checks import probability_doubt
from segcal.functional.counting import cell_confidence
from segcal.functional.fingerprint import fingerprint
from segcal.kernels.constants import CELLS
from segcal.types import Array, Case, InputError


class Reading(NamedTuple):
    """The numbers of one method on one case.

    Attributes:
        values: Every metric of every region and patch, Float64 `[K, G]`.
        pixels: Pixels of every region and patch, Float64 `[G]`.
        volumes: Expected and true pixels of each class, Float64 `[2, L]`.
        evidence: Evidence of the regions, without that of the patches, laid flat: Float64 `[M, E]`.
        moved: Pixels of *All* whose predicted label is not that of the uncalibrated scores, Float64 `[1]`.
        surfaces: Class and figures of each structure, Float64 `[S, 6]`; no rows where they are not measured.
    """

    values: Array
    pixels: Array
    volumes: Array
    evidence: Array
    moved: Array
    surfaces: Array


class Key(NamedTuple):
    """Which findings these are: of a method, with true labels or with labels drawn for the floor, on a channel."""

    method: str
    redrawn: bool
    channel: int = 0


@dataclass(frozen=True)
class Seen:
    """What is known about a case beside its numbers.

    Attributes:
        group: Its group, "" for none.
        fingerprint: What its content is recognised by.
        doubt: A warning about what its logits are, "" for none.
        origins: Origins of its Local patches.
        studied: How many patches there are of further sizes.
        unit: Unit of its surface distances: that of the spacing, or pixels where there is none.
    """

    group: str
    fingerprint: str
    doubt: str
    origins: tuple[tuple[int, ...], ...]
    studied: Mapping[int, int]
    unit: str

    @classmethod
    def of(cls, case: Case, places: Places) -> Seen:
        """Describe a case and its patches."""
        origins = tuple(tuple(interval.start for interval in box) for box in places.boxes)
        assert case.labels is not None  # or there would be no places
        content, doubt = fingerprint(case.logits, case.labels), probability_doubt(case.logits) or ""
        studied = {size: len(patches) for size, patches in places.studied.items()}
        return cls(case.group or "", content, doubt, origins, studied, distance_unit(case))


@dataclass
class Findings:
    """Readings of each case, and fine histograms of all of them together.

    Attributes:
        num_classes: L; 2 for sigmoid channels, each of which is a problem of two classes.
        form: Form of SCE and ACE.
        metrics: Names of the metrics, in the order of `Reading.values`.
        cases: The cases by name.
        readings: The numbers of each case.
        cells: Fine histograms Int64 `[3, L, 65536]` by region index and whether every class is counted (marginal):
            pixels, correct pixels and excess confidence (see `segcal.functional.counting.count_cells_exactly`).
    """

    num_classes: int
    form: Form
    metrics: tuple[str, ...] = ()
    cases: dict[str, Seen] = field(default_factory=dict)
    readings: dict[tuple[str, Key], Reading] = field(default_factory=dict)
    cells: dict[tuple[Key, int, bool], Array] = field(default_factory=dict)

    def begin(self, case: Case, places: Places) -> None:
        """Note a case before what is found on it is added."""
        if case.name in self.cases:
            raise _twice(case.name)
        self.cases[case.name] = Seen.of(case, places)

    def add(
        self, case: str, key: Key, places: Places, measured: Measured, moved: int = 0, surfaces: Array | None = None
    ) -> None:
        """Add what one method gave on one case, and how many labels of *All* it changed."""
        found = readings(measured.evidence, self.form)
        pixels = found.pop("pixels")
        self.metrics = tuple(found)
        self.readings[case, key] = Reading(
            torch.stack([values.double() for values in found.values()]).numpy(),
            pixels.double().numpy(),
            np.array([measured.mass.tolist(), measured.support], np.float64),
            flat_evidence(measured.evidence, len(places.regions)),
            np.array([moved], np.float64),
            np.zeros((0, 6)) if surfaces is None else surfaces,
        )
        for k, region in enumerate(places.regions):
            marginal = self._cells(key, k, True) if self.form == "marginal" else None
            measured.add_cells(region, self._cells(key, k, False), marginal)

    def histogram(self, key: Key, region: int, *, marginal: bool = False) -> Histogram:
        """Return the fine histogram of a region `[L, 65536]` over all cases."""
        count, hit, excess = torch.from_numpy(self._cells(key, region, marginal))
        return Histogram(count, hit, cell_confidence(count, excess))

    def evidence(self, names: Sequence[str], key: Key, region: int) -> Array:
        """Return the evidence of one region of each case, laid flat: Float64 `[cases, E]`."""
        return np.stack([self.readings[name, key].evidence[region] for name in names])

    def moved(self, method: str) -> int:
        """Return how many predicted labels of *All* a method changed, in all channels together."""
        return sum(int(reading.moved[0]) for reading in self.of(method))

    def of(self, method: str) -> Iterator[Reading]:
        """Go through the readings of a method with true labels, those of every channel."""
        own = (method, False)
        return (reading for (_, key), reading in self.readings.items() if (key.method, key.redrawn) == own)

    def merge_bytes(self, content: bytes) -> None:
        """Add the findings of other cases, which `to_bytes` wrote."""
        arrays, about = load(content), _metadata(content)
        keys = [Key(*key) for key in about["keys"]]
        self.metrics = self.metrics or tuple(about["metrics"])
        for i, (name, seen) in enumerate(about["cases"].items()):
            if name in self.cases:
                raise _twice(name)
            origins = tuple(tuple(origin) for origin in seen["origins"])
            studied = {int(size): count for size, count in seen["studied"].items()}
            self.cases[name] = Seen(**{**seen, "origins": origins, "studied": studied})
            for j, key in enumerate(keys):
                self.readings[name, key] = Reading(*(arrays[f"{i} {j} {part}"] for part in Reading._fields))
        for k, (j, region, marginal) in enumerate(about["cells"]):
            held, *values = arrays[f"cells {k}"]
            self._cells(keys[j], region, marginal).reshape(3, -1)[:, held] += values

    def to_bytes(self) -> bytes:
        """Return everything as a safetensors file."""
        keys = list(dict.fromkeys(key for _, key in self.readings))
        case_number, key_number = ({name: k for k, name in enumerate(names)} for names in (self.cases, keys))
        about = {
            "num_classes": self.num_classes,
            "form": self.form,
            "metrics": self.metrics,
            "cases": {name: asdict(seen) for name, seen in self.cases.items()},
            "keys": keys,
            "cells": [(key_number[key], region, marginal) for key, region, marginal in self.cells],
        }
        arrays = dict[str, Array]()
        for (name, key), reading in self.readings.items():
            for part, values in reading._asdict().items():
                arrays[f"{case_number[name]} {key_number[key]} {part}"] = values
        for k, table in enumerate(self.cells.values()):
            flat = table.reshape(3, -1)
            held = np.flatnonzero(flat[0])
            arrays[f"cells {k}"] = np.concatenate([held[np.newaxis], flat[:, held]])
        arrays = {name: np.ascontiguousarray(values) for name, values in arrays.items()}  # `save` ignores strides
        return save(arrays, {"about": json.dumps(about)})

    def _cells(self, key: Key, region: int, marginal: bool) -> Array:
        """Return a table of zeros at first; numpy allocates no memory for pages that are never written to."""
        place = (key, region, marginal)
        if place not in self.cells:  # and maps none for a table that is there already
            self.cells[place] = np.zeros((3, self.num_classes, CELLS), np.int64)
        return self.cells[place]


def _metadata(content: bytes) -> dict[str, Any]:
    """Return the metadata of a safetensors file, which begin it: 8 bytes of length, then JSON."""
    length = int.from_bytes(content[:8], "little")
    found: dict[str, Any] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"])
    return found


def flat_evidence(evidence: Evidence, many: int) -> Array:
    """Return the evidence of the first `many` regions as vectors that can be added: Float64 `[M, E]`.

    Counts are exact in float64 up to 2**53.
    """
    parts = [*evidence.top, *evidence.static, *evidence.adaptive, evidence.support, evidence.sums]
    return np.concatenate([part[:many].double().reshape(many, -1).numpy() for part in parts], axis=1)


def evidence_of(vectors: Array, num_classes: int) -> Evidence:
    """Invert `flat_evidence` for vectors `[*G, E]`."""
    top, static, adaptive = _histograms(vectors, num_classes)
    return Evidence(top, static, adaptive, *_rest(vectors, num_classes))


def top_of(vectors: Array, num_classes: int) -> Histogram:
    """Return the histogram of top confidences only."""
    return next(_histograms(vectors, num_classes))


def _histograms(vectors: Array, num_classes: int) -> Iterator[Histogram]:
    size = (vectors.shape[-1] - num_classes - 3) // 9
    shape = (*vectors.shape[:-1], num_classes, size // num_classes)
    part = partial(_part, vectors, shape, size)
    for k in (0, 3, 6):
        yield Histogram(part(k).long(), part(k + 1).long(), part(k + 2))


def _part(vectors: Array, shape: tuple[int, ...], size: int, k: int) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(vectors[..., k * size : (k + 1) * size]).reshape(shape))


def _rest(vectors: Array, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    end = vectors.shape[-1] - 3
    support, sums = vectors[..., end - num_classes : end], vectors[..., end:]
    return torch.from_numpy(np.ascontiguousarray(support)).long(), torch.from_numpy(np.ascontiguousarray(sums))


def _twice(name: str) -> InputError:
    return InputError(f"case names must be unique, got '{name}' twice; rename one")
