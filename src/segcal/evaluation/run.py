"""Cases x calibrators x regions -> Results: the paper's evaluation (Sec. 4), one row per image."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from segcal.calibrators import Calibrator
from segcal.cases import labels_of, slabs_of
from segcal.evaluation.pooled import ece_of_bins, empty_cells, first_regions, pooled_curves, pooled_readings
from segcal.evaluation.results import Results
from segcal.functional import binning
from segcal.functional.binning import Evidence, Form, Histogram, Pixels
from segcal.functional.checks import IGNORED, ignored_labels
from segcal.functional.probability import probabilities
from segcal.functional.random_labels import class_mass, draw_labels, generator_of
from segcal.regions import Box, boundary, box_index, foreground, local_patches
from segcal.statistics import IntervalKind, bootstrap_doubts, bootstrap_intervals, clusters_of
from segcal.types import Case, IgnoreIndex, InputError, Labels, Mask
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
        patch_sizes: Further sides for which Local-Avg and Local-Max are measured, to see how they depend on it.
        seed: Of the patches' places, of the bootstrap and of the floor.
        repetitions: Of the bootstrap.
        interval: "percentile", or "bca" for bias-corrected and accelerated bootstrap intervals.
        floor: Whether to measure, too, what each method would score if it were perfectly calibrated: with labels drawn
            from its own probabilities.
        class_names: One name for each class; by default their numbers.
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
    patch_sizes: Sequence[int] = ()
    seed: int = 0
    repetitions: int = 1000
    interval: IntervalKind = "percentile"
    floor: bool = False
    class_names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.num_classes < 1 or self.bins < 1:
            raise InputError(f"num_classes and bins must be at least 1, got {self.num_classes} and {self.bins}")
        for name, value, known in (
            ("form", self.form, get_args(Form)),
            ("ace_edges", self.ace_edges, ("region", "image")),
            ("interval", self.interval, get_args(IntervalKind)),
        ):
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got '{value}'")
        if self.form == "marginal" and self.ace_edges == "image":
            raise InputError(
                "ace_edges='image' are edges of top confidences, and form='marginal' bins each class by its own "
                "probability; use ace_edges='region' or another form"
            )
        if self.class_names is not None and len({*self.class_names} - {""}) != self.num_classes:
            raise InputError(
                f"class_names must be {self.num_classes} different names, got {list(self.class_names)}; mend them or "
                "leave them out"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """What each class is called."""
        numbers = tuple(str(k) for k in range(self.num_classes))
        return numbers if self.class_names is None else tuple(self.class_names)


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
    found, redrawn = (
        _Found(chosen, tuple(calibrators), ("all", "boundary", *further))
        for chosen in (settings, replace(settings, floor=False))
    )
    for case in cases:
        places = _Places.of(case, settings, further)
        found.begin(case)
        redrawn.begin(case)
        for method, calibrator in calibrators.items():
            truth, perfect = _measure(case, calibrator, places, settings)
            found.add(case.name, method, places, truth)
            if perfect is not None:
                redrawn.add(case.name, method, places, perfect)
    if not found.cases:
        raise InputError("at least one case is needed, got none; is the folder or the split empty?")
    results = found.results([*_seen(calibrators, list(found.cases)), *bootstrap_doubts(list(found.cases.values()))])
    as_they_are = [name for name, calibrator in calibrators.items() if calibrator is None]
    told = {"baseline": [*as_they_are, *calibrators][0], "fits": _fits(calibrators)}
    results = replace(results, settings={**results.settings, **told})
    return replace(results, redrawn=redrawn.results([])) if settings.floor else results


def _fits(calibrators: Mapping[str, Calibrator | None]) -> dict[str, Any]:
    """What each calibrator's fit reported, but for the names of the cases, as JSON can hold it."""
    reports = {name: getattr(calibrator, "fit_report_", None) for name, calibrator in calibrators.items()}
    told = {name: asdict(report) for name, report in reports.items() if report is not None}
    return {name: {key: value for key, value in report.items() if key != "names"} for name, report in told.items()}


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
    studied: Mapping[int, Sequence[Tensor]]
    """The patches of each further size."""

    @classmethod
    def of(cls, case: Case, settings: Protocol, masks: Mapping[str, MaskOf]) -> _Places:
        labels = labels_of(case, settings.num_classes, settings.ignore_index)
        near = boundary(labels, IGNORED, width=settings.boundary_width, ball=settings.boundary_ball)
        inside = foreground(labels, IGNORED, background=settings.background, near=near)
        extra = [_checked_mask(name, mask(case, labels), labels) & (labels >= 0) for name, mask in masks.items()]
        shape = labels.shape[1:]
        place = partial(
            local_patches,
            shape,
            name=case.name,
            count=settings.patches,
            margin=settings.patch_margin,
            seed=settings.seed,
        )
        boxes = place(size=settings.patch_size)
        patches = [box_index(box, inside[0]) for box in boxes]
        studied = {size: [box_index(box, inside[0]) for box in place(size=size)] for size in settings.patch_sizes}
        return cls(labels[0], [binning.index_of(mask) for mask in (inside, near, *extra)], boxes, patches, studied)


