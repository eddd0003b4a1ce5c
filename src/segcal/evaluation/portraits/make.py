"""Cases and calibrators -> portraits of the cases that are named, or of the worst, a typical one and the best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators import Calibrator, SigmoidHead
from segcal.cases import StreamedCase
from segcal.evaluation.methods import ExclusiveHead, calibrated_slabs, stream_for
from segcal.evaluation.portraits.maps import (
    bin_accuracy,
    coded_labels,
    image_layers,
    local_gap,
    map_layers,
    region_map,
)
from segcal.evaluation.portraits.model import Curve, Kind, Layer, Patch, Portrait, Thinning
from segcal.evaluation.portraits.optimum import local_optimum
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.results import Results
from segcal.evidence import Evidence, Pixels, PixelStore, describe
from segcal.functional.masks import positions
from segcal.regions import Box, box_index
from segcal.types import Array, Case, InputError

_WORST = ("worst", "second worst", "third worst")


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
    rows = frame[(frame.method == baseline) & (frame.metric == "ece") & (frame.region == region)]
    ranked = rows.dropna(subset=["value"]).sort_values("value", ascending=False, kind="stable")["case"].tolist()
    if not ranked:
        return {}
    chosen = dict(zip(ranked, _WORST, strict=False))
    rest = {ranked[len(ranked) // 2]: "typical", ranked[-1]: "best"}
    return {**chosen, **{name: why for name, why in rest.items() if name not in chosen}}


def choose_patches(results: Results, case: str) -> list[int]:
    """Return the patches with the largest, the median and the smallest ECE of the baseline, of those with pixels."""
    patches = results.patches()
    if not len(patches):
        return []
    rows = patches[(patches.case == case) & (patches.method == results.baseline) & (patches.metric == "ece")]
    ranked = rows.dropna(subset=["value"]).sort_values("value", ascending=False, kind="stable")["patch"].tolist()
    return list(dict.fromkeys(int(ranked[k]) for k in (0, len(ranked) // 2, -1))) if ranked else []


def make_portraits(
    cases: Iterable[Case],
    calibrators: Mapping[str, Calibrator | None],
    results: Results,
    named: Sequence[str] = (),
) -> list[Portrait]:
    """Portray the cases that are named, or else chosen, of those that `results` were measured on."""
    chosen = choose_cases(results, named)
    names = results.settings.get("channels") or ()
    found: dict[str, list[Portrait]] = {}
    for case in cases:
        if case.name in chosen:
            found[case.name] = list(_portraits(case, chosen[case.name], calibrators, results, names))
    return [portrait for name in chosen for portrait in found.get(name, ())]


def _portraits(
    case: Case, why: str, calibrators: Mapping[str, Calibrator | None], results: Results, channels: Sequence[str]
) -> Iterator[Portrait]:
    """Yield the portrait of a case, or one for each channel of a sigmoid head."""
    if not channels:
        yield _portrait(case, why, calibrators, results)
    for k, name in enumerate(channels):
        head = ExclusiveHead(name, Protocol.of(results.settings), k, len(channels))
        own = results.channels.get(name, results)
        fitted = {
            method: calibrator.channel(k) if isinstance(calibrator, SigmoidHead) else calibrator
            for method, calibrator in calibrators.items()
        }
        portrait = _portrait(head.case(case), why, fitted, own)
        yield replace(portrait, channel=name if results.channels else "")


def _portrait(case: Case, why: str, calibrators: Mapping[str, Calibrator | None], results: Results) -> Portrait:
    settings = results.settings
    protocol = Protocol.of(settings)
    view = stream_for(protocol, case, calibrators.values())[0]
    labelled = protocol.labelled(view)
    labels, near, inside, boxes = labelled.labels, labelled.boundary, labelled.all[0], protocol.boxes(labelled)
    shape = tuple(int(length) for length in labels.shape[1:])
    shown = choose_patches(results, case.name) if boxes else []
    regions = [positions(inside), *(box_index(boxes[k], inside) for k in shown)]
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
            slabs = ((rows, logits) for rows, logits, _ in calibrated_slabs(view, calibrator))
            maps.append(("accuracy", method, thinned(bin_accuracy(confidence, inner, curves[method][0]))))
            maps.append(("optimum", method, local_optimum(slabs, labels[0], thinned=thinned)))
        del pixels, temperature, confidence, predicted  # of a volume, before those of the next method are there too
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
