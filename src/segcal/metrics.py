"""Streaming calibration metrics: exact counts in constant memory, merged by addition, also between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torchmetrics import Metric

from segcal.functional import binning
from segcal.functional.binning import Evidence, Form, Histogram, Pixels
from segcal.functional.catalogue import METRICS, readings
from segcal.functional.checks import check_labels, check_logits, check_same_space
from segcal.functional.counting import measure_batch
from segcal.functional.probability import probabilities
from segcal.kernels.constants import CELLS
from segcal.types import MOST_BINS, IgnoreIndex, InputError, Labels, Logits, Mask, check_whole, public

_CHUNK = 1 << 22  # pixels described at a time
_FIELDS = ("count", "hit", "confidence")


@public
class CalibrationSuite(Metric):
    """ECE, MCE, SCE, ACE, NLL, Brier score, entropy, accuracy and mIoU, pooled over all pixels shown.

    >>> suite = CalibrationSuite(num_classes=2, ignore_index=255)
    >>> suite.update(torch.tensor([[[0.0, 0.0, 9.0], [1.0, 2.0, 0.0]]]), torch.tensor([[1, 0, 255]]))
    >>> {name: round(float(value), 3) for name, value in suite.compute()["all"].items() if name in ("ece", "accuracy")}
    {'ece': 0.575, 'accuracy': 0.5}

    Counts are int64 and sums float64. ACE needs equal-mass bins, which are read from a fine histogram of 65,536 cells
    (24 bytes per cell, class and region); `ace_error_bound` returns a bound of the error.

    Args:
        num_classes: Number of classes L.
        ignore_index: Label, or labels, to ignore.
        regions: Names of the regions that are measured separately; `update` takes a mask for each.
        bins: Number of confidence bins R.
        form: Form of SCE and ACE: "tables", "equations" or "marginal" (see `segcal.functional.binning`).
        per_image: Whether to keep the metrics of every image too, with exact equal-mass bins, for `compute_images`.
        kwargs: Arguments of `torchmetrics.Metric`.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    count: Tensor
    hit: Tensor
    confidence: Tensor
    support: Tensor
    sums: Tensor
    images: list[Tensor] | Tensor  # a tensor while gathered from other processes

    def __init__(
        self,
        num_classes: int,
        ignore_index: IgnoreIndex = None,
        *,
        regions: Sequence[str] = ("all",),
        bins: int = 10,
        form: Form = "tables",
        per_image: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_whole("num_classes", num_classes, 1, 1 << 16)
        check_whole("bins", bins, 1, MOST_BINS)
        if form not in ("tables", "equations", "marginal"):
            raise InputError(f"form must be 'tables', 'equations' or 'marginal', got '{form}'")
        self.num_classes, self.ignore_index, self.bins, self.form = num_classes, ignore_index, bins, form
        self.regions, self.per_image = tuple(regions), per_image
        many = len(self.regions)
        self._add_histogram("", (many, num_classes, bins))
        self._add_histogram("cell_", (many, num_classes, CELLS))
        if form == "marginal":
            self._add_histogram("static_", (many, num_classes, bins))
        self.add_state("support", torch.zeros(many, num_classes, dtype=torch.int64), "sum")
        self.add_state("sums", torch.zeros(many, 3, dtype=torch.float64), "sum")
        self.add_state("images", [], "cat")

    def update(self, logits: Logits, labels: Labels, mask: Mask | Mapping[str, Mask] | None = None) -> None:
        """Add a batch.

        Args:
            logits: Scores `[B, L, *S]`.
            labels: True classes `[B, *S]`.
            mask: Pixels to measure, or those of each region; by default every pixel that is not ignored.
        """
        logits = check_logits(logits, self.num_classes, class_axis=1)
        check_same_space(logits, labels, class_axis=1)
        valid = check_labels(labels, self.num_classes, self.ignore_index)
        masks = self._masks(mask, valid)
        if not self.per_image and self.form != "marginal":
            self._add_batch(logits, valid, masks)
            return
        for image, truth, inside in zip(logits, valid, masks.unbind(1), strict=True):
            self._add_image(image, truth, inside)

    def compute(self) -> dict[str, dict[str, Tensor]]:
        """Return every metric of each region, pooled: `compute()["all"]["ece"]`; NaN for a region without pixels."""
        found = readings(self._evidence(), self.form)
        return {region: {name: values[k] for name, values in found.items()} for k, region in enumerate(self.regions)}

    def compute_images(self) -> dict[str, dict[str, Tensor]]:
        """Return every metric of each image: `compute_images()["all"]["ece"]` has one value per image, in order."""
        if not self.per_image:
            raise InputError("metrics of single images are kept only with per_image=True; pass it to CalibrationSuite")
        names = (*METRICS, "pixels")
        with self.sync_context(should_sync=self._to_sync, should_unsync=self._should_unsync):
            kept = self.images if isinstance(self.images, Tensor) else _cat(self.images, len(self.regions), len(names))
        return {region: {name: kept[:, k, m] for m, name in enumerate(names)} for k, region in enumerate(self.regions)}

    def compute_classes(self) -> dict[str, dict[str, Tensor]]:
        """Return figures of each class in each region: `compute_classes()["all"]["ece"]` has one value per class."""
        with self.sync_context(should_sync=self._to_sync, should_unsync=self._should_unsync):
            table = binning.class_table(self._evidence())
        return {region: {name: values[k] for name, values in table.items()} for k, region in enumerate(self.regions)}

    def compute_curves(self) -> dict[str, dict[str, Tensor]]:
        """Return the reliability diagram of each region: confidence, accuracy and pixels of each bin."""
        with self.sync_context(should_sync=self._to_sync, should_unsync=self._should_unsync):
            curve = binning.reliability_curve(self._histogram(""))
        return {region: {name: values[k] for name, values in curve.items()} for k, region in enumerate(self.regions)}

    def ace_error_bound(self) -> dict[str, float]:
        """Return, for each region, a bound of the error of ACE (form `tables`) against exact equal-mass bins."""
        with self.sync_context(should_sync=self._to_sync, should_unsync=self._should_unsync):
            bounds = [float(binning.cells_error_bound(cells, bins=self.bins)) for cells in self._cells()]
        return dict(zip(self.regions, bounds, strict=True))

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        if not len(self.images):
            # a process without images must gather the same dtype and axes as the others
            self.images = [_cat([], len(self.regions), len(METRICS) + 1).to(self.device)]
        super()._sync_dist(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        """Move to another device but keep the precision, which `Module.to` would change for sums and images."""

        def keeping_precision(values: Tensor) -> Tensor:
            return values.to(fn(values).device)

        return super()._apply(keeping_precision, *args, **kwargs)  # type: ignore[return-value]

    def _add_batch(self, logits: Tensor, labels: Tensor, masks: Tensor) -> None:
        """Add a batch in one pass where there is a kernel for it."""
        edges, cells = binning.equal_edges(self.bins, labels), self._histogram("cell_")
        *top, support, sums = measure_batch(logits, labels, masks, edges, *cells)
        for name, value in zip(_FIELDS, top, strict=True):
            setattr(self, name, getattr(self, name) + value)
        self.support = self.support + support
        self.sums = self.sums + sums

    def _add_image(self, logits: Tensor, labels: Tensor, masks: Tensor) -> None:
        flat, truth = logits.reshape(self.num_classes, -1), labels.reshape(-1)
        inside = masks.reshape(len(self.regions), -1)
        step = flat.shape[1] if self.per_image else _CHUNK
        for start in range(0, max(flat.shape[1], 1), max(step, 1)):
            part = slice(start, start + step)
            probs = probabilities(flat[:, part].double().unsqueeze(0))[0] if self.form == "marginal" else None
            pixels = binning.describe(flat[:, part], truth[part])
            index = [binning.index_of(region[part]) for region in inside]
            evidence = binning.region_evidence(
                pixels,
                index,
                num_classes=self.num_classes,
                bins=self.bins,
                form=self.form,
                class_probs=probs,
                # pooled ACE is read from the cells, so percentiles are needed only for the metrics of single images
                adaptive_edges=None if self.per_image else binning.equal_edges(self.bins, pixels.confidence),
            )
            self._add_evidence(evidence)
            self._add_cells(pixels, probs, index)
            if self.per_image:
                found = readings(evidence, self.form)
                rows = torch.stack([found[name].double() for name in (*METRICS, "pixels")], dim=-1)
                self.images.append(rows.unsqueeze(0))  # type: ignore[union-attr]

    def _add_evidence(self, evidence: Evidence) -> None:
        for name, value in zip(_FIELDS, evidence.top, strict=True):
            setattr(self, name, getattr(self, name) + value)
        if self.form == "marginal":
            for name, value in zip(_FIELDS, evidence.static, strict=True):
                setattr(self, "static_" + name, getattr(self, "static_" + name) + value)
        self.support = self.support + evidence.support
        self.sums = self.sums + evidence.sums

    def _add_cells(self, pixels: Pixels, probs: Tensor | None, index: Sequence[Tensor]) -> None:
        for cells, region in zip(self._cells(), index, strict=True):
            if probs is None:
                binning.count_cells(pixels, region, cells)
            else:
                binning.count_marginal_cells(probs, pixels.labels, region, cells)

    def _masks(self, mask: Mask | Mapping[str, Mask] | None, labels: Tensor) -> Tensor:
        named = mask if isinstance(mask, Mapping) else dict.fromkeys(self.regions, mask)
        if isinstance(mask, Mapping) and set(mask) != set(self.regions):
            raise InputError(f"update needs a mask for each of {self.regions}, got {tuple(mask)}; set regions=")
        kept = labels >= 0
        result = []
        for region in self.regions:
            given = named[region]
            if given is not None and (given.dtype != torch.bool or given.shape != labels.shape):
                raise InputError(
                    f"the mask of region '{region}' must be Bool of shape {tuple(labels.shape)}, "
                    f"got {given.dtype} of shape {tuple(given.shape)}"
                )
            result.append(kept if given is None else kept & given.to(labels.device))
        return torch.stack(result)

    def _evidence(self) -> Evidence:
        top = self._histogram("")
        static = self._histogram("static_") if self.form == "marginal" else top
        each = [binning.adaptive_from_cells(cells, bins=self.bins, form=self.form) for cells in self._cells()]
        adaptive = Histogram(*(torch.stack(fields) for fields in zip(*each, strict=True)))
        return Evidence(top, static, adaptive, self.support, self.sums)

    def _cells(self) -> Iterator[Histogram]:
        return (Histogram(*fields) for fields in zip(*self._histogram("cell_"), strict=True))

    def _histogram(self, prefix: str) -> Histogram:
        return Histogram(*(getattr(self, prefix + name) for name in _FIELDS))

    def _add_histogram(self, prefix: str, shape: tuple[int, ...]) -> None:
        for name in _FIELDS:
            dtype = torch.float64 if name == "confidence" else torch.int64
            self.add_state(prefix + name, torch.zeros(shape, dtype=dtype), "sum")


def _cat(rows: Any, regions: int, names: int) -> Tensor:
    return torch.cat(list(rows)) if len(rows) else torch.empty(0, regions, names, dtype=torch.float64)
