"""Cases x calibrators x regions -> Results: the paper's evaluation (Sec. 4), one row per image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from segcal.calibrators import Calibrator
from segcal.cases import labels_of, slabs_of
from segcal.functional import binning
from segcal.functional.binning import CELLS, Evidence, Form, Histogram
from segcal.functional.checks import IGNORED, ignored_labels
from segcal.functional.probability import probabilities
from segcal.regions import Box, boundary, box_index, foreground, local_patches
from segcal.results import Results
from segcal.statistics import Interval, bootstrap_interval
from segcal.types import Array, Case, IgnoreIndex, InputError, Labels, Mask
from segcal.version import __version__

MaskOf = Callable[[Case, Labels], Mask]


@dataclass(frozen=True)
class Protocol:
    """How calibration is measured; the defaults are the paper's.

    Args:
        num_classes: L.
        ignore_index: Label, or labels, that belong to no region.
        background: Class outside the region *All*; None if there is none.
        bins: R.
        form: Of SCE and ACE, see `segcal.functional.binning`.
        ace_edges: Whether equal-mass bins hold equal shares of the region's pixels or of the whole image's.
        boundary_width: How far *Boundary* reaches.
        boundary_ball: Whether it reaches in every direction or along the axes.
        patch_size: Side of the Local patches.
        patches: How many there are in an image.
        patch_margin: How far they keep from the edge.
        seed: Of the patches' places and of the bootstrap.
        repetitions: Of the bootstrap.
    """

    num_classes: int
    ignore_index: IgnoreIndex = None
    background: int | None = None
    bins: int = 10
    form: Form = "tables"
    ace_edges: Literal["region", "image"] = "region"
    boundary_width: int = 2
    boundary_ball: bool = False
    patch_size: int = 72
    patches: int = 10
    patch_margin: int = 0
    seed: int = 0
    repetitions: int = 1000

    def __post_init__(self) -> None:
        if self.num_classes < 1 or self.bins < 1:
            raise InputError(f"num_classes and bins must be at least 1, got {self.num_classes} and {self.bins}")
        for name, value, known in (
            ("form", self.form, get_args(Form)),
            ("ace_edges", self.ace_edges, ("region", "image")),
        ):
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got '{value}'")
        if self.form == "marginal" and self.ace_edges == "image":
            raise InputError(
                "ace_edges='image' are edges of top confidences, and form='marginal' bins each class by its own "
                "probability; use ace_edges='region' or another form"
            )


def evaluate(
    cases: Iterable[Case],
    calibrators: Mapping[str, Calibrator | None],
    *,
    masks: Mapping[str, MaskOf] | None = None,
    **protocol: Any,
) -> Results:
    """Measure how well calibrated each method is on the same cases, regions and patches.

    Args:
        cases: Gone through once.
        calibrators: Fitted calibrators by the name they have in the tables; None stands for the uncalibrated scores.
        masks: Further regions: functions from a case and its labels `[1, *S]` (-1 where ignored) to a mask `[1, *S]`.
        protocol: The fields of `Protocol`; `num_classes` is needed.

    Returns:
        One row per case, method, region and metric; pooled figures; the paper's table.
    """
    settings = Protocol(**protocol)
    further = dict(masks or {})
    if not calibrators:
        raise InputError('at least one method is needed, got none; {"UC": None} measures the scores as they are')
    if taken := {"all", "boundary", "local-avg", "local-max"} & set(further):
        raise InputError(f"a mask cannot be called '{taken.pop()}', which is a region of its own; choose another name")
    for name, calibrator in calibrators.items():
        _check_calibrator(name, calibrator, settings.num_classes)
    found = _Found(settings, tuple(calibrators), ("all", "boundary", *further))
    for case in cases:
        places = _Places.of(case, settings, further)
        for method, calibrator in calibrators.items():
            found.add(case.name, method, places, *_measure(case, calibrator, places, settings))
    if not found.cases:
        raise InputError("at least one case is needed, got none; is the folder or the split empty?")
    return found.results(_seen(calibrators, found.cases))


def _seen(calibrators: Mapping[str, Calibrator | None], cases: Sequence[str]) -> list[str]:
    """A warning for each calibrator that was fitted on cases it is now measured on."""
    warnings = []
    for name, calibrator in calibrators.items():
        report = getattr(calibrator, "fit_report_", None)
        if both := set(report.names if report else ()) & set(cases):
            warnings.append(f"{name} was fitted on {len(both)} of these {len(cases)} cases: its figures are too good")
    return warnings


@dataclass(frozen=True)
class _Places:
    """The regions and patches of one case, as lists of pixels."""

    labels: Tensor
    regions: Sequence[Tensor]
    boxes: Sequence[Box]
    patches: Sequence[Tensor]

    @classmethod
    def of(cls, case: Case, settings: Protocol, masks: Mapping[str, MaskOf]) -> _Places:
        labels = labels_of(case, settings.num_classes, settings.ignore_index)
        near = boundary(labels, IGNORED, width=settings.boundary_width, ball=settings.boundary_ball)
        inside = foreground(labels, IGNORED, background=settings.background, near=near)
        extra = [_checked_mask(name, mask(case, labels), labels) & (labels >= 0) for name, mask in masks.items()]
        shape = labels.shape[1:]
        boxes = local_patches(
            shape,
            name=case.name,
            size=settings.patch_size,
            count=settings.patches,
            margin=settings.patch_margin,
            seed=settings.seed,
        )
        patches = [box_index(box, inside[0]) for box in boxes]
        return cls(labels[0], [binning.index_of(mask) for mask in (inside, near, *extra)], boxes, patches)


def _measure(
    case: Case, calibrator: Calibrator | None, places: _Places, settings: Protocol
) -> tuple[Evidence, Callable[[int, Histogram], None]]:
    """Evidence of all regions and patches of a case, and a function that adds a region's pixels to a fine histogram."""
    parts, probs = [], []
    for rows, logits in _calibrated(case, calibrator, settings.num_classes):
        parts.append(binning.describe(logits[0].cpu(), places.labels[rows]))
        if settings.form == "marginal":
            probs.append(probabilities(logits.double())[0].reshape(settings.num_classes, -1).cpu())
    pixels = binning.join(parts)
    class_probs = torch.cat(probs, dim=1) if probs else None
    whole = binning.index_of(places.labels >= 0)
    evidence = binning.region_evidence(
        pixels,
        [*places.regions, *places.patches],
        num_classes=settings.num_classes,
        bins=settings.bins,
        form=settings.form,
        class_probs=class_probs,
        adaptive_edges=(
            binning.quantile_edges(pixels, whole, bins=settings.bins) if settings.ace_edges == "image" else None
        ),
    )

    def add_cells(region: int, table: Histogram) -> None:
        if class_probs is None:
            binning.count_cells(pixels, places.regions[region], table)
        else:
            binning.count_marginal_cells(class_probs, pixels.labels, places.regions[region], table)

    return evidence, add_cells


