"""Cases and calibrators -> portraits of the cases that are named, or of the worst, a typical one and the best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32, Int
from scipy.ndimage import uniform_filter
from torch import Tensor

from segcal.calibrators import Calibrator
from segcal.cases import StreamedCase
from segcal.evaluation.methods import ExclusiveHead, calibrated_slabs, stream_for
from segcal.evaluation.portraits.model import (
    LEVELS,
    LOGARITHMIC,
    NOTHING,
    Curve,
    Kind,
    Layer,
    Patch,
    PixelRegion,
    Portrait,
    Thinning,
)
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.results import Results
from segcal.evidence import Evidence, Pixels, PixelStore, describe
from segcal.functional.counting import positions, positions_in_box
from segcal.functional.temperature import likelihood_slopes
from segcal.regions import Box
from segcal.types import Array, Case, InputError

OTHER = 254
"""Classes beyond those that one byte can count."""
_WORST = ("worst", "second worst", "third worst")

WINDOW = 5
"""Side in pixels, an odd number, of the windows that have a best temperature."""
BOUNDS = (0.125, 8.0)
"""Lowest and highest best temperature."""
_OCTAVES = 6  # from the lower bound to the upper
_STEPS = 2 * _OCTAVES + 1
_FLAT = 1e-9
"""Mean slopes this close to 0 are those of windows without errors, whose optimum is the lower bound."""


def choose_cases(results: Results, named: Sequence[str] = ()) -> dict[str, str]:
    """Return the cases to portray and why: those named, or the worst three, the median and the best.

    Cases are ranked by the Local-Max ECE of the baseline, or by its ECE in *All* where there are no patches.
    """
    frame, baseline = results.to_frame(), results.baseline
    known = list(dict.fromkeys(frame["case"]))
    if unknown := [name for name in named if name not in known]:
        raise InputError(f"cases must be among those measured, got '{unknown[0]}'; the first is '{known[0]}'")
    if named:
        return dict.fromkeys(named, "named")
    region = "local-max" if "local-max" in set(frame["region"]) else "all"
    ranked = _ranked(frame[frame.region == region], baseline)["case"].tolist()
    if not ranked:
        return {}
    chosen = dict(zip(ranked, _WORST, strict=False))
    rest = {ranked[len(ranked) // 2]: "typical", ranked[-1]: "best"}
    return {**chosen, **{name: why for name, why in rest.items() if name not in chosen}}


def choose_patches(results: Results, case: str) -> list[int]:
    """Return the patches with the largest, the median and the smallest ECE of the baseline, of those with pixels."""
    patches = results.patch_frame
    ranked = _ranked(patches[patches.case == case], results.baseline)["patch"].tolist()
    return list(dict.fromkeys(int(ranked[k]) for k in (0, len(ranked) // 2, -1))) if ranked else []


def _ranked(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return the rows with the ECE of a method, from the largest down."""
    own = rows[(rows.method == method) & (rows.metric == "ece")].dropna(subset=["value"])
    return own.sort_values("value", ascending=False, kind="stable")


def make_portraits(
    cases: Iterable[Case],
    calibrators: Mapping[str, Calibrator | None],
    results: Results,
    named: Sequence[str] = (),
) -> list[Portrait]:
    """Portray the cases that are named, or else chosen, of those that `results` were measured on."""
    chosen, protocol = choose_cases(results, named), Protocol.of(results.settings)
    names = results.settings.get("channels") or ()
    heads = [ExclusiveHead(name, protocol, k, len(names)) for k, name in enumerate(names)]
    found: dict[str, list[Portrait]] = {name: [] for name in chosen}
    for case in cases:
        if case.name not in chosen:
            continue
        for head in heads or [ExclusiveHead("", protocol)]:
            fitted = {method: head.method(calibrator, case) for method, calibrator in calibrators.items()}
            own, view = results.channels.get(head.name, results), head.case(case)
            portrait = _portrait(view, chosen[case.name], cast(Mapping[str, Calibrator | None], fitted), own)
            found[case.name].append(replace(portrait, channel=head.name if results.channels else ""))
    return [portrait for portraits in found.values() for portrait in portraits]


