"""One pass over cases: a sample of pixels with their context features, and the groups that folds must not split.

Methods that choose penalties by cross-validation work on this sample in memory; `auto` draws it once for all of its
candidates.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.calibrators.shared.survey import Sampler, inverse_temperature_of, nothing_to_fit, one_thread
from segcal.cases import CaseStream
from segcal.functional.context import FEATURES, REACH, context_features
from segcal.functional.log_linear import FeaturePixels
from segcal.functional.probability import at_least_float32
from segcal.functional.temperature import likelihood
from segcal.statistics.grouping import Grouping, folds_of, grouping_of
from segcal.types import Array, Case, InputError, Slab

CONTEXT = -(-REACH // 8) * 8
"""Slices around a slab that its features need; whole slabs of slices, so that slabs give the same bits as the whole."""

_SAMPLE = 1 << 17  # pixels
_SAMPLE_LOGITS = 1 << 23  # and scores, where there are many classes
_PART = 1 << 15  # pixels that are summed at a time
_CELLS = 4  # along each axis, in which the predictions of a case are counted to compare cases
_PLACES = 32  # pixels along each axis that are looked at for it


@dataclass(frozen=True)
class ContextSample:
    """A draw of the labelled pixels of all cases, in the order of folds of whole groups, with sums over all of them."""

    pixels: int
    nll: float
    """Summed over all labelled pixels, before calibration."""
    mean: Float64[np.ndarray, " F"]
    scale: Float64[np.ndarray, " F"]
    data: FeaturePixels
    """The draw, with standardised features."""
    case: Int64[np.ndarray, " N"]
    """The number of the case that each drawn pixel belongs to."""
    position: Int64[np.ndarray, " N"]
    """The position of each drawn pixel in its case, laid flat."""
    sizes: Int64[np.ndarray, " cases"]
    """Labelled pixels of each case."""
    fold: Int64[np.ndarray, " cases"]
    """Fold of each case; -1 for those without a labelled or a drawn pixel."""
    grouping: Grouping
    """Groups of the cases with labelled pixels."""
    passes: Float[Tensor, "K L N"] | None = None
    """Logits of further passes at the drawn pixels, if the stream reads them; parts of a sample have none."""
    fits: dict[Hashable, Any] = field(default_factory=dict)
    """Fits to the draw that the candidates of `auto` share with its final fit, by what they depend on."""

    @property
    def folds(self) -> int:
        """Number of folds."""
        return len(self.data.edges) - 1

    @cached_property
    def temperature(self) -> float:
        """The temperature of least NLL of the draw; 0 or infinity where there is none."""
        alpha = inverse_temperature_of(self.data.logits, self.data.labels)
        return 1 / alpha if alpha > 0 else np.inf

    def without_features(self) -> ContextSample:
        """Return the same sample for methods that do not look at the context."""
        data = replace(self.data, features=self.data.features[:0])
        return replace(self, data=data, mean=self.mean[:0], scale=self.scale[:0], fits={})

    def case_without(self, fold: int) -> Case:
        """Return the draw except for one fold as an image, for methods that look at one pixel at a time."""
        stays = torch.ones(len(self.case), dtype=torch.bool)
        stays[slice(*self.data.edges[fold : fold + 2])] = False
        return Case("sample", self.data.logits[:, stays].unsqueeze(2), self.data.labels[stays].unsqueeze(1))


def draw_sample(
    stream: CaseStream, *, spatial_dims: int, features: bool, like: ContextSample | None = None
) -> ContextSample:
    """Go through the cases once: sums over all pixels, the draw, and the groups.

    With a sample of the same cases, `like`, the draw has the same pixels in the same folds.
    """
    classes, many = stream.num_classes, len(FEATURES) if features else 0
    scores, most = classes * (1 + stream.pass_count), _SAMPLE if like is None else len(like.case)
    sampler = Sampler(1, min(most, _SAMPLE_LOGITS // scores), rows=scores + many, narrow=True)
    names, groups, layouts, sizes = list[str](), list[str | None](), list[Array](), np.zeros(len(stream), np.int64)
    shown = list[tuple[int, int, int]]()  # of each slab: pixels before it, its case and where it begins there
    nll, moments, before = 0.0, np.zeros((2, many)), 0
    for number, case in enumerate(stream):
        if features and len(case.shape) != spatial_dims + 1:
            raise InputError(
                f"labels must have {spatial_dims} axes, got shape {case.shape[1:]} of case '{case.name}'; "
                f"set spatial_dims={len(case.shape) - 1}"
            )
        layout = np.zeros(1)
        for slab in case.slabs(CONTEXT if features else 0):
            layout = layout + _layout(slab.logits[0, :, slab.inner], slab.inner_rows.start, case.shape[1:])
            logits, labels, known = _described(slab, features=features)
            first = slab.inner_rows.start * math.prod(case.shape[2:])
            others = [] if slab.passes is None else [slab.passes[0, :, :, slab.inner].reshape(-1, len(labels))]
            del slab  # with its context it takes hundreds of megabytes
            found = likelihood(logits, labels, 1.0)
            if not found.pixels:
                continue
            sizes[number] += int(found.pixels)
            nll += found.nll
            moments += _moments(known, labels >= 0)
            shown.append((before, number, first))
            before += len(labels)
            sampler.add(logits, labels, *others, known)
            del others
        names.append(case.name)
        groups.append(case.group)
        layouts.append(layout)
    pixels = int(sizes.sum())
    if pixels == 0:
        raise nothing_to_fit()
    if like is None:
        used = np.flatnonzero(sizes).tolist()
        shares = np.stack([layouts[k] / max(layouts[k].sum(), 1) for k in used])
        grouping = grouping_of([names[k] for k in used], [groups[k] for k in used], shares)
        planned = np.full(len(sizes), -1)
        planned[used] = folds_of(grouping.groups, sizes=sizes[used].tolist())
    else:
        grouping, planned = like.grouping, like.fold
    mean = moments[0] / pixels
    spread = np.sqrt(np.maximum(moments[1] / pixels - mean**2, 0.0))
    scale = np.where(spread < 1e-6, 1.0, spread)  # of a feature that is the same everywhere
    data, passes, places, fold = _by_fold(sampler, np.array(shown), classes, scores, planned)
    known = (data.features.numpy() - mean[:, np.newaxis]) / scale[:, np.newaxis]
    data = replace(data, features=torch.from_numpy(known.astype(np.float32)))
    return ContextSample(pixels, nll, mean, scale, data, *places, sizes, fold, grouping, passes)


def context_slabs(stream: CaseStream, *, features: bool) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield logits `[L, N]`, labels `[N]` (-1 where left out) and features `[F, N]` of every slab of a stream."""
    for slab in stream.slabs(CONTEXT if features else 0):
        part = _described(slab, features=features)
        del slab  # with its context it takes hundreds of megabytes
        yield part
        del part


