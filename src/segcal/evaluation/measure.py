"""One case measured with every method: describe each pixel, then count every region and patch.

The evidence of a case depends on nothing but the case, and is added up in the order of the cases, so that results are
the same bits however the cases are divided between processes.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
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
from segcal.evidence import Evidence, Pixels, PixelStore, describe, read
from segcal.evidence.statistic import OccupiedCells, count_class_cells, empty_cells, join_cells, take_cells
from segcal.functional import counting
from segcal.functional.arrays import to_tensor
from segcal.functional.catalogue import HIGHER_IS_BETTER, METRICS, SURFACES
from segcal.functional.checks import IGNORED, ignored_labels
from segcal.functional.counting import positions
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
    moved: int = 0
    cells: Sequence[OccupiedCells] = ()


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
        return replace(self, methods={key: replace(own, cells=()) for key, own in self.methods.items()})

    def to_bytes(self) -> bytes:
        """Return the content of a safetensors file."""
        arrays, methods = dict[str, Array](), list[Any]()
        for k, (key, own) in enumerate(self.methods.items()):
            arrays[f"{k}.vectors"] = np.ascontiguousarray(own.vectors)  # `save` needs it
            for j, cells in enumerate(own.cells):
                arrays |= {f"{k}.{j}.{part}": _narrow(values) for part, values in cells._asdict().items()}
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


def _narrow(values: Array) -> Array:
    """Return whole numbers in 32 bits if they fit; most of a file are positions and counts of cells."""
    fits = values.dtype == np.int64 and values.max(initial=0) < 1 << 31 and values.min(initial=0) >= 0
    return values.astype(np.int32) if fits else values


class Described(NamedTuple):
    """The pixels of a case with one method, and what else is read from its probabilities."""

    pixels: Pixels
    redrawn: Pixels | None  # with drawn labels, for the floor
    class_probs: Tensor | None  # of every class `[L, N]`, in the form `marginal`
    mass: Tensor  # sum of the probabilities of each class
    probs: Tensor | None  # Float32 `[L, *S]`, for the metrics of a user


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
        chosen = chosen_regions(None) if regions is None else regions
        majority, own = _unnamed_background(first, protocol), metrics or {}
        if protocol.patch_size is not None:
            return cls(calibrators, protocol, chosen, majority=majority, metrics=own)
        size = local_patch_size([first.logits.shape[1:]])
        note = (
            f"Local patches have a side of {size} pixels, since the paper's {PATCH_SIZE} would cover more than a "
            f"quarter of '{first.name}'; set patch_size to choose another"
        )
        notes = [note] if size != PATCH_SIZE and protocol.patches else []
        return cls(calibrators, replace(protocol, patch_size=size), chosen, notes, majority, own)

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
        methods = dict[Key, MethodEvidence]()
        for head in self.heads:
            stream = stream_for(head.protocol, head.case(case), self.calibrators.values())
            methods |= self._measured(head, case, stream[0])
            if head.channel == 0:
                about = stream
        facts = about.facts[0]
        return CaseEvidence(
            case.name, case.group or "", facts.fingerprint, facts.doubt or "", distance_unit(case), methods
        )

    def _measured(self, head: ExclusiveHead, case: Case, view: StreamedCase) -> dict[Key, MethodEvidence]:
        """Return the evidence of every method on one channel of a case."""
        found, plain = dict[Key, MethodEvidence](), None
        indices = self._indices(view, head.protocol)
        counter, surfaces, measured = _Counter(self, head, case.name, indices), [], None
        for name, whole in self.calibrators.items():
            method = head.method(whole, case)
            seen = _described(view, method, indices.labels, head.protocol, whole=bool(self.metrics))
            predicted = seen.pixels.predicted
            plain = predicted if method is None else plain
            moved = 0
            if plain is not None and method is not None and not getattr(method, "preserves_labels", False):
                moved = int(torch.ne(predicted, plain)[indices.regions["all"]].sum())
            if head.protocol.surfaces and (measured is None or not torch.equal(predicted, measured)):
                prediction = predicted.numpy().reshape(indices.labels.shape)
                surfaces = list(_surfaces(view.case, indices.labels.numpy(), head, prediction))
                measured = predicted  # most methods change no label
            key = Key(name, channel=head.channel)
            found[key] = counter.evidence(seen.pixels, seen, surfaces, moved)
            if seen.redrawn is not None:
                found[key._replace(redrawn=True)] = counter.evidence(seen.redrawn, seen)
            del seen, predicted  # a volume's pixels take hundreds of megabytes, and the next method needs as much
        return found

    def _indices(self, view: StreamedCase, protocol: Protocol) -> RegionIndices:
        """Return where the regions and patches are; there are patches only if a region summarises them."""
        labelled, regions = protocol.labelled(view), self.regions.values()
        local = any(region.mask is None for region in regions)
        sizes = (protocol.patch_side, *protocol.patch_sizes) if local else ()
        boxes = {size: protocol.boxes(labelled, size) for size in sizes}
        least = 0.0 if protocol.patch_rule == "paper" else LEAST_SHARE
        return RegionIndices.of(labelled, regions, boxes, least, self.majority)


def _unnamed_background(case: Case, protocol: Protocol) -> int | None:
    """Return the class that covers most of the first case where no background is named; channels have none."""
    if protocol.background is not None or protocol.activation == "sigmoid" or case.labels is None:
        return None
    labels = np.asarray(to_tensor(case.labels))  # checked when the case is measured
    known = (labels >= 0) & (labels < protocol.num_classes) & ~np.isin(labels, ignored_labels(protocol.ignore_index))
    return majority_class(np.bincount(labels[known].astype(np.int64), minlength=protocol.num_classes))


def _described(
    case: StreamedCase, method: Method, labels: Tensor, protocol: Protocol, *, whole: bool = False
) -> Described:
    """Describe the pixels of a case, where the calibrator is, and keep them on the CPU.

    The `whole` probabilities are kept only for the metrics of a user, which may look at any pixels together.
    """
    kept = torch.empty((protocol.num_classes, *labels.shape)) if whole else None
    described, redrawn, probs = PixelStore(labels.numel()), PixelStore(labels.numel()), []
    mass = torch.zeros(protocol.num_classes, dtype=torch.float64)
    random = generator_of(protocol.seed, case.name)
    for rows, slab, _ in calibrated_slabs(case, method):
        logits, truth = slab[0], labels[rows].to(slab.device)
        pixels = describe(logits, truth)
        described.add(pixels)
        mass += class_mass(logits, truth, pixels.confidence).cpu()
        if protocol.floor:
            redrawn.add(describe(logits, draw_labels(logits, truth, random)))
        if kept is not None:
            kept[:, rows] = probabilities(slab.double())[0].cpu().float()
        if protocol.form == "marginal":
            probs.append(probabilities(slab.double())[0].flatten(1).cpu())
    class_probs = torch.cat(probs, dim=1) if probs else None
    return Described(described.pixels(), redrawn.pixels() if protocol.floor else None, class_probs, mass, kept)


class _Counter:
    """Counts the pixels of one case into its regions, patches and cells."""

    def __init__(self, evaluation: Evaluation, head: ExclusiveHead, case: str, indices: RegionIndices) -> None:
        self.evaluation, self.protocol, self.case, self.indices = evaluation, head.protocol, case, indices
        self._table = empty_cells(head.protocol.num_classes)  # used again for every region and method

    def evidence(
        self, pixels: Pixels, seen: Described, surfaces: Iterable[Sequence[Any]] = (), moved: int = 0
    ) -> MethodEvidence:
        """Return the evidence of one method."""
        protocol, regions = self.protocol, self.indices.regions
        edges = None
        if protocol.ace_edges == "image":
            edges = counting.percentile_edges(pixels.confidence, positions(self.indices.labels >= 0), protocol.bins)
        counted = Evidence.of(
            pixels,
            self.indices.every,
            num_classes=protocol.num_classes,
            bins=protocol.bins,
            class_probs=seen.class_probs,
            mass_edges=edges,
        )
        # numpy, because small operations wake PyTorch's threads; ignored pixels are counted first and dropped
        support = np.bincount(pixels.labels.numpy() + 1, minlength=protocol.num_classes + 1)[1:].tolist()
        rows = defaultdict[str, list[Sequence[Any]]](list)
        for table, *row in self._metric_rows(counted, pixels.labels, seen.probs):
            rows[table].append(row)
        rows["volume_frame"] = list(zip(protocol.names, seen.mass.tolist(), support, strict=True))
        rows["surface_frame"] = list(surfaces)
        own = counted[: len(regions)]
        predicted = own.top.pixels.sum(dim=-1)
        kinds = [None] if seen.class_probs is None else [None, seen.class_probs]
        cells = [self._cells(pixels, predicted, probs) for probs in kinds]
        return MethodEvidence(rows, own.to_vectors().numpy(), len(regions["all"]), moved, cells)

    def _metric_rows(
        self, counted: Evidence, labels: Int64[Tensor, " N"], probs: Tensor | None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the name of a table and a row of it, metric by metric."""
        found = read(counted, form=self.protocol.form)
        pixels, shown = found["pixels"].tolist(), self.evaluation.masked
        for metric in METRICS:
            measured = list(zip(found[metric].tolist(), pixels, strict=True))
            yield from (("frame", region, metric, *own) for region, own in zip(shown, measured, strict=False))
            boxes = self.indices.boxes.get(self.protocol.patch_side)
            if not boxes:
                continue
            at, summarised = len(self.indices.regions), dict[int, list[tuple[str, str, float, int]]]()
            for k, (box, own) in enumerate(zip(boxes, measured[at:], strict=False)):
                yield "patch_frame", k, " ".join(str(side.start) for side in box), metric, *own
            for size, patches in self.indices.patches.items():
                summarised[size] = list(self._summarised(metric, measured[at : at + len(patches)]))
                at += len(patches)
            yield from (("frame", *row) for row in summarised[self.protocol.patch_side])
            for size in dict.fromkeys(self.protocol.patch_sizes):
                yield from (("size_frame", size, *row) for row in summarised[size])
        own_values = [self._own_values(region, probs, labels) for region in shown]
        for metric in self.evaluation.metrics:
            for region, values, count in zip(shown, own_values, pixels, strict=False):
                yield "frame", region, metric, values[metric], count

    def _summarised(self, metric: str, patches: Sequence[tuple[float, int]]) -> Iterator[tuple[str, str, float, int]]:
        """Yield Local-Avg and Local-Max of one image: the mean patch and the worst, among those that hold pixels."""
        held = [(value, size) for value, size in patches if size]
        found: dict[str, tuple[float, int]] = dict.fromkeys(("local-avg", "local-max"), (np.nan, 0))
        if held:
            worst = min if metric in HIGHER_IS_BETTER else max
            mean = float(np.mean([value for value, _ in held]))
            found = {"local-avg": (mean, sum(size for _, size in held)), "local-max": worst(held)}
        yield from ((name, metric, *found[name]) for name in found if name in self.evaluation.regions)

    def _own_values(self, region: str, probs: Tensor | None, labels: Int64[Tensor, " N"]) -> dict[str, float]:
        """Return the metrics of a user in a region; NaN where it has no pixels."""
        found, index = dict.fromkeys(self.evaluation.metrics, math.nan), self.indices.regions[region]
        for metric, function in self.evaluation.metrics.items():
            if probs is None or not len(index):
                continue
            inside = torch.full_like(labels, IGNORED)  # made for each call, so that a function may change it
            inside[index] = labels[index]
            found[metric] = self._own_value(metric, function(probs, inside.reshape(probs.shape[1:])), region)
        return found

    def _own_value(self, metric: str, returned: Any, region: str) -> float:
        """Return what a metric of a user returned as a number."""
        try:
            value = float(returned)
        except (TypeError, ValueError, RuntimeError):  # a tensor of several values raises the last
            value = math.nan
        if not math.isfinite(value):
            got = returned if isinstance(returned, float) else type(returned).__name__
            raise InputError(
                f"metric '{metric}' must return a finite number, got {got} for case '{self.case}' in region "
                f"'{region}'; return a number of your choice where it is not defined"
            )
        return value

    def _cells(self, pixels: Pixels, predicted: Int64[Tensor, "M L"], class_probs: Tensor | None) -> OccupiedCells:
        """Return the occupied cells of every region: of the confidence, or of the probability of every class."""
        found = []
        for index, own in zip(self.indices.regions.values(), predicted, strict=True):
            if class_probs is None:
                counting.count_cells(index, *pixels[:3], *self._table)
                found.append(take_cells(self._table, own.nonzero().flatten().tolist()))
            else:
                count_class_cells(class_probs, pixels.labels, index, self._table)
                found.append(take_cells(self._table, range(len(own))))
        return join_cells(found, self.protocol.num_classes)


def _surfaces(case: Case, truth: Array, head: ExclusiveHead, prediction: Array) -> Iterator[tuple[str, str, float]]:
    """Yield name, metric and value of each structure of the prediction or the truth `[*S]`."""
    known, protocol = truth >= 0, head.protocol
    found = segmentation_quality(
        prediction,
        truth,
        head.structures,
        spacing=case.spacing,
        tolerance=protocol.surface_tolerance,
        inside=None if known.all() else known,
    )
    for entry in found.labels:
        for metric, attribute in _QUALITY.items():
            yield protocol.names[entry.label], metric, float(getattr(entry, attribute))


def distance_unit(case: Case) -> str:
    """Return the unit of surface distances: mm, that of the spacing, or pixels or voxels where there is none."""
    if case.spacing is not None:
        return "mm"
    return "pixels" if case.logits.ndim == 3 else "voxels"
