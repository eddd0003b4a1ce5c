"""The evidence of regions: the small sufficient statistic that every metric is read from.

Counts are int64 and sums float64. The evidence of two sets of pixels together is the sum of theirs, so slabs, cases,
processes and machines are joined by addition.

A reliability histogram holds pixels, correct pixels and summed confidence for each predicted class and bin. Bins are
right-closed intervals `(j / R, (j + 1) / R]`; a confidence of 0 belongs to the first. The cells of a fine histogram
(`segcal.functional.scores.cell_of`), from which any bins are read, grow finer towards 0 and 1, and their size does not
depend on the number of pixels. Pixels of a cell may stand at their mean confidence: a cell is at most 2**-11 wide, and
0.2 % of `1 - confidence` near 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64, Num
from torch import Tensor

from segcal.functional import counting
from segcal.functional.counting import positions
from segcal.functional.pixels import pixel_statistics
from segcal.functional.probability import probabilities
from segcal.kernels.constants import CELLS
from segcal.types import Array

Form = Literal["tables", "equations", "marginal"]

_PART = 1 << 22  # pixels described at a time


class Histogram(NamedTuple):
    """Pixels, correct pixels and summed confidence by class and bin, or by class and cell."""

    pixels: Int64[Tensor, "*G L R"]
    hit: Int64[Tensor, "*G L R"]
    confidence: Float64[Tensor, "*G L R"]

    def of(self, region: int | slice) -> Histogram:
        """Return the histogram of one region, or of some."""
        return Histogram(*(field[region] for field in self))


def merge_classes(h: Histogram) -> Histogram:
    """Add up the histograms of all classes: `[*G, 1, R]`."""
    if h.pixels.shape[-2] == 1:
        return h
    return Histogram(*(field.sum(dim=-2, keepdim=True) for field in h))


def equal_edges(bins: int, device: torch.device | None = None) -> Float64[Tensor, " R1"]:
    """Return the edges 0, 1/R, ..., 1."""
    return torch.arange(bins + 1, dtype=torch.float64, device=device) / bins


class Pixels(NamedTuple):
    """Values of each pixel of one image that the metrics need."""

    confidence: Float64[Tensor, " N"]
    predicted: Int32[Tensor, " N"]
    labels: Int64[Tensor, " N"]
    nll: Float64[Tensor, " N"]
    brier: Float64[Tensor, " N"]
    entropy: Float64[Tensor, " N"]


def describe(logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"]) -> Pixels:
    """Return confidence, prediction, NLL, Brier score and entropy of each pixel of one image."""
    flat = labels.reshape(-1)
    confidence, predicted, nll, brier, entropy = pixel_statistics(logits.reshape(logits.shape[0], -1), flat)
    return Pixels(confidence, predicted, flat, nll, brier, entropy)


class PixelStore:
    """The pixels of one image on the CPU, added slab by slab; each slab is copied to its position."""

    def __init__(self, count: int) -> None:
        """Prepare for `count` pixels."""
        self._count, self._filled = count, 0
        self._columns: tuple[Tensor, ...] = ()

    def add(self, slab: Pixels) -> None:
        """Add the pixels that follow those added before."""
        own, slab = slab.labels.numel(), Pixels(*(values.cpu() for values in slab))
        if own == self._count:
            self._columns = slab
        else:
            self._columns = self._columns or tuple(values.new_empty(self._count) for values in slab)
            for column, values in zip(self._columns, slab, strict=True):
                column[self._filled : self._filled + own] = values
        self._filled += own

    def pixels(self) -> Pixels:
        """Return all of them."""
        if self._filled != self._count:
            raise ValueError(f"{self._count} pixels are needed, got {self._filled}")
        return Pixels(*self._columns)


@dataclass(frozen=True)
class Evidence:
    """The counts and sums of any number of regions.

    Attributes:
        top: Equal bins of the confidence by predicted class.
        support: Pixels by true class.
        sums: Summed NLL, Brier score and entropy.
        cells: Fine histogram from which equal-mass bins are read: of the confidence by predicted class or, in the form
            `marginal`, of the probability of every class; None if they are not wanted.
        static: Equal bins of the probability of every class against the truth of that class (form `marginal`); None
            in the other forms, which use `top`.
        equal_mass: Equal-mass bins of one set of pixels, exact; a sum of evidence has none and reads them from cells.
    """

    top: Histogram
    support: Num[Tensor, "*G L"]  # not whole where raters share a pixel
    sums: Float64[Tensor, "*G 3"]
    cells: Histogram | None = None
    static: Histogram | None = None
    equal_mass: Histogram | None = None

    @classmethod
    def zeros(cls, regions: int, num_classes: int, bins: int, *, cells: bool = False, marginal: bool = False) -> Self:
        """Return the evidence of regions without pixels; cells are those that ACE is read from."""

        def histogram(columns: int) -> Histogram:
            shape = (regions, num_classes, columns)
            pixels, hit = (torch.zeros(shape, dtype=torch.int64) for _ in range(2))
            return Histogram(pixels, hit, torch.zeros(shape, dtype=torch.float64))

        return cls(
            histogram(bins),
            torch.zeros(regions, num_classes, dtype=torch.int64),
            torch.zeros(regions, 3, dtype=torch.float64),
            histogram(CELLS) if cells else None,
            histogram(bins) if marginal else None,
        )

    @classmethod
    def of(
        cls,
        pixels: Pixels,
        regions: Sequence[Int64[Tensor, " _"]],
        *,
        num_classes: int,
        bins: int = 10,
        class_probs: Float[Tensor, "L N"] | None = None,
        mass_edges: Float64[Tensor, " R1"] | None = None,
        equal_mass: bool = True,
    ) -> Self:
        """Return the evidence of several regions of one image, without fine histograms.

        Args:
            pixels: Result of `describe`.
            regions: Positions of each region's pixels, none of which may be ignored.
            num_classes: L.
            bins: R.
            class_probs: Probabilities of all classes, for the form `marginal`.
            mass_edges: Edges of the equal-mass bins; by default the percentiles within each region.
            equal_mass: Whether equal-mass bins are wanted.
        """
        fixed = equal_edges(bins, pixels.confidence.device)
        edges = mass_edges if equal_mass else fixed
        count, hit, confidence, support, sums = counting.measure(regions, pixels, fixed, edges, num_classes)
        top, mass = (Histogram(count[:, k], hit[:, k], confidence[:, k]) for k in (0, 1))
        static = None
        if class_probs is not None:
            static, mass = _class_histograms(class_probs, pixels.labels, regions, bins, equal_mass=equal_mass)
        return cls(top, support, sums, static=static, equal_mass=mass if equal_mass else None)

    @classmethod
    def stacked(cls, parts: Sequence[Self]) -> Self:
        """Return the regions of several parts, one after the other."""
        tensors = [part.tensors() for part in parts]
        return cls.from_tensors({name: torch.cat([each[name] for each in tensors]) for name in tensors[0]})

    def add(
        self, logits: Float[Tensor, "B L *S"], labels: Int64[Tensor, "B *S"], masks: Bool[Tensor, "G B *S"]
    ) -> None:
        """Add the labelled pixels of a batch inside the mask of each region, in place; negative labels are skipped."""
        edges, cells = equal_edges(self.bins, logits.device), self.cells if self.static is None else None
        found = counting.measure_batch(logits, labels, masks, edges, *(cells or ()))
        for mine, theirs in zip((*self.top, self.support, self.sums), found, strict=True):
            mine.add_(theirs)
        if self.static is not None:
            for image, truth, inside in zip(logits, labels.reshape(len(labels), -1), masks.unbind(1), strict=True):
                self._add_classes(image.reshape(len(image), -1), truth, inside.reshape(len(inside), -1) & (truth >= 0))

    def _add_classes(self, logits: Tensor, labels: Tensor, inside: Tensor) -> None:
        """Add the probability of every class of one image, a part at a time."""
        for at in (slice(start, start + _PART) for start in range(0, len(labels), _PART)):
            probs = probabilities(logits[:, at].double().unsqueeze(0))[0]
            regions = [positions(mask[at]) for mask in inside]
            equal, _ = _class_histograms(probs, labels[at], regions, self.bins, equal_mass=False)
            for mine, theirs in zip(self.static or (), equal, strict=True):
                mine.add_(theirs)
            if self.cells is not None:
                for k, index in enumerate(regions):
                    count_class_cells(probs, labels[at], index, self.cells.of(k))

    def __add__(self, other: Self) -> Self:
        """Return the evidence of both sets of pixels; exact equal-mass bins do not add, and are dropped."""
        mine, theirs = self.tensors(), other.tensors()
        shared = [name for name in mine if name in theirs and not name.startswith("equal_mass")]
        return self.from_tensors({name: mine[name] + theirs[name] for name in shared})

    def __getitem__(self, region: int | slice) -> Self:
        """Return the evidence of one region, or of some, as views."""
        return self.from_tensors({name: tensor[region] for name, tensor in self.tensors().items()})

    @property
    def bins(self) -> int:
        """R."""
        return int(self.top.pixels.shape[-1])

    def adaptive(self, form: Form = "tables") -> Histogram:
        """Return equal-mass bins: exact ones where they are known, else those of the fine histograms."""
        if self.equal_mass is not None:
            return self.equal_mass
        if self.cells is None:
            raise TypeError("equal-mass bins need fine histograms or the pixels themselves")
        flat = Histogram(*(field.reshape(-1, *field.shape[-2:]) for field in self.cells))
        each = (equal_mass_bins(flat.of(k), bins=self.bins, form=form) for k in range(len(flat.pixels)))
        shape = (*self.support.shape, self.bins)
        return Histogram(*(torch.stack(parts).reshape(shape) for parts in zip(*each, strict=True)))

    def to_vectors(self) -> Float64[Tensor, "*G E"]:
        """Return one vector for each region that adds like the evidence, without cells; counts are exact to 2**53."""
        shape = self.support.shape[:-1]
        parts = (*self.top, *(self.static or ()), self.support, self.sums)
        return torch.cat([part.double().reshape(*shape, -1) for part in parts], dim=-1)

    @classmethod
    def from_vectors(cls, vectors: Float64[Tensor, "*G E"], num_classes: int, *, marginal: bool = False) -> Self:
        """Invert `to_vectors`."""
        shape, many = vectors.shape[:-1], 2 if marginal else 1
        size = (vectors.shape[-1] - num_classes - 3) // (3 * many)
        *tables, support, sums = torch.split(vectors, [*[size] * (3 * many), num_classes, 3], dim=-1)
        parts = [table.reshape(*shape, num_classes, -1) for table in tables]
        top, *static = (Histogram(parts[k].long(), parts[k + 1].long(), parts[k + 2]) for k in range(0, 3 * many, 3))
        return cls(top, support.long(), sums, static=static[0] if static else None)

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by name, such as "top_pixels"."""
        found = dict[str, Tensor]()
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if isinstance(value, Histogram):
                found |= {f"{name}_{part}": tensor for part, tensor in value._asdict().items()}
            elif value is not None:
                found[name] = value
        return found

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Invert `tensors`."""
        found = dict[str, Any]()
        for name in (field.name for field in fields(cls)):
            if name in tensors:
                found[name] = tensors[name]
            elif f"{name}_pixels" in tensors:
                found[name] = Histogram(*(tensors[f"{name}_{part}"] for part in Histogram._fields))
        return cls(**found)


def count_class_cells(
    class_probs: Float[Tensor, "L N"], labels: Int64[Tensor, " N"], index: Int64[Tensor, " K"], table: Histogram
) -> None:
    """Add the probability of every class to a fine histogram `[L, 65536]`, in place."""
    for c, probability in enumerate(class_probs.double()):
        counting.count_cells(index, probability, *_one_class(labels, c), *(field[c : c + 1] for field in table))


def _class_histograms(
    class_probs: Float[Tensor, "L N"],
    labels: Int64[Tensor, " N"],
    regions: Sequence[Int64[Tensor, " _"]],
    bins: int,
    *,
    equal_mass: bool,
) -> tuple[Histogram, Histogram]:
    """Bin the probability of each class against the truth of that class, in equal and perhaps equal-mass bins."""
    fixed, tables = equal_edges(bins, class_probs.device), []
    for c, probability in enumerate(class_probs.double()):
        pixels = (probability, *_one_class(labels, c), *[probability] * 3)  # what they sum to is not used
        tables.append(counting.measure(regions, pixels, fixed, None if equal_mass else fixed, 2)[:3])
    equal, mass = (Histogram(*(torch.cat([t[f][:, k, :1] for t in tables], dim=1) for f in range(3))) for k in (0, 1))
    return equal, mass


def _one_class(labels: Int64[Tensor, " N"], c: int) -> tuple[Int32[Tensor, " N"], Int64[Tensor, " N"]]:
    """Return predictions and labels for "is this pixel of class c?": 0 means yes, and is predicted everywhere."""
    return torch.zeros_like(labels, dtype=torch.int32), (labels != c).long()


class OccupiedCells(NamedTuple):
    """The cells of fine histograms `[*G, L, 65536]` that hold pixels: their positions, laid flat, and their content."""

    position: Array
    pixels: Array
    hit: Array
    confidence: Array


def empty_cells(*shape: int) -> Histogram:
    """Return fine histograms of zeros; numpy allocates no memory for pages that are never written to."""
    shape = (*shape, CELLS)
    count, hit, total = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    return Histogram(torch.from_numpy(count), torch.from_numpy(hit), torch.from_numpy(total))


def take_cells(cells: Histogram, rows: Sequence[int]) -> OccupiedCells:
    """Return the occupied cells of some rows of `[*G, L, 65536]`, and set them to 0, so that a table is used again."""
    flat = [field.view(-1).numpy() for field in cells]
    held = [np.flatnonzero(flat[0][row * CELLS : (row + 1) * CELLS]) + row * CELLS for row in rows]
    position = np.concatenate([np.zeros(0, np.int64), *held])
    found = OccupiedCells(position, *(field[position] for field in flat))
    for field in flat:
        field[position] = 0
    return found


def add_cells(occupied: OccupiedCells, cells: Histogram) -> None:
    """Add occupied cells to fine histograms, in place."""
    for field, values in zip(cells, occupied[1:], strict=True):
        field.view(-1).numpy()[occupied.position] += values


def equal_mass_bins(cells: Histogram, *, bins: int, form: Form) -> Histogram:
    """Read equal-mass bins `[L, R]` from a fine histogram `[L, 65536]`; `equal_mass_error` bounds the error."""
    by_class = form == "marginal"
    counts = cells.pixels if by_class else cells.pixels.sum(dim=0, keepdim=True)
    at = torch.arange(CELLS, device=counts.device)
    bin_of = (at > edge_cells(counts, bins).unsqueeze(-1)).sum(dim=-2)  # [L or 1, cells]
    where = bin_of.expand(cells.pixels.shape[0], -1)
    shape = (cells.pixels.shape[0], bins)
    return Histogram(*(field.new_zeros(shape).scatter_add_(1, where, field) for field in cells))


def edge_cells(counts: Int[Tensor, "K cells"], bins: int, nudge: float = 0.0) -> Int64[Tensor, "K inner"]:
    """Return the cell that each inner percentile falls into; any cell where there is no pixel."""
    cumulative = counts.cumsum(dim=-1)
    position = (cumulative[:, -1:] - 1).clamp(min=0) * counting.percentiles(bins, counts.device)[1:-1]
    return torch.searchsorted(cumulative, (position + nudge).floor().long(), right=True).clamp(max=CELLS - 1)