def _described(slab: Slab, *, features: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, labels and features of the inner pixels of a slab."""
    assert slab.labels is not None
    truth = slab.labels[0, slab.inner].reshape(-1)
    known = torch.empty(0, truth.numel(), device=truth.device)
    if features:
        with torch.no_grad():
            known = context_features(slab.logits)[0, :, slab.inner].reshape(len(FEATURES), -1)
    logits = at_least_float32(slab.logits[0, :, slab.inner])
    return logits.reshape(len(logits), -1), truth, known


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


@one_thread()
def _moments(values: Tensor, kept: Tensor) -> Array:
    """Return sums and sums of squares of rows, over the pixels that are kept."""
    total = values.new_zeros(2, len(values), dtype=torch.float64)
    for part, inside in zip(torch.split(values, _PART, dim=1), torch.split(kept, _PART), strict=True):
        wide = part.double() * inside
        total += torch.stack([wide.sum(dim=1), wide.square().sum(dim=1)])
    return total.cpu().numpy()


def _by_fold(
    sampler: Sampler, shown: Array, classes: int, scores: int, planned: Array
) -> tuple[FeaturePixels, Tensor | None, tuple[Array, Array], Array]:
    """Return the draw in the order of folds and its passes, case and position of each pixel, and the fold of each case.

    A fold of which nothing was drawn, because its images have very few pixels, is left out.
    """
    values, labels, places = sampler.kept()
    before, cases, first = shown[np.searchsorted(shown[:, 0], places, side="right") - 1].T
    present, fold = np.unique(planned[cases], return_inverse=True)
    order = np.argsort(fold, kind="stable")
    data = FeaturePixels(
        torch.from_numpy(np.ascontiguousarray(values[:classes, order])),
        torch.from_numpy(labels[order]),
        torch.from_numpy(values[scores:, order]),
        (0, *np.cumsum(np.bincount(fold)).tolist()),
    )
    passes = torch.from_numpy(values[classes:scores, order]).reshape(-1, classes, len(order))
    position, place = places - before + first, {int(name): k for k, name in enumerate(present)}
    return (
        data,
        passes if len(passes) else None,
        (cases[order], position[order]),
        np.array([place.get(int(name), -1) for name in planned]),
    )