def _calibrated(case: Case, calibrator: Calibrator | None, num_classes: int) -> Iterator[tuple[slice, Tensor]]:
    """The logits of a case in slabs, each with the slices it covers."""
    if calibrator is None:
        for slab in slabs_of(case, num_classes):
            yield slab.rows, slab.logits
    else:
        for slab, logits in calibrator.calibrate_case(case):
            start = slab.rows.start + slab.inner.start
            yield slice(start, start + logits.shape[2]), logits


@dataclass
class _Found:
    """Everything gathered so far; small for each case, but for one fine histogram per method and region."""

    settings: Protocol
    methods: tuple[str, ...]
    regions: tuple[str, ...]
    cases: list[str] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    patch_rows: list[tuple[Any, ...]] = field(default_factory=list)
    evidence: dict[str, list[Evidence]] = field(default_factory=dict)
    cells: dict[tuple[str, int], Histogram] = field(default_factory=dict)

    def add(
        self, case: str, method: str, places: _Places, evidence: Evidence, add_cells: Callable[[int, Histogram], None]
    ) -> None:
        if method == self.methods[0]:
            if case in self.cases:
                raise InputError(f"case names must be unique, got '{case}' twice; rename one")
            self.cases.append(case)
        readings = {name: values.tolist() for name, values in binning.readings(evidence, self.settings.form).items()}
        pixels, many = readings.pop("pixels"), len(self.regions)
        for metric, values in readings.items():
            for k, region in enumerate(self.regions):
                self.rows.append((case, method, region, metric, values[k], pixels[k]))
            for k, box in enumerate(places.boxes):
                origin = " ".join(str(interval.start) for interval in box)
                self.patch_rows.append((case, method, k, origin, metric, values[many + k], pixels[many + k]))
            if places.boxes:
                for region, value, size in _local(metric, values[many:], pixels[many:]):
                    self.rows.append((case, method, region, metric, value, size))
        self.evidence.setdefault(method, []).append(_first(evidence, many))
        for k in range(many):
            if (method, k) not in self.cells:
                self.cells[(method, k)] = _empty_cells(self.settings.num_classes)
            add_cells(k, self.cells[(method, k)])

    def results(self, warnings: list[str]) -> Results:
        frame = pd.DataFrame(self.rows, columns=["case", "method", "region", "metric", "value", "pixels"])
        patch_columns = ["case", "method", "patch", "origin", "metric", "value", "pixels"]
        pooled = [row for method in self.methods for row in self._pooled(method)]
        pooled_columns = ["method", "region", "metric", "value", "low", "high", "images", "pixels"]
        settings = asdict(self.settings)
        settings["ignore_index"] = list(ignored_labels(self.settings.ignore_index))
        return Results(
            frame,
            pd.DataFrame(self.patch_rows, columns=patch_columns),
            pd.DataFrame(pooled, columns=pooled_columns),
            {
                **settings,
                "methods": list(self.methods),
                "regions": list(self.regions),
                "warnings": warnings,
                "segcal": __version__,
            },
        )

    def _pooled(self, method: str) -> Iterator[tuple[Any, ...]]:
        """Figures over all pixels of all cases, for each region and metric."""
        kept = self.evidence[method]
        images = len(kept)
        draw = partial(bootstrap_interval, repetitions=self.settings.repetitions, seed=self.settings.seed)
        for k, region in enumerate(self.regions):
            stacked = [_flat(evidence, k) for evidence in kept]
            table, like = np.stack([row for row, _ in stacked]), stacked[0][1]
            cells = binning.adaptive_from_cells(
                self.cells[(method, k)], bins=self.settings.bins, form=self.settings.form
            )
            total = _unflat(table.sum(axis=0), like)._replace(adaptive=cells)
            values = binning.readings(total, self.settings.form)
            pixels = int(values.pop("pixels"))

            def resample(weights: Array, metric: str, table: Array = table, like: Any = like) -> Array:
                drawn = _unflat(weights @ table, like)
                return binning.readings(drawn, self.settings.form)[metric].numpy()

            for metric, value in values.items():
                known = metric != "ace" and pixels > 0
                interval = draw(partial(resample, metric=metric), images) if known else Interval(np.nan, np.nan)
                yield (method, region, metric, float(value), interval.low, interval.high, images, pixels)


