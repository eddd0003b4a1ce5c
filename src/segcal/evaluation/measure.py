"""One case measured with every method: describe each pixel, then count every region and patch.

The evidence of a case depends on nothing but the case, and is added up in the order of the cases, so that results are
the same bits however the cases are divided between processes.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from safetensors.numpy import load, save
from torch import Tensor

from segcal.cases import StreamedCase
from segcal.evaluation.methods import (
    ExclusiveHead,
    Method,
    MetricFunction,
    calibrated_slabs,
    check_methods,
    heads_of,
    stream_for,
)
from segcal.evaluation.protocol import Protocol, majority_class
from segcal.evidence import Evidence, Histogram, Pixels, PixelStore, describe, read
from segcal.evidence.statistic import OccupiedCells, count_class_cells, empty_cells, take_cells
from segcal.functional import counting
from segcal.functional.arrays import to_array, to_tensor
from segcal.functional.catalogue import HIGHER_IS_BETTER, METRICS, SURFACES
from segcal.functional.checks import IGNORED, ignored_labels
from segcal.functional.counting import positions, positions_in_box
from segcal.functional.draws import class_mass, draw_labels, generator_of
from segcal.functional.probability import probabilities
from segcal.functional.surfaces import segmentation_quality
from segcal.regions import PATCH_SIZE, Region, RegionIndices, chosen_regions, local_patch_size
from segcal.types import Array, Case, InputError

LEAST_SHARE = 0.05
"""Fraction of a Local patch that must be labelled, and lie in *All*, for the patch to count: the ECE of a few pixels is
mostly noise, and Local-Max would report the patch with the fewest. Such a patch is left out like an empty one."""

_QUALITY = dict(
    zip(SURFACES, ("dice", "surface_dice", "average", "percentile95", "hausdorff95", "maximum"), strict=True)
)
"""Attributes of `LabelQuality` by their names in the results."""


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
        cells: Occupied cells of the fine histograms of the regions `[M, L, 65536]`: of the confidence and, in the form
            `marginal`, of the probability of every class; none once they are added up.
    """

    rows: Rows
    vectors: Array
    inside: int
    moved: int
    cells: Sequence[OccupiedCells]


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

    def to_bytes(self) -> bytes:
        """Return the content of a safetensors file."""
        arrays, methods = dict[str, Array](), list[Any]()
        for k, (key, own) in enumerate(self.methods.items()):
            arrays[f"{k}.vectors"] = np.ascontiguousarray(own.vectors)  # `save` needs it
            for j, cells in enumerate(own.cells):
                arrays |= {f"{k}.{j}.{part}": values for part, values in cells._asdict().items()}
            methods.append([key, own.rows, own.inside, own.moved, len(own.cells)])
        return save(arrays, {"about": json.dumps({**vars(self), "methods": methods})})

    @classmethod
    def from_bytes(cls, content: bytes) -> CaseEvidence:
        """Read what `to_bytes` wrote; the metadata begin the file: 8 bytes of length, then JSON."""
        length = int.from_bytes(content[:8], "little")
        about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"])
        arrays, methods = load(content), dict[Key, MethodEvidence]()
        for k, (key, rows, inside, moved, kinds) in enumerate(about["methods"]):
            fields = [[arrays[f"{k}.{j}.{part}"] for part in OccupiedCells._fields] for j in range(kinds)]
            cells = [OccupiedCells(*own) for own in fields]
            methods[Key(*key)] = MethodEvidence(rows, arrays[f"{k}.vectors"], inside, moved, cells)
        return cls(**{**about, "methods": methods})


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that is ready to measure cases.

    Attributes:
        calibrators: Fitted calibrators by their name in the tables.
        protocol: How it is measured, with the side of the patches.
        regions: The regions by name.
        notes: Warnings known before anything is measured.
        majority: Class that may be an unnamed background, without which *All* is measured too; None for none.
        metrics: A user's own metrics by name.
    """

    calibrators: Mapping[str, Method]
    protocol: Protocol
    regions: Mapping[str, Region]
    notes: Sequence[str] = ()
    majority: int | None = None
    metrics: Mapping[str, MetricFunction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.calibrators:
            raise InputError('at least one method is needed, got none; {"UC": None} measures the uncalibrated scores')
        check_methods(self.calibrators, self.protocol)

    @classmethod
    def of(
        cls,
        first: Case,
        calibrators: Mapping[str, Method],
        protocol: Protocol,
        regions: Mapping[str, Region] | None = None,
        metrics: Mapping[str, MetricFunction] | None = None,
    ) -> Evaluation:
        """Return an evaluation of all regions by default, and of patches whose side suits the first case."""
        size = local_patch_size([first.logits.shape[1:]]) if protocol.patch_size is None else protocol.patch_size
        note = (
            f"Local patches have a side of {size} pixels, since the paper's {PATCH_SIZE} would cover more than a "
            f"quarter of '{first.name}'; set patch_size to choose another"
        )
        chosen = chosen_regions(None) if regions is None else regions
        notes = [note] if protocol.patch_size is None and size != PATCH_SIZE and protocol.patches else []
        majority = _unnamed_background(first, protocol)
        return cls(calibrators, replace(protocol, patch_size=size), chosen, notes, majority, metrics or {})

    @cached_property
    def heads(self) -> list[ExclusiveHead]:
        """One head for a softmax, or one for each sigmoid channel."""
        return heads_of(self.protocol)

    @property
    def masked(self) -> tuple[str, ...]:
        """Names of the regions that are masks, in order."""
        return tuple(name for name, region in self.regions.items() if region.mask is not None)

    def measure(self, case: Case) -> CaseEvidence:
        """Return the evidence of every method on a case: with its labels and, for the floor, with drawn labels."""
        methods, facts = dict[Key, MethodEvidence](), []
        for head in self.heads:
            stream = stream_for(head.protocol, head.case(case), self.calibrators.values())
            methods |= _HeadCase(self, head, case, stream[0]).measured()
            facts += stream.facts
        about = case.name, case.group or "", facts[0].fingerprint, facts[0].doubt or "", distance_unit(case)
        return CaseEvidence(*about, methods)


def _unnamed_background(case: Case, protocol: Protocol) -> int | None:
    """Return the class that covers most of the first case where no background is named; channels have none."""
    if protocol.background is not None or protocol.activation == "sigmoid" or case.labels is None:
        return None
    labels = to_array(to_tensor(case.labels))  # checked when the case is measured
    known = (labels >= 0) & (labels < protocol.num_classes) & ~np.isin(labels, ignored_labels(protocol.ignore_index))
    return majority_class(np.bincount(labels[known].astype(np.int64), minlength=protocol.num_classes))


class _Described(NamedTuple):
    """The pixels of a case with one method: with its labels and, for the floor, with drawn ones."""

    pixels: Sequence[Pixels]
    mass: Float[Tensor, " L"]  # sum of the probabilities of each class
    probs: Float[Tensor, "L *S"] | None  # of every class, where the form or a metric of a user needs them


@dataclass(frozen=True)
class _HeadCase:
    """A case as one head sees it, whose pixels are counted into its regions, patches and cells."""

    evaluation: Evaluation
    head: ExclusiveHead
    case: Case
    view: StreamedCase

    @property
    def protocol(self) -> Protocol:
        return self.head.protocol

    @cached_property
    def indices(self) -> RegionIndices:
        """Positions of the regions and patches; there are patches only if a region summarises them."""
        protocol, regions = self.protocol, self.evaluation.regions.values()
        labelled, local = protocol.labelled(self.view), any(region.mask is None for region in regions)
        sizes = (*protocol.patch_sizes, protocol.patch_side) if local else ()
        boxes = {size: protocol.boxes(labelled, size) for size in sizes}
        least = 0.0 if protocol.patch_rule == "paper" else LEAST_SHARE
        return RegionIndices.of(labelled, regions, boxes, least, self.evaluation.majority)

    @cached_property
    def cells(self) -> Histogram:
        """Fine histograms of the regions, used again for every method."""
        return empty_cells(len(self.indices.regions), self.protocol.num_classes)

    def measured(self) -> dict[Key, MethodEvidence]:
        """Return the evidence of every method."""
        found, indices = dict[Key, MethodEvidence](), self.indices
        plain, surfaces, segmented = None, list[Sequence[Any]](), None
        for name, whole in self.evaluation.calibrators.items():
            method = self.head.method(whole, self.case)
            seen = self._described(method)
            predicted, moved = seen.pixels[0].predicted, 0
            plain = predicted if method is None else plain
            if plain is not None and method is not None and not getattr(method, "preserves_labels", False):
                moved = int(torch.ne(predicted, plain)[indices.regions["all"]].sum())
            if self.protocol.surfaces and (segmented is None or not torch.equal(predicted, segmented)):
                surfaces, segmented = list(self._surfaces(predicted)), predicted  # most methods change no label
            for redrawn, pixels in enumerate(seen.pixels):
                rows, vectors, cells = self._counted(pixels, seen)
                if not redrawn:
                    rows["surface_frame"] = surfaces
                own = MethodEvidence(rows, vectors, len(indices.regions["all"]), 0 if redrawn else moved, cells)
                found[Key(name, bool(redrawn), self.head.channel)] = own
            del seen, predicted, pixels  # of a volume hundreds of megabytes, and the next method needs as much
        return found

    def _described(self, method: Method) -> _Described:
        """Describe the pixels, where the calibrator is, and keep them on the CPU."""
        protocol, labels, probs = self.protocol, self.indices.labels, None
        if protocol.form == "marginal" or self.evaluation.metrics:
            precision = torch.float64 if protocol.form == "marginal" else torch.float32
            probs = torch.empty((protocol.num_classes, *labels.shape), dtype=precision)
        stores = [PixelStore(labels.numel()) for _ in range(1 + protocol.floor)]
        mass = torch.zeros(protocol.num_classes, dtype=torch.float64)
        random = generator_of(protocol.seed, self.case.name)
        for rows, slab, _ in calibrated_slabs(self.view, method):
            logits, truth = slab[0], labels[rows].to(slab.device)
            pixels = describe(logits, truth)
            stores[0].add(pixels)
            mass += class_mass(logits, truth, pixels.confidence).cpu()
            for floor in stores[1:]:
                floor.add(describe(logits, draw_labels(logits, truth, random)))
            if probs is not None:
                probs[:, rows] = probabilities(slab.double())[0].cpu().to(probs.dtype)
        return _Described([store.pixels() for store in stores], mass, probs)

    def _counted(
        self, pixels: Pixels, seen: _Described
    ) -> tuple[dict[str, list[Sequence[Any]]], Array, list[OccupiedCells]]:
        """Return rows, vectors and cells of pixels with their labels or drawn ones."""
        protocol, indices, classes = self.protocol, self.indices, self.protocol.num_classes
        class_probs = seen.probs.flatten(1) if seen.probs is not None and protocol.form == "marginal" else None
        count = partial(Evidence.of, pixels, num_classes=classes, bins=protocol.bins, class_probs=class_probs)
        counted = self._of_whole_views(pixels, count) if protocol.ace_edges == "image" else count(indices.every)
        # numpy, because small operations wake PyTorch's threads; ignored pixels are counted first and dropped
        support = np.bincount(pixels.labels.numpy() + 1, minlength=classes + 1)[1:].tolist()
        rows = defaultdict[str, list[Sequence[Any]]](list)
        for table, *row in self._metric_rows(counted, pixels.labels, seen.probs):
            rows[table].append(row)
        rows["volume_frame"] = list(zip(protocol.names, seen.mass.tolist(), support, strict=True))
        own = counted[: len(indices.regions)]
        held = own.top.pixels.sum(dim=-1).flatten().nonzero().flatten().tolist()
        cells = [self._cells(pixels, held)]
        if class_probs is not None:
            cells.append(self._cells(pixels, range(classes * len(indices.regions)), class_probs))
        return rows, own.to_vectors().numpy(), cells

    def _of_whole_views(self, pixels: Pixels, count: Callable[..., Evidence]) -> Evidence:
        """Count with the equal-mass bins of all labelled pixels of the image, and of each patch for the patch."""
        indices, bins, known = self.indices, self.protocol.bins, self.indices.labels >= 0
        edges = counting.percentile_edges(pixels.confidence, positions(known), bins)
        parts = [count(list(indices.regions.values()), mass_edges=edges)]
        for size, boxes in indices.boxes.items():
            for box, index in zip(boxes, indices.patches[size], strict=True):
                edges = counting.percentile_edges(pixels.confidence, positions_in_box(known, box), bins)
                parts.append(count([index], mass_edges=edges))
        return Evidence.stacked(parts)

    def _cells(self, pixels: Pixels, held: Sequence[int], class_probs: Tensor | None = None) -> OccupiedCells:
        """Return the occupied cells of the confidence, or of the probability of every class.

        `held` are the rows of the regions and classes that hold pixels, among all of them laid flat.
        """
        for k, index in enumerate(self.indices.regions.values()):
            if class_probs is None:
                counting.count_cells(index, *pixels[:3], *self.cells.of(k))
            else:
                count_class_cells(class_probs, pixels.labels, index, self.cells.of(k))
        return take_cells(self.cells, held)

    def _metric_rows(
        self, counted: Evidence, labels: Int64[Tensor, " N"], probs: Tensor | None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the name of a table and a row of it, metric by metric."""
        found = read(counted, form=self.protocol.form)
        pixels, shown, indices = found["pixels"].tolist(), self.evaluation.masked, self.indices
        for metric in METRICS:
            measured = list(zip(found[metric].tolist(), pixels, strict=True))
            yield from (("frame", region, metric, *own) for region, own in zip(shown, measured, strict=False))
            at = len(indices.regions)
            for size, boxes in indices.boxes.items():
                own, at = measured[at : at + len(boxes)], at + len(boxes)
                summary = [(name, metric, *value) for name, value in _summarised(metric, own) if boxes]
                summary = [row for row in summary if row[0] in self.evaluation.regions]
                if size in self.protocol.patch_sizes:
                    yield from (("size_frame", size, *row) for row in summary)
                if size == self.protocol.patch_side:
                    for k, (box, value) in enumerate(zip(boxes, own, strict=True)):
                        yield "patch_frame", k, " ".join(str(side.start) for side in box), metric, *value
                    yield from (("frame", *row) for row in summary)
        whole, own_metrics, own_rows = None if probs is None else probs.float(), self.evaluation.metrics, []
        for region, count in zip(shown, pixels, strict=False):
            for metric, function in own_metrics.items():
                result = math.nan
                if whole is not None and count:
                    inside = torch.full_like(labels, IGNORED)  # made for each call, so that a function may change it
                    inside[indices.regions[region]] = labels[indices.regions[region]]
                    result = self._own_value(metric, function(whole, inside.reshape(whole.shape[1:])), region)
                own_rows.append(("frame", region, metric, result, count))
        yield from sorted(own_rows, key=lambda row: list(own_metrics).index(row[2]))

    def _own_value(self, metric: str, returned: Any, region: str) -> float:
        """Return what a metric of a user returned as a number."""
        try:
            value = float(returned)
        except (TypeError, ValueError, RuntimeError):  # a tensor of several values raises the last
            value = math.nan
        if not math.isfinite(value):
            got = returned if isinstance(returned, float) else type(returned).__name__
            raise InputError(
                f"metric '{metric}' must return a finite number, got {got} for case '{self.case.name}' in region "
                f"'{region}'; return a number of your choice where it is not defined"
            )
        return value

    def _surfaces(self, predicted: Int64[Tensor, " N"]) -> Iterator[tuple[str, str, float]]:
        """Yield name, metric and value of each structure of the prediction or the truth."""
        truth, protocol = self.indices.labels.numpy(), self.protocol
        known = truth >= 0
        found = segmentation_quality(
            predicted.numpy().reshape(truth.shape),
            truth,
            self.head.structures,
            spacing=self.case.spacing,
            tolerance=protocol.surface_tolerance,
            inside=None if known.all() else known,
        )
        for entry in found.labels:
            for metric, attribute in _QUALITY.items():
                yield protocol.names[entry.label], metric, float(getattr(entry, attribute))


def _summarised(metric: str, patches: Sequence[tuple[float, int]]) -> Iterator[tuple[str, tuple[float, int]]]:
    """Yield Local-Avg and Local-Max of one image: the mean patch and the worst, among those that hold pixels."""
    held = [(value, size) for value, size in patches if size]
    if not held:
        yield from (("local-avg", (math.nan, 0)), ("local-max", (math.nan, 0)))
        return
    yield "local-avg", (float(np.mean([value for value, _ in held])), sum(size for _, size in held))
    yield "local-max", (min if metric in HIGHER_IS_BETTER else max)(held)


def distance_unit(case: Case) -> str:
    """Return the unit of surface distances: mm, that of the spacing, or pixels or voxels where there is none."""
    if case.spacing is not None:
        return "mm"
    return "pixels" if case.logits.ndim == 3 else "voxels"
