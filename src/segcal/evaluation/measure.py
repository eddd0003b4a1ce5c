"""One case measured with every method: describe each pixel, then count every region and patch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from segcal.cases import StreamedCase
from segcal.evaluation.case_evidence import CaseEvidence, Key, MethodEvidence
from segcal.evaluation.doubts import majority_class
from segcal.evaluation.methods import ExclusiveHead, Method, calibrated_slabs, check_methods, heads_of, stream_for
from segcal.evaluation.own_metrics import MetricFunction, OwnMetrics
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.quality import NOTHING, CaseQuality, distance_unit
from segcal.evidence import Evidence, Pixels, PixelStore, describe, read
from segcal.evidence.cells import OccupiedCells, empty_cells, join_cells, take_cells
from segcal.evidence.statistic import count_class_cells
from segcal.functional import counting
from segcal.functional.arrays import to_tensor
from segcal.functional.catalogue import METRICS
from segcal.functional.checks import IGNORED, ignored_labels
from segcal.functional.geometry import foreground
from segcal.functional.masks import positions
from segcal.functional.probability import probabilities
from segcal.functional.random_labels import class_mass, draw_labels, generator_of
from segcal.regions import PATCH_SIZE, Box, LabelledCase, Region, box_index, chosen_regions, local_patch_size
from segcal.types import Array, Case, InputError, Mask

LEAST_SHARE = 0.05
"""Fraction of a Local patch that must be labelled, and lie in *All*, for the patch to count: the ECE of a few pixels is
mostly noise, and Local-Max would report the patch with the fewest. Such a patch is left out like an empty one."""


@dataclass(frozen=True)
class RegionIndices:
    """Positions of the pixels of every region and patch of one case, laid flat.

    Attributes:
        labels: The labels `[*S]` of the case on the CPU, -1 where ignored.
        regions: Positions of each region's pixels, in the order of the regions.
        boxes: The Local patches.
        patches: Positions of each patch's pixels that lie in *All*, none of a patch that is left out, by the size of
            the patches: that of the Local regions, then further ones.
    """

    labels: Tensor
    regions: Sequence[Tensor]
    boxes: Sequence[Box]
    patches: Mapping[int, Sequence[Tensor]]

    @classmethod
    def of(cls, case: StreamedCase, protocol: Protocol, regions: Iterable[Region]) -> RegionIndices:
        """Compute them; there are patches only if a region summarises them."""
        labelled, chosen = protocol.labelled(case), list(regions)
        masks = [region.mask(labelled) for region in chosen if region.mask is not None]
        inside = labelled.all[0]
        local = any(region.mask is None for region in chosen)
        sizes = (protocol.patch_side, *protocol.patch_sizes) if local else ()
        boxes = {size: protocol.boxes(labelled, size) for size in sizes}
        least = 0.0 if protocol.patch_rule == "paper" else LEAST_SHARE
        patches = {size: [_enough(box_index(box, inside), box, least) for box in own] for size, own in boxes.items()}
        return cls(
            labelled.labels[0],
            [positions(mask) for mask in masks],
            boxes.get(protocol.patch_side, []),
            patches,
        )

    @property
    def every(self) -> list[Tensor]:
        """Positions of the regions, then of the patches of each size."""
        return [*self.regions, *chain.from_iterable(self.patches.values())]


class Described(NamedTuple):
    """The pixels of a case with one method, and what else is read from its probabilities.

    Attributes:
        pixels: Values of each pixel.
        redrawn: The same with drawn labels, for the floor.
        class_probs: Probabilities of every class `[L, N]`, in the form `marginal`.
        mass: Sum of the probabilities of each class.
        probs: Probabilities Float32 `[L, *S]`, for the metrics of a user.
    """

    pixels: Pixels
    redrawn: Pixels | None
    class_probs: Tensor | None
    mass: Tensor
    probs: Tensor | None


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

    @property
    def measured(self) -> list[Region]:
        """The regions that are measured: masks, perhaps *All* without the majority class, then those of patches."""
        masks = [region for region in self.regions.values() if region.mask is not None]
        if self.majority is not None:
            masks.append(Region("", "", mask=partial(_outside, background=self.majority)))
        return [*masks, *(region for region in self.regions.values() if region.mask is None)]

    @property
    def local(self) -> tuple[str, ...]:
        """Names of the regions that summarise the patches of an image."""
        return tuple(name for name, region in self.regions.items() if region.mask is None)

    def measure(self, case: Case) -> CaseEvidence:
        """Return the evidence of every method on a case: with its labels and, for the floor, with drawn labels."""
        methods = dict[Key, MethodEvidence]()
        for head in self.heads:
            stream = stream_for(head.protocol, head.case(case), self.calibrators.values())
            view = stream[0]
            indices = RegionIndices.of(view, head.protocol, self.measured)
            methods |= self._measured(head, case, view, indices)
            if head.channel == 0:  # patches are at the same positions in every channel
                first, about = indices, stream
        return CaseEvidence(
            case.name,
            case.group or "",
            about.facts[0].fingerprint,
            about.facts[0].doubt or "",
            distance_unit(case),
            tuple(tuple(interval.start for interval in box) for box in first.boxes),
            {size: len(patches) for size, patches in first.patches.items()},
            methods,
        )

    def _measured(
        self, head: ExclusiveHead, case: Case, view: StreamedCase, indices: RegionIndices
    ) -> dict[Key, MethodEvidence]:
        """Return the evidence of every method on one channel of a case."""
        protocol, found, plain = head.protocol, dict[Key, MethodEvidence](), None
        inside = indices.regions[self.masked.index("all")]
        named = dict(zip(self.masked, indices.regions, strict=False))  # without *All* of the majority class
        counter = _Counter(indices, protocol, OwnMetrics(self.metrics, case.name, named))
        quality = None
        if protocol.surfaces:
            quality = CaseQuality(view.case, indices.labels, head.structures, protocol.surface_tolerance)
        for name, whole in self.calibrators.items():
            method = head.method(whole, case)
            seen = _described(view, method, indices.labels, protocol, whole=bool(self.metrics))
            plain = seen.pixels.predicted if method is None else plain
            moved = 0
            if plain is not None and method is not None and not getattr(method, "preserves_labels", False):
                moved = int(torch.ne(seen.pixels.predicted, plain)[inside].sum())
            surfaces = NOTHING if quality is None else quality.of(seen.pixels.predicted)
            key = Key(name, channel=head.channel)
            found[key] = counter.evidence(seen.pixels, seen, surfaces, moved)
            if seen.redrawn is not None:
                found[key._replace(redrawn=True)] = counter.evidence(seen.redrawn, seen, NOTHING)
            del seen  # a volume's pixels take hundreds of megabytes, and the next method needs as much
        return found


def _unnamed_background(case: Case, protocol: Protocol) -> int | None:
    """Return the class that covers most of the first case where no background is named; channels have none."""
    if protocol.background is not None or protocol.activation == "sigmoid" or case.labels is None:
        return None
    labels = np.asarray(to_tensor(case.labels))  # checked when the case is measured
    known = (labels >= 0) & (labels < protocol.num_classes) & ~np.isin(labels, ignored_labels(protocol.ignore_index))
    return majority_class(np.bincount(labels[known].astype(np.int64), minlength=protocol.num_classes))


def _outside(labelled: LabelledCase, *, background: int) -> Mask:
    """Return *All* as it is with this background."""
    return foreground(labelled.labels, IGNORED, background=background, near=labelled.boundary)


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

    def __init__(self, indices: RegionIndices, protocol: Protocol, metrics: OwnMetrics) -> None:
        self.indices, self.protocol, self.metrics = indices, protocol, metrics
        self._table = empty_cells(protocol.num_classes)  # used again for every region and method

    def evidence(self, pixels: Pixels, seen: Described, surfaces: Array, moved: int = 0) -> MethodEvidence:
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
        found = read(counted, form=protocol.form)
        own = counted[: len(regions)]
        # numpy, because small operations wake PyTorch's threads; ignored pixels are counted first and dropped
        support = np.bincount(pixels.labels.numpy() + 1, minlength=protocol.num_classes + 1)[1:]
        own_metrics = self.metrics.values(seen.probs, pixels.labels)
        values = np.full((len(METRICS) + len(own_metrics), len(self.indices.every)), np.nan)
        values[: len(METRICS)] = [found[name].double().numpy() for name in METRICS]
        values[len(METRICS) :, : own_metrics.shape[1]] = own_metrics
        return MethodEvidence(
            values,
            found["pixels"].numpy(),
            own.to_vectors().numpy(),
            np.array([seen.mass.tolist(), support.tolist()], np.float64),
            surfaces,
            moved,
            self._cells(pixels, own.top.pixels.sum(dim=-1)),
            None if seen.class_probs is None else self._class_cells(seen.class_probs, pixels.labels),
        )

    def _cells(self, pixels: Pixels, predicted: Int64[Tensor, "M L"]) -> OccupiedCells:
        found = []
        for index, own in zip(self.indices.regions, predicted, strict=True):
            counting.count_cells(index, *pixels[:3], *self._table)
            found.append(take_cells(self._table, own.nonzero().flatten().tolist()))
        return join_cells(found, self.protocol.num_classes)

    def _class_cells(self, class_probs: Tensor, labels: Tensor) -> OccupiedCells:
        found = []
        for index in self.indices.regions:
            count_class_cells(class_probs, labels, index, self._table)
            found.append(take_cells(self._table, range(self.protocol.num_classes)))
        return join_cells(found, self.protocol.num_classes)


def _enough(pixels: Tensor, box: Box, least: float) -> Tensor:
    """Return the pixels of a patch, or none of them if they are too few."""
    size = math.prod(side.stop - side.start for side in box)
    return pixels if len(pixels) >= least * size else pixels[:0]