def _local(metric: str, values: Sequence[float], pixels: Sequence[int]) -> Iterator[tuple[str, float, int]]:
    """Local-Avg and Local-Max of one image: the mean patch and the worst, of those that hold pixels."""
    held = [(value, size) for value, size in zip(values, pixels, strict=True) if size]
    if not held:
        yield from (("local-avg", np.nan, 0), ("local-max", np.nan, 0))
        return
    worst = min if metric in binning.HIGHER_IS_BETTER else max
    yield "local-avg", float(np.mean([value for value, _ in held])), sum(size for _, size in held)
    yield ("local-max", *worst(held))


def _first(evidence: Evidence, many: int) -> Evidence:
    """The evidence of the named regions, without that of the patches."""
    top, static, adaptive = (Histogram(*(part[:many].clone() for part in histogram)) for histogram in evidence[:3])
    return Evidence(top, static, adaptive, evidence.support[:many].clone(), evidence.sums[:many].clone())


def _flat(evidence: Evidence, region: int) -> tuple[Array, list[Tensor]]:
    """The evidence of one region as a vector that adds, and its parts, which tell shapes and types."""
    parts = [*evidence.top, *evidence.static, *evidence.adaptive, evidence.support, evidence.sums]
    own = [part[region] for part in parts]
    return np.concatenate([part.double().numpy().ravel() for part in own]), own


def _unflat(vectors: Array, like: Sequence[Tensor]) -> Evidence:
    """The inverse of `_flat`, for one vector or many; counts are exact in float64 up to 2**53."""
    ends = np.cumsum([part.numel() for part in like])
    pieces = np.split(vectors, ends[:-1], axis=-1)
    parts = [
        torch.from_numpy(piece.reshape(*vectors.shape[:-1], *part.shape)).to(part.dtype)
        for piece, part in zip(pieces, like, strict=True)
    ]
    return Evidence(Histogram(*parts[0:3]), Histogram(*parts[3:6]), Histogram(*parts[6:9]), parts[9], parts[10])


def _empty_cells(num_classes: int) -> Histogram:
    """A fine histogram of zeros; numpy leaves pages that are never counted into out of memory."""
    shape = (num_classes, CELLS)
    count, hit, total = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    return Histogram(torch.from_numpy(count), torch.from_numpy(hit), torch.from_numpy(total))


def _checked_mask(name: str, mask: Mask, labels: Tensor) -> Mask:
    if mask.dtype != torch.bool or mask.shape != labels.shape:
        raise InputError(
            f"the mask '{name}' must be Bool of shape {tuple(labels.shape)}, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    return mask


def _check_calibrator(name: str, calibrator: Calibrator | None, num_classes: int) -> None:
    if calibrator is not None and calibrator.num_classes != num_classes:
        raise InputError(
            f"calibrator '{name}' was built for num_classes={calibrator.num_classes}, "
            f"and the data have {num_classes}; fit it on such data"
        )