def _portrait(case: Case, why: str, calibrators: Mapping[str, Calibrator | None], results: Results) -> Portrait:
    settings = results.settings
    protocol = Protocol.of(settings)
    view = stream_for(protocol, case, calibrators.values())[0]
    labelled = protocol.labelled(view)
    labels, near, inside, boxes = labelled.labels, labelled.boundary, labelled.all[0], protocol.boxes(labelled)
    shape = tuple(int(length) for length in labels.shape[1:])
    shown = choose_patches(results, case.name) if boxes else []
    regions = [positions(inside), *(positions_in_box(inside, boxes[k]) for k in shown)]
    thinned = Thinning.of(shape)
    window = max(5, settings["patch_size"] // 3) | 1
    truth, inner = labels[0].numpy(), inside.numpy()
    maps: list[tuple[Kind, str, Array]] = []
    predictions: dict[str, Array] = {}
    curves: dict[str, list[Curve]] = {}
    for method, calibrator in calibrators.items():
        pixels, temperature = _described(view, calibrator, labels[0])
        curves[method] = _curves(pixels, regions, settings)
        confidence = pixels.confidence.numpy().reshape(shape)
        predicted = pixels.predicted.numpy().reshape(shape)
        keeps = calibrator is None or calibrator.preserves_labels
        predictions["" if keeps else method] = thinned(predicted)
        maps.append(("confidence", method, thinned(confidence)))
        if temperature is not None:
            maps.append(("temperature", method, thinned(temperature)))
        maps.append(("gap", method, thinned(local_gap(confidence, predicted == truth, inner, window))))
        if method == results.baseline:
            maps.append(("accuracy", method, thinned(bin_accuracy(confidence, inner, curves[method][0]))))
        del pixels, temperature, confidence, predicted  # of a volume, before those of the next method are there too
    if (baseline := results.baseline) in calibrators:
        slabs = ((rows, logits) for rows, logits, _ in calibrated_slabs(view, calibrators[baseline]))
        maps.append(("optimum", baseline, local_optimum(slabs, labels[0], thinned)))
    if pooled := next((method for method in calibrators.values() if method is not None and method.uses_passes), None):
        maps.append(("disagreement", "", thinned(_disagreement(view, pooled))))
    classes, coded = coded_labels({"truth": thinned(truth), **predictions})
    layers = [
        *image_layers(case, thinned),
        Layer("truth", "", coded.pop("truth")),
        Layer("region", "", thinned(region_map(truth, inner, near[0].numpy()))),
        *(Layer("prediction", method, values) for method, values in coded.items()),
        *map_layers(maps, settings["num_classes"]),
    ]
    patches = [
        Patch(k, *_corners(boxes[k]), {method: curves[method][1 + j] for method in curves}) for j, k in enumerate(shown)
    ]
    return Portrait(
        name=case.name,
        why=why,
        shape=shape,
        kept=thinned.kept(shape),
        spacing=tuple(float(step) for step in case.spacing) if case.spacing is not None else (1.0,) * len(shape),
        window=window,
        classes=classes,
        layers=tuple(layers),
        curves={method: found[0] for method, found in curves.items()},
        patches=tuple(patches),
        boxes=tuple(_corners(box) for box in boxes),
        orientation=case.orientation,
    )


def _described(case: StreamedCase, calibrator: Calibrator | None, labels: Tensor) -> tuple[Pixels, Array | None]:
    """Return what the metrics know of each pixel, and the temperatures where the method has them."""
    described, heats = PixelStore(labels.numel()), []
    for rows, logits, temperature in calibrated_slabs(case, calibrator):
        described.add(describe(logits[0].cpu(), labels[rows]))
        if temperature is not None:
            heats.append(temperature[0, 0].float().cpu())
    return described.pixels(), torch.cat(heats).numpy() if heats else None


def _disagreement(case: StreamedCase, calibrator: Calibrator) -> Array:
    """Return the mutual information between the label of each pixel and the pass that predicts it, in nats."""
    parts = (slab.disagreement() for slab in calibrator.calibrate_case(case))
    return torch.cat([part[0, 0].float().cpu() for part in parts if part is not None]).numpy()


def _curves(pixels: Pixels, regions: Sequence[Tensor], settings: Mapping[str, Any]) -> list[Curve]:
    evidence = Evidence.of(
        pixels, regions, num_classes=settings["num_classes"], bins=settings["bins"], equal_mass=False
    )
    merged = [part.sum(dim=-2).tolist() for part in evidence.top]
    return [tuple(zip(*(part[k] for part in merged), strict=True)) for k in range(len(regions))]


def _corners(box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(interval.start for interval in box), tuple(interval.stop for interval in box)


def local_gap(confidence: Array, hit: Array, inside: Array, window: int) -> Array:
    """Return mean confidence minus accuracy of the pixels inside, within a window around each; NaN outside.

    Examples:
        >>> gap = local_gap(np.full((1, 3), 0.75), np.array([[True, True, False]]), np.ones((1, 3), bool), 3)
        >>> gap.round(3)
        array([[-0.25 ,  0.083,  0.25 ]])
    """
    total = uniform_filter(np.where(inside, confidence - hit, 0.0), window, mode="constant")
    share = uniform_filter(inside.astype(np.float64), window, mode="constant")
    return np.where(inside, total / np.maximum(share, 1e-12), np.nan)


def bin_accuracy(confidence: Array, inside: Array, curve: Curve) -> Array:
    """Return the accuracy of the reliability bin of each pixel inside (Fig. 1, middle); NaN outside.

    Examples:
        >>> curve = ((2, 1, 0.8), (4, 3, 3.6))
        >>> bin_accuracy(np.array([0.4, 0.5, 0.9]), np.array([True, True, True]), curve)
        array([0.5 , 0.5 , 0.75])
    """
    bins = len(curve)
    count, hit, _ = np.array(curve).T
    accuracy = hit / np.maximum(count, 1)
    position = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    return np.where(inside, accuracy[position], np.nan)


def region_map(labels: Array, inside: Array, near: Array) -> Array:
    """Return what each pixel belongs to, as bytes: a `PixelRegion`, or `NOTHING` where the label is ignored."""
    regions = np.where(near, PixelRegion.BOUNDARY, np.where(inside, PixelRegion.ALL, PixelRegion.OUTSIDE))
    return np.where(labels < 0, NOTHING, regions).astype(np.uint8)


def coded_labels(labels: Mapping[str, Array]) -> tuple[tuple[int, ...], dict[str, Array]]:
    """Return the classes that occur, and labels as positions among them; ignored labels become 255."""
    present = np.unique(np.concatenate([np.unique(values) for values in labels.values()]))
    classes = present[present >= 0]
    coded = {
        name: np.where(values < 0, NOTHING, np.minimum(np.searchsorted(classes, values), OTHER)).astype(np.uint8)
        for name, values in labels.items()
    }
    return tuple(int(c) for c in classes[:OTHER]), coded


def map_layers(maps: Sequence[tuple[Kind, str, Array]], num_classes: int) -> Iterator[Layer]:
    """Maps in 8 bits; those of one kind share their range, so that methods can be compared by eye."""
    heats = [np.abs(np.log(values)) for kind, _, values in maps if kind == "temperature"]
    heat = float(np.exp(1.2 * max([np.log(1.5), *(np.quantile(values, 0.995) for values in heats)])))
    gaps = [np.abs(values[~np.isnan(values)]) for kind, _, values in maps if kind == "gap"]
    gap = float(min(1.0, max([0.05, *(np.quantile(values, 0.995) for values in gaps if values.size)])))
    most = max([0.05, *(float(values.max()) for kind, _, values in maps if kind == "disagreement")])
    ranges: dict[Kind, tuple[float, float]] = {
        "confidence": (1 / num_classes, 1.0),
        "accuracy": (1 / num_classes, 1.0),  # as the confidence, beside which it is shown
        "temperature": (1 / heat, heat),
        "optimum": BOUNDS,
        "gap": (-gap, gap),
        "disagreement": (0.0, most),
    }
    for kind, method, values in maps:
        low, high = ranges[kind]
        share = np.log(values / low) / np.log(high / low) if kind in LOGARITHMIC else (values - low) / (high - low)
        level = np.rint(LEVELS * np.clip(np.nan_to_num(share), 0, 1))
        yield Layer(kind, method, np.where(np.isnan(share), NOTHING, level).astype(np.uint8), low, high)


def image_layers(case: Case, thinned: Thinning) -> Iterator[Layer]:
    """The image in colour or grey, scaled to 8 bits; nothing for a case without an image."""
    if case.image is None:
        return
    image = np.asarray(case.image)
    channels = image[:3] if image.shape[0] == 3 else image[:1]
    pictures = np.stack([thinned(channel) for channel in channels], axis=-1)
    if pictures.dtype != np.uint8:
        pictures = pictures.astype(np.float64)
        low, high = (0.0, 1.0) if pictures.min() >= 0 and pictures.max() <= 1 else np.quantile(pictures, (0.001, 0.999))
        pictures = np.rint(255 * np.clip((pictures - low) / max(high - low, 1e-12), 0, 1)).astype(np.uint8)
    yield Layer("image", "", pictures if pictures.shape[-1] == 3 else pictures[..., 0])


def local_optimum(
    slabs: Iterable[tuple[slice, Float[Tensor, "1 L *R"]]],
    labels: Int[Tensor, "*S"],
    thinned: Thinning | None = None,
) -> Array:
    """Return the temperature of least NLL over the window around each labelled pixel (Fig. 1, right); NaN elsewhere.

    By Theorem 1 the slope of the log-likelihood in 1/T, the sum of z_label - E[z], has one root, which is the optimum.
    The slope is summed over the window at 13 temperatures, and the root is interpolated between two of them. Window
    sums are plain sums in a fixed order: running sums would depend on where they start.

    Values outside 1/8..8 are set to these bounds: a window without errors asks for T = 0.

    Args:
        slabs: Rows of the case and their logits, in order.
        labels: True classes, negative where ignored.
        thinned: Pixels to return the temperature of; all of them by default.
    """
    kept, slopes = thinned or Thinning((1,) * labels.ndim), np.empty((_STEPS, *labels.shape), np.float32)
    for rows, logits in slabs:
        truth = labels[rows]
        own = likelihood_slopes(logits[0].cpu().flatten(1), truth.flatten(), BOUNDS[0], _OCTAVES)
        slopes[:, rows] = own.view(_STEPS, *truth.shape).numpy()
    means = np.stack([kept(_window_mean(step)) for step in slopes])
    return np.where(kept(labels.numpy()) >= 0, _roots(means), np.nan)


@np.errstate(over="ignore")  # of logits near the largest number, whose slopes are infinite
def _window_mean(slopes: Float32[np.ndarray, "*S"]) -> Float32[np.ndarray, "*S"]:
    """Return the means over windows, 0 beyond the edges, always added in the same order."""
    for axis in (*range(1, slopes.ndim), 0):
        widths = [(WINDOW // 2, WINDOW // 2) if k == axis else (0, 0) for k in range(slopes.ndim)]
        padded, length = np.moveaxis(np.pad(slopes, widths), axis, 0), slopes.shape[axis]
        slopes = np.moveaxis(reduce(np.add, (padded[k : k + length] for k in range(WINDOW))), 0, axis)
    return slopes / np.float32(WINDOW**slopes.ndim)


@np.errstate(invalid="ignore")
def _roots(slopes: Float32[np.ndarray, "steps *S"]) -> Array:
    """Return where slopes `[steps, *S]`, which rise with the temperature, cross zero."""
    logs = np.log(BOUNDS[0] * 2 ** (np.arange(_STEPS) / 2))
    below = np.clip((slopes < -_FLAT).sum(axis=0), 1, _STEPS - 1)  # first step at or above the root
    left, right = (np.take_along_axis(slopes, (below - k)[np.newaxis], axis=0)[0] for k in (1, 0))
    rise = right - left
    share = np.clip(np.divide(-left, rise, out=np.zeros_like(rise), where=rise > 0), 0, 1)
    return np.asarray(np.exp(logs[below - 1] + share * (logs[below] - logs[below - 1])))
