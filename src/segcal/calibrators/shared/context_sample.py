"""One pass over cases: a sample of pixels with their context features, and the groups that folds must not split.

Methods that choose penalties by cross-validation work on this sample in memory; `auto` draws it once for all of its
candidates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.shared.sampler import Sampler
from segcal.cases import slabs_of
from segcal.functional.context import FEATURES, REACH, context_features
from segcal.functional.log_linear import Pixels
from segcal.functional.probability import at_least_float32
from segcal.functional.temperature import likelihood, optimal_inverse_temperature
from segcal.statistics.folds import folds_of
from segcal.statistics.grouping import Grouping, grouping_of
from segcal.types import Array, Case, InputError

CONTEXT = -(-REACH // 8) * 8
"""Slices around a slab that its features need; whole slabs of slices, so that slabs give the same bits as the whole."""

_SAMPLE = 1 << 17  # pixels
_SAMPLE_LOGITS = 1 << 23  # and scores, where there are many classes
_CELLS = 4  # along each axis, in which the predictions of a case are counted to compare cases
_PLACES = 32  # pixels along each axis that are looked at for it


class Origin(NamedTuple):
    """The case that a slab belongs to."""

    name: str
    number: int
    group: str | None


@dataclass(frozen=True)
class ContextSample:
    """A draw of the labelled pixels of all cases, in the order of folds of whole groups, with sums over all of them."""

    names: tuple[str, ...]
    pixels: int
    nll: float
    """Summed over all labelled pixels, before calibration."""
    mean: Float64[np.ndarray, " F"]
    scale: Float64[np.ndarray, " F"]
    data: Pixels
    """The draw, with features as they are."""
    case: Int64[np.ndarray, " N"]
    """The number of the case that each drawn pixel belongs to."""
    sizes: Int64[np.ndarray, " cases"]
    """Labelled pixels of each case."""
    fold: Int64[np.ndarray, " cases"]
    """Of each case; -1 for those without a labelled or a drawn pixel."""
    grouping: Grouping
    """Of the cases with labelled pixels."""

    @property
    def standardised(self) -> Pixels:
        """The draw with standardised features."""
        known = (self.data.features.numpy() - self.mean[:, np.newaxis]) / self.scale[:, np.newaxis]
        return replace(self.data, features=torch.from_numpy(known.astype(np.float32)))

    @property
    def folds(self) -> int:
        """How many there are."""
        return len(self.data.edges) - 1

    @property
    def temperature(self) -> float:
        """The temperature of least NLL of the draw; 0 or infinity where there is none."""
        data = self.data
        root = optimal_inverse_temperature(lambda alpha: likelihood(data.logits, data.labels, alpha))
        return 1 / root.inverse_temperature if root.inverse_temperature > 0 else np.inf

    def without(self, fold: int) -> ContextSample:
        """Return the sample of the other folds; features are standardised on these."""
        edges = np.array(self.data.edges)
        stays = np.ones(len(self.case), bool)
        stays[edges[fold] : edges[fold + 1]] = False
        index = torch.from_numpy(np.flatnonzero(stays))
        lengths = np.delete(np.diff(edges), fold)
        data = Pixels(
            self.data.logits[:, index].contiguous(),
            self.data.labels[index],
            self.data.features[:, index].contiguous(),
            (0, *np.cumsum(lengths).tolist()),
        )
        fitted = np.flatnonzero((self.fold >= 0) & (self.fold != fold))
        left = np.where(np.isin(np.arange(len(self.fold)), fitted), self.fold - (self.fold > fold), -1)
        known = data.features.numpy().astype(np.float64)
        pixels = int(self.sizes[fitted].sum())
        nll = likelihood(data.logits, data.labels, 1.0).nll / len(index) * pixels
        used = np.flatnonzero(self.sizes > 0).tolist()
        groups = tuple(group for number, group in zip(used, self.grouping.groups, strict=True) if left[number] >= 0)
        return replace(
            self,
            pixels=pixels,
            nll=nll,
            mean=known.mean(axis=1),
            scale=_positive(known.std(axis=1)),
            data=data,
            case=self.case[stays],
            sizes=np.where(left >= 0, self.sizes, 0),
            fold=left,
            grouping=replace(self.grouping, groups=groups),
        )

    def thinned(self, count: int) -> ContextSample:
        """Return a sample of about `count` of the pixels, evenly spaced in every fold; sums stay those of all."""
        step = max(1, -(-len(self.case) // count))
        kept = np.concatenate([np.arange(first, last, step) for first, last in pairwise(self.data.edges)])
        return replace(self, data=self.data.thinned(count), case=self.case[kept])

    def without_features(self) -> ContextSample:
        """Return the same sample for methods that do not look at the context."""
        data = replace(self.data, features=self.data.features[:0])
        return replace(self, data=data, mean=self.mean[:0], scale=self.scale[:0])

    def as_case(self) -> Case:
        """Return the draw as one image, for methods that look at one pixel at a time."""
        return Case("sample", self.data.logits.unsqueeze(2), self.data.labels.unsqueeze(1))


def draw_sample(calibrator: Calibrator, cases: Collection[Case], *, spatial_dims: int, features: bool) -> ContextSample:
    """Go through the cases once: sums over all pixels, the draw, and the groups."""
    classes, many = calibrator.num_classes, len(FEATURES) if features else 0
    sampler = Sampler(1, min(_SAMPLE, _SAMPLE_LOGITS // classes), rows=classes + many + 2, narrow=True)
    origins, layouts, sizes = dict[int, Origin](), dict[int, Array](), dict[int, int]()
    nll, moments = 0.0, np.zeros((2, many))
    for origin, logits, labels, known, layout in context_slabs(
        calibrator, cases, spatial_dims=spatial_dims, features=features
    ):
        origins[origin.number] = origin
        part = likelihood(logits, labels, 1.0)
        sizes[origin.number] = sizes.get(origin.number, 0) + int(part.pixels)
        layouts[origin.number] = layouts.get(origin.number, 0.0) + layout
        if not part.pixels:
            continue
        nll += part.nll
        truth = labels.cpu().numpy()
        moments += _moments(known.cpu().numpy()[:, truth >= 0])
        extra = torch.from_numpy(np.stack([truth, np.full_like(truth, origin.number)]))
        sampler.add(logits, torch.from_numpy(np.minimum(truth, 0)), known, extra)
    pixels = sum(sizes.values())
    if pixels == 0:
        raise InputError("no labelled pixel to fit on; check ignore_index, background and the labels")
    used = [number for number, size in sizes.items() if size]
    shares = np.stack([layouts[number] / max(layouts[number].sum(), 1) for number in used])
    grouping = grouping_of([origins[k].name for k in used], [origins[k].group for k in used], shares)
    planned = np.full(len(origins), -1)
    planned[used] = folds_of(grouping.groups, sizes=[sizes[number] for number in used])
    mean = moments[0] / pixels
    scale = _positive(np.sqrt(np.maximum(moments[1] / pixels - mean**2, 0.0)))
    data, case, fold = _by_fold(sampler.values(), classes, planned)
    names = tuple(dict.fromkeys(origin.name for origin in origins.values()))
    counts = np.array([sizes[number] for number in origins])
    return ContextSample(names, pixels, nll, mean, scale, data, case, counts, fold, grouping)


def context_slabs(
    calibrator: Calibrator, cases: Collection[Case], *, spatial_dims: int, features: bool, layouts: bool = True
) -> Iterator[tuple[Origin, Tensor, Tensor, Tensor, Array]]:
    """Yield origin, logits `[L, N]`, labels `[N]` (-1 where left out), features `[F, N]` and layout of every slab.

    The layout counts predicted classes in a coarse grid over the image; it is empty where `layouts` are not wanted.
    """
    for number, case in enumerate(cases):
        origin = Origin(case.name, number, case.group)
        labels = calibrator.fit_labels(case)[0]
        if labels.ndim != spatial_dims and features:
            raise InputError(
                f"labels must have {spatial_dims} axes, got shape {tuple(labels.shape)} "
                f"of case '{case.name}'; set spatial_dims={labels.ndim}"
            )
        for slab in slabs_of(case, calibrator.num_classes, context=CONTEXT if features else 0, device=labels.device):
            rows, truth = slab.inner_rows, labels[slab.inner_rows].reshape(-1)
            known = torch.empty(0, truth.numel(), device=truth.device)
            if features:
                with torch.no_grad():
                    known = context_features(slab.logits)[0, :, slab.inner].reshape(len(FEATURES), -1)
            logits = at_least_float32(slab.logits[0, :, slab.inner])
            del slab  # with its context it takes hundreds of megabytes
            layout = _layout(logits, rows.start, labels.shape) if layouts else np.empty(0)
            logits = logits.reshape(len(logits), -1)
            yield origin, logits, truth, known, layout


def _layout(logits: Tensor, first: int, size: tuple[int, ...]) -> Array:
    """Count predicted classes in a coarse grid over the image, of a few pixels of a slab that starts at `first`."""
    steps = [max(1, length // _PLACES) for length in size]
    begin = -first % steps[0]
    few = logits[(slice(None), slice(begin, None, steps[0]), *(slice(None, None, step) for step in steps[1:]))]
    cell = np.zeros((), np.int64)
    for axis, length in enumerate(few.shape[1:]):
        place = (first + begin if axis == 0 else 0) + steps[axis] * np.arange(length)
        cell = np.add.outer(cell * _CELLS, np.minimum(place * _CELLS // size[axis], _CELLS - 1))
    predicted = few.argmax(dim=0).cpu().numpy()
    bins = _CELLS ** len(size) * len(logits)
    return np.bincount((cell * len(logits) + predicted).ravel(), minlength=bins).astype(np.float64)


def _moments(values: Array) -> Array:
    """Return sums and sums of squares of rows."""
    wide = values.astype(np.float64)
    return np.stack([wide.sum(axis=1), np.einsum("fn,fn->f", wide, wide)])


def _positive(scale: Array) -> Array:
    """Return deviations, with 1 for a feature that is the same everywhere."""
    return np.where(scale < 1e-6, 1.0, scale)


def _by_fold(values: Array, classes: int, planned: Array) -> tuple[Pixels, Array, Array]:
    """Return the draw in the order of folds, the case of each pixel, and the fold of each case.

    A fold of which nothing was drawn, because its images have very few pixels, is left out.
    """
    case = values[-1].astype(np.int64)
    present, fold = np.unique(planned[case], return_inverse=True)
    order = np.argsort(fold, kind="stable")
    data = Pixels(
        torch.from_numpy(np.ascontiguousarray(values[:classes, order])),
        torch.from_numpy(values[-2, order].astype(np.int64)),
        torch.from_numpy(np.ascontiguousarray(values[classes:-2, order])),
        (0, *np.cumsum(np.bincount(fold)).tolist()),
    )
    place = {int(name): k for k, name in enumerate(present)}
    return data, case[order], np.array([place.get(int(name), -1) for name in planned])
