"""Metrics of arrays in one line: `segcal.ece(logits, labels)` and its siblings.

Each pools all pixels of the arrays. They are read part by part in float64, so that memory-mapped arrays stay on disk;
the results equal those of `segcal.CalibrationSuite` and, unlike there, the equal-mass bins of ACE are exact. Every
metric is a reading of the evidence; `segcal.functional.soft` has what soft labels add to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple, TypeAlias, TypedDict, Unpack, get_args

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from segcal.evidence import readings
from segcal.evidence.readings import read
from segcal.evidence.scores import Scores, check_scores, logits_of
from segcal.evidence.statistic import Evidence, Form, Histogram, equal_edges
from segcal.functional import counting
from segcal.functional.arrays import check_numbers, to_tensor
from segcal.functional.checks import (
    activation_of,
    check_labels,
    check_logits,
    check_same_space,
    check_shares,
)
from segcal.functional.probability import probabilities, two_class_logits
from segcal.functional.soft import SoftPixels, describe_hard, describe_soft
from segcal.types import MOST_BINS, Activation, Array, IgnoreIndex, InputError, check_whole, public

Values: TypeAlias = Array | Tensor

_CHUNK = 1 << 20  # pixels read at a time


class ArrayOptions(TypedDict, total=False):
    """Keywords of every metric.

    Attributes:
        scores: "logits" (default), or "probabilities" if they are normalised; an error is raised if values contradict.
        ignore_index: Label, or labels, to ignore.
        mask: Pixels to measure (Bool, in the shape of the labels without their class axis); by default all.
        class_axis: Axis of the classes: 1 (default) with a batch axis before it, 0 without one, -1 if it is the last.
        activation: "sigmoid" for channels that may overlap: the mean over the channels, each measured as two classes.
            By default a softmax, or a sigmoid if there is one channel.
    """

    scores: Scores
    ignore_index: IgnoreIndex
    mask: Values | None
    class_axis: int
    activation: Activation | None


@public
def ece(logits: Values, labels: Values, *, bins: int = 10, **options: Unpack[ArrayOptions]) -> float:
    """Return the expected calibration error: the mean gap of confidence and accuracy over bins, weighted by pixels.

    Examples:
        >>> ece(torch.tensor([[[0.0, 0.0], [1.0, 2.0]]]).log1p(), torch.tensor([[1, 0]]))  # confidence 2/3, 3/4
        0.5416666666666666

    Args:
        logits: Scores `[B, L, *S]`; `[B, 1, *S]` for a network that ends in a sigmoid, with labels 0 and 1.
        labels: True classes `[B, *S]`, or the share of raters that chose each class, in the shape of the logits.
            Of sigmoid channels that may overlap, masks of 0 and 1 `[B, C, *S]`.
        bins: Number of confidence bins R.
        options: `scores`, `ignore_index`, `mask`, `class_axis` and `activation`, as in `ArrayOptions`.

    Returns:
        A fraction, 0 for perfect calibration of infinitely many pixels; NaN if there is no pixel.
    """
    return _measured("ece", logits, labels, bins=bins, **options)


@public
def mce(logits: Values, labels: Values, *, bins: int = 10, **options: Unpack[ArrayOptions]) -> float:
    """Return the maximum calibration error: the largest gap of all bins that contain pixels; arguments as in `ece`."""
    return _measured("mce", logits, labels, bins=bins, **options)


@public
def sce(
    logits: Values, labels: Values, *, bins: int = 10, form: Form = "tables", **options: Unpack[ArrayOptions]
) -> float:
    """Return the static calibration error: gaps by class and bin; arguments as in `ece`.

    `form` is "tables", "equations" or "marginal", as in `segcal.evidence.readings`.
    """
    return _measured("sce", logits, labels, bins=bins, form=form, **options)


@public
def ace(
    logits: Values, labels: Values, *, bins: int = 10, form: Form = "tables", **options: Unpack[ArrayOptions]
) -> float:
    """Return the adaptive calibration error: gaps by class and equal-mass bin, exactly; arguments as in `sce`."""
    return _measured("ace", logits, labels, bins=bins, form=form, **options)


@public
def nll(logits: Values, labels: Values, **options: Unpack[ArrayOptions]) -> float:
    """Return the mean negative log-likelihood of the true class, in nats; arguments as in `ece`."""
    return _measured("nll", logits, labels, **options)


@public
def brier(logits: Values, labels: Values, **options: Unpack[ArrayOptions]) -> float:
    """Return the mean squared distance of the probabilities to the one-hot truth, in 0..2; arguments as in `ece`."""
    return _measured("brier", logits, labels, **options)


class ReliabilityCurve(NamedTuple):
    """Mean confidence, accuracy and number of pixels of each bin; NaN in a bin without pixels."""

    confidence: Array
    accuracy: Array
    pixels: Array


@public
def reliability_curve(
    logits: Values, labels: Values, *, bins: int = 10, **options: Unpack[ArrayOptions]
) -> ReliabilityCurve:
    """Return the reliability diagram as numbers, over the pixels of all channels; arguments as in `ece`.

    Examples:
        >>> confidence, accuracy, pixels = reliability_curve(torch.zeros(1, 2, 3), torch.tensor([[0, 1, 0]]), bins=2)
        >>> confidence, accuracy, pixels  # all three pixels have confidence 1/2; the first class wins ties
        (array([0.5, nan]), array([0.66666667,        nan]), array([3, 0]))
    """
    check_whole("bins", bins, 1, MOST_BINS)
    edges = equal_edges(bins)
    tables = [
        _counted(map(_described, parts), classes, edges).top for classes, parts in _heads(logits, labels, options)
    ]
    found = readings.reliability_curve(Histogram(*(sum(fields) for fields in zip(*tables, strict=True))))
    return ReliabilityCurve(*(found[name].numpy() for name in ReliabilityCurve._fields))


def _measured(
    name: str,
    logits: Values,
    labels: Values,
    *,
    bins: int = 10,
    form: Form = "tables",
    **options: Unpack[ArrayOptions],
) -> float:
    """Return a metric by its name: the mean over the channels that have pixels, or the one value of a softmax."""
    if form not in get_args(Form):
        raise InputError(f"form must be 'tables', 'equations' or 'marginal', got '{form}'")
    check_whole("bins", bins, 1, MOST_BINS)
    heads, exact = _heads(logits, labels, options), name == "ace"
    each = [_evidence(classes, parts, bins, form, equal_mass=exact) for classes, parts in heads]
    return float(torch.stack([read(evidence, (name,), form)[name] for evidence in each]).nanmean())


Parts: TypeAlias = Iterator[tuple[Tensor, Tensor]]
"""Parts of the pixels: logits `[L, n]` and true classes `[n]` or, of soft labels, the shares of raters `[L, n]`."""


def _heads(logits: Values, labels: Values, options: ArrayOptions) -> Iterator[tuple[int, Parts]]:
    """Yield the number of classes and the pixels of a softmax, or those of each sigmoid channel."""
    for values in (logits, labels, *([] if options.get("mask") is None else [options["mask"]])):
        check_numbers(values)
    scores, mask, shape = check_scores(options.get("scores", "logits")), options.get("mask"), tuple(logits.shape)
    class_axis, ignored = options.get("class_axis", 1), options.get("ignore_index")
    if not -len(shape) <= class_axis < len(shape):
        raise InputError(
            f"class_axis must be an axis of the logits, got {class_axis} and logits of shape {shape}; "
            "0 without a batch axis, 1 with one"
        )
    axis = class_axis % len(shape)
    classes, outer, inner = int(shape[axis]), math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    several = activation_of(options.get("activation"), classes) == "sigmoid" and classes > 1
    has_classes = tuple(labels.shape) == shape
    if several and not has_classes:
        raise InputError(
            f"labels of sigmoid channels must have the shape {shape} of the logits, a mask of 0 and 1 for each, got "
            f"{tuple(labels.shape)}; make masks from a label map with segcal.functional.channels.channel_labels"
        )
    soft = has_classes and "float" in str(labels.dtype)
    for what, values in (("labels", None if several or soft else labels), ("mask", mask)):
        if values is not None:
            check_same_space(_empty(logits), _empty(values), class_axis=axis, what=what)
    z, y = logits.reshape(outer, classes, inner), labels.reshape(outer, classes if several or soft else 1, inner)
    inside = None if mask is None else mask.reshape(outer, 1, inner)
    if not several:
        yield max(2, classes), _parts(z, y, inside, soft, scores, ignored)
        return
    for k in range(classes):
        own = slice(k, k + 1)
        yield 2, _parts(z[:, own], y[:, own], inside, soft, scores, ignored)


def _parts(
    logits: Values, labels: Values, mask: Values | None, soft: bool, scores: Scores, ignored: IgnoreIndex
) -> Parts:
    """Yield the pixels to measure of arrays `[outer, L, inner]`, checked part by part.

    Images are read one by one or, where the classes are last, many pixels at once; long images in pieces.
    """
    outer, classes, inner = logits.shape
    activation, step = activation_of(None, classes), 1 if inner > 1 else _CHUNK
    for image, start in product(range(0, outer, step), range(0, inner, _CHUNK)):
        at = (slice(image, image + step), slice(None), slice(start, start + _CHUNK))
        z = check_logits(_classes_first(logits[at]), classes, class_axis=0, activation=activation)
        z, truth = logits_of(z.unsqueeze(0), scores, activation)[0], _classes_first(labels[at])
        kept = torch.ones(z.shape[1], dtype=torch.bool, device=z.device)
        if mask is not None:
            kept = _classes_first(mask[at])[0].bool()
        if soft:
            truth = truth.double()
            check_shares(truth[:, kept], classes)
        else:
            truth = check_labels(truth[0], max(2, classes), ignored)
            kept = kept & (truth >= 0)
        if classes == 1:
            z = two_class_logits(z.T).T
            truth = torch.cat([1 - truth, truth]) if soft else truth
        yield z[:, kept], truth[..., kept]


def _classes_first(values: Values) -> Tensor:
    """Return values `[outer, L, inner]` as a tensor `[L, n]`."""
    part = to_tensor(values)
    return part.movedim(1, 0).reshape(part.shape[1], -1)


def _described(part: tuple[Tensor, Tensor]) -> SoftPixels:
    logits, truth = part
    return describe_soft(logits, truth) if truth.ndim == 2 else describe_hard(logits, truth)


def _evidence(classes: int, parts: Parts, bins: int, form: Form, *, equal_mass: bool) -> Evidence:
    """Return the evidence of the pixels; with exact equal-mass bins, for which all are held at once."""
    if form == "marginal":
        nothing, tables = Evidence.zeros(1, classes, bins)[0], _marginal(classes, parts, bins, equal_mass=equal_mass)
        return replace(nothing, equal_mass=tables) if equal_mass else replace(nothing, static=tables)
    pixels: Iterable[SoftPixels] = map(_described, parts)
    if not equal_mass:
        return _counted(pixels, classes, equal_edges(bins))
    pixels = list(pixels)
    found = _counted(pixels, classes, _mass_edges(torch.cat([part.confidence.cpu() for part in pixels]), bins))
    return replace(found, equal_mass=found.top)


def _counted(parts: Iterable[SoftPixels], num_classes: int, edges: Tensor) -> Evidence:
    """Return the evidence of parts in the bins of the confidence between the edges."""
    total = Evidence.zeros(1, num_classes, len(edges) - 1)[0]
    for part in parts:
        own = _histogram(edges.to(part.hit.device), part.confidence, part.predicted, part.hit, num_classes)
        sums = torch.stack([part.nll.sum(), part.brier.sum(), part.entropy.sum()])
        total += Evidence(Histogram(*(field.cpu() for field in own)), part.support.cpu(), sums.cpu())
    return total


def _marginal(classes: int, parts: Parts, bins: int, *, equal_mass: bool) -> Histogram:
    """Return the histogram of the probability of each class against the truth of that class."""
    held = [(probabilities(z.double().T), (q.T if q.ndim == 2 else one_hot(q, classes)).double()) for z, q in parts]
    values, hits = (torch.cat(own).cpu().T.contiguous() for own in zip(*held, strict=True))
    edges = [_mass_edges(value, bins) if equal_mass else equal_edges(bins) for value in values]
    one = torch.zeros(values.shape[1], dtype=torch.int64)
    tables = [_histogram(own, value, one, hit, 1) for own, value, hit in zip(edges, values, hits, strict=True)]
    return Histogram(*(torch.cat(fields) for fields in zip(*tables, strict=True)))


def _histogram(edges: Tensor, value: Tensor, group: Tensor, hit: Tensor, groups: int) -> Histogram:
    """Return pixels, summed `hit` and summed `value` by group and right-closed bin of the value: `[groups, R]`."""
    bins = len(edges) - 1
    key = group * bins + torch.bucketize(value, edges[1:-1].contiguous())
    sums = [value.new_zeros(groups * bins).index_add_(0, key, terms) for terms in (hit, value)]
    return Histogram(*(part.view(groups, bins) for part in (torch.bincount(key, minlength=groups * bins), *sums)))


def _mass_edges(values: Tensor, bins: int) -> Tensor:
    return counting.percentile_edges(values, torch.arange(len(values)), bins)


def _empty(values: Values) -> Tensor:
    """Return a tensor of the same shape that takes no memory."""
    return torch.empty(tuple(values.shape), device="meta")