@dataclass(frozen=True)
class _Measured:
    """What was found of one case with one method and one set of labels."""

    evidence: Evidence
    pixels: Pixels
    class_probs: Tensor | None
    mass: Tensor
    support: list[int]

    @classmethod
    def of(
        cls, parts: Sequence[Pixels], class_probs: Tensor | None, mass: Tensor, places: _Places, settings: Protocol
    ) -> _Measured:
        pixels, adaptive_edges = binning.join(parts), None
        if settings.ace_edges == "image":
            adaptive_edges = binning.quantile_edges(pixels, binning.index_of(places.labels >= 0), bins=settings.bins)
        evidence = binning.region_evidence(
            pixels,
            [*places.regions, *places.patches, *(patch for patches in places.studied.values() for patch in patches)],
            num_classes=settings.num_classes,
            bins=settings.bins,
            form=settings.form,
            class_probs=class_probs,
            adaptive_edges=adaptive_edges,
        )
        # numpy, because small operations wake PyTorch's threads; ignored pixels are counted first and left out
        support = np.bincount(pixels.labels.numpy() + 1, minlength=settings.num_classes + 1)[1:]
        return cls(evidence, pixels, class_probs, mass, support.tolist())

    def add_cells(self, region: Tensor, top: Histogram, marginal: Histogram | None) -> None:
        """Add a region's pixels to fine histograms: of top confidences and, where wanted, of every class."""
        binning.count_cells(self.pixels, region, top)
        if self.class_probs is not None and marginal is not None:
            binning.count_marginal_cells(self.class_probs, self.pixels.labels, region, marginal)


def _measure(
    case: Case, calibrator: Calibrator | None, places: _Places, settings: Protocol
) -> tuple[_Measured, _Measured | None]:
    """What is found of a case with its labels and, for the floor, with labels drawn from the probabilities."""
    parts, redrawn, probs = [], [], []
    mass = torch.zeros(settings.num_classes, dtype=torch.float64)
    random = generator_of(settings.seed, case.name)
    for rows, slab in calibrated_slabs(case, calibrator, settings.num_classes):
        logits, labels = slab[0].cpu(), places.labels[rows]
        parts.append(binning.describe(logits, labels))
        mass += class_mass(logits, labels)
        if settings.floor:
            redrawn.append(binning.describe(logits, draw_labels(logits, labels, random)))
        if settings.form == "marginal":
            probs.append(probabilities(slab.double())[0].reshape(settings.num_classes, -1).cpu())
    class_probs = torch.cat(probs, dim=1) if probs else None
    measured = partial(_Measured.of, class_probs=class_probs, mass=mass, places=places, settings=settings)
    return measured(parts), measured(redrawn) if redrawn else None


def calibrated_slabs(case: Case, calibrator: Calibrator | None, num_classes: int) -> Iterator[tuple[slice, Tensor]]:
    """The logits of a case in slabs, calibrated where there is a calibrator, each with the slices it covers."""
    if calibrator is None:
        for slab in slabs_of(case, num_classes):
            yield slab.rows, slab.logits
    else:
        for slab, logits in calibrator.calibrate_case(case):
            start = slab.rows.start + slab.inner.start
            yield slice(start, start + logits.shape[2]), logits


