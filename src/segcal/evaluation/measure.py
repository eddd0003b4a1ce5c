"""One case measured with one method: evidence of every region and patch, fine histograms and volumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators import Calibrator
from segcal.cases import slabs_of
from segcal.evaluation.places import Places
from segcal.evaluation.protocol import Protocol
from segcal.functional import binning
from segcal.functional.binning import Evidence, Pixels, PixelStore
from segcal.functional.checks import check_logits
from segcal.functional.counting import count_cells_exactly
from segcal.functional.probability import probabilities
from segcal.functional.random_labels import class_mass, draw_labels, generator_of
from segcal.types import Array, Case, InputError, Logits

Method: TypeAlias = Calibrator | Callable[[Logits], Logits] | None
"""A fitted calibrator, a function from logits `[1, L, *S]` to calibrated logits, or None for the scores as they are."""


@dataclass(frozen=True)
class Measured:
    """The findings for one case, one method and one set of labels.

    Attributes:
        evidence: Of the regions, then of the patches, as in `Places.all_positions`.
        pixels: What the metrics need to know about each pixel.
        class_probs: Probabilities of all classes `[L, N]`; None unless the form is marginal.
        mass: Sum of the probability of each class, its expected volume in pixels.
        support: Pixels of each true class.
    """

    evidence: Evidence
    pixels: Pixels
    class_probs: Tensor | None
    mass: Tensor
    support: list[int]

    @classmethod
    def of(
        cls, pixels: Pixels, class_probs: Tensor | None, mass: Tensor, places: Places, protocol: Protocol
    ) -> Measured:
        """Collect the evidence of every region and patch from the pixels."""
        adaptive_edges = None
        if protocol.ace_edges == "image":
            adaptive_edges = binning.quantile_edges(pixels, binning.index_of(places.labels >= 0), bins=protocol.bins)
        evidence = binning.region_evidence(
            pixels,
            places.all_positions,
            num_classes=protocol.num_classes,
            bins=protocol.bins,
            form=protocol.form,
            class_probs=class_probs,
            adaptive_edges=adaptive_edges,
        )
        # numpy, because small operations wake PyTorch's threads; ignored pixels are counted first and dropped
        support = np.bincount(pixels.labels.numpy() + 1, minlength=protocol.num_classes + 1)[1:]
        return cls(evidence, pixels, class_probs, mass, support.tolist())

    def add_cells(self, region: Tensor, top: Array, marginal: Array | None) -> None:
        """Add a region's pixels to fixed-point fine histograms: of top confidences and, if given, of every class."""
        confidence, predicted, labels = self.pixels[:3]
        count_cells_exactly(region, confidence, predicted, labels, *torch.from_numpy(top))
        if self.class_probs is not None and marginal is not None:
            tables = torch.from_numpy(marginal).unbind()
            binning.count_marginal_cells(self.class_probs, labels, region, tables, count_cells_exactly)


def measure(
    case: Case,
    calibrator: Method,
    places: Places,
    protocol: Protocol,
    *,
    device: torch.device | None = None,
) -> tuple[Measured, Measured | None]:
    """Measure a case with its labels and, for the floor, with labels drawn from the probabilities.

    Pixels are described where the calibrator is, or on `device` without one, and counted on the CPU.
    """
    described, redrawn, probs = PixelStore(places.labels.numel()), PixelStore(places.labels.numel()), []
    mass = torch.zeros(protocol.num_classes, dtype=torch.float64)
    random = generator_of(protocol.seed, case.name)
    for rows, slab in calibrated_slabs(case, calibrator, protocol.num_classes, device=device):
        logits, labels = slab[0], places.labels[rows].to(slab.device)
        described.add(binning.described_on_cpu(logits, labels))
        mass += class_mass(logits, labels).cpu()
        if protocol.floor:
            redrawn.add(binning.described_on_cpu(logits, draw_labels(logits, labels, random)))
        if protocol.form == "marginal":
            probs.append(probabilities(slab.double())[0].reshape(protocol.num_classes, -1).cpu())
    class_probs = torch.cat(probs, dim=1) if probs else None
    measured = partial(Measured.of, class_probs=class_probs, mass=mass, places=places, protocol=protocol)
    return measured(described.pixels()), measured(redrawn.pixels()) if protocol.floor else None


def calibrated_slabs(
    case: Case, method: Method, num_classes: int, *, device: torch.device | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the logits of a case slab by slab with their position, calibrated if there is a method.

    A function that is not a calibrator may look at any distance, so it is given the whole case.
    """
    if isinstance(method, Calibrator):
        for slab, logits in method.calibrate_case(case):
            yield slab.inner_rows, logits
        return
    if method is None:
        for slab in slabs_of(case, num_classes, device=device):
            yield slab.rows, slab.logits
        return
    whole = torch.cat([slab.logits for slab in slabs_of(case, num_classes)], dim=2)
    with torch.no_grad():
        found = method(whole)
    if not isinstance(found, Tensor) or found.shape != whole.shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"a method must return calibrated logits of shape {tuple(whole.shape)}, as it is given, got {got} for "
            f"case '{case.name}'; return log-probabilities where it computes probabilities"
        )
    found = check_logits(found, num_classes, class_axis=1, of=f"a method on case '{case.name}'")
    yield slice(0, found.shape[2]), found