@dataclass
class _Found:
    """Everything gathered so far; small for each case, but for fine histograms of each method and region."""

    settings: Protocol
    methods: tuple[str, ...]
    regions: tuple[str, ...]
    cases: dict[str, str] = field(default_factory=dict)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    patch_rows: list[tuple[Any, ...]] = field(default_factory=list)
    size_rows: list[tuple[Any, ...]] = field(default_factory=list)
    volume_rows: list[tuple[Any, ...]] = field(default_factory=list)
    evidence: dict[str, list[Evidence]] = field(default_factory=dict)
    top_cells: dict[tuple[str, int], Histogram] = field(default_factory=dict)
    marginal_cells: dict[tuple[str, int], Histogram] = field(default_factory=dict)

    def begin(self, case: Case) -> None:
        if case.name in self.cases:
            raise InputError(f"case names must be unique, got '{case.name}' twice; rename one")
        self.cases[case.name] = case.group or ""

    def add(self, case: str, method: str, places: _Places, measured: _Measured) -> None:
        evidence = measured.evidence
        readings = {name: values.tolist() for name, values in binning.readings(evidence, self.settings.form).items()}
        pixels, many = readings.pop("pixels"), len(self.regions)
        for metric, values in readings.items():
            for k, region in enumerate(self.regions):
                self.rows.append((case, method, region, metric, values[k], pixels[k]))
            for k, box in enumerate(places.boxes):
                origin = " ".join(str(interval.start) for interval in box)
                self.patch_rows.append((case, method, k, origin, metric, values[many + k], pixels[many + k]))
            if places.boxes:
                end = many + len(places.boxes)
                for region, value, size in _local(metric, values[many:end], pixels[many:end]):
                    self.rows.append((case, method, region, metric, value, size))
                for side, patches in places.studied.items():
                    start, end = end, end + len(patches)
                    for region, value, size in _local(metric, values[start:end], pixels[start:end]):
                        self.size_rows.append((case, method, side, region, metric, value, size))
        for name, mass, true in zip(self.settings.names, measured.mass.tolist(), measured.support, strict=True):
            self.volume_rows.append((case, method, name, mass, true))
        self.evidence.setdefault(method, []).append(first_regions(evidence, many))
        for k in range(many):
            key, marginal = (method, k), self.settings.form == "marginal"
            if key not in self.top_cells:
                self.top_cells[key] = empty_cells(self.settings.num_classes)
                self.marginal_cells[key] = empty_cells(self.settings.num_classes) if marginal else self.top_cells[key]
            measured.add_cells(places.regions[k], self.top_cells[key], self.marginal_cells[key] if marginal else None)

    def results(self, warnings: list[str]) -> Results:
        settings = asdict(self.settings)
        settings["ignore_index"] = list(ignored_labels(self.settings.ignore_index))
        settings["class_names"] = list(self.settings.names)
        settings["patch_sizes"] = sorted({row[2] for row in self.size_rows})
        size_columns = ["case", "method", "size", "region", "metric", "value", "pixels"]
        pooled, curves, sensitivity = self._pooled()
        return Results(
            pd.DataFrame(self.rows, columns=["case", "method", "region", "metric", "value", "pixels"]),
            pd.DataFrame(self.patch_rows, columns=["case", "method", "patch", "origin", "metric", "value", "pixels"]),
            pooled,
            {
                **settings,
                "methods": list(self.methods),
                "regions": list(self.regions),
                "warnings": warnings,
                "segcal": __version__,
                "date": datetime.now(UTC).date().isoformat(),
                "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
            },
            case_frame=pd.DataFrame(list(self.cases.items()), columns=["case", "group"]),
            curve_frame=curves,
            sensitivity_frame=sensitivity,
            volume_frame=pd.DataFrame(self.volume_rows, columns=["case", "method", "label", "predicted", "true"]),
            size_frame=pd.DataFrame(self.size_rows, columns=size_columns) if self.size_rows else None,
        )

    def _pooled(self) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Figures over all pixels of all cases, reliability diagrams, and ECE for other numbers of bins."""
        bins, form, images = self.settings.bins, self.settings.form, len(self.cases)
        draw = partial(
            bootstrap_intervals,
            kind=self.settings.interval,
            repetitions=self.settings.repetitions,
            seed=self.settings.seed,
            clusters=clusters_of(list(self.cases.values())),
        )
        pooled: list[tuple[Any, ...]] = []
        curves: list[tuple[Any, ...]] = []
        sensitivity: list[tuple[Any, ...]] = []
        for method in self.methods:
            kept = self.evidence[method]
            for k, region in enumerate(self.regions):
                top, cells = self.top_cells[(method, k)], self.marginal_cells[(method, k)]
                readings = pooled_readings(kept, k, cells, top, bins=bins, form=form, draw=draw)
                pooled += [(method, region, *row, images, pixels) for *row, pixels in readings]
                curves += [(method, region, *row) for row in pooled_curves(kept, k, self.settings.names, draw=draw)]
                sensitivity += [(method, region, *row) for row in ece_of_bins(top)]
        edges = ["low_edge", "high_edge", "count", "hit", "confidence", "low", "high"]
        return (
            pd.DataFrame(pooled, columns=["method", "region", "metric", "value", "low", "high", "images", "pixels"]),
            pd.DataFrame(curves, columns=["method", "region", "label", "bin", *edges]),
            pd.DataFrame(sensitivity, columns=["method", "region", "bins", "ece"]),
        )


def _local(metric: str, values: Sequence[float], pixels: Sequence[int]) -> Iterator[tuple[str, float, int]]:
    """Local-Avg and Local-Max of one image: the mean patch and the worst, of those that hold pixels."""
    held = [(value, size) for value, size in zip(values, pixels, strict=True) if size]
    if not held:
        yield from (("local-avg", np.nan, 0), ("local-max", np.nan, 0))
        return
    worst = min if metric in binning.HIGHER_IS_BETTER else max
    yield "local-avg", float(np.mean([value for value, _ in held])), sum(size for _, size in held)
    yield ("local-max", *worst(held))


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
